"""The contract between the decode loop and whatever executes a model. Importing this needs no torch.

A `Target` holds weights and no conversation; `base.KVCache` is one conversation's keys and values, and
`rows.Rows` what a pass has of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from edgespec.runtimes.base import DraftPass, IntArray, KVCache
from edgespec.runtimes.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

    from edgespec.offload.chunks import ChunkEvent
    from edgespec.offload.plan.plan import Plan
    from edgespec.runtimes.config import ModelConfig


Layers = range | frozenset[int]  # of a target, by index; -1: the embedding
EVERY_LAYER = range(-1, sys.maxsize)
NO_LAYER: frozenset[int] = frozenset()


def any_of(several: Iterable[Layers]) -> Layers:
    """The layers that are in any of these: all of them, if `EVERY_LAYER` is."""
    found = list(several)
    return EVERY_LAYER if EVERY_LAYER in found else NO_LAYER.union(*found)


class PassObserver(Protocol):
    """What may happen while a pass is under way."""

    @property
    def hears(self) -> Layers:
        """Of which layers `on_layer` has to tell. Others may be one call with the next."""

    def on_chunk(self) -> None:
        """A chunk of weights comes next, from memory or from flash. May raise Cancelled."""

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        """Layer `index` (-1: the embedding) has produced `hidden` [n, d]; perhaps one that it does not hear.
        May raise Cancelled."""

    def on_wait(self) -> bool:
        """Flash is the bottleneck: do one unit of other work. False = nothing to do. May raise Cancelled."""


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
