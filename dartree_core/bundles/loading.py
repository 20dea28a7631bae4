"""One call from a name to a decoder that is ready to run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dartree_core.bundles import cache, registry
from dartree_core.bundles.progress import Progress, silent
from dartree_core.bundles.resolution import resolve
from dartree_core.parallel.world import World

if TYPE_CHECKING:
    from dartree_core.engine import Decoder

log = logging.getLogger(__name__)

_STEPS = 3


def load(
    bundle: str = registry.DEFAULT,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    trust_remote_code: bool = False,
    graphs: bool | None = None,
    progress: Progress | None = None,
) -> Decoder:
    """Load target, drafter and tokenizer, fetching them first where needed.

    Within a tensor-parallel group the target is loaded over all its ranks.

    Args:
        bundle, target, draft: As `dartree_core.bundles.resolve`.
        device: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`.
        dtype: `auto`, `float32`, `bfloat16`, `float16`.
        device_map: Spread the target over this process's devices; see `load_placed`.
        trust_remote_code: Run Python code that a model repository brings.
        graphs: CUDA graphs; None uses them on CUDA, unless `DARTREE_GRAPHS` is 0.
        progress: Hears `progress(what, done, total, unit)`.

    Raises:
        BundleError: Files are missing and cannot be fetched.
        CheckpointError: A model cannot be loaded, or drafter and target do not fit.
        ConfigError: There is no such device or dtype here.
    """
    listener = progress or silent
    # Names and devices are checked before anything is fetched or loaded.
    registry.get(bundle)
    from dartree_core.models.device import pick_device, pick_dtype

    place = pick_device(World.here().device(device))
    precision = None if dtype == "auto" else pick_dtype(dtype, place)
    found = resolve(
        bundle,
        target=target,
        draft=draft,
        trust_remote_code=trust_remote_code,
        progress=progress,
    )
    import torch

    from dartree_core import compiled
    from dartree_core.draft import load_drafter
    from dartree_core.engine import Decoder
    from dartree_core.models import Target, load_target, load_tokenizer
    from dartree_core.models.kernels import can_have_bfloat16
    from dartree_core.models.memory import Memory
    from dartree_core.models.threads import tune_threads
    from dartree_core.parallel.group import tensor_group
    from dartree_core.parallel.placed import load_placed
    from dartree_core.parallel.sharded import load_sharded

    memory = Memory(cache.home() / "measured.json")
    what = f"loading {found.target.label}"
    listener(what, 0, _STEPS, "steps")
    named: dict[str, Any] = {
        "device": place,
        "dtype": precision,
        "trust_remote_code": trust_remote_code,
        "label": found.target.label,
        "revision": found.target.revision,
    }
    group = tensor_group()
    target_model: Target
    compiling = "compiling for this CPU"
    # Where bfloat16 is asked for and the CPU does not multiply it, nothing would use the code.
    useful = precision != torch.bfloat16 or can_have_bfloat16()
    if place.type == "cpu" and useful:
        listener(compiling, 0, 1, "steps")
        compiled.shares()
        listener(compiling, 1, 1, "steps")
    if group is not None:
        target_model = load_sharded(found.target.path, group, device_map=device_map, **named)
    elif device_map is not None:
        target_model = load_placed(found.target.path, device_map, **named)
    else:
        target_model = load_target(
            found.target.path, lean=True, memory=memory, graphs=graphs, **named
        )
    listener(what, 1, _STEPS, "steps")
    target_model.compile()
    tune_threads(target_model)
    drafter = None
    if found.draft is not None:
        drafter = load_drafter(
            found.draft.path,
            target_model,
            label=found.draft.label,
            lean=True,
            memory=memory,
            rounded=True,
        )
        drafter.compile()
    listener(what, 2, _STEPS, "steps")
    tokenizer = load_tokenizer(found.target.path, trust_remote_code=trust_remote_code)
    listener(what, _STEPS, _STEPS, "steps")
    decoder = Decoder(
        target_model, drafter, tokenizer, bundle=found.name, memory=memory, notes=found.notes
    )
    for note in decoder.notes:
        log.info("%s", note)
    if drafter is not None:
        listener("measuring this machine", 0, 1, "steps")
        decoder.budget_policy()
        listener("measuring this machine", 1, 1, "steps")
    return decoder
