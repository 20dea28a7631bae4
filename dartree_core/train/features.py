"""The target's hidden states along known sequences, by teacher forcing.

States are computed when a sequence is first visited. With room on disk they are kept in a sparse
file laid out by position, so a killed run keeps what it had and several processes share it.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from dartree_core.models.lean import Layer, LeanTarget
from dartree_core.models.target import Target
from dartree_core.parallel.frozen import FrozenTarget
from dartree_core.parallel.tables import whole
from dartree_core.train.corpus import Corpus, Sample
from dartree_core.train.parallel import anyone
from dartree_core.train.precision import autocast

_HALF_MAX = float(torch.finfo(torch.float16).max)


@dataclass(slots=True)
class Features:
    """States of one sequence of `t` tokens.

    Attributes:
        context: `[t, taps * H]`, outputs of the tapped layers.
        final: `[t, H]`, the normed final states that the output table reads.
    """

    context: Tensor
    final: Tensor


class FeatureSource:
    """Features of a corpus's samples.

    Args:
        target: Computes them.
        corpus: Its samples must not change; their order names them.
        taps: Layers whose outputs are wanted.
        dtype: Of the target's matrix products.
        cache: Directory for states, or None to compute them at every visit.
        limit: Bytes the cache may hold; samples that do not fit are computed at every visit.
    """

    def __init__(
        self,
        target: Target,
        corpus: Corpus,
        taps: Sequence[int],
        dtype: torch.dtype,
        *,
        cache: Path | None = None,
        limit: int = 0,
    ) -> None:
        self.target = target
        self.corpus = corpus
        self.taps = tuple(taps)
        self.dtype = dtype
        self._store = _Store.open(self, cache, limit) if cache is not None and limit > 0 else None
        self._writes = True
        self._quick: LeanTarget | None = None

    def hasten(self, quick: LeanTarget) -> None:
        """Compute states with `quick` from now on: the same weights on the lean path."""
        self._quick = quick

    @property
    def joint(self) -> bool:
        """True when a pass of the target takes all processes: they must ask equally often."""
        return isinstance(self.target, FrozenTarget)

    def __getitem__(self, index: int) -> Features:
        """Features of sample `index`, on the target's device."""
        holds = self._store is not None and self._store.holds(index)
        kept = self._store.read(index) if self._store is not None and holds else None
        if kept is not None:
            self.stand_by()
            device = self.target.device
            return Features(kept.context.to(device), kept.final.to(device))
        if self.joint:
            anyone(True, self.target.device)
        found = self.compute(self.corpus.samples[index])
        if self._store is not None and holds:
            self._keep(self._store, index, found)
        return found

    def _keep(self, store: _Store, index: int, found: Features) -> None:
        """Write to the cache, until that fails once."""
        if not self._writes:
            return
        try:
            store.write(index, found)
        except OSError as error:
            self._writes = False
            warnings.warn(
                f"Hidden states cannot be kept on disk any more ({error}); those that are missing "
                "are computed at every visit.",
                stacklevel=2,
            )

    def stand_by(self) -> None:
        """Instead of asking for a sample: help others whose passes take all processes."""
        if self.joint and anyone(False, self.target.device):
            self._pass(torch.zeros(1, dtype=torch.int64, device=self.target.device))

    def compute(self, sample: Sample) -> Features:
        """One teacher-forced pass over a sample."""
        found = self._pass(torch.from_numpy(sample.tokens).to(self.target.device))
        halves = [x.float().clamp(-_HALF_MAX, _HALF_MAX).to(torch.float16) for x in found]
        return Features(*halves)

    def _pass(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tapped outputs `[t, taps * H]` and the normed final states `[t, H]`."""
        # Inference mode would leave tensors that autograd may not save, and sharded parts that the
        # next pass may not write.
        with torch.inference_mode(False), torch.no_grad():
            if self._quick is not None:
                return _lean_states(self._quick, tokens, self.taps)
            return self._forward(tokens)

    def _forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        target = self.target
        final: list[Tensor] = []
        hook = target.model.get_decoder().register_forward_hook(  # type: ignore[operator]
            lambda _module, _inputs, output: final.append(output.last_hidden_state[0])
        )
        try:
            with autocast(target.device, self.dtype), target.tapped(self.taps) as found:
                # The whole model, of which a sharded one's parts are collected; one row of logits.
                target.model(input_ids=tokens[None], use_cache=False, logits_to_keep=1)
        finally:
            hook.remove()
        context = torch.cat([found[i].float() for i in self.taps], dim=-1)
        return context, final[0].to(target.device)

    def describe(self) -> str:
        """Digest of everything the states depend on."""
        digest = hashlib.sha256(self.corpus.fingerprint().encode())
        digest.update(repr((self.taps, str(self.dtype))).encode())
        digest.update(describe_target(self.target).encode())
        return digest.hexdigest()[:16]


def _lean_states(target: LeanTarget, tokens: Tensor, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One pass from nothing, no keys or values kept: see `FeatureSource._pass`."""
    n = len(tokens)
    cos, sin = target.rope_tables(n)

    def attend(index: int, layer: Layer, qkv: Tensor) -> Tensor:
        q, k, v = (x[None] for x in target.heads(layer, qkv, cos, sin))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1).reshape(n, -1)

    final, context = target.decode(target.embed(tokens), attend, taps)
    assert context is not None
    return context, final


def describe_target(target: Target) -> str:
    """A digest that tells targets apart: names, shapes and the first weights of each tensor."""
    digest = hashlib.sha256()
    for name, parameter in target.model.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(whole(parameter.detach()).flatten()[:256].float().cpu().numpy().tobytes())
    return digest.hexdigest()


class _Store:
    """States of the first samples that fit, in two files and a list of flags.

    They are read through memory maps but not written so: on a full disk that would end the process.
    """

    def __init__(self, folder: Path, starts: list[int], widths: tuple[int, int]) -> None:
        self._starts = starts
        rows = starts[-1]
        folder.mkdir(parents=True, exist_ok=True)
        self._files = [folder / name for name in ("context.f16", "final.f16", "done.u8")]
        self._context = _mapped(self._files[0], (rows, widths[0]), np.float16)
        self._final = _mapped(self._files[1], (rows, widths[1]), np.float16)
        self._done = _mapped(self._files[2], (len(starts) - 1,), np.uint8)

    @classmethod
    def open(cls, source: FeatureSource, cache: Path, limit: int) -> _Store:
        hidden = source.target.hidden_size
        widths = (len(source.taps) * hidden, hidden)
        room = limit // (2 * sum(widths))
        starts = [0]
        for sample in source.corpus.samples:
            end = starts[-1] + len(sample.tokens)
            if end > room:
                break
            starts.append(end)
        return cls(cache / source.describe(), starts, widths)

    def holds(self, index: int) -> bool:
        return index < len(self._done)

    def read(self, index: int) -> Features | None:
        if not self._done[index]:
            return None
        rows = slice(self._starts[index], self._starts[index + 1])
        return Features(
            torch.from_numpy(np.array(self._context[rows])),
            torch.from_numpy(np.array(self._final[rows])),
        )

    def write(self, index: int, features: Features) -> None:
        """Keep a sample's states.

        Raises:
            OSError: They cannot be written.
        """
        row = self._starts[index]
        _write(self._files[0], row, features.context.cpu().numpy())
        _write(self._files[1], row, features.final.cpu().numpy())
        # The flag comes last: a process killed in between leaves the sample to be computed again.
        _write(self._files[2], index, np.ones(1, dtype=np.uint8))


def _mapped(path: Path, shape: tuple[int, ...], dtype: type) -> npt.NDArray[Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not path.exists() or path.stat().st_size != size:
        with path.open("a+b") as file:
            file.truncate(max(1, size))
    return np.memmap(path, dtype=dtype, mode="r", shape=shape)


def _write(path: Path, row: int, values: npt.NDArray[Any]) -> None:
    """Write rows of a file of such rows, from number `row` on."""
    with path.open("r+b") as file:
        file.seek(row * values[0].nbytes)
        file.write(values.tobytes())
