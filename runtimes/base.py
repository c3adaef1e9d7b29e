"""The contracts between the decode loop and whatever executes a model. Importing this needs no torch.

A `Target` holds weights and no conversation. A `KVCache` is one conversation's keys and values. `Rows` says,
for each row of a pass, whose it is, where it stands and what it may attend to: the committed prefix of its
cache, its ancestors among the uncommitted slots, and itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from edgespec.offload.chunks import ChunkEvent
    from edgespec.offload.plan.plan import Plan
    from edgespec.runtimes.config import ModelConfig

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
        """Rows for slots that are open already (a cascade's nodes entering deeper layers)."""
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
    depths = np.zeros(len(parents), dtype=np.int64)
    for slot, parent in enumerate(parents):
        if parent >= 0:
            depths[slot] = depths[parent] + 1
    return depths


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


class PassObserver(Protocol):
    """What may happen while a pass is under way."""

    def on_chunk(self) -> None:
        """A chunk of weights comes next, from memory or from flash. May raise Cancelled."""

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        """Layer `index` (-1: the embedding) has produced `hidden` [n, d]. May raise Cancelled."""

    def on_wait(self) -> bool:
        """Flash is the bottleneck: do one unit of other work. False = nothing to do. May raise Cancelled."""


class DraftPass(Protocol):
    """A pass of a draft model, under way."""

    def advance(self) -> bool:
        """Do a part of it, milliseconds (where layers can be told apart, one); True = the pass has ended.
        Raises ModelError for NaN."""

    @property
    def logits(self) -> NDArray[np.float32]:
        """[n, V] what follows each of the pass's tokens, once it has ended."""


class EarlyExit(Protocol):
    """Where one conversation's states leave the target behind some of its layers, for a guess at what follows
    them: while the pass goes on, in its waits. What it says guides drafts, and goes no further.
    """

    layers: int  # of the target, that come before it

    @property
    def able(self) -> bool:
        """It can say anything of the next tree: its LM head is in memory, and it has followed so far."""

    def observe(self, hidden: Tensor, rows: Rows) -> None:
        """A pass has come to it: its states behind `layers` layers, [n, d], of a prompt's block or a tree.
        Quick, as the pass waits."""

    def begin(self, nodes: Sequence[int]) -> DraftPass:
        """What follows these nodes [m] of the tree that was observed last, once: logits [m, V]. A part is a
        block of the head, or what comes before."""

    def commit(self, path: Sequence[int]) -> None:
        """The target has committed these nodes of it."""


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


class StoredWeights(Protocol):
    """A target's weights: what is pinned stays in memory, the rest is read from flash in every pass."""

    @property
    def bytes_read(self) -> int:
        """Bytes moved from flash so far."""

    def pin(self, chunks: Collection[int], *, progress: Callable[[int], None] | None = None) -> None:
        """Read the chunks of these numbers that are not pinned yet, to stay; `progress` gets bytes. Raises
        CorruptFileError, StorageError, and whatever `progress` raises."""

    def move(self, plan: Plan) -> None:
        """Go over to another plan of the same model, between two passes: what it does not pin is let go now,
        and the ring made anew; what it pins beyond stays when it next streams by. Raises DeviceError for a
        ring that the system refuses, and StorageError: `move` back is possible."""

    def listen(self, listener: Callable[[ChunkEvent], None] | None) -> None:
        """Who hears of what is read from flash, in the threads that read, and of waits for that, in the one
        that computes; must be quick and raise nothing. None = nobody."""

    def close(self) -> None:
        """Stop reading and let all memory go."""


class Target(Protocol):
    """A model whose layers can be run in ranges. Holds no conversation."""

    slots: int  # uncommitted rows that a cache has room for
    pass_rows: int  # most rows of a pass
    judged_rows: int  # most of these that are looked at: trees' rows, and the last of a prompt
    grows: bool  # its caches may come to hold more, or less: where memory has pages

    @property
    def config(self) -> ModelConfig: ...

    @property
    def weights(self) -> StoredWeights: ...

    def new_cache(self, context: int, slots: int | None = None, most: int | None = None) -> KVCache:
        """A cache for up to `context` committed positions, and beside them a tree of `slots` nodes (None: the
        largest). most: positions that it may `hold` later, or fewer; None = it stays as it is."""

    def embed(self, tokens: Sequence[int] | IntArray) -> Tensor:
        """[n] -> [n, d]."""

    def run(self, hidden: Tensor, rows: Rows, layers: range, observer: PassObserver | None = None) -> Tensor:
        """Run `layers` on [n, d] -> [n, d], writing those layers' K and V into the rows' slots."""

    def logits(self, hidden: Tensor, observer: PassObserver | None = None) -> Tensor:
        """Final norm and LM head: [n, d] -> [n, V] fp32."""

    def head(self, normed: Tensor, observer: PassObserver | None = None) -> Tensor:
        """The LM head alone, on what somebody else's norm gave: [n, d] -> [n, V] fp32."""

    def early_exit(self, layers: int, norm: Callable[[Tensor], Tensor] | None = None) -> EarlyExit:
        """A conversation's, by the target's own final norm, or another one's ([n, d] -> [n, d]), and head."""
