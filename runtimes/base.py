"""What a conversation has with whoever executes a model: its cache, and its use of a draft model. Importing
this needs no torch.

The model itself is `target.Target`; what the rows of a pass are, `rows.Rows` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


IntArray = NDArray[np.int64]

# Prompt tokens a pass. Fixed, because a prompt's bits depend on how it is cut. A pass streams all weights, so
# larger blocks are faster until they compute as long as they read, and every row takes activations (7B shape:
# 240 KB). There, with 2 AMX cores, a layer's matmuls take 56, 101 and 173 ms for 256, 512 and 1024 rows, and
# reading it at 2 GB/s 202 ms if nothing is pinned, 101 ms if half of it is.
PREFILL_ROWS = 512
# Nodes that an early exit is asked about; with plain AVX2 so many cost one more (`plan.costs`).
EXIT_ROWS = 16
TREE_ROWS = 64  # nodes of the largest tree; a cache has room for them beside its context


class Seat(Protocol):
    """A conversation's place with whoever runs the target: on this machine a `KVCache`."""

    @property
    def length(self) -> int:
        """Committed positions."""

    @property
    def capacity(self) -> int:
        """Positions that may ever be committed."""

    def truncate(self, length: int) -> None:
        """Forget positions from `length` on, and whatever is not committed."""


class KVCache(Seat, Protocol):
    """Keys and values of one conversation: committed positions, then uncommitted *slots* (a tree's nodes).

    Slot s lies behind the committed prefix until `commit` moves it to its position or drops it. A slot's
    position is `length` + its depth among the slots, whatever its slot number. While there are slots, a pass
    is under way, and nothing else may write where they lie: drafts have an `overlay`, or are made `inside`
    before the pass.
    """

    @property
    def owner(self) -> KVCache:
        """The cache in whose memory the slots lie: itself, or the one that this was opened `inside` of."""

    @property
    def parents(self) -> IntArray:
        """[slots]: parent slot of each uncommitted slot; -1 = the last committed position."""

    def hold(self, context: int) -> None:
        """Have memory for so many positions from now on, of those it may. Between two passes."""

    def copy(self, other: KVCache, length: int) -> None:
        """Commit, in an empty cache, another's first `length` positions."""

    def append(self, parents: Sequence[int] | IntArray) -> IntArray:
        """Open one slot per entry, whose parents are slots below it or -1 (the committed prefix), and return
        their numbers; raises ContextError when there is no room."""

    def adopt(self, parents: Sequence[int] | IntArray, written: IntArray, layers: int) -> IntArray:
        """`append`, in a cache without slots, for nodes that were run `inside` already: new slot i takes over
        the keys and values of the first `layers` layers that lie at slot `written[i]` (-1 = nowhere)."""

    def view(self, layer: int) -> tuple[Tensor, Tensor]:
        """K, V of the committed prefix, [kv_heads, length, head_dim] each, K after RoPE."""

    def overlay(self, rows: int) -> KVCache:
        """The same committed prefix, read only, with up to `rows` slots in memory of their own: for drafts
        while a pass is under way here. It follows this cache where it is told to: `truncate` to at most this
        cache's length, or `commit` a path that this cache has committed in its own words."""

    def inside(self) -> KVCache:
        """The same prefix and memory, for drafts that lie where the next pass will write, which may `adopt`
        them. Raises BusyError while a pass is under way here, and so does opening or writing slots of it."""

    def rewound(self, start: int, stop: int, layers: int) -> AbstractContextManager[KVCache]:
        """This cache as it was at `start` positions, to run those up to `stop` through the first `layers`
        layers again. Whatever that writes is taken back. Raises BusyError as `inside`."""

    def commit(self, path: Sequence[int] | IntArray, keep: Sequence[int] | IntArray = ()) -> None:
        """Move the path's slots (root first) to the positions behind the prefix; drop all other slots but
        `keep` (ascending, each hanging on the path's end or another of them): these become slots 0, 1, ..."""

    def wipe(self) -> None:
        """Zero what lies behind the prefix: a masked score is 0, but 0 times NaN is NaN."""


class DraftPass(Protocol):
    """A pass of a draft model, under way."""

    def advance(self) -> bool:
        """Do a part of it, milliseconds (where layers can be told apart, one); True = the pass has ended.
        Raises ModelError for NaN."""

    @property
    def logits(self) -> NDArray[np.float32]:
        """[n, V] what follows each of the pass's tokens, once it has ended."""


class DraftRuntime(Protocol):
    """One conversation's use of a draft model, wherever that runs: numpy in and out, no torch. Behind its
    committed tokens it has *slots*, numbered from 0: a tree's nodes, as in a `KVCache`."""

    @property
    def length(self) -> int:
        """Committed tokens."""

    @property
    def capacity(self) -> int:
        """Tokens that may ever be committed."""

    @property
    def rows(self) -> int:
        """Slots there is room for."""

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        """Commit these tokens, part by part: each item comes after milliseconds of work, and is how many of
        them are committed so far. Begun without slots; what is left in the middle leaves none."""

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> DraftPass:
        """A pass over n new slots; `parents` are earlier slots, or -1 = the last committed token."""

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        """Commit the path's slots; drop all others but `keep`, which are numbered anew. See `KVCache`."""

    def truncate(self, length: int) -> None:
        """Forget committed tokens from `length` on, and every slot."""
