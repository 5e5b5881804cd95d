"""Triton kernels of the engine. Promise: keys and values go where the sequence's table says,
attention reads exactly the tokens before and at a position, and a token is drawn from the
distribution whose logprob is reported.

Imported on CUDA devices only. A cache is [pages, key-value heads, page tokens, head dim]; a table
lists a sequence's pages in order.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Python's types cannot describe a kernel's arguments: pointers and constants of Triton's language.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
"""Logits that one program of the sampler reads."""
ROWS = 64
"""Tokens of a prompt that one program of its attention handles."""
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64, as in engines/noise.py: the same numbers on every device."""


# ---------------------------------------------------------------------- keys and values


@triton.jit
def _write(
    keys, values, key_stride, value_stride, cached_keys, cached_values, tables, rows, positions, table_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr, HEADS_P: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    row = tl.load(rows + token)
    page = tl.load(tables + row * table_stride + position // PAGE).to(tl.int64)
    head = tl.arange(0, HEADS_P)[:, None]
    dim = tl.arange(0, DIM_P)[None, :]
    inside = (head < HEADS) & (dim < DIM)
    within = head * DIM + dim
    target = ((page * HEADS + head) * PAGE + position % PAGE) * DIM + dim
    tl.store(cached_keys + target, tl.load(keys + token * key_stride + within, mask=inside), mask=inside)
    tl.store(cached_values + target, tl.load(values + token * value_stride + within, mask=inside), mask=inside)


def write(
    keys: Tensor, values: Tensor, *, into: tuple[Tensor, Tensor], tables: Tensor, rows: Tensor, positions: Tensor
) -> None:
    """keys, values: (tokens, heads, head dim), tokens may be strided; token n is at positions[n] of
    the sequence tables[rows[n]]."""
    tokens, heads, dim = keys.shape
    assert keys.stride()[1:] == values.stride()[1:] == (dim, 1), "heads of a token lie side by side"
    strides = (keys.stride(0), values.stride(0))
    sizes = {"HEADS": heads, "DIM": dim, "DIM_P": triton.next_power_of_2(dim), "HEADS_P": triton.next_power_of_2(heads)}
    _write[(tokens,)](
        keys, values, *strides, *into, tables, rows, positions, tables.stride(0), PAGE=into[0].shape[2], **sizes
    )


# ---------------------------------------------------------------------- attention of one token each


@triton.jit
def _decode(
    out, query, query_stride, cached_keys, cached_values, tables, positions, scale, table_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_P: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr,
    PAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(positions + sequence) + 1
    member = tl.arange(0, GROUP_P)[:, None]
    dim = tl.arange(0, DIM_P)
    within = (head * GROUP + member) * DIM + dim[None, :]
    real = (member < GROUP) & (dim[None, :] < DIM)
    q = tl.load(query + sequence * query_stride + within, mask=real, other=0.0)
    offset = tl.arange(0, PAGE)
    highest = tl.full([GROUP_P], -float("inf"), tl.float32)
    total = tl.zeros([GROUP_P], tl.float32)
    summed = tl.zeros([GROUP_P, DIM_P], tl.float32)
    for start in range(0, length, PAGE):
        page = tl.load(tables + sequence * table_stride + start // PAGE).to(tl.int64)
        base = (page * HEADS + head) * PAGE * DIM
        seen = start + offset < length
        block = base + offset[:, None] * DIM + dim[None, :]
        inside = seen[:, None] & (dim[None, :] < DIM)
        k = tl.load(cached_keys + block, mask=inside, other=0.0)
        v = tl.load(cached_values + block, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp(highest - higher)
        weights = tl.exp(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        summed = summed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        highest = higher
    at = sequence * HEADS * GROUP * DIM + within
    tl.store(out + at, (summed / total[:, None]).to(out.dtype.element_ty), mask=real)


def decode(query: Tensor, *, cached: tuple[Tensor, Tensor], tables: Tensor, positions: Tensor, scale: float) -> Tensor:
    """query: (sequences, query heads, head dim); sequence n sees its first positions[n] + 1 tokens.
    Query heads that share keys are the rows of one product, padded to a tensor core's 16."""
    keys, _ = cached
    sequences, query_heads, dim = query.shape
    assert query.stride()[1:] == (dim, 1), "heads of a token lie side by side"
    heads, page = keys.shape[1], keys.shape[2]
    out = torch.empty((sequences, query_heads, dim), dtype=query.dtype, device=query.device)
    group = query_heads // heads
    sizes = {
        "HEADS": heads,
        "GROUP": group,
        "GROUP_P": max(16, triton.next_power_of_2(group)),
        "DIM": dim,
        "DIM_P": max(16, triton.next_power_of_2(dim)),
        "PAGE": page,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }
    _decode[(sequences, heads)](
        out, query, query.stride(0), *cached, tables, positions, scale, tables.stride(0), **sizes
    )
    return out


# ---------------------------------------------------------------------- attention of prompts


@triton.jit
def _prompt(
    out, query, query_stride, cached_keys, cached_values, tables, positions, block_sequences, block_rows,
    block_ends, scale, table_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(block_sequences + block)
    if sequence >= 0:
        row = tl.load(block_rows + block) + tl.arange(0, ROWS)
        real = row < tl.load(block_ends + block)
        position = tl.load(positions + row, mask=real, other=-1)
        dim = tl.arange(0, DIM_P)
        within = head * DIM + dim[None, :]
        inside = real[:, None] & (dim[None, :] < DIM)
        q = tl.load(query + row[:, None] * query_stride + within, mask=inside, other=0.0)
        offset = tl.arange(0, PAGE)
        highest = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        summed = tl.zeros([ROWS, DIM_P], tl.float32)
        for start in range(0, tl.max(position, 0) + 1, PAGE):
            page = tl.load(tables + sequence * table_stride + start // PAGE).to(tl.int64)
            base = (page * HEADS + head // GROUP) * PAGE * DIM
            written = base + offset[:, None] * DIM + dim[None, :]
            known = (start + offset[:, None] <= tl.max(position, 0)) & (dim[None, :] < DIM)
            k = tl.load(cached_keys + written, mask=known, other=0.0)
            v = tl.load(cached_values + written, mask=known, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            scores = tl.where(start + offset[None, :] <= position[:, None], scores, -float("inf"))
            higher = tl.maximum(highest, tl.max(scores, 1))
            shrink = tl.exp(highest - higher)
            weights = tl.exp(scores - higher[:, None])
            total = total * shrink + tl.sum(weights, 1)
            summed = summed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
            highest = higher
        at = row[:, None] * HEADS * GROUP * DIM + within
        tl.store(out + at, (summed / total[:, None]).to(out.dtype.element_ty), mask=inside)


def prompt(
    query: Tensor,
    *,
    cached: tuple[Tensor, Tensor],
    tables: Tensor,
    positions: Tensor,
    blocks: tuple[Tensor, Tensor, Tensor],
    scale: float,
) -> Tensor:
    """query: (tokens, query heads, head dim); a token sees its sequence up to its own position.

    blocks: up to ROWS neighbouring tokens of one sequence each: its sequence (-1: none), its first
    token, and the end of the sequence. The host knows all sizes, for graphs."""
    keys, _ = cached
    tokens, query_heads, dim = query.shape
    assert query.stride()[1:] == (dim, 1), "heads of a token lie side by side"
    heads, page = keys.shape[1], keys.shape[2]
    # zeros: tokens that pad the batch are in no block
    out = torch.zeros((tokens, query_heads, dim), dtype=query.dtype, device=query.device)
    sizes = {
        "HEADS": heads,
        "GROUP": query_heads // heads,
        "DIM": dim,
        "DIM_P": max(16, triton.next_power_of_2(dim)),
        "PAGE": page,
        "ROWS": ROWS,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }
    _prompt[(len(blocks[0]), query_heads)](
        out, query, query.stride(0), *cached, tables, positions, *blocks, scale, tables.stride(0), **sizes
    )
    return out


# ---------------------------------------------------------------------- the rest of a layer


@triton.jit
def _rms_norm(out, summed, x, added, weight, eps, size, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + row * size + at, mask=inside, other=0.0)
    if ADDS:
        # rounded like the residual
        value = value + tl.load(added + row * size + at, mask=inside, other=0.0)
        tl.store(summed + row * size + at, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    normed = (wide * scale).to(out.dtype.element_ty)
    tl.store(out + row * size + at, tl.load(weight + at, mask=inside) * normed, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    return _normed(x, None, weight, eps=eps)[1]


def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """x + added, and its norm."""
    return _normed(x, added, weight, eps=eps)


def _normed(x: Tensor, added: Tensor | None, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    out, size = torch.empty_like(x), x.shape[-1]
    summed = x if added is None else torch.empty_like(x)
    other = x if added is None else added.contiguous()
    block = triton.next_power_of_2(size)
    _rms_norm[(x.numel() // size,)](out, summed, x, other, weight, eps, size, ADDS=added is not None, BLOCK=block)
    return summed, out


@triton.jit
def _silu_times(out, gate, up, stride, size, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(gate + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(up + row * stride + at, mask=inside, other=0.0)
    tl.store(out + row * size + at, (x * tl.sigmoid(x)).to(other.dtype) * other, mask=inside)


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, (tokens, size) each, whose tokens may be strided."""
    tokens, size = gate.shape
    assert gate.stride() == up.stride(), "gate and up lie alike"
    out = torch.empty((tokens, size), dtype=gate.dtype, device=gate.device)
    _silu_times[(tokens, triton.cdiv(size, 1024))](out, gate, up, gate.stride(0), size, BLOCK=1024)
    return out


@triton.jit
def _rotate(
    out, x, cos, sin, out_stride, stride,
    BACK: tl.constexpr, HEADS: tl.constexpr, HEADS_P: tl.constexpr, HALF: tl.constexpr, HALF_P: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_P)[:, None]
    dim = tl.arange(0, HALF_P)[None, :]
    inside = (head < HEADS) & (dim < HALF)
    at = token * stride + head * 2 * HALF + dim
    first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + at + HALF, mask=inside, other=0.0).to(tl.float32)
    angle = token * 2 * HALF + dim
    known = dim < HALF
    cos_1, cos_2 = tl.load(cos + angle, mask=known), tl.load(cos + angle + HALF, mask=known)
    sin_1, sin_2 = tl.load(sin + angle, mask=known), tl.load(sin + angle + HALF, mask=known)
    if BACK:
        sin_1, sin_2 = -sin_1, -sin_2
    to = token * out_stride + head * 2 * HALF + dim
    tl.store(out + to, (first * cos_1 - second * sin_1).to(out.dtype.element_ty), mask=inside)
    tl.store(out + to + HALF, (second * cos_2 + first * sin_2).to(out.dtype.element_ty), mask=inside)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False, out: Tensor | None = None) -> Tensor:
    """The rotary embedding of (tokens, heads, head_dim); tokens of `x` and `out` may be strided.
    cos, sin: (tokens, head_dim). `back`: by the opposite angle."""
    tokens, heads, dim = x.shape
    if out is None:
        out = torch.empty((tokens, heads, dim), dtype=x.dtype, device=x.device)
    assert x.stride()[1:] == out.stride()[1:] == (dim, 1), "heads of a token lie side by side"
    assert cos.shape == (tokens, dim), f"the rotary embedding covers {cos.shape[-1]} of {dim} dimensions"
    sizes = {"BACK": back, "HEADS": heads, "HEADS_P": triton.next_power_of_2(heads), "HALF": dim // 2}
    strides = (out.stride(0), x.stride(0))
    _rotate[(tokens,)](
        out, x, cos.contiguous(), sin.contiguous(), *strides, HALF_P=triton.next_power_of_2(dim // 2), **sizes
    )
    return out


# ---------------------------------------------------------------------- drawing


@triton.jit
def _block_sums(logits, temperatures, highest, sums, vocabulary, stride, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
    temperature = tl.load(temperatures + row)
    x = x / tl.where(temperature > 0, temperature, 1.0)
    most = tl.max(x, 0)
    tl.store(highest + row * BLOCKS + block, most)
    tl.store(sums + row * BLOCKS + block, tl.sum(tl.exp(x - most), 0))


@triton.jit
def _mix(z, first, second):
    z = (z ^ (z >> 30)) * first
    z = (z ^ (z >> 27)) * second
    return z ^ (z >> 31)


@triton.jit
def _choose(
    tokens, logprobs, logits, temperatures, highest, sums, origins, positions, constants, vocabulary, stride,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_P: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    blocks = tl.arange(0, BLOCKS_P)
    exists = blocks < BLOCKS
    most = tl.load(highest + row * BLOCKS + blocks, mask=exists, other=-float("inf"))
    top = tl.max(most, 0)
    mass = tl.load(sums + row * BLOCKS + blocks, mask=exists, other=0.0).to(tl.float64)
    mass *= tl.exp(most - top).to(tl.float64)
    total = tl.sum(mass, 0)
    golden = tl.load(constants).to(tl.uint64, bitcast=True)
    first = tl.load(constants + 1).to(tl.uint64, bitcast=True)
    second = tl.load(constants + 2).to(tl.uint64, bitcast=True)
    origin = tl.load(origins + row).to(tl.uint64, bitcast=True)
    position = tl.load(positions + row).to(tl.uint64)
    noise = _mix(origin + golden * (position + 2), first, second) >> 11
    aim = noise.to(tl.float64) * (1.0 / 9007199254740992.0) * total
    temperature = tl.load(temperatures + row)
    greedy = temperature <= 0
    # the first block whose cumulated mass passes the aim; greedy: the first with the highest logit
    upto = tl.cumsum(mass, 0)
    passed = tl.sum(((upto <= aim) & exists).to(tl.int32), 0)
    drawn = tl.minimum(passed, BLOCKS - 1)
    best = tl.min(tl.where(exists & (most == top), blocks, BLOCKS_P), 0)
    block = tl.where(greedy, best, drawn)
    before = tl.sum(tl.where(blocks < block, mass, 0.0), 0)
    inner = tl.arange(0, BLOCK)
    at = block * BLOCK + inner
    x = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
    x = x / tl.where(temperature > 0, temperature, 1.0)
    p = tl.exp(x - top).to(tl.float64)
    inside = before + tl.cumsum(p, 0)
    hit = tl.sum(((inside <= aim) & (at < vocabulary)).to(tl.int32), 0)
    # rounding may leave the aim past the last: then it is the last with any probability
    last = tl.max(tl.where(p > 0, inner, 0), 0)
    place = tl.where(greedy, tl.min(tl.where(x == top, inner, BLOCK), 0), tl.minimum(hit, last))
    chosen = tl.sum(tl.where(inner == place, x, 0.0), 0)
    broken = (total != total) | (top == -float("inf")) | (top == float("inf"))
    logprob = chosen.to(tl.float64) - top.to(tl.float64) - tl.log(total)
    tl.store(tokens + row, (block * BLOCK + place).to(tl.int64))
    tl.store(logprobs + row, tl.where(broken, float("nan"), logprob.to(tl.float32)))


def draw(
    logits: Tensor, *, temperatures: Tensor, origins: Tensor, positions: Tensor, constants: Tensor
) -> tuple[Tensor, Tensor]:
    """A token and its logprob for each row of `logits`, by inverse transform sampling.

    positions[n] is that of the token the logits come from; the noise is that of the next.
    Temperature 0 is greedy, with the logprob of temperature 1. A row with NaN yields a NaN logprob.
    """
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    highest, sums = (torch.empty((rows, blocks), dtype=torch.float32, device=logits.device) for _ in range(2))
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    sizes = {"BLOCK": BLOCK, "BLOCKS": blocks}
    _block_sums[(rows, blocks)](logits, temperatures, highest, sums, vocabulary, logits.stride(0), **sizes)
    _choose[(rows,)](
        tokens, logprobs, logits, temperatures, highest, sums, origins, positions, constants, vocabulary, logits.stride(0),
        BLOCKS_P=triton.next_power_of_2(blocks), **sizes,
    )  # fmt: skip
    return tokens, logprobs


def noise_constants(device: torch.device) -> Tensor:
    return torch.tensor(
        [each - 2**64 if each >= 2**63 else each for each in (GOLDEN, FIRST, SECOND)], dtype=torch.int64, device=device
    )
