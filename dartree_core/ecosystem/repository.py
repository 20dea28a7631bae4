"""The folder that makes a model repository generate with DARTree: `custom_generate/generate.py`."""

from __future__ import annotations

from pathlib import Path

from dartree_core.errors import ConfigError

_REQUIREMENTS = "dartree\n"
_GENERATE = '''\
"""Lossless speculative decoding with draft trees (arXiv 2608.13524) for `generate`."""

from dartree_core.ecosystem import generate as _generate

DRAFTER = {drafter!r}


def generate(inputs=None, *, model, **options):
    """As `model.generate`; `drafter`, `method`, `budget`, `tree` and `seed` may be given too."""
    if options.get("drafter") is None:
        options["drafter"] = DRAFTER
    return _generate(model, inputs, **options)
'''


def write_custom_generate(folder: str | Path, *, drafter: str | None = None) -> Path:
    """Write `custom_generate/` into a model repository, ready to upload.

    Whoever has this package then decodes with
    `model.generate(..., custom_generate="owner/name", trust_remote_code=True)`, or with plain
    `model.generate(...)` where the model itself was loaded with `trust_remote_code=True`.

    Args:
        folder: The repository's local folder; made if missing.
        drafter: Hub id of the drafter to use where the caller names none.

    Returns:
        The path of `generate.py`.

    Raises:
        ConfigError: Another `generate.py` is there already.
    """
    room = Path(folder) / "custom_generate"
    file = room / "generate.py"
    text = _GENERATE.format(drafter=drafter)
    if file.exists() and "dartree_core" not in file.read_text(encoding="utf-8"):
        raise ConfigError(
            f"{file} exists and was not written by dartree.", "Move it away, or use another folder."
        )
    room.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    (room / "requirements.txt").write_text(_REQUIREMENTS, encoding="utf-8")
    return file
