"""A DFlash drafter in the shape transformers' own DFlash generator reads.

transformers carries the architecture as `muse_glimmer_assistant`: the same layers under other
names, without a correction head and without a reduced vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dartree_core.bench.peers import Unavailable

if TYPE_CHECKING:
    from dartree_core.draft.spec import DraftSpec

_RENAMED = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}


def assistant_for(folder: Path, target: Any) -> Any:
    """The backbone of the drafter in `folder`, on the device and in the dtype of `target`.

    Raises:
        Unavailable: This transformers has no DFlash generator, or it reads blocks in another way
            than this drafter was trained.
        CheckpointError: The drafter cannot be loaded.
    """
    try:
        from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
        from transformers.generation import DFlashTokenCandidateGenerator  # noqa: F401
    except ImportError as error:
        raise Unavailable("this version of transformers has no DFlash generator") from error
    from dartree_core.draft import read_checkpoint

    checkpoint = read_checkpoint(folder)
    spec = checkpoint.spec
    if spec.shift_label:
        raise Unavailable(
            "the drafter proposes from its block's first row, which transformers' DFlash "
            "generator leaves out"
        )
    if any(spec.causal):
        raise Unavailable("its layers look backwards only, transformers' look both ways")
    if spec.conv_taps:
        raise Unavailable("it has convolutions, which transformers' DFlash generator lacks")
    if checkpoint.embedding is not None or checkpoint.output is not None:
        raise Unavailable("it has tables of its own, and transformers borrows the target's")
    config = MuseGlimmerAssistantConfig(**_config(spec))
    config._attn_implementation = "sdpa"
    model = MuseGlimmerAssistantModel(config)
    tensors = {_renamed(n): t for n, t in checkpoint.backbone.state_dict().items()}
    model.load_state_dict(tensors, strict=True)
    return model.to(target.device, target.dtype).eval().requires_grad_(False)


def _renamed(name: str) -> str:
    for ours, theirs in _RENAMED.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def _config(spec: DraftSpec) -> dict[str, Any]:
    scaling = dict(spec.rope.get("rope_scaling") or {})
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    windows = {w for w in spec.windows if w is not None}
    if len(windows) > 1:
        raise Unavailable("its layers have sliding windows of several lengths")
    return {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "rms_norm_eps": spec.rms_eps,
        "rope_parameters": {
            **scaling,
            "rope_type": kind,
            "rope_theta": spec.rope.get("rope_theta", 10000.0),
        },
        "max_position_embeddings": spec.max_positions,
        "sliding_window": windows.pop() if windows else spec.max_positions,
        "layer_types": [
            "full_attention" if w is None else "sliding_attention" for w in spec.windows
        ],
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "target_layer_ids": list(spec.target_layer_ids),
    }
