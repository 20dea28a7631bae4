"""A draft tree as one run of integers, so that it reaches the host in one transfer."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dartree_core.draft.supertree import Supertree
from dartree_core.models.host import Download


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tensors a packed tree consists of; the same for all trees grown the same way.

    Attributes:
        columns: Per tensor its field, its place in that field (None where the field is the
            tensor itself), its dtype and its shape.
        template: Gives the fields that are no tensors.
    """

    columns: tuple[tuple[str, int | None, torch.dtype, torch.Size], ...]
    template: Supertree

    @classmethod
    def of(cls, tree: Supertree) -> Layout:
        """The layout of trees like this one."""
        found = [(name, at, t.dtype, t.shape) for name, at, t in _tensors(tree)]
        listed: dict[str, list[Tensor]] = {name: [] for name, at, _, _ in found if at is not None}
        bare = {name: torch.empty(0) for name, at, _, _ in found if at is None}
        return cls(tuple(found), replace(tree, **bare, **listed))  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        """Integers that a tree packs into."""
        return sum(shape.numel() for _, _, _, shape in self.columns)

    def unpack(self, packed: Tensor) -> Supertree:
        """The tree that `pack` made `packed` (int64 `[size]`) of, on its device."""
        single: dict[str, Tensor] = {}
        listed: dict[str, list[Tensor]] = {}
        parts = torch.split(packed, [shape.numel() for _, _, _, shape in self.columns])
        for part, (name, at, dtype, shape) in zip(parts, self.columns, strict=True):
            tensor = _from_int64(part, dtype).view(shape)
            if at is None:
                single[name] = tensor
            else:
                listed.setdefault(name, []).append(tensor)
        return replace(self.template, **single, **listed)  # type: ignore[arg-type]


def pack(tree: Supertree) -> Tensor:
    """All tensors of `tree`, bit for bit, as int64 `[n]`."""
    return torch.cat([_to_int64(t.reshape(-1)) for _, _, t in _tensors(tree)])


def hosted(tree: Supertree, download: Download | None = None) -> Supertree:
    """The same tree on the host, where it is described and laid out; one transfer at most."""
    if tree.token.device.type == "cpu":
        return tree
    return Layout.of(tree).unpack((download or Download()).fetch(pack(tree)))


def _tensors(tree: Supertree) -> list[tuple[str, int | None, Tensor]]:
    out: list[tuple[str, int | None, Tensor]] = []
    for item in fields(tree):
        value = getattr(tree, item.name)
        if isinstance(value, Tensor):
            out.append((item.name, None, value))
        elif isinstance(value, list) and all(isinstance(t, Tensor) for t in value):
            out += [(item.name, i, t) for i, t in enumerate(value)]
    return out


def _to_int64(x: Tensor) -> Tensor:
    return x.view(torch.int32).long() if x.dtype == torch.float32 else x.long()


def _from_int64(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(torch.int32).view(torch.float32) if dtype == torch.float32 else x.to(dtype)
