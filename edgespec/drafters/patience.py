"""How long a cycle waits for who drafts elsewhere, and when that is lost. Needs no torch.

A cycle waits for all that it asks together, from its first question on: as long as one of the target's passes
takes, so that a worker that stalls costs one cycle more, and no less than `least`, as a busy machine may run
another process first. Whoever says that it is at work is waited for as long again from then on, `AT_WORK`
times as long in all. A question that came too late is not waited for again: to be late costs drafts, until
the worker has caught up. Lost it is when it says nothing at all for `LOST`.
"""

from __future__ import annotations

from time import monotonic

from edgespec.drafters.colleague import TICK, Colleague, Question

UNTIMED = 0.5  # seconds, while it is not known how long a pass takes
AT_WORK = 3
LOST = 20.0  # seconds, and
LOST_CYCLES = 8  # cycles without a word, beyond which it never comes (both may have slept between two)


class WorkerPatience:
    """Of one conversation, with one worker."""

    def __init__(self, worker: Colleague) -> None:
        self.worker = worker
        self._since: float | None = None  # the first question that this cycle has waited for was asked
        self._missed = 0  # cycles in a row that ended without an answer

    def begin(self) -> None:
        """A cycle does, and no answer is due."""
        self._since, self._missed = None, 0

    def waits(self, question: Question, least: float) -> bool:
        """Wait a tick for its answer; False = it is there, or comes too late for this cycle."""
        if question.answer is not None or self.worker.lost is not None:
            return False
        took = self.worker.pass_seconds
        patient = max(least, UNTIMED if took is None else took)
        since = question.asked if self._since is None else self._since
        word = question.beat if question.beat > question.asked else since
        left = min(word + patient, since + AT_WORK * patient) - monotonic()
        if left <= 0:
            return False
        self._since = since
        question.wait(min(TICK, left))
        return True

    def missed(self, question: Question) -> None:
        """A cycle has ended without its answer, whether it was waited for or not."""
        self._missed += 1
        silent = monotonic() - max(question.asked, self.worker.heard)
        if self.worker.lost is None and self._missed > LOST_CYCLES and silent > LOST:
            self.worker.lose(f"it has said nothing for {silent:.0f} s")
