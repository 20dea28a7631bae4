"""This process's place among those that torchrun started."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from dartree_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class World:
    """One process among several.

    Attributes:
        rank: From 0; rank 0 speaks to the user and writes files.
        size: Processes, over all machines.
        local: Rank on this machine, which is the number of its device.
    """

    rank: int = 0
    size: int = 1
    local: int = 0

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> World:
        """What torchrun (or a launcher that sets the same variables) says; alone without one.

        Raises:
            ConfigError: The variables are not all there, or no numbers.
        """
        if environ.get("WORLD_SIZE", "1") == "1":
            return cls()
        try:
            return cls(
                int(environ["RANK"]),
                int(environ["WORLD_SIZE"]),
                int(environ.get("LOCAL_RANK", environ["RANK"])),
            )
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"WORLD_SIZE is set, but RANK or LOCAL_RANK is not usable ({error}).",
                "Start with torchrun --nproc-per-node N -m dartree_core ..., or unset WORLD_SIZE.",
            ) from error

    @property
    def leads(self) -> bool:
        """True for rank 0."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """True when there is only this process."""
        return self.size == 1

    def device(self, name: str) -> str:
        """The device of this process: one of several takes a CUDA device of its own.

        Args:
            name: What the user asked for: `auto`, `cpu`, `cuda`, ...

        Raises:
            ConfigError: One device was asked for by number, for all of them.
        """
        if self.alone:
            return name
        if name.startswith("cuda:"):
            raise ConfigError(
                f"--device {name} names one device, but there are {self.size} processes.",
                "Use --device cuda, and CUDA_VISIBLE_DEVICES to choose among devices.",
            )
        if name == "auto":
            import torch

            name = "cuda" if torch.cuda.is_available() else name
        return f"cuda:{self.local}" if name == "cuda" else name


def hostname() -> str:
    """This machine's name, for people and to tell machines apart."""
    return socket.gethostname()
