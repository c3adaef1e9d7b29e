"""Tree attention whose bits depend on positions only, never on slots or on how many rows share a pass.

Keys are split into blocks of `BLOCK` absolute positions. Whole blocks of the committed prefix are shared by
all rows. The blocks with uncommitted positions are gathered per row along its ancestors, in position order,
so the arithmetic is what it would be had those tokens been decoded one by one. Each block gives an output and
a log-sum-exp; they are merged in block order. Plain decoding is the same code with one row.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels.dispatch import attend
from edgespec.kernels.reference import Mask
from edgespec.kernels.threads import alone
from edgespec.kernels.tree_attention import Past, TreeAttention, suits
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.formats.needs import round_up
from edgespec.runtimes.formats.passes import BLOCK
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.kv_cache import Inside, Overlay, TorchKVCache

KV = tuple[Tensor, Tensor]  # of one layer, [kv_heads, places, head_dim] each
GATHER_ROWS = 16  # rows whose own blocks are gathered at a time: bounds the copy's memory
# Numbers of rows and keys of a prompt's attention are multiples of this and of BLOCK: in bf16 torch keeps
# compiled code, some 20 KB, for each pair of remainders that it meets, in each thread and for ever.
PREFILL_MULTIPLE = 32
_PLACES = np.arange(BLOCK, dtype=np.int32)


class AttentionPlan:
    """Everything about a pass's attention that is the same in every layer, per cache."""

    def __init__(self, rows: Rows, device: torch.device, chains: int = 0) -> None:
        """chains: of a prompt's rows so many are multiplied as a tree's, and then attend as one, too: their
        bits depend on positions alone, however the prompt is cut."""
        self.parts = []
        trees: list[_Tree] = []
        for cache, segment, prompt in zip(rows.caches, rows.segments, rows.prompts, strict=True):
            assert isinstance(cache, TorchKVCache)
            span = slice(segment.start, segment.stop)
            slots, positions = rows.slots[span], rows.positions[span]
            chain = rows.apart and len(segment) <= chains
            part: _Prefill | _Tree
            if prompt and not chain:
                part = _Prefill(cache, slots, positions, device)
            else:
                part = _Tree(cache, slots, positions, device, prompt)
            self.parts.append((cache, span, slots, part))
            if isinstance(part, _Tree):
                assert len(trees) == len(self.parts) - 1, "long blocks of prompts come last"
                trees.append(part)
        self.trees = len(trees)  # the first parts, in one call
        self.guarded = [tree.cache for tree in trees if isinstance(tree.cache, Inside)]
        compiled = bool(trees) and all(suits(tree.cache.k) for tree in trees)
        self.compiled = TreeAttention([tree.past for tree in trees]) if compiled else None

    def check_free(self) -> None:
        """Raises BusyError where a tree would overwrite another one's slots."""
        for inside in self.guarded:
            inside.check_free()

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """Stores k, v [n, kv_heads, head_dim]; q [n, heads, head_dim] -> [n, heads * head_dim]."""
        outputs, rest = [], self.parts
        if self.compiled is not None and q.shape[1] <= self.compiled.most_heads:
            rest = self.parts[self.trees :]
            self.check_free()
            if not rest:
                return self.compiled(layer, q, k, v, window)
            n = self.compiled.n
            outputs.append(self.compiled(layer, q[:n], k[:n], v[:n], window))
        for cache, span, slots, part in rest:
            cache.write(layer, cache.places(slots), k[span], v[span])
            outputs.append(part(layer, q[span], window))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class _Prefill:
    """One chain behind the prefix, where slot order is position order: ordinary causal attention."""

    def __init__(
        self, cache: TorchKVCache, slots: IntArray, positions: IntArray, device: torch.device
    ) -> None:
        assert not isinstance(cache, Overlay), "prompts are not followed in an overlay"
        self.cache = cache
        whole = np.pad(positions, (0, -len(positions) % PREFILL_MULTIPLE), mode="edge")
        self.positions = torch.from_numpy(whole).to(device)  # [n, and more rows like the last]
        self.end = round_up(int(positions[-1]) + 1)
        self.first = cache.length
        self.masks: dict[int | None, Tensor] = {}

    def __call__(self, layer: int, q: Tensor, window: int | None) -> Tensor:
        """q [n, heads, e] -> [n, heads * e]."""
        k, v = self.cache.k[layer], self.cache.v[layer]
        start = 0 if window is None else max(0, self.first - window + 1) // BLOCK * BLOCK
        if window not in self.masks:
            keys = torch.arange(start, self.end, device=q.device)
            visible = keys <= self.positions[:, None]  # [rows, keys]
            if window is not None:
                visible &= keys > self.positions[:, None] - window
            self.masks[window] = visible[None]
        n, rows = len(q), len(self.positions)
        out = F.scaled_dot_product_attention(
            F.pad(q, (0, 0, 0, 0, 0, rows - n)).transpose(0, 1)[None],
            k[None, :, start : self.end],
            v[None, :, start : self.end],
            attn_mask=self.masks[window][None],
            enable_gqa=q.shape[1] > k.shape[0],
        )
        return out[0].transpose(0, 1)[:n].flatten(1)


class _Tree:
    """Rows with ancestors among the cache's slots; or all its slots, one behind the other (`chain`)."""

    def __init__(
        self, cache: TorchKVCache, slots: IntArray, positions: IntArray, device: torch.device, chain: bool
    ) -> None:
        self.cache, self.device = cache, device
        self.n = len(slots)
        self.shared = cache.length // BLOCK * BLOCK  # positions [0, shared) are whole committed blocks
        self.positions = positions  # [n]
        rest = cache.length - self.shared
        self.end = round_up(int(positions.max()) + 1)  # [shared, end): the rows' own blocks
        self.first = int(positions.min())
        # [n, end - shared] which place behind `shared` each of these positions has on a row's path; -1: none.
        if chain:
            assert not isinstance(cache, Overlay), "prompts are not followed in an overlay"
            behind = np.arange(self.end - self.shared, dtype=np.int32)
            place = np.where(behind <= positions[:, None] - self.shared, behind, np.int32(-1))
        else:
            place = np.full((self.n, self.end - self.shared), -1 - rest, dtype=np.int32)
            for row, path in enumerate(ancestor_paths(cache.parents, slots)):
                place[row, rest : rest + len(path)] = path
            place += np.int32(rest)
            place[:, :rest] = _PLACES[:rest]
        self.place = place
        self.used = rest + int(slots.max()) + 1  # places behind `shared`: a slot lies behind its ancestors
        self.masks: dict[tuple[int, int, int | None], Mask] = {}
        self.prefixes: dict[tuple[int, int], list[KV]] = {}  # by positions, and then by layer

    @cached_property
    def chain(self) -> bool:
        """Every place is its position (plain decoding is the shortest): nothing is gathered."""
        behind = self.positions - self.shared
        own = self.place[np.arange(self.n), behind]
        return not isinstance(self.cache, Overlay) and bool((own == behind).all())

    @cached_property
    def places(self) -> Tensor:
        """[n, end - shared] in the cache's memory, for `_apart` alone; any where nothing is on the path."""
        places = self.place.astype(np.int64) + (self.shared - self.cache.origin)
        return torch.from_numpy(np.maximum(places, 0)).to(self.device)

    def __call__(self, layer: int, q: Tensor, window: int | None) -> Tensor:
        """q [n, heads, e] -> [n, heads * e]."""
        grouped = q.view(self.n, self.cache.k.shape[1], -1, q.shape[2])  # [n, h, g, e]
        start = 0 if window is None else max(0, self.first - window + 1) // BLOCK * BLOCK
        blocks = []
        if self.chain:
            blocks.append(self._together(layer, grouped, start, self.end, window))
        else:
            if start < self.shared:
                blocks.append(self._together(layer, grouped, start, self.shared, window))
            parts = [
                self._apart(layer, grouped, slice(row, min(row + GATHER_ROWS, self.n)), window)
                for row in range(0, self.n, GATHER_ROWS)
            ]
            outs, lses = zip(*parts, strict=True)
            blocks.append((torch.cat(outs, 2), torch.cat(lses, 2)) if len(parts) > 1 else parts[0])
        return _merged(blocks).to(q.dtype).transpose(0, 1).reshape(self.n, -1)

    @property
    def past(self) -> Past:
        """For the compiled kernel."""
        cache, start = self.cache, self.shared - self.cache.origin
        behind = range(start, start + self.used)
        return Past(cache.prefix, (cache.k, cache.v), behind, self.shared, self.place, self.positions)

    def _together(
        self, layer: int, q: Tensor, start: int, end: int, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Blocks of positions [start, end), shared by all rows -> [h, blocks, n, g, e], [h, blocks, n, g]."""
        n, kv_heads, group, e = q.shape
        blocks = (end - start) // BLOCK
        rows = q.transpose(0, 1).reshape(kv_heads, 1, n * group, e)
        mask = None
        if window is not None or end > self.shared:
            key = (start, end, window)
            if key not in self.masks:
                keys = np.arange(start, end).reshape(blocks, 1, BLOCK)
                visible = keys <= self.positions[:, None]  # [blocks, n, BLOCK]
                if window is not None:
                    visible &= keys > self.positions[:, None] - window
                visible = np.repeat(visible, group, axis=1)[None]
                self.masks[key] = Mask(torch.from_numpy(visible).to(self.device))
            mask = self.masks[key]
        if (start, end) not in self.prefixes:
            k, v = self.cache.blocks(start, end)
            self.prefixes[start, end] = list(zip(k.unbind(0), v.unbind(0), strict=True))
        k, v = self.prefixes[start, end][layer]
        out, lse = attend(rows.expand(kv_heads, blocks, n * group, e), k, v, mask, e**-0.5)
        return out.view(kv_heads, blocks, n, group, e), lse.view(kv_heads, blocks, n, group)

    def _apart(self, layer: int, q: Tensor, part: slice, window: int | None) -> tuple[Tensor, Tensor]:
        """Blocks of positions [shared, end), gathered for each of some rows along its path -> as above."""
        _, kv_heads, group, e = q.shape
        count, blocks = part.stop - part.start, (self.end - self.shared) // BLOCK
        key = (part.start, part.stop, window)
        if key not in self.masks:
            visible = self.place[part] >= 0
            if window is not None:
                keys = np.arange(self.shared, self.end)
                visible = visible & (keys > self.positions[part, None] - window)
            visible = visible.reshape(1, count * blocks, 1, BLOCK)
            self.masks[key] = Mask(torch.from_numpy(visible).to(self.device))
        k, v = (  # indexing, as in kv[:, places], takes 12 times as long
            kv[layer].index_select(1, self.places[part].flatten()).view(kv_heads, count * blocks, BLOCK, e)
            for kv in (self.cache.k, self.cache.v)
        )
        rows = q[part].transpose(0, 1)[:, :, None].expand(kv_heads, count, blocks, group, e)
        rows = rows.reshape(kv_heads, count * blocks, group, e)
        out, lse = attend(rows, k, v, self.masks[key], e**-0.5)  # [h, count * blocks, g, e], [.., g]
        out = out.view(kv_heads, count, blocks, group, e).transpose(1, 2)
        return out, lse.view(kv_heads, count, blocks, group).transpose(1, 2)


def _merged(blocks: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Softmax over all keys from that over each block: sum_b w_b out_b / sum_b w_b, w = exp(lse - top).

    out [h, blocks, n, g, e] and lse [h, blocks, n, g] fp32 of some blocks each, in position order
    -> [h, n, g, e]. The sums run over blocks one by one: a reduction kernel would sum in an order that
    depends on how many blocks there are.
    """
    outs = [out for some, _ in blocks for out in some.unbind(1)]
    if len(outs) == 1:
        return outs[0]  # what the sums below would give
    lse = torch.stack([lse for _, some in blocks for lse in some.unbind(1)])
    with alone():  # a few numbers, for which torch would wake all threads
        weights = torch.exp(lse - lse.amax(0))[..., None].unbind(0)  # of [h, n, g, 1]
    total = weights[0].clone()
    merged = weights[0] * outs[0]
    for weight, out in zip(weights[1:], outs[1:], strict=True):
        total += weight
        merged.addcmul_(weight, out.float())
    return merged / total


def ancestor_paths(parents: IntArray, slots: IntArray) -> list[list[int]]:
    """For each slot, its ancestors' slots and its own, root first."""
    above, known = parents.tolist(), {-1: list[int]()}

    def path(slot: int) -> list[int]:
        missing = []
        while slot not in known:
            missing.append(slot)
            slot = above[slot]
        for s in reversed(missing):
            known[s] = [*known[above[s]], s]
        return known[missing[0]] if missing else known[slot]

    return [path(slot) for slot in slots.tolist()]
