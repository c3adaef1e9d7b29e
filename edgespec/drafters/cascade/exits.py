"""Where a cascade leaves the target: next-token distributions from the states behind its first layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from edgespec.errors import ModelError
from edgespec.runtimes.base import TREE_ROWS, IntArray
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.adapter import Adapter
from edgespec.runtimes.torch.substitute import SubstituteWeights
from edgespec.runtimes.torch.target import TorchTarget

PENDING = TREE_ROWS  # committed states that wait at most


class Exit(Protocol):
    """A place where one conversation's states leave the target, for a guess at what follows them."""

    @property
    def depth(self) -> int:
        """How many of the target's layers lie below it."""

    def logits(self, hidden: Tensor, rows: Rows) -> Tensor:
        """States after `depth` layers [n, d] of slots -> what follows them, [n, V] fp32.

        Every slot passes here once, in slot order.
        """


class AdapterExit:
    """An adapter and the target's own head, with the adapter's KV cache.

    The cache holds positions [0, cache.length) of what the target has committed; the states of the next few
    wait in `pending` until somebody drafts. Behind the prefix it has the slots of what is drafted, numbered
    as the target's.
    """

    def __init__(self, target: Target, adapter: Adapter, context: int) -> None:
        self.target = target
        self.adapter = adapter
        self.depth = adapter.depth
        self.cache = adapter.new_cache(context, TREE_ROWS)
        self.pending: list[Tensor] = []  # [d] each
        self.seen: dict[int, Tensor] = {}  # states by slot, of nodes that the pass under way has run itself

    @property
    def length(self) -> int:
        """How many committed positions it has followed."""
        return self.cache.length + len(self.pending)

    @torch.inference_mode()
    def logits(self, hidden: Tensor, rows: Rows) -> Tensor:
        """See `Exit`."""
        return self.target.head(self.normed(hidden, rows))

    def normed(self, hidden: Tensor, rows: Rows) -> Tensor:
        """As `logits`, up to the head: [n, d]."""
        own = Rows.append(self.cache, rows.caches[0].parents[rows.slots])
        assert np.array_equal(own.slots, rows.slots)
        assert np.array_equal(own.positions, rows.positions)
        return self.adapter.run(hidden, own)

    def observe(self, hidden: Tensor, slots: IntArray, length: int, prefill: bool) -> None:
        """The target has come to `depth` in a pass behind `length` committed positions; hidden [n, d].

        A prompt's block is followed at once: if the pass fails, the next one begins at `length` again.
        """
        self.truncate(length)
        if not prefill:
            self.seen = dict(zip(slots.tolist(), hidden, strict=True))
        elif self.length == length:
            self.flush()
            self._follow(hidden, prefill=True)

    def commit(self, length: int, slots: Sequence[int], nodes: Sequence[int]) -> None:
        """The target has committed a path behind `length` positions: `nodes` are its slots in the verified
        tree, `slots` those of its beginning that was drafted."""
        self.truncate(length)
        if self.length == length:
            known = [slot for slot in slots if slot < len(self.cache.parents)]
            self.cache.commit(known)
            for node in nodes[len(known) :]:
                if node not in self.seen:  # the rest is computed again when it is needed
                    break
                self.pending.append(self.seen[node].clone())  # not the whole pass's states
        self.forget()
        if len(self.pending) >= PENDING:
            self.flush()

    def truncate(self, length: int) -> None:
        """Forget what lies behind `length` positions."""
        del self.pending[max(0, length - self.cache.length) :]
        if self.cache.length > length:
            self.cache.truncate(length)

    def forget(self) -> None:
        """Drop all slots, and what was seen of a pass."""
        self.seen = {}
        self.cache.truncate(self.cache.length)

    def flush(self) -> None:
        """Take in what waits."""
        self.cache.truncate(self.cache.length)
        if self.pending:
            waiting, self.pending = self.pending, []
            self._follow(torch.stack(waiting), prefill=False)

    def _follow(self, hidden: Tensor, prefill: bool) -> None:
        rows = Rows.append(self.cache, np.arange(-1, len(hidden) - 1), prefill)
        self.adapter.run(hidden, rows)
        self.cache.commit(np.arange(len(hidden)))


class SubstituteExit:
    """The rest of the target in low bits: the layers from `depth` on and the head, whatever is not pinned.

    Needs no cache: it writes where the verification will write the target's own keys and values.
    """

    def __init__(self, model: TorchTarget[SubstituteWeights], depth: int) -> None:
        self.model = model
        self.depth = depth

    def logits(self, hidden: Tensor, rows: Rows) -> Tensor:
        """See `Exit`."""
        last = self.model.run(hidden, rows, range(self.depth, self.model.config.layers))
        try:
            return self.model.logits(last)
        except ModelError:  # NaN: nothing of it may stay where the target looks
            for cache in rows.caches:
                cache.wipe()
            raise
