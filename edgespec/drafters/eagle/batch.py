"""One open EAGLE module runs the passes of several conversations together: a level, a block of the head."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from edgespec.kernels.threads import use_threads
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.eagle import Eagle
from edgespec.runtimes.torch.exit import HeadPass
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights


@dataclass(frozen=True)
class EagleHead:
    """A pass's rows of a head that several share."""

    work: HeadPass
    rows: range


class Leveled(Protocol):
    """A pass over nodes of one conversation's tree: level by level, then the head over all of them."""

    levels: list[IntArray]  # that are left
    head: EagleHead | None
    over: bool

    def level(self) -> tuple[Tensor, Tensor, Rows]:
        """What the next level is made of: features and embeddings [n, d] each, and the rows."""

    def put(self, features: Tensor) -> None:
        """What it has given, [n, d]."""

    def features(self) -> Tensor:
        """Of all rows, [n, d], once there are no more levels."""

    def sound(self) -> bool:
        """These are finite numbers."""


class EagleBatch:
    """See the module."""

    def __init__(self, target: TorchTarget[Weights], module: Eagle) -> None:
        self.target, self.module = target, module
        self.lock = threading.RLock()  # of all who draft with it
        self._waiting: list[Leveled] | None = None  # while `together`

    def run(self, one: Leveled) -> None:
        """A part of this pass: now, or with others'."""
        if self._waiting is None:
            self._run([one])
        else:
            self._waiting.append(one)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is to run in here runs at the end of it."""
        self._waiting = waiting = list[Leveled]()
        try:
            yield
        finally:
            self._waiting = None
        self._run(waiting)

    @torch.inference_mode()
    def _run(self, passes: Sequence[Leveled]) -> None:
        use_threads(self.target.threads)
        growing = [one for one in passes if one.levels]
        heading = [one for one in passes if not one.levels]
        if growing:
            levels = [one.level() for one in growing]
            features, embedded = torch.cat([f for f, _, _ in levels]), torch.cat([e for _, e, _ in levels])
            said = self.module.run(features, embedded, Rows.concat([rows for _, _, rows in levels]))
            for one, (_, _, rows) in zip(growing, levels, strict=True):
                one.put(said[: rows.n])
                said = said[rows.n :]
        if fresh := [one for one in heading if one.head is None and one.sound()]:
            found = [one.features() for one in fresh]
            work, start = self.target.head_pass(torch.cat(found)), 0
            for one, own in zip(fresh, found, strict=True):
                one.head, start = EagleHead(work, range(start, start + len(own))), start + len(own)
        for work in {id(one.head.work): one.head.work for one in heading if one.head is not None}.values():
            over = work.advance()
            for one in heading:
                one.over = one.over or (over and one.head is not None and one.head.work is work)
