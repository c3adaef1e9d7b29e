"""Tree attention whose bits depend on positions only, never on slots or on how many rows share a pass.

Keys are split into blocks of `BLOCK` absolute positions. Whole blocks of the committed prefix are shared by
all rows. The blocks with uncommitted positions are gathered per row along its ancestors, in position order,
so the arithmetic is what it would be had those tokens been decoded one by one. Each block gives an output and
a log-sum-exp; they are merged in block order. Plain decoding is the same code with one row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels.dispatch import attend
from edgespec.kernels.reference import Mask
from edgespec.runtimes.base import IntArray, Rows, slot_depths
from edgespec.runtimes.torch.kv_cache import BLOCK, Overlay, TorchKVCache

KV = tuple[Tensor, Tensor]  # of one layer, [kv_heads, places, head_dim] each
GATHER_ROWS = 16  # rows whose own blocks are gathered at a time: bounds the copy's memory


class AttentionPlan:
    """Everything about a pass's attention that is the same in every layer, per cache."""

    def __init__(self, rows: Rows, device: torch.device) -> None:
        self.prefill = rows.prefill
        self.parts = []
        for cache, segment in zip(rows.caches, rows.segments, strict=True):
            assert isinstance(cache, TorchKVCache)
            span = slice(segment.start, segment.stop)
            slots, positions = rows.slots[span], rows.positions[span]
            kind = _Prefill if rows.prefill else _Tree
            self.parts.append((cache, span, slots, kind(cache, slots, positions, device)))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """Stores k, v [n, kv_heads, head_dim]; q [n, heads, head_dim] -> [n, heads * head_dim]."""
        outputs = []
        for cache, span, slots, part in self.parts:
            cache.write(layer, slots, k[span], v[span])
            out = part(cache.prefix(layer), (cache.k[layer], cache.v[layer]), q[span], window)
            outputs.append(out.flatten(1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class _Prefill:
    """One chain behind the prefix, where slot order is position order: ordinary causal attention."""

    def __init__(
        self, cache: TorchKVCache, slots: IntArray, positions: IntArray, device: torch.device
    ) -> None:
        assert not isinstance(cache, Overlay), "prompts are not followed in an overlay"
        self.positions = torch.from_numpy(positions).to(device)  # [n]
        self.end = int(positions[-1]) + 1
        self.first = cache.length
        self.masks: dict[int | None, Tensor] = {}

    def __call__(self, prefix: KV, own: KV, q: Tensor, window: int | None) -> Tensor:
        k, v = own
        start = 0 if window is None else max(0, self.first - window + 1) // BLOCK * BLOCK
        if window not in self.masks:
            keys = torch.arange(start, self.end, device=q.device)
            visible = keys <= self.positions[:, None]  # [n, keys]
            if window is not None:
                visible &= keys > self.positions[:, None] - window
            self.masks[window] = visible[None]
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k[None, :, start : self.end],
            v[None, :, start : self.end],
            attn_mask=self.masks[window][None],
            enable_gqa=q.shape[1] > k.shape[0],
        )
        return out[0].transpose(0, 1)  # [n, heads, head_dim]


class _Tree:
    """Rows with ancestors among the cache's slots."""

    def __init__(
        self, cache: TorchKVCache, slots: IntArray, positions: IntArray, device: torch.device
    ) -> None:
        self.n = len(slots)
        self.shared = cache.length // BLOCK * BLOCK  # positions [0, shared) are whole committed blocks
        self.end = -(-(int(positions.max()) + 1) // BLOCK) * BLOCK  # [shared, end): the rows' own blocks
        self.first = int(positions.min())
        self.positions = torch.from_numpy(positions).to(device)  # [n]
        paths = ancestor_paths(cache.parents, slots)
        # On a chain (plain decoding is the shortest) every place is its position: nothing is gathered.
        self.chain = not isinstance(cache, Overlay) and all(int(path[-1]) == len(path) - 1 for path in paths)
        if not self.chain:
            place = np.full((self.n, self.end - self.shared), -1, dtype=np.int64)  # -1 = not on the path
            start = cache.length - self.shared
            place[:, :start] = np.arange(self.shared, cache.length)
            for row, path in enumerate(paths):
                place[row, start : start + len(path)] = path + cache.length
            self.on_path = torch.from_numpy(place >= 0).to(device)  # [n, end - shared]
            self.places = torch.from_numpy(np.maximum(place - cache.origin, 0)).to(device)
        self.masks: dict[tuple[int, int, int | None], Mask] = {}

    def __call__(self, prefix: KV, own: KV, q: Tensor, window: int | None) -> Tensor:
        """`prefix`: K, V by position. `own`: by place, and where nothing is gathered by position, too."""
        kv_heads, _, e = own[0].shape
        grouped = q.view(self.n, kv_heads, -1, e)  # [n, h, g, e]
        merge = _Merge()
        start = 0 if window is None else max(0, self.first - window + 1) // BLOCK * BLOCK
        if self.chain:
            merge.add(*self._together(*prefix, grouped, start, self.end, window))
        else:
            if start < self.shared:
                merge.add(*self._together(*prefix, grouped, start, self.shared, window))
            parts = [
                self._apart(*own, grouped, slice(row, min(row + GATHER_ROWS, self.n)), window)
                for row in range(0, self.n, GATHER_ROWS)
            ]
            outs, lses = zip(*parts, strict=True)
            merge.add(torch.cat(outs, 1), torch.cat(lses, 1))
        return merge.result().to(q.dtype).flatten(1, 2)  # [n, heads, e]

    def _together(
        self, k: Tensor, v: Tensor, q: Tensor, start: int, end: int, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Blocks of positions [start, end), shared by all rows -> [blocks, n, h, g, e], [blocks, n, h, g]."""
        n, kv_heads, group, e = q.shape
        blocks = (end - start) // BLOCK
        rows = q.transpose(0, 1).reshape(kv_heads, 1, n * group, e)
        mask = None
        if window is not None or end > self.shared:
            key = (start, end, window)
            if key not in self.masks:
                keys = torch.arange(start, end, device=q.device).view(blocks, 1, BLOCK)
                visible = keys <= self.positions[:, None]  # [blocks, n, BLOCK]
                if window is not None:
                    visible &= keys > self.positions[:, None] - window
                self.masks[key] = Mask(visible.repeat_interleave(group, 1)[None])
            mask = self.masks[key]
        out, lse = attend(
            rows.expand(kv_heads, blocks, n * group, e),
            k[:, start:end].view(kv_heads, blocks, BLOCK, e),
            v[:, start:end].view(kv_heads, blocks, BLOCK, e),
            mask,
            e**-0.5,
        )  # [h, blocks, n * g, e], [h, blocks, n * g]
        out = out.reshape(kv_heads, blocks, n, group, e).permute(1, 2, 0, 3, 4)
        return out, lse.reshape(kv_heads, blocks, n, group).permute(1, 2, 0, 3)

    def _apart(
        self, k: Tensor, v: Tensor, q: Tensor, part: slice, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Blocks of positions [shared, end), gathered for each of some rows along its own path."""
        _, kv_heads, group, e = q.shape
        count, blocks = part.stop - part.start, (self.end - self.shared) // BLOCK
        key = (part.start, part.stop, window)
        if key not in self.masks:
            visible = self.on_path[part]
            if window is not None:
                keys = torch.arange(self.shared, self.end, device=q.device)
                visible = visible & (keys > self.positions[part, None] - window)
            self.masks[key] = Mask(visible.reshape(1, count * blocks, 1, BLOCK))
        places = self.places[part].flatten()
        rows = q[part].transpose(0, 1)[:, :, None].expand(kv_heads, count, blocks, group, e)
        out, lse = attend(
            rows.reshape(kv_heads, count * blocks, group, e),
            k[:, places].view(kv_heads, count * blocks, BLOCK, e),
            v[:, places].view(kv_heads, count * blocks, BLOCK, e),
            self.masks[key],
            e**-0.5,
        )  # [h, count * blocks, g, e], [h, count * blocks, g]
        out = out.reshape(kv_heads, count, blocks, group, e).permute(
            2, 1, 0, 3, 4
        )  # [blocks, count, h, g, e]
        return out, lse.reshape(kv_heads, count, blocks, group).permute(2, 1, 0, 3)


class _Merge:
    """Softmax over all keys from that over each block: sum_b w_b out_b / sum_b w_b, w = exp(lse - top)."""

    def __init__(self) -> None:
        self.outs: list[Tensor] = []
        self.lses: list[Tensor] = []

    def add(self, out: Tensor, lse: Tensor) -> None:
        """out [blocks, n, h, g, e], lse [blocks, n, h, g] fp32, in position order."""
        self.outs.extend(out.unbind(0))
        self.lses.extend(lse.unbind(0))

    def result(self) -> Tensor:
        """[n, h, g, e]. The sums run over blocks one by one: a reduction kernel would sum in an order
        that depends on how many blocks there are."""
        if len(self.outs) == 1:
            return self.outs[0]  # what the sums below would give
        lse = torch.stack(self.lses)
        weights = torch.exp(lse - lse.amax(0))[..., None]  # [blocks, n, h, g, 1]
        total = weights[0].clone()
        out = weights[0] * self.outs[0]
        for weight, block in zip(weights[1:], self.outs[1:], strict=True):
            total += weight
            out.addcmul_(weight, block.float())
        return out / total


def ancestor_paths(parents: IntArray, slots: IntArray) -> list[IntArray]:
    """For each slot, its ancestors' slots and its own, root first."""
    known: dict[int, IntArray] = {-1: np.empty(0, dtype=np.int64)}
    depths = slot_depths(parents)

    def path(slot: int) -> IntArray:
        missing = []
        while slot not in known:
            missing.append(slot)
            slot = int(parents[slot])
        for s in reversed(missing):
            known[s] = np.append(known[int(parents[s])], s)
        return known[missing[0]] if missing else known[slot]

    paths = [path(int(s)) for s in slots]
    assert all(len(p) == depths[s] + 1 for p, s in zip(paths, slots, strict=True))
    return paths
