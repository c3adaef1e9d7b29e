"""One conversation's context of a SpecFormer module: K and V of what it has seen, and the next draft's state.

    positions   0   1   2  ...  n-3  n-2  n-1 │ root  drafts ...
    K and V     ▓   ▓   ▓  ...   ▓    ░    ░  │        ▓ entered   ░ waits: entered when something is drafted

The state at n - 1, the last committed position, says what follows the root. Where positions were missed
(`drafters.watch`) the others stand that much closer, as rotary angles are relative. Short prompts wait, too:
to enter one takes some 0.5 ms, and where many share passes a whole reply takes no more than 10.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgespec.drafters.specformer.saying import Saying
from edgespec.drafters.watch import Runs
from edgespec.kernels.threads import use_threads
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.specformer import SpecFormer
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights


class SpecFormerContext:
    """See the module, and `drafters.watch.StateReader`. What waits is entered, and said, with others'
    (`specformer.batch`), which has the `lock` meanwhile."""

    def __init__(
        self,
        target: TorchTarget[Weights],
        module: SpecFormer,
        context: int,
        lock: AbstractContextManager[Any],
    ) -> None:
        self.target, self.module, self._lock = target, module, lock
        self.cache = module.context.new_cache(context, TREE_ROWS)
        self.runs = Runs(0)  # of entered and waiting positions
        # [k, hooks, d] the target's states of the positions that come next.
        shape = 0, len(module.shape.hooks), target.config.hidden_size
        self.waiting = torch.zeros(shape, dtype=target.dtype, device=target.device)
        self.state: Tensor | None = None  # [1, d] of the last position, once all are entered
        self.fresh = False  # there is a last position, and no forward was for it
        self.saying: Saying | None = None  # of what follows it
        self.asked = False  # since it was said last; or it soon will be, as it hears its first passes

    @property
    def end(self) -> int:
        """Behind the last position that was seen."""
        return self.runs.offset + self.entries

    @property
    def entries(self) -> int:
        """Positions that were seen."""
        return self.cache.length + len(self.waiting)

    @torch.inference_mode()
    def take(self, start: int, states: Tensor, prompt: bool) -> None:
        """See `StateReader`; states [n, hooks, d]."""
        with self._lock:
            if start != self.end:
                self.forget(start)
            if start != self.end:  # what lies between was missed
                self.runs.skip(self.entries, start)
                self.asked = self.asked or not prompt  # it hears again: for drafts
            self.waiting = torch.cat([self.waiting, states]) if len(self.waiting) else states
            self.fresh, self.state, self.saying = True, None, None
            if len(self.waiting) > TREE_ROWS:
                self.catch_up()

    @torch.inference_mode()
    def catch_up(self) -> None:
        """Enter what waits, but for the last position, by itself: K and V alone."""
        n = len(self.waiting) - 1
        rows = Rows.append(self.cache, np.arange(-1, n - 1), prefill=True)
        use_threads(self.target.threads)
        self.module.context.write(self.module.fuse(self.waiting[:n], exact=False), rows)
        self.cache.commit(np.arange(n))
        self.waiting = self.waiting[n:].clone()

    def expect(self) -> None:
        """It will be asked what follows: whoever is asked first takes it along."""
        with self._lock:
            self.asked = True

    def forget(self, length: int) -> None:
        """Positions from `length` on are void."""
        with self._lock:
            if length < self.end:
                self.state = self.saying = None
            kept = self.runs.cut(self.entries, length)
            if kept < self.cache.length:
                self.cache.truncate(kept)
                self.waiting = self.waiting[:0]
            self.waiting = self.waiting[: kept - self.cache.length].clone()
            self.fresh = self.fresh and len(self.waiting) > 0
