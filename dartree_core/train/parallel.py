"""One process, or several under torchrun: who am I, and sums over all of us."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


def local_device(name: str) -> str:
    """The device of this process: under torchrun every one takes a CUDA device of its own."""
    local = os.environ.get("LOCAL_RANK")
    wants_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return f"cuda:{local}" if local is not None and wants_cuda else name


@dataclass(frozen=True, slots=True)
class World:
    """This process's place among those that train together.

    Attributes:
        rank: From 0; rank 0 writes files and shows progress.
        size: Processes.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> World:
        """Join the group torchrun set up; alone where it did not."""
        if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """True for the process that writes files."""
        return self.rank == 0

    def leave(self) -> None:
        """Leave the group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], extra: Tensor) -> Tensor:
        """Add up gradients over all processes, in place, in one transfer.

        Args:
            parameters: Same order everywhere; a missing gradient counts as zero.
            extra: `[n]` float32, further numbers to add up.

        Returns:
            The sum of all processes' `extra`.
        """
        if self.size == 1:
            return extra
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients] + [extra.to(gradients[0])])
        dist.all_reduce(flat)
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
            at += gradient.numel()
        return flat[at:]
