"""One conversation's context of a SpecFormer module: K and V of what it has seen, and the next draft's state.

    positions   0   1   2  ...  n-3  n-2  n-1 │ root  drafts ...
    K and V     ▓   ▓   ▓  ...   ▓    ░    ░  │        ▓ entered   ░ waits: entered when something is drafted

The state at n - 1, the last committed position, says what follows the root. Where positions were missed
(`drafters.watch`) the others stand that much closer, as rotary angles are relative.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from edgespec.errors import ModelError
from edgespec.kernels.threads import use_threads
from edgespec.runtimes.base import TREE_ROWS, Rows
from edgespec.runtimes.torch.exit import HeadPass
from edgespec.runtimes.torch.specformer import SpecFormer
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights


class SpecFormerContext:
    """See the module, and `drafters.watch.StateReader`."""

    def __init__(self, target: TorchTarget[Weights], module: SpecFormer, context: int) -> None:
        self.target, self.module = target, module
        self.cache = module.context.new_cache(context, TREE_ROWS)
        self.origin = 0  # the position whose K and V are the cache's first
        # [k, d] fused states of the positions that come next.
        d, device = target.config.hidden_size, target.device
        self.waiting = torch.zeros(0, d, dtype=target.dtype, device=device)
        self.state: Tensor | None = None  # [1, d] of the last position, once all are entered

    @property
    def end(self) -> int:
        """Behind the last position that was seen."""
        return self.origin + self.cache.length + len(self.waiting)

    @torch.inference_mode()
    def take(self, start: int, states: Tensor, prompt: bool) -> None:
        """See `StateReader`; states [n, 4, d], of the hooks."""
        self.forget(start)
        self.origin += start - self.end  # what lies between was missed
        use_threads(self.target.threads)
        self.waiting = torch.cat([self.waiting, self.module.fuse(states, exact=not prompt)])
        self.state = None
        if len(self.waiting) > TREE_ROWS or (prompt and len(self.waiting) > 1):
            n = len(self.waiting) - 1
            rows = Rows.append(self.cache, np.arange(-1, n - 1), prefill=True)
            self.module.context.write(self.waiting[:n], rows)
            self.cache.commit(np.arange(n))
            self.waiting = self.waiting[n:].clone()

    def forget(self, length: int) -> None:
        """Positions from `length` on are void."""
        entered = max(0, length - self.origin)
        if length < self.end:
            self.state = None
        if entered < self.cache.length:
            self.cache.truncate(entered)
            self.waiting = self.waiting[:0]
        self.waiting = self.waiting[: entered - self.cache.length].clone()

    @torch.inference_mode()
    def enter(self) -> Tensor:
        """The state of the last position [1, d], with all that waits entered. Raises ModelError for NaN."""
        if self.state is None:
            assert len(self.waiting)
            use_threads(self.target.threads)
            rows = Rows.append(self.cache, np.arange(-1, len(self.waiting) - 1))
            entered = self.module.run(self.waiting, rows)
            self.cache.commit(np.arange(len(self.waiting)))
            self.waiting, self.state = self.waiting[:0].clone(), entered[-1:].clone()
        return self.state


def say(target: TorchTarget[Weights], module: SpecFormer, states: Tensor) -> HeadPass:
    """What the drafts of n texts say, by their states [n, d]: logits [n * l_d, V], made by the pass's
    parts. One forward of the module for all of them. Raises ModelError for NaN."""
    use_threads(target.threads)
    said = module.say(states)
    if not bool(torch.isfinite(said).all()):
        raise ModelError("the SpecFormer drafter's states are not finite numbers; train it again")
    return target.head_pass(said.flatten(0, 1))
