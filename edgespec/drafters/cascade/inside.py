"""Nodes that a cascade drafts inside the target: slots behind the committed prefix of the session's cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from edgespec.core.tree import Computed
from edgespec.runtimes.base import TREE_ROWS, IntArray, KVCache
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import PassObserver, Target


class InsideForest:
    """One round's nodes. What is computed for them is what verification would compute, bit for bit: the same
    layers, in the same row classes, at the same positions."""

    hidden: Tensor  # [TREE_ROWS, d] state of each slot behind the layers it has been through

    def __init__(self, target: Target, cache: KVCache, observer: PassObserver) -> None:
        """`observer` hears of the passes."""
        self.target, self.observer = target, observer
        self.cache = cache.inside()
        self.tokens: list[int] = []  # by slot
        self.slots: dict[tuple[int, int], int] = {}  # (parent slot or -1, token) -> slot
        self.layers = np.zeros(TREE_ROWS, dtype=np.int64)  # that each slot has been through

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def free(self) -> int:
        """Nodes that may still be planted."""
        return TREE_ROWS - len(self)

    def plant(self, nodes: Sequence[tuple[int, int]]) -> IntArray:
        """Slots for new nodes (parent slot or -1, token)."""
        slots = self.cache.append([parent for parent, _ in nodes])
        self.slots.update(zip(nodes, slots.tolist(), strict=True))
        embedded = self.target.embed([token for _, token in nodes])
        if not self.tokens:
            self.hidden = embedded.new_empty((TREE_ROWS, embedded.shape[1]))
        self.tokens += [token for _, token in nodes]
        self.hidden[slots] = embedded
        return slots

    def run(self, slots: IntArray, layers: int) -> Rows:
        """Take slots, which have come equally far, through the target's first `layers` layers; their rows."""
        first = int(self.layers[slots[0]])
        rows = Rows.of(self.cache, slots)
        if first < layers:
            self.hidden[slots] = self.target.run(
                self.hidden[slots], rows, range(first, layers), self.observer
            )
            self.layers[slots] = layers
        return rows

    def path(self, tokens: Sequence[int]) -> list[int]:
        """Slots of the beginning of a path of tokens, as far as it was planted."""
        found: list[int] = []
        for token in tokens:
            slot = self.slots.get((found[-1] if found else -1, token))
            if slot is None:
                break
            found.append(slot)
        return found

    def computed(self, slots: IntArray) -> Computed:
        """What verification takes over for a tree whose nodes have these slots [n] (-1 = none)."""
        return Computed(slots, self.layers, self.hidden)
