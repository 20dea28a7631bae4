"""The target model: what every drafter and engine may ask of it.

`Target` is the general path over any transformers causal language model with a decoder stack.
One `forward` serves prefill, plain steps and tree verification, so plain decoding and
speculation run the same code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dartree_core.errors import CheckpointError
from dartree_core.models.host import Download
from dartree_core.models.kv_cache import KVCache

if TYPE_CHECKING:
    from dartree_core.models.graphs import Graphs

_MASKED_KINDS = {"full_attention", "sliding_attention"}


@dataclass(slots=True)
class TargetOutput:
    """What one pass gives.

    Attributes:
        logits: float32 `[rows, V]`, for all input rows or only the last.
        features: `[n, taps * H]`, outputs of the tapped layers side by side, or None.
        choice: int64 `[rows]`, argmax of the logits where the pass has computed it, or None.
    """

    logits: Tensor
    features: Tensor | None
    choice: Tensor | None = None


class Target:
    """A transformers causal language model, driven row by row with explicit positions.

    Args:
        model: Loaded model in eval mode; its attention runs through SDPA or eagerly.
        label: Name shown to users.
        revision: Hub revision or "".

    Attributes:
        dtype: Of activations, keys and values.
        weight_dtype: Of the weights in matrix products.
        notes: What a user should know about this model, one sentence each.

    Raises:
        CheckpointError: The architecture keeps state that a tree cannot roll back, or its
            attention takes no masks.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, model: nn.Module, *, label: str = "", revision: str = "") -> None:
        self.model = model
        self.label = label
        self.revision = revision
        hf: Any = model
        text = hf.config.get_text_config()
        _refuse_state(model)
        _refuse_maskless_attention(hf.config)
        self.config = text
        self.hidden_size: int = text.hidden_size
        self.num_layers: int = text.num_hidden_layers
        self.max_positions: int = getattr(text, "max_position_embeddings", None) or 2**31
        self.embedding: nn.Embedding = hf.get_input_embeddings()
        self.output: nn.Linear = hf.get_output_embeddings()
        # Packed weights have a shape of their own; the module knows its width.
        self.vocab_size: int = getattr(self.output, "out_features", self.output.weight.shape[0])
        self.device = self.embedding.weight.device
        self.dtype: torch.dtype = self.embedding.weight.dtype
        self.weight_dtype = self.dtype
        self._download = Download()
        self.layers = _decoder_layers(model, self.num_layers)
        self._kinds = _layer_kinds(text, self.num_layers)
        _refuse_moving_positions(text)
        self._window: int = getattr(text, "sliding_window", None) or 0
        parameters = inspect.signature(model.forward).parameters
        self.cache_key = "cache" if "cache" in parameters else "past_key_values"

    @property
    def path(self) -> str:
        """Which code computes the model, for display."""
        return "transformers"

    def upload(self, values: Sequence[int]) -> Tensor:
        """int64 `[n]` on the device; nobody waits for it."""
        if self.device.type != "cuda":
            return torch.tensor(values, dtype=torch.int64, device=self.device)
        pinned = torch.tensor(values, dtype=torch.int64, pin_memory=True)
        return pinned.to(self.device, non_blocking=True)

    def fetch(self, tensor: Tensor) -> Tensor:
        """A host copy of a 1-d tensor; waits for the device."""
        return self._download.fetch(tensor)

    @property
    def graphs(self) -> Graphs | None:
        """What runs passes of fixed shapes, or None where every pass has its own shape."""
        return None

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        return KVCache(self.num_layers)

    def compile(self) -> None:
        """Have what can be compiled for this machine compiled; nothing here, see `LeanTarget`."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings `[n, H]` of token ids `[n]`, as the first layer sees them."""
        out: Tensor = self.embedding(tokens)
        return out

    @property
    def output_weight(self) -> Tensor:
        """The output table `[V, H]`, dequantised where the model's own is not plain numbers."""
        weight = self.output.weight
        if type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point():
            return weight
        return _dense(self.output, self.hidden_size, self.dtype)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        cache: KVCache,
        *,
        positions: Tensor | None = None,
        visible: Tensor | None = None,
        taps: Sequence[int] = (),
        last_only: bool = False,
    ) -> TargetOutput:
        """Score rows behind the cache's committed positions, without committing them.

        Inputs may be on the device or on the host.

        Args:
            tokens: int64 `[n]`.
            cache: Its `length` committed rows are visible to every row.
            positions: int64 `[n]` absolute positions; None for a chain right behind the cache.
            visible: bool `[n, n]`, row i sees row j; None for a causal chain.
            taps: Decoder layers whose outputs are wanted (id i: output of layer i).
            last_only: Project only the last row to logits.
        """
        n, start = len(tokens), cache.length
        cache.reserve(start + n)
        device = self.device
        tokens = tokens.to(device)
        if positions is None:
            positions = torch.arange(start, start + n, device=device)
        if visible is None:
            visible = torch.ones(n, n, dtype=torch.bool, device=device).tril()
        positions, visible = positions.to(device), visible.to(device)
        with self.tapped(taps) as features:
            out = self.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                attention_mask=self._masks(positions, visible, start),
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
                **{self.cache_key: cache},
            )
        return TargetOutput(
            logits=out.logits[0].float(),
            features=torch.cat([features[i] for i in taps], dim=-1) if taps else None,
        )

    @contextmanager
    def tapped(self, taps: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Layer outputs `[n, H]` by layer id; hooks live no longer than the pass."""
        found: dict[int, Tensor] = {}

        def listener(layer: int) -> Any:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                hidden = output[0] if isinstance(output, tuple) else output
                rows = hidden[0] if hidden.dim() == 3 else hidden
                found[layer] = rows.to(self.device)  # where layers are on several devices

            return hook

        handles = [self.layers[i].register_forward_hook(listener(i)) for i in taps]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()

    def _masks(self, positions: Tensor, visible: Tensor, start: int) -> Any:
        """Additive masks `[1, 1, n, start + n]`, one per attention kind the model has.

        A sliding window counts positions, so two siblings, which share one, are equally far
        from everything: distance by row index would let a wide tree push the context out.
        """
        n = len(visible)
        past = visible.new_ones(n, start)
        full = torch.cat((past, visible), dim=1)
        masks = {}
        for kind in set(self._kinds):
            allowed = full
            if kind == "sliding_attention":
                key_pos = torch.cat((torch.arange(start, device=positions.device), positions))
                allowed = full & (positions[:, None] - key_pos[None] < self._window)
            mask = torch.zeros(allowed.shape, dtype=self.dtype, device=allowed.device)
            mask.masked_fill_(~allowed, torch.finfo(self.dtype).min)
            masks[kind] = mask[None, None]
        if len(masks) == 1:
            return next(iter(masks.values()))
        return masks


@torch.inference_mode()
def _dense(module: nn.Module, width: int, dtype: torch.dtype, rows: int = 512) -> Tensor:
    """The weight `[out, width]` of a linear module of any make: what it does to unit vectors,
    which every quantisation of activations represents exactly."""
    device = next(module.parameters()).device
    nothing = torch.zeros(1, width, dtype=dtype, device=device)
    bias = module(nothing)
    columns = []
    for at in range(0, width, rows):
        unit = nothing.repeat(min(rows, width - at), 1)
        unit[:, at:].fill_diagonal_(1.0)
        columns.append(module(unit) - bias)
    return torch.cat(columns).T.contiguous()


def _decoder_layers(model: nn.Module, count: int) -> nn.ModuleList:
    decoder = getattr(model, "get_decoder", lambda: model)()
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise CheckpointError(
        f"{model.__class__.__name__} has no stack of {count} decoder layers to read features from.",
        "Use a decoder-only language model such as Llama, Qwen or Gemma.",
    )


def _refuse_state(model: nn.Module) -> None:
    if getattr(model, "_is_stateful", False):
        raise CheckpointError(
            f"{model.__class__.__name__} keeps a recurrent state, which cannot be rolled back "
            "after a tree is verified.",
            "Use a target whose layers are all full or sliding-window attention.",
        )


def _refuse_maskless_attention(config: Any) -> None:
    kind = getattr(config, "_attn_implementation", None) or "sdpa"
    if kind not in ("sdpa", "eager"):
        raise CheckpointError(
            f"The target's attention runs through {kind!r}, which takes no mask of ancestors.",
            "Load it with attn_implementation='sdpa'.",
        )


def _refuse_moving_positions(config: Any) -> None:
    """Some rotary scalings turn every key by the length of the pass: a tree that looks past the
    switch would turn them earlier than plain decoding does."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # Models whose layers differ in it keep one such mapping for each kind of layer.
    scalings = [rope, *(value for value in rope.values() if isinstance(value, Mapping))]
    kinds = {scaling.get("rope_type", scaling.get("type")) for scaling in scalings}
    for kind in kinds & {"dynamic", "longrope"}:
        raise CheckpointError(
            f"The target's rotary scaling is {kind!r}, whose angles depend on the length so far; "
            "speculation would not be exact.",
            "Use a target with default, linear, llama3 or yarn scaling.",
        )


def _layer_kinds(config: Any, count: int) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        windowed = getattr(config, "sliding_window", None) is not None
        kinds = ["sliding_attention" if windowed else "full_attention"] * count
    foreign = sorted(set(kinds) - _MASKED_KINDS)
    if foreign:
        raise CheckpointError(
            f"The target has layers of type {', '.join(foreign)}, whose state cannot be rolled "
            "back after a tree is verified.",
            "Use a target whose layers are all full or sliding-window attention.",
        )
    return list(kinds)
