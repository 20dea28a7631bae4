"""Exceptions a user may see. Each says what went wrong and what to do about it."""

from __future__ import annotations


class DARTreeError(Exception):
    """A failure with a remedy.

    Attributes:
        message: What went wrong, one sentence, naming the thing at fault.
        remedy: What the user can do about it, one sentence or a command.
    """

    exit_code: int = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class ConfigError(DARTreeError):
    """A setting is outside what the method or the model supports (exit code 2, usage)."""

    exit_code = 2


class CheckpointError(DARTreeError):
    """A checkpoint is damaged, incomplete, or of a kind this version does not load."""


class BundleError(DARTreeError):
    """A bundle's files are missing and could not be fetched, or do not match their hashes."""


class TraceError(DARTreeError):
    """A trace file is not one, or comes from another major schema version."""


class CapacityError(DARTreeError):
    """The request does not fit into the model's context or the device's memory."""
