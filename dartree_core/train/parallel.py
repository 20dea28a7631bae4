"""What the processes of one training run do together: sums, and agreements."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dartree_core.parallel.world import World


def join(device: torch.device) -> World:
    """This process among those that torchrun started; they can talk to each other from here on."""
    world = World.here()
    if not world.alone and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return world


def leave() -> None:
    """Undo `join`."""
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_gradients(world: World, parameters: Sequence[torch.nn.Parameter], extra: Tensor) -> Tensor:
    """Add up gradients over all processes, in place, in one transfer.

    Args:
        world: The processes.
        parameters: Same order everywhere; a missing gradient counts as zero.
        extra: `[n]` float32, further numbers to add up.

    Returns:
        The sum of all processes' `extra`.
    """
    if world.alone:
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


def agreed(world: World, mine: str, device: torch.device) -> bool:
    """True when `mine` is the same text in all processes; all must ask at the same time."""
    if world.alone:
        return True
    digest = int.from_bytes(hashlib.sha256(mine.encode()).digest()[:7], "big")
    ends = torch.tensor([digest, -digest], device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    highest, lowest = ends.tolist()
    return bool(highest == -lowest)


def anyone(mine: bool, device: torch.device) -> bool:
    """True when it is true in any process; all of them must ask at the same time."""
    flag = torch.tensor([float(mine)], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
