"""Attention with an arbitrary mask on CUDA: `reference.attend`, and a token tree in one call.

Keys are taken a block at a time with a running maximum and sum (online softmax, FlashAttention: arXiv
2205.14135, section 3.1), so no scores are ever in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgespec.kernels.reference import Mask
from edgespec.kernels.triton import operand_type

ROWS = 16  # of a tile
KEYS = {2: 64, 4: 32}  # of a tile, by bytes of an element: what fits the shared memory of small GPUs


@triton.jit
def _attend(
    q, k, v, visible, out, lse, rows, keys, prefix, scale, heads, group,
    q_batch, q_head, q_row, k_batch, k_head, k_key, v_batch, v_head, v_key, s_batch, s_head, s_row, s_key,
    MASKED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, TYPE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """ROWS query rows of one (batch, head). `visible` tells of keys from `prefix` on; those before are seen
    by all. `group` neighbouring rows share a row of it."""
    pair = tl.program_id(1).to(tl.int64)
    batch, head = pair // heads, pair % heads
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    e = tl.arange(0, PADDED)
    inside = (row < rows)[:, None] & (e < WIDTH)[None, :]
    query = tl.load(q + batch * q_batch + head * q_head + row[:, None] * q_row + e[None, :], inside, other=0)
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    visible += batch * s_batch + head * s_head
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, PADDED), tl.float32)
    for first in range(0, keys, KEYS):
        key = (first + tl.arange(0, KEYS)).to(tl.int64)
        stored = (key < keys)[:, None] & (e < WIDTH)[None, :]
        block = tl.load(k + key[:, None] * k_key + e[None, :], stored, other=0)
        scores = tl.dot(query.to(TYPE), tl.trans(block.to(TYPE)), input_precision="ieee") * scale
        seen = (row < rows)[:, None] & (key < keys)[None, :]
        if MASKED:
            asked = seen & (key >= prefix)[None, :]
            place = (row // group)[:, None] * s_row + (key - prefix)[None, :] * s_key
            seen = seen & (tl.load(visible + place, asked, other=1) != 0)
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(highest == float("-inf"), 0.0, highest)  # a row that has seen no key yet
        weights = tl.exp(scores - level[:, None])
        decay = tl.exp(top - level)
        total = total * decay + tl.sum(weights, 1)
        block = tl.load(v + key[:, None] * v_key + e[None, :], stored, other=0)
        sums = sums * decay[:, None] + tl.dot(weights.to(TYPE), block.to(TYPE), input_precision="ieee")
        top = highest
    some = tl.where(total > 0, total, 1.0)
    place = pair * rows + row
    result = (sums / some[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * WIDTH + e[None, :], result, inside)
    tl.store(lse + place, tl.where(total > 0, top + tl.log(some), float("-inf")), row < rows)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float) -> tuple[Tensor, Tensor]:
    """See `reference.attend`."""
    b, h, m, _ = q.shape
    if mask is None:
        return _launch(q, k, v, None, 0, 1, scale)
    visible = mask.visible.expand(b, h, m, k.shape[2])
    return _launch(q, k, v, visible, 0, 1, scale)


def tree_attend(
    q: Tensor, k: Tensor, v: Tensor, committed: int, ancestors: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention of a tree's nodes to the committed prefix and to their ancestors among the slots behind it.

    q [n, heads, e]; k and v [kv_heads, committed + slots, e] as they lie in the cache; ancestors [n, slots]
    bool, true for a node's ancestors and itself. -> out [n, heads, e], lse [n, heads] fp32.
    """
    n, heads, e = q.shape
    kv_heads, keys, _ = k.shape
    if ancestors.shape != (n, keys - committed):
        raise ValueError(f"{n} nodes and {keys - committed} slots, but ancestors are {list(ancestors.shape)}")
    group = heads // kv_heads
    rows = q.view(n, kv_heads, group, e).transpose(0, 1).reshape(1, kv_heads, n * group, e)
    visible = ancestors[None, None].expand(1, kv_heads, n, keys - committed)
    out, lse = _launch(rows, k[None], v[None], visible, committed, group, scale)
    out = out.view(kv_heads, n, group, e).transpose(0, 1).reshape(n, heads, e)
    return out, lse.view(kv_heads, n, group).transpose(0, 1).reshape(n, heads)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, prefix: int, group: int, scale: float
) -> tuple[Tensor, Tensor]:
    """q [b, h, m, e], k and v [b, h, t, e], visible [b, h, m / group, t - prefix]."""
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    b, h, m, e = q.shape
    out = torch.empty((b, h, m, e), dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, m), dtype=torch.float32, device=q.device)
    mask = q.new_empty((1, 1, 1, 1)) if visible is None else visible.view(torch.uint8)
    grid = (triton.cdiv(m, ROWS), b * h)
    _attend[grid](
        q, k, v, mask, out, lse, m, k.shape[2], prefix, scale, h, group,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *mask.stride(),
        MASKED=visible is not None, WIDTH=e, PADDED=max(16, triton.next_power_of_2(e)),
        TYPE=operand_type(q.dtype), ROWS=ROWS, KEYS=KEYS[q.element_size()],
    )  # fmt: skip
    return out, lse
