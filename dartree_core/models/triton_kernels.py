"""Triton kernels of the fused path: what a decoder layer does between its products.

Imported only where they are to run; see `fused`. All arithmetic is in float32, rounded once when
a result is stored. Kernels take every size that changes between passes from memory, so that a
launch can be recorded.
"""

# Kernels are compiled by Triton, not run by Python: types are Triton's, and names follow its habit.
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

try:
    import triton.language as tl
    from triton import jit
except ImportError:  # importable everywhere; `fused` does not run kernels without Triton

    def jit(function):
        """Leaves a kernel as it is written."""
        return function


@jit
def add_norm(x, delta, weight, total, normed, width, eps, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """One row: `total = x + delta`, `normed = rms_norm(total) * weight`."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        value += tl.load(delta + row * width + at, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * width + at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    result = (value * scale * gain).to(normed.dtype.element_ty)
    tl.store(normed + row * width + at, result, mask=inside)


@jit
def gated(gate_up, out, width, BLOCK: tl.constexpr):
    """Part of a row: `silu(gate) * up` of `[n, 2 * width]`."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + at, result.to(out.dtype.element_ty), mask=inside)


@jit
def rotate_store(
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    positions,
    length,
    q_out,
    keys,
    values,
    head_stride,
    eps,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    DIM: tl.constexpr,
    NORMS: tl.constexpr,
    BOUND: tl.constexpr,
):
    """One head of one row: norm and rotate a query or a key, store keys and values.

    `cos` and `sin` are as `models.rope.tables` makes them: sines carry the sign. `keys` and
    `values` are `[KV, capacity, DIM]` with `head_stride` between heads. BOUND > 0
    keeps stored numbers finite.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    half: tl.constexpr = DIM // 2
    at = tl.arange(0, half)
    source = qkv + (row * (HEADS + 2 * KV) + head) * DIM
    low = tl.load(source + at).to(tl.float32)
    high = tl.load(source + half + at).to(tl.float32)
    if head < HEADS + KV:
        if NORMS:
            weight = q_weight
            if head >= HEADS:
                weight = k_weight
            scale = 1.0 / tl.sqrt((tl.sum(low * low) + tl.sum(high * high)) / DIM + eps)
            low = low * scale * tl.load(weight + at).to(tl.float32)
            high = high * scale * tl.load(weight + half + at).to(tl.float32)
        place = tl.load(positions + row)
        c_low = tl.load(cos + place * DIM + at).to(tl.float32)
        c_high = tl.load(cos + place * DIM + half + at).to(tl.float32)
        s_low = tl.load(sin + place * DIM + at).to(tl.float32)
        s_high = tl.load(sin + place * DIM + half + at).to(tl.float32)
        turned = low * c_low + high * s_low
        high = high * c_high + low * s_high
        low = turned
    if BOUND > 0:
        low = tl.where(low == low, tl.minimum(tl.maximum(low, -BOUND), BOUND), 0.0)
        high = tl.where(high == high, tl.minimum(tl.maximum(high, -BOUND), BOUND), 0.0)
    if head < HEADS:
        target = q_out + (row * HEADS + head) * DIM
    else:
        slot = tl.load(length) + row
        if head < HEADS + KV:
            target = keys + (head - HEADS) * head_stride + slot * DIM
        else:
            target = values + (head - HEADS - KV) * head_stride + slot * DIM
    tl.store(target + at, low.to(q_out.dtype.element_ty))
    tl.store(target + half + at, high.to(q_out.dtype.element_ty))


@jit
def attend_part(
    q,
    keys,
    values,
    visible,
    length,
    part,
    peak,
    mass,
    head_stride,
    count,
    scale,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attention of a block of query rows over one of SPLITS parts of the keys.

    Rows are (query head of the group, row of the pass) pairs: heads that share keys read them
    together. Committed keys are seen by all; of the pass's own, row i sees j where
    `visible[i, j]`, bool `[count, count]`. Results are unnormalised, with their largest score
    and the sum of their weights, `[SPLITS, HEADS * count(, DIM)]`.
    """
    group: tl.constexpr = HEADS // KV
    kv = tl.program_id(1)
    split = tl.program_id(2)
    member = tl.program_id(0) * M + tl.arange(0, M)
    inside = member < group * count
    head = kv * group + member // count
    row = member % count
    at = tl.arange(0, DIM)
    query = tl.load(
        q + (row * HEADS + head)[:, None] * DIM + at[None, :], mask=inside[:, None], other=0.0
    )
    committed = tl.load(length)
    total = committed + count
    span = tl.cdiv(tl.cdiv(total, SPLITS), N) * N
    begin = split * span
    end = tl.minimum(begin + span, total)
    best = tl.full([M], float("-inf"), tl.float32)
    weight = tl.zeros([M], tl.float32)
    found = tl.zeros([M, DIM], tl.float32)
    for start in range(begin, end, N):
        slot = start + tl.arange(0, N)
        there = slot < end
        place = kv * head_stride + slot[:, None] * DIM + at[None, :]
        key = tl.load(keys + place, mask=there[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        own = slot - committed
        asked = inside[:, None] & there[None, :] & (own >= 0)[None, :]
        seen = tl.load(visible + row[:, None] * count + own[None, :], mask=asked, other=0)
        seen = ((own < 0) & there)[None, :] | (seen != 0)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, axis=1))
        # A row that has seen nothing yet has no largest score to subtract.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp(score - base[:, None])
        fade = tl.exp(best - base)
        weight = weight * fade + tl.sum(p, axis=1)
        value = tl.load(values + place, mask=there[:, None], other=0.0)
        found = found * fade[:, None] + tl.dot(p.to(value.dtype), value, input_precision=PRECISION)
        best = higher
    out = split * HEADS * count + row * HEADS + head
    tl.store(part + out[:, None] * DIM + at[None, :], found, mask=inside[:, None])
    tl.store(peak + out, best, mask=inside)
    tl.store(mass + out, weight, mask=inside)


@jit
def attend_join(part, peak, mass, out, lines, DIM: tl.constexpr, SPLITS: tl.constexpr):
    """One (row, head): its parts, weighed by what each part has seen."""
    line = tl.program_id(0)
    split = tl.arange(0, SPLITS)
    at = tl.arange(0, DIM)
    peaks = tl.load(peak + split * lines + line)
    fade = tl.exp(peaks - tl.max(peaks, axis=0))
    weight = tl.sum(tl.load(mass + split * lines + line) * fade, axis=0)
    parts = tl.load(part + (split[:, None] * lines + line) * DIM + at[None, :])
    result = tl.sum(parts * fade[:, None], axis=0) / weight
    tl.store(out + line * DIM + at, result.to(out.dtype.element_ty))
