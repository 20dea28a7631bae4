"""Other engines in the same run: transformers' own ways to generate.

They work on a transformers model of their own, since the lean target takes its weights over, and
are timed from outside: the first tokens end the prefill, the last ones the decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dartree_core.bench.plan import PEERS
from dartree_core.bench.records import TurnRecord
from dartree_core.bench.speakers import Speaker
from dartree_core.bench.stop import Stop
from dartree_core.config import DecodeConfig
from dartree_core.errors import DARTreeError

if TYPE_CHECKING:
    from dartree_core.engine import Decoder
    from dartree_core.engine.prompt import Prompt

LOOKUP_TOKENS = 10
"""Tokens prompt lookup copies at most, as in transformers' documentation."""


class Unavailable(Exception):  # noqa: N818
    """A peer cannot run here, and why."""


@dataclass(slots=True)
class PeerSource:
    """What peers load.

    Attributes:
        target: The target's folder.
        draft: The drafter's folder, or None.
        assistant: Folder of an assistant model, or None.
        dtype: Name of the peers' dtype; `auto` picks what transformers computes well here.
        trust_remote_code: Run code that a model brings.
    """

    target: Path
    draft: Path | None = None
    assistant: Path | None = None
    dtype: str = "auto"
    trust_remote_code: bool = False
    _loaded: dict[Path, Any] = field(default_factory=dict)

    def model(self, decoder: Decoder) -> Any:
        """The target as transformers runs it: the decoder's own model, where that is it."""
        from dartree_core.models.target import Target
        from dartree_core.parallel.sharded import ShardedTarget

        if isinstance(decoder.target, ShardedTarget):
            raise Unavailable("other engines do not run on a target that is split over processes")
        if type(decoder.target) is Target:
            return decoder.target.model
        return self.load(self.target, decoder)

    def load(self, folder: Path, decoder: Decoder) -> Any:
        """A transformers model beside the decoder's, loaded once."""
        from dartree_core.models import load_target, pick_dtype

        if folder not in self._loaded:
            place = decoder.target.device
            self._loaded[folder] = load_target(
                folder,
                device=place,
                dtype=None if self.dtype == "auto" else pick_dtype(self.dtype, place),
                trust_remote_code=self.trust_remote_code,
            ).model
        return self._loaded[folder]


def prepare(
    methods: Sequence[str], decoder: Decoder, source: PeerSource, stop: Stop
) -> tuple[dict[str, Speaker], dict[str, str]]:
    """Speakers for the peers that can run, and reasons for the others.

    Args:
        methods: Names from `PEERS`.
        decoder: Whose target, drafter and tokenizer they share in name.
        source: Where their models are.
        stop: The user's wish to stop.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()  # it warns about settings it was given by itself
    speakers: dict[str, Speaker] = {}
    missing: dict[str, str] = {}
    for method in methods:
        try:
            options = _OPTIONS[method](decoder, source)
            model = source.model(decoder)
            speakers[method] = TransformersSpeaker(method, model, decoder, stop, options)
        except Unavailable as reason:
            missing[method] = str(reason)
        except (DARTreeError, OSError, ValueError, RuntimeError, MemoryError) as error:
            missing[method] = f"{PEERS[method]} could not be set up: {error}"
    return speakers, missing


class TransformersSpeaker:
    """`model.generate` with fixed options.

    Args:
        method: Name of the peer.
        model: A transformers model.
        decoder: For end-of-sequence tokens, the context limit and the tokenizer.
        stop: The user's wish to stop.
        options: Further arguments of `generate`.
    """

    def __init__(
        self, method: str, model: Any, decoder: Decoder, stop: Stop, options: dict[str, Any]
    ) -> None:
        self._speculates = method != "hf"
        self._model = model
        self._decoder = decoder
        self._stop = stop
        self._options = options

    @property
    def dtype(self) -> str:
        """Of the model's weights."""
        return str(self._model.dtype).removeprefix("torch.")

    def begin(self) -> None:
        """Nothing is kept between turns: transformers reads the whole conversation again."""

    def answer(self, prompt: Prompt, config: DecodeConfig) -> TurnRecord:
        """Generate one turn.

        Raises:
            Stopped: The user asked to stop.
        """
        import torch

        self._stop.check()
        torch.manual_seed(config.sampling.seed)
        ids = torch.tensor([prompt.ids], device=self._model.device)
        meter = _Meter()
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                streamer=meter,
                stopping_criteria=[self._criterion()],
                **self._settings(config, len(prompt.ids)),
                **self._options,
            )
        self._stop.check()
        answer: list[int] = out[0, len(prompt.ids) :].tolist()
        ended = not config.ignore_eos and answer[-1] in self._decoder.eos
        return self._record(prompt, answer, "eos" if ended else "length", meter)

    def _settings(self, config: DecodeConfig, length: int) -> dict[str, Any]:
        room = self._decoder.target.max_positions - length
        eos = [] if config.ignore_eos else sorted(self._decoder.eos)
        sampling = config.sampling
        settings: dict[str, Any] = {
            "max_new_tokens": min(config.max_new_tokens, room),
            "eos_token_id": eos or None,
            "pad_token_id": min(self._decoder.eos, default=0),
            "repetition_penalty": sampling.repetition_penalty,
            "do_sample": not sampling.greedy,
        }
        if not sampling.greedy:
            settings |= {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p or None,
            }
        return settings

    def _criterion(self) -> Any:
        import torch

        def stopped(ids: Any, scores: Any, **_: Any) -> Any:
            return torch.full((len(ids),), self._stop.asked, device=ids.device)

        return stopped

    def _record(self, prompt: Prompt, answer: list[int], reason: str, meter: _Meter) -> TurnRecord:
        tokenizer = self._decoder.tokenizer
        prefill, decode = meter.seconds()
        first, later = meter.sizes[0], meter.sizes[1:]
        return TurnRecord(
            prompt_tokens=len(prompt.ids),
            reused_tokens=0,
            token_ids=answer,
            text="" if tokenizer is None else tokenizer.decode(answer, skip_special_tokens=True),
            reason=reason,
            decode_tokens=len(answer) - first,
            decode_s=decode,
            prefill_s=prefill,
            metrics=_metrics(later, len(answer), prefill, decode, self._speculates),
        )


def _metrics(
    sizes: Sequence[int], emitted: int, prefill: float, decode: float, speculates: bool
) -> dict[str, Any]:
    """What can be seen of a peer from outside, under the names of `RunningMetrics.summary`.

    What it drafted is not visible; steps are filed under the longest it accepted.
    """
    longest = max(sizes, default=1) - 1
    histogram = [0] * (longest + 1)
    for size in sizes:
        histogram[size - 1] += 1
    return {
        "acceptance_histogram_by_draft_length": {str(longest): histogram} if speculates else {},
        "num_plain_steps": 0 if speculates else len(sizes),
        "num_tree_nodes": 0,
        "num_supertree_nodes": 0,
        "bonus_fates": {},
        "num_emitted_tokens": emitted,
        "ttft_s": prefill,
        "prefill_s": prefill,
        "stage_ms_total": {"decode": round(decode * 1e3, 4)},
    }


class _Meter:
    """A streamer of transformers' kind: how many tokens came when."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._times: list[float] = []
        self.sizes: list[int] = []
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """Take the prompt, then the tokens of every step."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self._times.append(time.perf_counter())
        self.sizes.append(value.numel())

    def end(self) -> None:
        """Generation is over."""

    def seconds(self) -> tuple[float, float]:
        """Time to the first tokens, and from there to the last."""
        if not self._times:
            return 0.0, 0.0
        first, last = self._times[0], self._times[-1]
        return round(first - self._began, 4), round(last - first, 4)


def _plain(decoder: Decoder, source: PeerSource) -> dict[str, Any]:
    return {}


def _lookup(decoder: Decoder, source: PeerSource) -> dict[str, Any]:
    return {"prompt_lookup_num_tokens": LOOKUP_TOKENS}


def _assistant(decoder: Decoder, source: PeerSource) -> dict[str, Any]:
    if source.assistant is None:
        raise Unavailable("no assistant model was named; give one with --assistant")
    from dartree_core.models import load_tokenizer

    model = source.load(source.assistant, decoder)
    options: dict[str, Any] = {"assistant_model": model}
    if model.config.get_text_config().vocab_size != decoder.target.vocab_size:
        theirs = load_tokenizer(source.assistant, trust_remote_code=source.trust_remote_code)
        if theirs is None or decoder.tokenizer is None:
            raise Unavailable("the assistant has another vocabulary, and a tokenizer is missing")
        options |= {"tokenizer": decoder.tokenizer, "assistant_tokenizer": theirs}
    return options


def _dflash(decoder: Decoder, source: PeerSource) -> dict[str, Any]:
    from dartree_core.bench.peer_dflash import assistant_for

    if source.draft is None:
        raise Unavailable("no drafter is loaded; give one with --draft")
    return {
        "assistant_model": assistant_for(source.draft, source.model(decoder)),
        "speculation_type": "dflash",
    }


_OPTIONS: dict[str, Callable[[Decoder, PeerSource], dict[str, Any]]] = {
    "hf": _plain,
    "hf-lookup": _lookup,
    "hf-assistant": _assistant,
    "hf-dflash": _dflash,
}
