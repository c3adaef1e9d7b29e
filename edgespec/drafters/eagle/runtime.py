"""One conversation's use of an EAGLE module: which features it has, and what is drafted behind them.

Token p is run with the feature of p - 1, and says what follows p. So its *entry* (K and V) is

    exact         made of the target's own feature: of all tokens but the last few; these stay
    as drafted    made of a feature that was itself drafted: of what is drafted, and, where that was accepted
                  and more hangs behind it (drafts that were prepared), of accepted tokens until the next
                  round

    tokens     0   1   2   3  ...  n-2  n-1 │ root  drafts ...
    entries        ▓   ▓   ▓  ...   ▓    ░  │  ░     ░            ▓ exact   ░ to be run, or as drafted
    features   ●   ●   ●   ●  ...   ●    ●  │                     kept from the last exact entry's token on

The next round runs the tokens that are not exact together with the root, in one pass. Where positions were
missed (`drafters.watch`), their entries are left out, and the others stand that much closer: rotary angles
are relative.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.drafters.eagle.batch import EagleBatch, EagleHead
from edgespec.drafters.watch import Runs
from edgespec.errors import ModelError
from edgespec.kernels.threads import use_threads
from edgespec.runtimes.base import TREE_ROWS, IntArray
from edgespec.runtimes.rows import Rows, slot_depths


class EagleRuntime:
    """See `drafters.forest.SlotRuntime` and `drafters.watch.StateReader`."""

    def __init__(self, batch: EagleBatch, context: int, rows: int) -> None:
        """rows: slots beside `context` positions."""
        target, module = batch.target, batch.module
        self.batch, self.target, self.module, self.rows = batch, target, module, rows
        self.cache = module.attention.new_cache(context, rows)
        self.runs = Runs(1)  # of the cache's entries, by token; 0 has none
        self.exact = 0  # entries
        d, dtype, device = target.config.hidden_size, target.dtype, target.device
        # Embeddings and features, from `first` on.
        self.seen = torch.zeros(0, 2, d, dtype=dtype, device=device)
        self.drafted = torch.zeros(rows, d, dtype=dtype, device=device)  # features by slot
        self.true = np.zeros(rows, np.bool_)  # by slot: its entry is exact, if all before it are

    @property
    def length(self) -> int:
        """Tokens of the conversation up to the last entry that is committed here."""
        return self.runs.offset + self.cache.length

    @property
    def first(self) -> int:
        """The position of the first feature that is kept: the next exact entry's."""
        return self.runs.offset + self.exact - 1

    @property
    def end(self) -> int:
        """Behind the last position whose feature is known."""
        return self.first + len(self.seen)

    # What is seen of the target.

    @torch.inference_mode()
    def take(self, start: int, states: Tensor, prompt: bool) -> None:
        """See `StateReader`; states [n, 2, d]: embeddings, and hidden states behind the last layer."""
        self.forget(start)
        if start != self.end:  # what lies between was missed
            self.follow()
            self.runs.skip(self.exact, start + 1)
            self.seen = self.seen[:0]
        embedded, hidden = states.unbind(1)
        self.seen = torch.cat([self.seen, torch.stack([embedded, self.module.feature(hidden)], 1)])
        if len(self.seen) > TREE_ROWS:
            self.follow()

    def follow(self) -> None:
        """Make the entries of all tokens whose features are known. Whatever is drafted is dropped."""
        self.settle()
        n = len(self.seen) - 1
        if n > 0:
            rows = Rows.append(self.cache, np.arange(-1, n - 1), prefill=True)
            use_threads(self.target.threads)
            self.module.write(self.seen[:n, 1], self.seen[1:, 0], rows)
            self.cache.commit(np.arange(n))
            self._passed(n)

    def settle(self) -> None:
        """Drop what is drafted, and entries as they were drafted."""
        self.cache.truncate(min(self.exact, self.cache.length))

    def forget(self, length: int) -> None:
        """Positions from `length` on are void."""
        if length < self.length:
            first = self.first
            self.exact = self.runs.cut(self.exact, length)
            self.settle()
            if self.first < first:  # whose features are not kept
                self.seen = self.seen[:0]
        self.seen = self.seen[: max(0, length - self.first)].clone()

    def _passed(self, entries: int) -> None:
        self.exact += entries
        self.seen = self.seen[entries:].clone()  # what is behind them is let go

    # What is drafted.

    @property
    def stale(self) -> bool:
        """Committed entries are as they were drafted."""
        return self.cache.length > self.exact

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> EaglePass:
        """See `runtimes.base.DraftRuntime`; the feature of the last committed token must be known."""
        slots = self.cache.append(parents)
        before = self.length + slot_depths(self.cache.parents)[slots] - 1  # each one's feature's position
        places = before - self.first
        self.true[slots] = places < len(self.seen)
        return EaglePass(self, tokens, slots, places)

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        """See `runtimes.base.DraftRuntime`. Without anything to keep, only exact entries stay."""
        true = [bool(self.true[slot]) for slot in path]
        exact = true.index(False) if False in true else len(true)
        if self.stale:
            exact = 0
        self.cache.commit(path, keep)
        kept = list(keep)
        self.drafted[: len(kept)], self.true[: len(kept)] = self.drafted[kept], self.true[kept]
        self._passed(exact)
        if not kept:
            self.settle()

    def truncate(self, length: int) -> None:
        """See `runtimes.base.DraftRuntime`."""
        if length < self.length:  # what is known of later positions stays
            self.forget(length)
        self.settle()


class EaglePass:
    """See `runtimes.base.DraftPass`: a part is a level of a tree, or a block of the head. What hangs below
    each other's drafted features takes a level each; behind what is known, all are one. Parts of several run
    together (`eagle.batch.Leveled`)."""

    def __init__(
        self, runtime: EagleRuntime, tokens: Sequence[int], slots: IntArray, places: IntArray
    ) -> None:
        """places [n]: where in `seen` each row's feature is; beyond it, it is its parent's."""
        self.runtime, self.slots, self.places = runtime, slots, places
        self.embedded = runtime.target.embed(tokens)
        first, levels = int(slots[0]), list[int]()
        for slot in slots:
            parent = int(runtime.cache.parents[slot])
            fresh = parent >= first and not runtime.true[slot]
            levels.append(levels[parent - first] + 1 if fresh else 0)
        self.levels = [np.flatnonzero(np.array(levels) == level) for level in range(max(levels) + 1)]
        self.head: EagleHead | None = None
        self.over = self.damaged = False

    def advance(self) -> bool:
        if not self.over and not self.damaged:
            self.runtime.batch.run(self)
        if self.damaged:  # nothing of NaN may stay where a later pass looks
            self.runtime.cache.wipe()
            raise ModelError("the EAGLE drafter's features are not finite numbers; train it again")
        return self.over

    def level(self) -> tuple[Tensor, Tensor, Rows]:
        runtime, rows = self.runtime, self.levels[0]
        slots = self.slots[rows]
        known = runtime.true[slots]
        features = runtime.drafted[np.where(known, 0, runtime.cache.parents[slots])]
        features[known] = runtime.seen[self.places[rows][known], 1]
        return features, self.embedded[rows], Rows.of(runtime.cache, slots)

    def put(self, features: Tensor) -> None:
        self.runtime.drafted[self.slots[self.levels.pop(0)]] = features

    def features(self) -> Tensor:
        return self.runtime.drafted[self.slots[0] : self.slots[-1] + 1]

    def sound(self) -> bool:
        self.damaged = not bool(torch.isfinite(self.features()).all())
        return not self.damaged

    @property
    def logits(self) -> NDArray[np.float32]:
        assert self.head is not None
        return self.head.work.logits[self.head.rows.start : self.head.rows.stop]
