"""What a drafter that reads the target's hidden states sees of its conversation: of each position, once.

    passes   embeddings ─► layer 1 ─ ... ─► layer L/2 ─ ... ─► layer L
                 │ depth 0                      │ depth L/2         │ depth L
                 └──────────────────────────────┴───────────────────┴─► states [n, depths, d]

A prompt's block is handed over as soon as its deepest layer is through, a verified tree's path when it has
been committed. So nothing waits but one pass's states (`watch_bytes`). Whatever a pass came to (cancelled,
failed, cut back by the next prompt), the next one says by its cache's length where it begins, and what was
handed over of positions behind that is void. A position that was never seen (other observers, keys and values
that came from elsewhere) is missing: computing it again would take a whole pass of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from edgespec.core.sampling import IntArray
from edgespec.runtimes.base import PREFILL_ROWS, KVCache
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.rows import Rows


class Runs:
    """Positions of entries that were made one after the other: of some between them there are none.

    positions   0 1 2 3 4 5 6 7 8 9     runs (0, 0) and (4, 7): first entry, its position
    entries     ▓ ▓ ▓ ▓       ▓ ▓       offset: 3
    """

    def __init__(self, start: int) -> None:
        """start: the position of the first entry."""
        self._runs = [(0, start)]

    @property
    def offset(self) -> int:
        """By which positions of the last run are ahead of its entries."""
        entry, position = self._runs[-1]
        return position - entry

    def skip(self, entries: int, position: int) -> None:
        """The next entry, behind so many, is `position`'s."""
        while self._runs and self._runs[-1][0] >= entries:
            self._runs.pop()
        self._runs.append((entries, position))

    def cut(self, entries: int, position: int) -> int:
        """How many of so many entries lie before `position`: no others will be asked about."""
        while len(self._runs) > 1 and self._runs[-1][1] >= position:
            entries = min(entries, self._runs.pop()[0])
        return max(0, min(entries, position - self.offset))


class StateReader(Protocol):
    """Who takes in what is seen."""

    def take(self, start: int, states: Tensor, prompt: bool) -> None:
        """States [n, depths, d] of n positions from `start` on, of a `prompt`'s block or a tree's path. What
        was taken of these and later ones is void; what lies between those taken and `start` was missed, and
        never comes."""


class StateWatch:
    """Watches one conversation's rows in the target's passes; see the module.

    Its owner passes on what it hears as a `drafters.base.Watching`, and what is committed.
    """

    def __init__(self, cache: KVCache, depths: Sequence[int], reader: StateReader) -> None:
        """cache: the conversation's own, the target's. depths: layers below each state, ascending; 0 = the
        embeddings."""
        self.cache, self.depths, self.reader = cache, tuple(depths), reader
        self.hears = frozenset(depth - 1 for depth in depths)
        self._seen: list[Tensor] = []  # [n, d] each, of the pass under way, by depth
        self._tree: tuple[int, Tensor] | None = None  # length before it, states [nodes, depths, d]

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        """See `runtimes.target.PassObserver`; index -1: the embeddings."""
        if index + 1 not in self.depths:
            return
        for cache, segment, prompt in zip(rows.caches, rows.segments, rows.prompts, strict=True):
            if cache.owner is self.cache:
                self._see(index + 1, hidden[segment.start : segment.stop], prompt)

    def _see(self, depth: int, hidden: Tensor, prompt: bool) -> None:
        if depth == self.depths[0]:
            self._seen, self._tree = [], None
        whole = len(self._seen) == self.depths.index(depth)
        if whole and (not self._seen or hidden.shape == self._seen[-1].shape):  # else rows came in between
            self._seen.append(hidden)
        if depth == self.depths[-1] and len(self._seen) == len(self.depths):
            states, self._seen = torch.stack(self._seen, 1), []
            if prompt:
                self.reader.take(self.cache.length, states, prompt)
            else:
                self._tree = self.cache.length, states

    @property
    def heard(self) -> bool:
        """Of the pass whose tree is to be committed."""
        return self._tree is not None

    def commit(self, path: IntArray) -> None:
        """The target has committed these nodes of the tree that was verified last."""
        tree, self._tree = self._tree, None
        if tree is not None and tree[0] + len(path) == self.cache.length:
            nodes = torch.from_numpy(path).to(tree[1].device)
            self.reader.take(tree[0], tree[1].index_select(0, nodes), prompt=False)


def watch_bytes(config: ModelConfig, depths: int, element: int) -> int:
    """Memory of a watch of so many depths, of `element`-byte numbers, at its peak: a prompt's block, layer by
    layer and then stacked."""
    return 2 * depths * PREFILL_ROWS * config.hidden_size * element
