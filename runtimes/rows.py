"""The rows of one pass. Importing this needs no torch.

For each row: whose it is, where it stands and what it may attend to, which is the committed prefix of its
cache, its ancestors among the uncommitted slots, and itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.runtimes.base import IntArray, KVCache


@dataclass(frozen=True)
class Rows:
    """What the n rows of one pass are.

    Rows of one cache are contiguous and in slot order: `segments[c]` is the range of rows that belong to
    `caches[c]`. `prompts[c]` marks a block of a prompt: a chain, computed in one piece. No row's bits depend
    on what else is in the pass; but without `apart` blocks that are alone are multiplied in one piece, too.
    """

    caches: tuple[KVCache, ...]
    segments: tuple[range, ...]
    slots: IntArray  # [n] slot of each row in its own cache
    positions: IntArray  # [n] absolute position
    prompts: tuple[bool, ...]
    apart: bool = True

    @property
    def n(self) -> int:
        return len(self.slots)

    @property
    def prefill(self) -> bool:
        """There are blocks of prompts, and nothing else."""
        return all(self.prompts)

    @property
    def blocks(self) -> tuple[range, ...]:
        """The segments that are each to be multiplied for itself."""
        whole = self.prefill and (len(self.segments) == 1 or not self.apart)
        return (
            () if whole else tuple(s for s, prompt in zip(self.segments, self.prompts, strict=True) if prompt)
        )

    @staticmethod
    def append(cache: KVCache, parents: Sequence[int] | IntArray, prefill: bool = False) -> Rows:
        """Open new slots in one cache and describe them as rows."""
        return Rows.of(cache, cache.append(parents), prefill)

    @staticmethod
    def of(cache: KVCache, slots: IntArray, prefill: bool = False) -> Rows:
        """Rows for slots that are open already (a cascade's nodes entering deeper layers), ascending."""
        assert np.all(slots[1:] > slots[:-1])
        positions = cache.length + slot_depths(cache.parents)[slots]
        return Rows((cache,), (range(len(slots)),), slots, positions, (prefill,))

    def take(self, rows: IntArray) -> Rows:
        """Some of the rows, ascending; caches that have none of them are left out."""
        bounds = np.searchsorted(rows, [(s.start, s.stop) for s in self.segments])  # [caches, 2]
        kept = [(c, range(*bounds[c].tolist())) for c in np.flatnonzero(bounds[:, 0] < bounds[:, 1])]
        return Rows(
            caches=tuple(self.caches[c] for c, _ in kept),
            segments=tuple(segment for _, segment in kept),
            slots=self.slots[rows],
            positions=self.positions[rows],
            prompts=tuple(self.prompts[c] for c, _ in kept),
            apart=self.apart,
        )

    def of_cache(self, place: int) -> Rows:
        """Those of `caches[place]`; as `take`, without a look at the others."""
        segment = self.segments[place]
        own = slice(segment.start, segment.stop)
        return Rows(
            caches=(self.caches[place],),
            segments=(range(len(segment)),),
            slots=self.slots[own],
            positions=self.positions[own],
            prompts=(self.prompts[place],),
            apart=self.apart,
        )

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        """One ragged batch from rows of different caches: trees, and behind them blocks of prompts."""
        prompts = [prompt for p in parts for prompt in p.prompts]
        if prompts != sorted(prompts):
            raise ValueError("trees come before blocks of prompts")
        caches = [c for p in parts for c in p.caches]
        if len(set(map(id, caches))) != len(caches):
            raise ValueError("each cache may appear once in a pass")
        segments, base = [], 0
        for p in parts:
            segments += [range(s.start + base, s.stop + base) for s in p.segments]
            base += p.n
        return Rows(
            caches=tuple(caches),
            segments=tuple(segments),
            slots=np.concatenate([p.slots for p in parts]),
            positions=np.concatenate([p.positions for p in parts]),
            prompts=tuple(prompts),
        )


def slot_depths(parents: IntArray) -> IntArray:
    """[slots] depth of each slot: 0 for children of the committed prefix. Parents precede children."""
    depths = list[int]()
    for parent in parents.tolist():
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return np.array(depths, dtype=np.int64)


def with_slots(parents: IntArray, added: Sequence[int] | IntArray) -> IntArray:
    """[slots + new] parents of slots, and of new ones behind them. Raises ValueError where one's parent is
    not before it."""
    fresh = np.array(added, dtype=np.int64)
    for slot, parent in enumerate(fresh.tolist(), len(parents)):
        if not -1 <= parent < slot:
            raise ValueError("a slot's parent must be an earlier slot or -1")
    return np.concatenate([parents, fresh]) if len(parents) else fresh


def kept_parents(
    parents: IntArray, path: Sequence[int] | IntArray, keep: Sequence[int] | IntArray
) -> IntArray:
    """[keep] parents of the slots `keep` once `path` is committed and they are numbered anew, in order.

    Raises ValueError for a path that is none, and for a kept slot that would hang nowhere.
    """
    end = -1
    for slot in path:
        if parents[slot] != end:
            raise ValueError(f"slot {slot} does not continue the path {list(path)}")
        end = int(slot)
    number = {end: -1}
    kept = np.empty(len(keep), dtype=np.int64)
    for new, slot in enumerate(keep):
        if int(parents[slot]) not in number or (new and slot <= keep[new - 1]):
            raise ValueError(f"slot {slot} of {list(keep)} cannot be kept behind the path {list(path)}")
        kept[new] = number[int(parents[slot])]
        number[int(slot)] = new
    return kept
