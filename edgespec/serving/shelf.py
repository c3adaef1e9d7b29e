"""Sessions whose replies have ended, kept for what their next prompts share with them.

    what is kept       │ prompt: full blocks of 512 │ rest of the prompt │ reply           │
    its next turn      │ all of it, if it has the whole reply                              │ what is new
    another prompt     │ as many blocks as it shares │ its own ...

A prompt that continues what was said here, all of the reply too, is taken to be the same conversation, and
computes only what is new, as `Chat` does. Any other one takes whole blocks from a prompt's beginning, whose
bits are those that it would compute itself (docs/exactness.md): so what others were told changes no reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.drafters.base import shared_prefix
from edgespec.engine import Engine
from edgespec.runtimes.base import PREFILL_ROWS
from edgespec.session import Session


@dataclass(eq=False)
class Kept:
    """A session, and what of it may serve other prompts. prompt: tokens of its last prompt, 0 = it had none.
    blocks: of its first positions, those that any prompt which begins so would have computed just so."""

    session: Session
    prompt: int = 0
    blocks: int = 0

    def serves(self, prompt: Sequence[int]) -> tuple[bool, int]:
        """Whether this prompt continues what was said here, and the positions that it may take over."""
        shared = shared_prefix(self.session.tokens, prompt[:-1])
        if 0 < self.prompt < shared == len(self.session.tokens):
            return True, shared
        return False, min(shared // PREFILL_ROWS * PREFILL_ROWS, self.blocks)

    def ended(self, prompt: int, start: int) -> None:
        """A reply to a prompt of so many tokens is over, the first `start` of which were here already."""
        computed = min(prompt, len(self.session.tokens))
        if start == self.blocks:  # on whole blocks lie other blocks
            self.blocks = computed // PREFILL_ROWS * PREFILL_ROWS
        self.prompt = prompt


class Shelf:
    """As many sessions at most as there may be replies at once; those left alone for longest go first, also
    when their positions are needed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._kept: list[Kept] = []  # the latest last

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def positions(self) -> int:
        """Of the pool, that would be free without them."""
        return sum(self.engine.pool.share(kept.session.number) for kept in self._kept)

    def open(self, prompt: Sequence[int], held: int, context: int, reuse: bool) -> Kept:
        """A session for this prompt, with memory for `held` positions of `context`, and with what it may take
        over from a conversation before. There is room for it, if need be without those that are kept."""
        grows = self.engine.may_grow
        able = [kept for kept in self._kept if reuse and (grows or kept.session.context >= context)]
        best, (continues, length) = None, (False, 0)
        for kept in able:
            if (served := kept.serves(prompt)) > (continues, length):
                best, (continues, length) = kept, served
        if best is not None and (continues or not self._fits(held, best)):
            self._kept.remove(best)
            best.session.keep(length)
            best.blocks = min(best.blocks, length)
            self.hold(best.session, held)
            return best
        self.make_room(self.engine.pool.of(held), best)
        session = self.engine.new_session(None if grows else held, held=held if grows else None)
        if best is None:
            return Kept(session)
        session.borrow(best.session, length)
        return Kept(session, 0, length)

    def hold(self, session: Session, positions: int) -> None:
        """Give a session as many positions, at the cost of those that are kept."""
        if self.engine.may_grow:
            pool = self.engine.pool
            self.make_room(pool.of(positions) - pool.share(session.number))
            self.engine.hold(session, positions)

    def keep(self, kept: Kept) -> None:
        """Its reply has ended: it holds what was said, and no more."""
        session = kept.session
        if not session.tokens or session.closed:
            session.close()
            return
        if self.engine.may_grow:
            self.engine.hold(session, len(session.tokens))
        self._kept.append(kept)
        if len(self._kept) > self.engine.plan.sequences:
            self._drop(self._kept[0])

    def make_room(self, positions: int, but: Kept | None = None) -> None:
        """Have so many free, if these are enough."""
        for kept in [kept for kept in self._kept if kept is not but]:
            if self.engine.pool.free >= positions:
                return
            self._drop(kept)

    def clear(self) -> None:
        for kept in [*self._kept]:
            self._drop(kept)

    def _fits(self, held: int, best: Kept) -> bool:
        """Another session beside this one."""
        pool = self.engine.pool
        return pool.of(held) <= pool.free + self.positions - pool.share(best.session.number)

    def _drop(self, kept: Kept) -> None:
        self._kept.remove(kept)
        kept.session.close()
