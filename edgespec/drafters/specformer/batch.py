"""One forward says the drafts of all conversations that share passes.

    pass      │  A, B, C  │                    │  A, B, C  │                    │ ...
    drafts                 A ▓▓▓  B ·  C ·                   A ▓▓▓  B ·  C ·     ▓ the forward, of all three

What a conversation's draft says depends on what is committed, and not on the root that it is asked about. So
whoever is asked first begins a forward for all who drafted for the pass before, or whose prompt ended in it;
the others find it under way, or over. Who was taken along and was not asked is not taken along again until it
has asked by itself, or hears again after passes in which it did not.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from edgespec.drafters.specformer.context import SpecFormerContext
from edgespec.drafters.specformer.saying import Forward, Saying
from edgespec.kernels.threads import use_threads
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.specformer import SpecFormer
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights

PATH = 9  # positions that wait and are entered with others'; where there are more the last one is


class SpecFormerBatch:
    """An open module, and the contexts of all conversations that it drafts for. Their drafts are the latest
    forward's: only that is kept."""

    def __init__(self, target: TorchTarget[Weights], module: SpecFormer) -> None:
        self.target, self.module = target, module
        self._lock = threading.RLock()  # of all contexts: whoever asks first takes others' along
        self._contexts: WeakValueDictionary[int, SpecFormerContext] = WeakValueDictionary()
        self._numbers = count()

    def new_context(self, positions: int) -> SpecFormerContext:
        context = SpecFormerContext(self.target, self.module, positions, self._lock)
        self._contexts[next(self._numbers)] = context
        return context

    def say(self, asking: SpecFormerContext) -> Saying:
        """What follows its last position: under way, perhaps, or over."""
        with self._lock:
            if asking.saying is None:
                self._begin(asking)
            assert asking.saying is not None
            asking.asked = True
            return asking.saying

    @torch.inference_mode()
    def _begin(self, asking: SpecFormerContext) -> None:
        """A forward for this one, and for all who are likely to ask."""
        contexts = [asking]
        for context in self._contexts.values():
            context.saying = None
            if context is not asking and context.asked and context.fresh:
                contexts.append(context)
        use_threads(self.target.threads)
        states = self._enter(contexts)
        said = self.module.say(states)  # [n, l_d, d]
        sound = torch.isfinite(said).flatten(1).all(1)
        said = said.masked_fill(~sound[:, None, None], 0.0)
        head = self.target.head_pass(said.flatten(0, 1))
        forward = Forward(head, sound.tolist(), said.shape[1], self.target.config.vocab_size)
        for place, context in enumerate(contexts):
            context.asked, context.fresh, context.saying = False, False, Saying(forward, place)

    def _enter(self, contexts: Sequence[SpecFormerContext]) -> Tensor:
        """The states of their last positions [n, d], with all that waits entered."""
        entering = [context for context in contexts if context.state is None]
        if entering:
            for context in entering:
                if len(context.waiting) > PATH:
                    context.catch_up()
            rows = [Rows.append(c.cache, np.arange(-1, len(c.waiting) - 1)) for c in entering]
            fused = self.module.fuse(torch.cat([c.waiting for c in entering]), exact=True)
            entered = self.module.run(fused, Rows.concat(rows))
            ends = np.cumsum([own.n for own in rows]).tolist()
            for context, own, end in zip(entering, rows, ends, strict=True):
                context.cache.commit(np.arange(own.n))
                context.waiting = context.waiting[:0].clone()
                context.state = entered[end - 1 : end].clone()
        return torch.cat([context.state for context in contexts if context.state is not None])
