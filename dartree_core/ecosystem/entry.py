"""`model.generate(..., custom_generate=dartree_core.custom_generate, drafter="...")`.

transformers prepares inputs, settings, logits processors and stopping criteria as always, and
hands them to the callable, which decodes in its place. What cannot be honoured exactly is refused
by name: the output is what `generate` would return without the callable.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from dartree_core.config import PRESETS, DecodeConfig, Method, TreeConfig
from dartree_core.ecosystem.contract import in_step, read_sampling, refuse_unsupported
from dartree_core.ecosystem.decoders import decoder_for
from dartree_core.ecosystem.rows import join_rows, read_rows
from dartree_core.ecosystem.stopping import Ends, Stopping
from dartree_core.errors import ConfigError
from dartree_core.events import PrefillDone, RoundDone

if TYPE_CHECKING:
    from dartree_core.draft.drafter import Drafter
    from dartree_core.engine import Decoder


def custom_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    synced_gpus: bool = False,
    streamer: Any = None,
    *,
    drafter: str | Drafter | None = None,
    method: Method = "dartree",
    budget: int | Literal["auto"] = "auto",
    tree: TreeConfig | None = None,
    seed: int | None = None,
    **model_kwargs: Any,
) -> Any:
    """Decode with draft trees inside `transformers.GenerationMixin.generate`.

    Pass it as `custom_generate=`; the keywords below go to `generate` beside its own. The model
    is neither changed nor copied, and may be any that `Target` accepts. The drafter is loaded on
    the first call for a model and kept for later ones, for as long as the model lives.

    Greedy output equals plain `generate`'s in float32. Sampled output follows the same
    distribution and is a function of `seed`, whatever the method and the tree; it is not the text
    that `generate` draws with the same torch seed, since noise here is keyed by position.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus,
            streamer, model_kwargs: As `generate` hands them over; `input_ids` is int64 `[b, n]`,
            left-padded. Rows are decoded one after another, each in its own cache.
        drafter: A folder, a hub id, or a drafter loaded for this very model object; None takes
            the published one for the model's hub id, where there is one.
        method: Who drafts; `ar` decodes plainly and needs no drafter.
        budget: Most draft nodes verified a round, or `auto`.
        tree: All tree settings at once; `budget` then counts where it is not `auto`.
        seed: For sampling; None draws one from torch's generator, so `torch.manual_seed` decides.
            Row i of a batch uses `seed + i`.

    Returns:
        int64 `[b, n + longest answer]`, padded behind ended rows; or a
        `GenerateDecoderOnlyOutput` with these as `sequences` under `return_dict_in_generate`.

    Raises:
        ConfigError: Something asked for cannot be honoured exactly (named, with a remedy).
        CheckpointError: The model or drafter is of an unsupported kind, or they do not fit.
        CapacityError: A prompt fills the model's context.
    """
    streamer = streamer or _callers("streamer")
    refuse_unsupported(
        model,
        generation_config,
        model_kwargs,
        synced_gpus=synced_gpus or bool(_callers("synced_gpus")) or in_step(model),
        assistant=_callers("assistant_model"),
    )
    rows = read_rows(input_ids, model_kwargs)
    if streamer is not None and len(rows) > 1:
        raise ConfigError(
            f"A streamer was given for a batch of {len(rows)}, whose rows are decoded one after "
            "another.",
            "Stream one sequence at a time.",
        )
    if generation_config.do_sample and seed is None:
        seed = int(torch.randint(2**63 - 1, (1,)))
    sampling = read_sampling(logits_processor or [], generation_config, seed or 0, rows)
    stopping = Stopping(stopping_criteria or [], input_ids)
    decoder = decoder_for(model, None if method == "ar" else drafter, needed=method != "ar")
    config = DecodeConfig(
        method=method,
        tree=_tree(tree, budget),
        sampling=sampling,
        max_new_tokens=stopping.limit or decoder.target.max_positions,
        ignore_eos=True,  # the stopping criteria say what ends a row
    )
    answers = []
    for i, row in enumerate(rows):
        own = config.with_changes(seed=(sampling.seed + i) % 2**63)
        answers.append(_answer(decoder, row.ids, own, _Growing(stopping.row(i), streamer)))
    if streamer is not None:
        streamer.end()
    sequences = join_rows(input_ids, answers, generation_config)
    if generation_config.return_dict_in_generate:
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=sequences)
    return sequences


def generate(model: Any, inputs: Tensor | None = None, **options: Any) -> Any:
    """`model.generate` with draft trees, as a function of the model.

    Args:
        model: A transformers causal language model.
        inputs, options: Those of `model.generate` and `custom_generate`, `drafter` among them.
            Unlike with the callable, `stop_strings` work: transformers mislays the tokenizer on
            the way to a callable, so the criterion is made here.

    Returns, Raises: As `custom_generate`.
    """
    from transformers import GenerationMixin, StopStringCriteria

    options.pop("custom_generate", None)
    given = options.get("generation_config") or getattr(model, "generation_config", None)
    stop_strings = options.pop("stop_strings", getattr(given, "stop_strings", None))
    if stop_strings is not None:
        if options.get("tokenizer") is None:
            raise ConfigError("stop_strings were given without a tokenizer.", "Pass tokenizer=.")
        criterion = StopStringCriteria(
            stop_strings=stop_strings, tokenizer=options.pop("tokenizer")
        )
        options["stopping_criteria"] = [*(options.get("stopping_criteria") or ()), criterion]
        options["stop_strings"] = None  # transformers would ask for the tokenizer again
    options.pop("tokenizer", None)
    # Not `model.generate`: a repository's own generate.py replaces that method, and would recurse.
    return GenerationMixin.generate(model, inputs, custom_generate=custom_generate, **options)


class _Growing:
    """One row's answer while it grows: every token is kept, streamed, and checked for an end."""

    def __init__(self, ends: Ends, streamer: Any) -> None:
        self.tokens: list[int] = []
        self._ends = ends
        self._streamer = streamer

    def push(self, token: int) -> bool:
        """Take a token; True when it ends the row."""
        self.tokens.append(token)
        if self._streamer is not None:
            self._streamer.put(torch.tensor([token]))
        return self._ends(token)


def _answer(decoder: Decoder, prompt: list[int], config: DecodeConfig, row: _Growing) -> list[int]:
    """Decode one row until a criterion or the limit ends it."""
    with closing(decoder.stream(prompt, config)) as turn:
        for event in turn:
            if isinstance(event, PrefillDone):
                tokens = [event.first_token]
            elif isinstance(event, RoundDone):
                tokens = list(event.tokens)
            else:
                continue
            if any(row.push(token) for token in tokens):
                return row.tokens
    if len(row.tokens) < config.max_new_tokens:
        warnings.warn(
            f"The answer was cut at {len(prompt) + len(row.tokens)} tokens, the end of the "
            "model's context.",
            stacklevel=2,
        )
    return row.tokens


def _tree(tree: TreeConfig | None, budget: int | Literal["auto"]) -> TreeConfig:
    tree = tree or PRESETS["auto"]
    return tree if budget == "auto" else replace(tree, budget=budget)


def _callers(name: str) -> Any:
    """An argument of the `generate` call we run in.

    transformers 5 passes a callable only the arguments in its own signature that are none of
    `generate`'s, so that a streamer hears the prompt and then nothing. It is still there, one
    frame up.
    """
    from transformers import GenerationMixin

    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals.get(name)
        frame = frame.f_back
    return None
