"""What the commands of `dartree train` load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dartree_core.cli import options as opt
from dartree_core.cli.output import progress_bars

if TYPE_CHECKING:
    from dartree_core.models.target import Target


@dataclass(frozen=True, slots=True)
class TrainModels:
    """A target as transformers loads it, whose layers can be read and copied.

    Attributes:
        target: The target.
        tokenizer: Its tokenizer, or None.
        draft: The drafter's folder, or None.
    """

    target: Target
    tokenizer: Any | None
    draft: Path | None

    @classmethod
    def load(cls, choice: opt.ModelChoice, *, in_parts: bool = False) -> TrainModels:
        """Load with progress bars on a terminal.

        Args:
            choice: Which, and where.
            in_parts: Let the processes of a group share the target's weights.
        """
        from dartree_core.bundles import resolve
        from dartree_core.models import load_target, load_tokenizer, pick_device, pick_dtype
        from dartree_core.parallel.frozen import load_frozen

        place = pick_device(choice.device)
        # Half precision is no gain here on a CPU: training multiplies in bfloat16 by itself.
        name = "float32" if choice.dtype == "auto" and place.type == "cpu" else choice.dtype
        precision = pick_dtype(name, place)
        with progress_bars() as progress:
            found = resolve(
                choice.bundle,
                target=choice.target,
                draft=choice.draft,
                trust_remote_code=choice.trust_remote_code,
                progress=progress,
            )
            progress(f"loading {found.target.label}", 0, 0, "steps")
            target = (load_frozen if in_parts else load_target)(
                found.target.path,
                device=place,
                dtype=precision,
                trust_remote_code=choice.trust_remote_code,
                label=found.target.label,
                revision=found.target.revision,
            )
        tokenizer = load_tokenizer(found.target.path, trust_remote_code=choice.trust_remote_code)
        return cls(target, tokenizer, found.draft.path if found.draft else None)
