"""What every rank but 0 does in a tensor-parallel run: load its part, and compute as told."""

from __future__ import annotations

import torch

from dartree_core.errors import CheckpointError
from dartree_core.models.kv_cache import KVCache
from dartree_core.models.target import Target
from dartree_core.parallel.group import Group
from dartree_core.parallel.messages import Edit, Pass, Shard, unpack_mask
from dartree_core.parallel.sharded import explain, load_part
from dartree_core.parallel.tables import whole_tables


def follow(group: Group) -> None:
    """Serve rank 0 until the run ends, which ends this process.

    A failure here ends the run: rank 0 reports it with this rank's name.
    """
    follower = _Follower(group)
    while True:
        message = group.receive()
        try:
            follower.serve(message)
        except Exception as error:
            group.watch.fail(*explain(error))


class _Follower:
    def __init__(self, group: Group) -> None:
        self._group = group
        self._target: Target | None = None
        self._caches: dict[int, KVCache] = {}

    def serve(self, message: Shard | Pass) -> None:
        if isinstance(message, Shard):
            self._load(message)
        else:
            with self._group.joint_pass():
                self._compute(message)

    def _load(self, shard: Shard) -> None:
        self._target = None  # frees memory before more is taken
        self._caches.clear()
        try:
            model = load_part(shard, self._group)
        except CheckpointError:
            return  # rank 0 has the same error and tells the user
        self._target = Target(model)
        whole_tables(self._target)  # rank 0 takes copies, for which all must give their part

    def _compute(self, message: Pass) -> None:
        target = self._target
        assert target is not None
        for edit in message.edits:
            self._edit(edit, target)
        cache = self._caches.get(message.cache)
        if cache is None:
            cache = self._caches[message.cache] = target.new_cache()
        device = target.device
        visible = unpack_mask(message.visible, len(message.tokens))
        positions = message.positions
        target.forward(
            torch.tensor(message.tokens, device=device),
            cache,
            positions=None if positions is None else torch.tensor(positions, device=device),
            visible=None if visible is None else visible.to(device),
            last_only=message.last_only,
        )

    def _edit(self, edit: Edit, target: Target) -> None:
        if edit.what == "drop":
            self._caches.pop(edit.cache, None)
            return
        cache = self._caches.get(edit.cache)
        if cache is None:
            return  # nothing was ever computed in it
        if edit.what == "crop":
            cache.crop(edit.length)
        else:
            cache.commit(torch.tensor(edit.rows, dtype=torch.int64, device=target.device))
