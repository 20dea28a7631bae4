"""The decoder: a generator of events.

    prefill -> [ draft -> build -> verify -> commit ]* -> finish

Pausing is not pulling the next event; cancelling is `Session.cancel`, or closing the generator.
State that outlives a turn is in the `Session`, and changes only when a round commits, so a turn
may be left at any event or by any exception.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import torch

from dartree_core.config import DecodeConfig, Method
from dartree_core.draft.drafter import Drafter
from dartree_core.draft.graft import Grafter
from dartree_core.engine.answer import Answer
from dartree_core.engine.budget import BudgetPolicy
from dartree_core.engine.budgets import Budgets, Kind, TurnBudgets
from dartree_core.engine.coupling import Coupling
from dartree_core.engine.defaults import eos_ids
from dartree_core.engine.describe import run_started
from dartree_core.engine.footprint import PREFILL_CHUNK, require
from dartree_core.engine.prompt import Prompt, PromptLike, encode_prompt, thinking_notes
from dartree_core.engine.round import Cancelled, Round
from dartree_core.engine.sampling import Chooser
from dartree_core.engine.session import Session
from dartree_core.errors import CapacityError, ConfigError
from dartree_core.events import Event, PrefillDone, RoundDone, TurnFinished, TurnStarted
from dartree_core.metrics import RunningMetrics
from dartree_core.models.memory import Memory
from dartree_core.models.room import free_bytes
from dartree_core.models.target import Target

log = logging.getLogger(__name__)

Turn: TypeAlias = Generator[Event, None, None]


class Decoder:
    """A target, and perhaps a drafter, ready to decode.

    Args:
        target: The model whose output is reproduced.
        drafter: Needed by every method but `ar`.
        tokenizer: transformers tokenizer; None for models that speak ids only.
        bundle: Name shown to users.
        memory: Where measurements of this machine are kept.
        notes: What the user should know about how these came together, one sentence each.

    Attributes:
        notes: These, and the target's own.
        free_bytes: Says how much memory a turn may need; replace it to set a limit.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        tokenizer: Any | None = None,
        *,
        bundle: str = "",
        memory: Memory | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.tokenizer = tokenizer
        self.bundle = bundle
        self.notes = (*target.notes, *notes)
        self.eos = eos_ids(target.model, tokenizer)
        self.memory = memory or Memory()
        self.free_bytes: Callable[[torch.device], int | None] = free_bytes
        self._budgets: Budgets | None = None
        self._coupling = Coupling(target.embed)
        self._grafter = Grafter()
        self._warned = False

    def budget_policy(self, method: Method = "dartree", kind: Kind = "greedy") -> BudgetPolicy:
        """Who sizes rounds under budget `auto`; measures pass costs when first asked for.

        Raises:
            ConfigError: There is no drafter to budget for.
        """
        return self._all_budgets().policy(method, kind)

    def _all_budgets(self) -> Budgets:
        if self.drafter is None:
            raise ConfigError("Budget auto needs a drafter.", "Give one with --draft.")
        if self._budgets is None:
            self._budgets = Budgets(self.target, self.drafter, self.memory)
        return self._budgets

    def session(self) -> Session:
        """Fresh caches for one conversation."""
        return Session(self.target, self.drafter)

    def encode(
        self, prompt: PromptLike, *, raw: bool = False, thinking: bool | None = None
    ) -> Prompt:
        """Encode a prompt for this target; see `encode_prompt`."""
        return encode_prompt(prompt, self.tokenizer, raw=raw, thinking=thinking)

    def stream(
        self,
        prompt: PromptLike | Prompt,
        config: DecodeConfig | None = None,
        *,
        session: Session | None = None,
        raw: bool = False,
        thinking: bool | None = None,
    ) -> Turn:
        """Decode one turn.

        Settings are checked, and the prompt encoded, before this returns; models run as events
        are pulled.

        Args:
            prompt: Text, chat messages, token ids, or an encoded prompt.
            config: Settings; None for defaults.
            session: The conversation to go on with; what its caches share with the prompt is not
                computed again. None starts afresh.
            raw, thinking: See `encode_prompt`.

        Returns:
            A generator of `RunStarted` (first turn of a session), `TurnStarted`, `PrefillDone`,
            `RoundDone` per round (after its stage events, with `config.stages`), and
            `TurnFinished`.

        Raises:
            ConfigError: A setting does not fit the models, or the prompt is unusable.
            CapacityError: The prompt does not fit into the target's context, or the turn into
                the memory that is free.
        """
        config = config or DecodeConfig()
        encoded = (
            prompt
            if isinstance(prompt, Prompt)
            else self.encode(prompt, raw=raw, thinking=thinking)
        )
        self._check(encoded, config)
        session = session or self.session()
        free = self.free_bytes(self.target.device)
        require(self.target, self.drafter, len(encoded.ids), config, session, free)
        session.arm()
        return self._turn(encoded, config, session)

    def generate(
        self, prompt: PromptLike | Prompt, config: DecodeConfig | None = None, **options: Any
    ) -> TurnFinished:
        """Decode one turn and return its end; arguments as in `stream`."""
        for event in self.stream(prompt, config, **options):
            if isinstance(event, TurnFinished):
                return event
        raise AssertionError("a turn always finishes")

    def _check(self, prompt: Prompt, config: DecodeConfig) -> None:
        if config.method != "ar":
            if self.drafter is None:
                raise ConfigError(
                    f"Method {config.method!r} drafts, but no drafter is loaded.",
                    "Give one with --draft, or decode plainly with --method ar.",
                )
            self.drafter.block_size(config.tree.block_size)
        if config.stop and self.tokenizer is None:
            raise ConfigError(
                "Stop strings were given, but this model has no tokenizer to read text with.",
                "Leave them out, or give a model directory with tokenizer files.",
            )
        if not prompt.ids:
            raise ConfigError("The prompt is empty.", "Give at least one token.")
        rows = self.target.embedding.weight.shape[0]
        foreign = next((i for i in prompt.ids if not 0 <= i < rows), None)
        if foreign is not None:
            raise ConfigError(
                f"Token id {foreign} of the prompt is outside the target's {rows} embeddings.",
                "Give ids of this target's own tokenizer.",
            )
        longest = self.target.max_positions
        if len(prompt.ids) >= longest:
            raise CapacityError(
                f"The prompt has {len(prompt.ids)} tokens; this target reads at most {longest}, "
                "the answer included.",
                "Shorten the prompt or the conversation.",
            )

    def _turn(self, prompt: Prompt, config: DecodeConfig, session: Session) -> Turn:
        metrics = RunningMetrics()
        for event in self._events(prompt, config, session, metrics):
            metrics.update(event)
            yield event

    @torch.inference_mode()
    def _events(
        self, prompt: Prompt, config: DecodeConfig, session: Session, metrics: RunningMetrics
    ) -> Turn:
        asked = time.perf_counter()
        drafting = config.method != "ar"
        turn = session.turn
        if turn == 0:
            notes = (*self.notes, *self._told_of_thinking(prompt, config))
            yield run_started(self.target, self.drafter, self.bundle, prompt, config, notes)
        yield TurnStarted(turn, prompt.text, prompt.ids, prompt.template, config.to_dict())
        limit = min(config.max_new_tokens, self.target.max_positions - len(prompt.ids))
        eos = frozenset() if config.ignore_eos else self.eos
        answer = Answer(self._decode_text(), config.stop, eos, limit)
        chooser = Chooser(config.sampling, prompt.ids, self.target.device)
        try:
            began = time.perf_counter()
            reused = session.begin(prompt.ids, drafting=drafting)
            budgets = TurnBudgets(self._all_budgets, config, answer.room - 1)
            rounds = Round(
                session, config, answer, chooser, turn, budgets, self._coupling, self._grafter
            )
            root = self._prefill(prompt.ids[reused:], session, drafting, chooser)
            if rounds.opens_with_a_draft:
                session.encode_pending()
            answer.emit([root])
            chooser.extend([root])
            now = time.perf_counter()
            delta, span = answer.text.delta()
            yield PrefillDone(
                turn=turn,
                prompt_tokens=len(prompt.ids),
                reused_tokens=reused,
                seconds=round(now - began, 4),
                ttft=round(now - asked, 4),
                first_token=root,
                text_delta=delta,
                span=span,
            )
            while answer.reason is None:
                done: RoundDone = yield from rounds.run()
                if not drafting and self.drafter is not None:
                    host_ms = done.ms["tree_setup"] + done.ms["commit"]
                    self._all_budgets().observe_plain(done.ms["verify"], host_ms)
                yield done
            budgets.remember()
        except Cancelled:
            pass
        if answer.reason is None:
            answer.cancel()
        delta, span = answer.text.delta()
        yield TurnFinished(
            turn=turn,
            reason=answer.reason or "cancelled",
            text=answer.text.text,
            token_ids=list(answer.token_ids),
            text_delta=delta,
            span=span,
            metrics=metrics.summary(),
        )

    def _told_of_thinking(self, prompt: Prompt, config: DecodeConfig) -> tuple[str, ...]:
        """What there is to say about a thinking prompt; the log hears it once."""
        found = thinking_notes(prompt.template, config)
        if found and not self._warned:
            self._warned = True
            log.info("%s", found[0])
        return found

    def _prefill(
        self, tokens: Sequence[int], session: Session, drafting: bool, chooser: Chooser
    ) -> int:
        """Read the prompt's new part in chunks and choose the first token."""
        device = self.target.device
        taps = self.drafter.taps if drafting and self.drafter else ()
        logits = torch.empty(0)
        for at in range(0, len(tokens), PREFILL_CHUNK):
            if session.cancelled:
                raise Cancelled
            chunk = tokens[at : at + PREFILL_CHUNK]
            out = self.target.forward(
                torch.tensor(chunk, device=device), session.cache, taps=taps, last_only=True
            )
            session.commit(chunk, torch.arange(len(chunk), device=device), out.features)
            logits = out.logits
            if at + PREFILL_CHUNK < len(tokens):
                session.encode_pending()  # a long prompt's features would fill the memory
        return int(chooser.choose(logits, [len(session.ids)], [[]]))

    def _decode_text(self) -> Callable[[list[int]], str]:
        if self.tokenizer is None:
            return lambda ids: ""
        decode = self.tokenizer.decode
        return lambda ids: decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
