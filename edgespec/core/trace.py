"""What happened, as it happens: an event for each cycle and, where somebody listens, for each layer and each
part of the work. (What the flash did is heard of its reader: `offload.chunks.ChunkEvent`.)

Events only: statistics, the controller, the hand-over of memory and benchmarks all read the same. Needs no
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from edgespec.core.acceptance import Outcome
from edgespec.core.tree import TokenTree


@dataclass(frozen=True)
class Law:
    """A cycle by Mirror-SD's latency law (Equation 10): terms that are each measured apart, what they make
    together, and the cycle itself; seconds.

    late: before the pass: the lookup, and drafting where nothing was prepared.
    before, behind: the target's own, up to the early exit and from there on: as passes over so many nodes
        take in whose waits nothing is done. Not of this pass, of which they would say nothing.
    early: the exit's, until it had spoken; draft: of drafting since.
    final: behind the pass, until the drafter knows its outcome.
    predicted: `control.overlap.Mirrored.in_waits`, and `late`. took: the cycle.
    """

    late: float
    before: float
    early: float
    behind: float
    draft: float
    final: float
    predicted: float
    took: float


@dataclass(frozen=True)
class Exited:
    """What the target's early exit said in a cycle (Mirror-SD).

    layers: of the target, before it. kappa: tokens that it names behind a row.
    tokens: of the target's own that it was asked about, and how many of them were `found` among its kappa:
        the share is the overlap mass (Equation 9) as far as this reply knows it.
    law: None = nobody has measured what the target's passes take by themselves.
    """

    layers: int
    kappa: int
    tokens: int
    found: int
    law: Law | None


@dataclass(frozen=True)
class Overlap:
    """What drafting while the target verifies did in a cycle.

    hit: the outcome before had been prepared for; None = nothing had been drafted ahead of it.
    found: passes of drafting that what was prepared is worth.
    fallback: what was prepared was of no use, and something else drafted the tree.
    asked: the target's early exit was to say meanwhile what to draft for.
    steps, passes, nodes: of drafting while the tree was verified; they cost no time of their own. A step is a
        part of a pass, as far as this process makes them.
    exited: what the target's early exit said; None = there is none, or it did not come to speak.
    """

    hit: bool | None = None
    found: int = 0
    fallback: bool = False
    asked: bool = False
    steps: int = 0
    passes: int = 0
    nodes: int = 0
    exited: Exited | None = None

    @property
    def ahead(self) -> bool:
        """Something was drafted, or begun, while the tree was verified."""
        return self.steps > 0 or self.nodes > 0  # steps are of this process


@dataclass(frozen=True)
class Cycle:
    """What one cycle did; seconds."""

    passes: int | None  # of drafting, before the target's; None = the drafter was not asked
    tree: TokenTree  # as verified
    outcome: Outcome
    draft_seconds: float
    verify_seconds: float  # of the target's pass, without waiting for its turn
    took: float | None = None  # in plain cycles, as the controller knows them; None = nobody measures
    overlap: Overlap | None = None  # None = the drafter rests while the target verifies
    predicted: float | None = None  # tokens that a plain cycle's time should give, as the controller believes

    @property
    def schedule(self) -> str:
        """When it drafted, by the name of the schedule that always does so; "plain" = not at all."""
        if self.overlap is not None and self.overlap.ahead:
            return "mirror" if self.overlap.asked else "ssd"
        return "plain" if self.passes is None else "serial"


@dataclass(frozen=True)
class Layer:
    """A layer of the target has been run for this conversation's rows, of a prompt or a tree."""

    index: int
    rows: int
    at: float  # seconds, as of time.perf_counter


@dataclass(frozen=True)
class Phase:
    """A part of a reply's work begins or ends: "prefill", "verify", "draft" before a pass, "draft in a wait"
    while one waits for flash."""

    name: str
    begins: bool
    at: float  # seconds, as of time.perf_counter


@dataclass(frozen=True)
class Round:
    """A draft worker has ended a round: one that was asked for, or `ahead`, while the target verified."""

    ahead: bool
    nodes: int  # that it has drafted
    began: float  # seconds, as of time.perf_counter here
    ended: float


@dataclass(frozen=True)
class Trace:
    """Who listens to a session. Called in the thread that computes, so it should be quick; costs nothing
    where it is None."""

    cycle: Callable[[Cycle], None] | None = None
    layer: Callable[[Layer], None] | None = None
    phase: Callable[[Phase], None] | None = None

    @contextmanager
    def telling(self, name: str) -> Iterator[None]:
        """Tell of the block as a phase, however it ends."""
        if self.phase is None:
            yield
            return
        self.phase(Phase(name, True, perf_counter()))
        try:
            yield
        finally:
            self.phase(Phase(name, False, perf_counter()))
