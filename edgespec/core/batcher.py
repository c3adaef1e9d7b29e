"""Decodes many conversations at once: each pass takes whoever is there.

                 pass 1             pass 2             pass 3             pass 4
    member A   │ prompt, block 1  │ prompt, block 2  │ tree             │ tree  ...
    member B   │ tree             │ tree, ends       ·                  ·
    member C   ·  joins           │ prompt           │ tree             │ tree  ...

Weights are read once a pass, whoever shares it, so a newcomer's prompt goes beside the others' trees and
costs them no pass. What each says is what it would say alone (`core.batch`).
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from edgespec.core.batch import Part, PrefillBlock, attempt
from edgespec.core.verify import Verifier
from edgespec.runtimes.base import Seat


class Member(Protocol):
    """A conversation that is decoded with others. What its methods raise is its own end."""

    def ask(self) -> Part:
        """What it wants of the next pass. Asked again only when that was answered."""

    def answer(self, part: Part) -> bool:
        """The part has been computed, or has failed (its `error`). True: it goes on."""


M = TypeVar("M", bound=Member)


class Batcher(Generic[M]):
    """Runs passes for its members, in the thread that calls `step`. They may join between any two."""

    def __init__(self, verifier: Verifier[Seat], patient: bool = False) -> None:
        """patient: newcomers' prompts go on beside others' trees as far as passes are hardly longer for it
        (`core.pace`). Else as fast as they can, where nobody waits for the others' next tokens."""
        self.verifier, self.patient = verifier, patient
        self._idle: list[M] = []  # have no part yet
        self._waiting: list[tuple[M, Part]] = []  # those who have waited longest first

    def __len__(self) -> int:
        return len(self._idle) + len(self._waiting)

    def join(self, member: M) -> None:
        self._idle.append(member)

    def leave(self, member: M) -> None:
        """It is asked no more, and its part is computed by nobody. Who is not there may leave, too."""
        self._idle = [other for other in self._idle if other is not member]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] is not member]

    def step(self) -> list[tuple[M, BaseException | None]]:
        """One pass. Returns who is at the end, with the error if it was one.

        For whom the pass has no room stands before all who come back from it: the first in line is always
        taken, so nobody waits longer than those before it do. What is raised (a disk error, Ctrl-C) concerns
        all members, which have their committed tokens still.
        """
        ended = list[tuple[M, BaseException | None]]()

        def ask(member: M) -> None:
            part = member.ask()
            if isinstance(part, PrefillBlock):
                part.patient = self.patient
            self._waiting.append((member, part))

        def answer(member: M, part: Part) -> None:
            if member.answer(part):
                self._idle.append(member)
            else:
                ended.append((member, None))

        idle, self._idle = self._idle, []
        for member in idle:
            if (error := attempt(ask, member)) is not None:
                ended.append((member, error))
        if self._waiting:
            taken = set(map(id, self.verifier.compute([part for _, part in self._waiting])))
            waiting, self._waiting = self._waiting, [w for w in self._waiting if id(w[1]) not in taken]
            for member, part in waiting:
                if id(part) not in taken:
                    continue
                if part.error is None and part.until is not None:  # a block that goes on in the next pass
                    self._waiting.append((member, part))
                elif (error := attempt(answer, member, part)) is not None:
                    ended.append((member, error))
        return ended
