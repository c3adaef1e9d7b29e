"""The core loop: propose a tree, verify it in one pass of the target, keep what the target agrees with.

Plain decoding is the same loop with trees of one node. This module speaks token ids; text stays at the edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.acceptance import Acceptance, Outcome
from edgespec.core.sampling import IntArray, Noise
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Context
from edgespec.runtimes.base import PREFILL_ROWS, KVCache, PassObserver, Rows, Target

if TYPE_CHECKING:
    from torch import Tensor


class Schedule(PassObserver, Protocol):
    """When drafting happens: hands out trees, and is told what became of them."""

    @property
    def damaged(self) -> bool:
        """A drafter's model computed what is no number, and drafts no more."""

    def begin(self, context: Context, limit: int) -> None:
        """A reply of at most `limit` tokens begins; its prompt is committed. Raises Cancelled."""

    def next_tree(self, root: int) -> TokenTree:
        """The tree to verify next, whose root is the last emitted token."""

    def settle(self, outcome: Outcome) -> None:
        """What the target made of the last tree; its accepted tokens are committed."""


@dataclass
class Verification:
    """One conversation's part of a pass."""

    cache: KVCache
    tree: TokenTree
    acceptance: Acceptance
    noise: Noise


def decode(
    target: Target, cache: KVCache, root: int, acceptance: Acceptance, noise: Noise, schedule: Schedule
) -> Iterator[Outcome]:
    """Outcomes for ever, from the last emitted token on; each one's last token is the next root."""
    while True:
        tree = schedule.next_tree(root)
        (outcome,) = verify(target, [Verification(cache, tree, acceptance, noise)], schedule)
        schedule.settle(outcome)
        root = outcome.tokens[-1]
        yield outcome


def verify(
    target: Target, parts: Sequence[Verification], observer: PassObserver | None = None
) -> list[Outcome]:
    """Judge one tree of each of several conversations in one pass, and commit what is accepted.

    Whatever is raised on the way (Cancelled, KeyboardInterrupt, a disk error) leaves every cache at its
    committed length.
    """
    try:
        rows = Rows.concat([_slots(p.cache, p.tree) for p in parts])
        logits = _logits(target, rows, [p.tree for p in parts], observer)
        outcomes = [
            p.acceptance.walk(p.tree, logits[s.start : s.stop], p.noise, p.cache.length + 1)
            for p, s in zip(parts, rows.segments, strict=True)
        ]
        for p, outcome in zip(parts, outcomes, strict=True):
            p.cache.commit(outcome.path)
    except BaseException:
        for p in parts:
            p.cache.truncate(p.cache.length)
        raise
    return outcomes


def _slots(cache: KVCache, tree: TokenTree) -> Rows:
    """A row for each node; slot i of the cache is node i."""
    if tree.computed is None:
        return Rows.append(cache, tree.parents)
    return Rows.of(cache, cache.adopt(tree.parents, tree.computed.slots, int(tree.starts.max())))


def _logits(
    target: Target, rows: Rows, trees: Sequence[TokenTree], observer: PassObserver | None
) -> NDArray[np.float32]:
    """What follows each row, [n, V]. A row enters the pass at the layer that its drafter has come to; each
    layer is run once, for all rows that have entered."""
    starts = np.concatenate([tree.starts for tree in trees])
    hidden = _states(target, rows, trees, starts)
    for first, stop in pairwise([*np.unique(starts).tolist(), target.config.layers]):
        entered = np.flatnonzero(starts <= first)
        if len(entered) == rows.n:
            hidden = target.run(hidden, rows, range(first, stop), observer)
        else:
            hidden[entered] = target.run(hidden[entered], rows.take(entered), range(first, stop), observer)
    logits: NDArray[np.float32] = target.logits(hidden, observer).cpu().numpy()
    return logits


def _states(target: Target, rows: Rows, trees: Sequence[TokenTree], starts: IntArray) -> Tensor:
    """The hidden state with which each row enters, [n, d]."""
    tokens, fresh = np.concatenate([tree.tokens for tree in trees]), np.flatnonzero(starts == 0)
    if len(fresh) == rows.n:
        return target.embed(tokens)
    parts = [(segment, tree.computed) for segment, tree in zip(rows.segments, trees, strict=True)]
    some = next(computed for _, computed in parts if computed is not None)
    hidden = some.hidden.new_empty((rows.n, target.config.hidden_size))
    if len(fresh):
        hidden[fresh] = target.embed(tokens[fresh])
    for segment, computed in parts:
        if computed is not None:
            known = np.flatnonzero(computed.slots >= 0)
            hidden[segment.start + known] = computed.hidden[computed.slots[known]]
    return hidden


def prefill(
    target: Target,
    cache: KVCache,
    tokens: Sequence[int],
    observer: PassObserver | None = None,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Commit `tokens` in blocks of one pass each; returns the last token's logits [V].

    `progress` gets the number of tokens committed so far. A block that is interrupted leaves the blocks
    before it committed.
    """
    hidden = None
    try:
        for start in range(0, len(tokens), PREFILL_ROWS):
            block = tokens[start : start + PREFILL_ROWS]
            rows = Rows.append(cache, np.arange(-1, len(block) - 1), prefill=True)
            hidden = target.run(target.embed(block), rows, range(target.config.layers), observer)
            cache.commit(np.arange(len(block)))
            if progress is not None:
                progress(start + len(block))
    except BaseException:
        cache.truncate(cache.length)
        raise
    assert hidden is not None, "a prompt has at least one token"
    logits: NDArray[np.float32] = target.logits(hidden[-1:], observer)[0].cpu().numpy()
    return logits
