"""A target that several processes hold together, as rank 0 sees it.

transformers splits the model by its own plan (`tp_plan="auto"`); this file keeps the ranks in
step. Every pass, and every change to a cache since the last one, goes to the others as one small
message; the layers' own collectives do the rest.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dartree_core.errors import CheckpointError, ConfigError, DARTreeError
from dartree_core.models.kv_cache import KVCache
from dartree_core.models.loading import load_model
from dartree_core.models.selfcheck import check_rows
from dartree_core.models.target import Target, TargetOutput
from dartree_core.parallel.group import Group
from dartree_core.parallel.messages import Edit, Pass, Shard, pack_mask
from dartree_core.parallel.tables import own_tables
from dartree_core.parallel.watch import RankError

_LAST_WORDS = 2.0
"""Seconds for a failure to reach the user before this process ends."""


class ShardedCache(KVCache):
    """Rank 0's part of a cache; the other ranks repeat what is done to it.

    Attributes:
        number: Its name among the ranks.
    """

    def __init__(self, num_layers: int, number: int, edits: deque[Edit]) -> None:
        super().__init__(num_layers)
        self.number = number
        self._edits = edits
        weakref.finalize(self, edits.append, Edit("drop", number))

    def commit(self, rows: Tensor) -> None:
        """Keep these rows of the last pass, on all ranks."""
        super().commit(rows)
        self._edits.append(Edit("commit", self.number, rows=tuple(rows.tolist())))

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on, on all ranks."""
        if length < self.length:
            self._edits.append(Edit("crop", self.number, length=length))
        super().crop(length)


class ShardedTarget(Target):
    """A tensor-parallel target, driven from rank 0; the others run `follow`.

    Args:
        model: This rank's part.
        group: The ranks.
        label, revision: For display.
    """

    def __init__(
        self, model: torch.nn.Module, group: Group, *, label: str = "", revision: str = ""
    ) -> None:
        super().__init__(model, label=label, revision=revision)
        self._group = group
        self._edits: deque[Edit] = deque()
        self._numbers = itertools.count()
        own_tables(self, self.device)

    @property
    def path(self) -> str:
        """Which code computes the model, for display."""
        return f"transformers, tensor parallel over {self._group.world.size}"

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence, on all ranks."""
        return ShardedCache(self.num_layers, next(self._numbers), self._edits)

    def forward(
        self,
        tokens: Tensor,
        cache: KVCache,
        *,
        positions: Tensor | None = None,
        visible: Tensor | None = None,
        taps: Sequence[int] = (),
        last_only: bool = False,
    ) -> TargetOutput:
        """Score rows on all ranks; arguments as in `Target.forward`.

        Raises:
            RankError: The pass failed here; the other ranks cannot go on either.
        """
        assert isinstance(cache, ShardedCache)
        edits = [self._edits.popleft() for _ in range(len(self._edits))]
        with self._group.joint_pass():
            try:
                self._group.send(
                    Pass(
                        cache.number,
                        tuple(edits),
                        tuple(tokens.tolist()),
                        None if positions is None else tuple(positions.tolist()),
                        pack_mask(visible),
                        last_only,
                    )
                )
                return super().forward(
                    tokens,
                    cache,
                    positions=positions,
                    visible=visible,
                    taps=taps,
                    last_only=last_only,
                )
            except Exception as error:
                # The others are in the middle of this pass, and nobody can call them back.
                what, remedy = explain(error)
                self._group.watch.broken = True
                if not isinstance(error, torch.OutOfMemoryError | MemoryError):
                    self._group.watch.is_it_another()
                threading.Timer(_LAST_WORDS, os._exit, (1,)).start()
                raise RankError(f"Rank 0 {what}", remedy) from error


def load_sharded(
    path: Path,
    group: Group,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    trust_remote_code: bool,
    device_map: str | None = None,
    label: str = "",
    revision: str = "",
) -> ShardedTarget:
    """Load a target over all ranks of `group`; called by rank 0.

    Args:
        path: Folder in transformers' layout, at the same place on every machine.
        group: The ranks.
        device: This rank's.
        dtype: Of the weights; None for what is fastest.
        trust_remote_code: Run Python code the model brings.
        device_map: Refused: it is the other way to use several devices.
        label, revision: For display.

    Raises:
        CheckpointError: A rank cannot load its part.
        ConfigError: The device is not the one tensor parallelism uses here.
    """
    if device_map is not None:
        raise ConfigError(
            "--device-map places the target from one process, but torchrun started several.",
            "Leave out one of the two.",
        )
    _check_device(device)
    _check_heads(path, group.world.size)
    name = "" if dtype is None else str(dtype).removeprefix("torch.")
    shard = Shard(path, name, trust_remote_code)
    group.send(shard)
    model = load_part(shard, group)
    target = ShardedTarget(model, group, label=label, revision=revision)
    target.notes = check_rows(target)
    return target


def _check_heads(path: Path, size: int) -> None:
    """Whole heads go to the ranks; what does not divide would fail in the first pass."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # loading says what is wrong with it
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads")
    if not isinstance(heads, int):
        return
    kv = text.get("num_key_value_heads") or heads
    shared = math.gcd(heads, kv)
    if shared % size:
        fits = [str(n) for n in range(2, shared + 1) if shared % n == 0]
        raise ConfigError(
            f"The target has {heads} attention heads and {kv} of keys and values, which {size} "
            "processes cannot share evenly.",
            f"Start {' or '.join(fits)} processes, or one with --device-map auto."
            if fits
            else "Use one process, with --device-map auto where one device is too small.",
        )


def load_part(shard: Shard, group: Group) -> torch.nn.Module:
    """This rank's part of a target; all ranks call it together.

    Raises:
        CheckpointError: This rank or another could not load its part.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = getattr(torch, shard.dtype) if shard.dtype else None
    model: torch.nn.Module | None = None
    problem: tuple[str, str] | None = None
    try:
        model = load_model(shard.path, device, dtype, shard.trust_remote_code, **_tensor_parallel())
    except DARTreeError as error:
        problem = error.message, error.remedy
    except Exception as error:
        problem = explain(error)
    problems = {rank: p for rank, p in enumerate(group.gather(problem)) if p is not None}
    if problems or model is None:
        rank, (message, remedy) = min(problems.items())
        raise CheckpointError(f"Rank {rank}: {message}", remedy)
    return model


def _tensor_parallel() -> dict[str, Any]:
    """Arguments of `from_pretrained` for the model's own plan over all ranks."""
    from transformers.distributed import DistributedConfig

    if "tp_plan" in getattr(DistributedConfig, "__dataclass_fields__", {}):
        return {"distributed_config": DistributedConfig(tp_plan="auto")}
    return {"tp_plan": "auto"}  # before transformers 5.18


def explain(error: Exception) -> tuple[str, str]:
    """What befell a rank, as the end of a sentence, and what to do."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return (
            "ran out of memory.",
            "Start more processes (--nproc-per-node), or use a smaller --dtype or a shorter "
            "prompt.",
        )
    text = " ".join(str(error).split())
    return f"failed: {type(error).__name__}: {text}", "Run again with --debug for the traceback."


def _check_device(device: torch.device) -> None:
    usable = "cuda" if torch.cuda.is_available() else "cpu"
    if device.type != usable:
        raise ConfigError(
            f"Tensor parallelism would run on {usable} here, not on {device.type}.",
            "Leave --device out; CUDA_VISIBLE_DEVICES= hides the GPUs.",
        )
