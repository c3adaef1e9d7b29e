"""A conversation whose target is on a server: the same API, and replies that go on when the link does not.

Needs no torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import chain
from typing import Any

from edgespec.config import GenerationOptions
from edgespec.core.batch import Part, PrefillBlock, blocks
from edgespec.core.reply import Reply, SessionHost
from edgespec.core.schedule import Schedule
from edgespec.core.trace import Trace
from edgespec.drafters.base import Drafter, committed, shared_prefix
from edgespec.errors import LinkError
from edgespec.progress import ProgressCallback
from edgespec.response import Response
from edgespec.runtimes.base import PREFILL_ROWS
from edgespec.session import Session
from edgespec.split.alone import Alone, Deputy
from edgespec.split.protocol import as_manner
from edgespec.split.seat import PIECE, TICK, RemoteSeat
from edgespec.split.standby import Reserve
from edgespec.text.prompt import Array


class RemoteVerifier:
    """See `core.verify.Verifier`: each seat has a connection of its own, and asks for itself."""

    together = PIECE // PREFILL_ROWS  # a round trip for each would be waited for

    def __init__(self, seat: Callable[[int], RemoteSeat]) -> None:
        self._seat, self._turn = seat, threading.RLock()

    @property
    def turn(self) -> AbstractContextManager[Any]:
        return self._turn

    def inside(self) -> bool:
        return False

    def new_seat(self, context: int, slots: int | None = None) -> RemoteSeat:
        return self._seat(context)

    def compute(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Raises LinkError when the server does not answer in time."""
        parts[0].cache.compute(parts[0])
        return parts[:1]


class RemoteSession(Session):
    """See `edgespec.Session`. Where an answer does not come in time, the same model goes on here, if it is;
    else the drafter by itself, and when the server is back, what that has said is kept, or made again."""

    cache: RemoteSeat

    def __init__(
        self,
        host: SessionHost,
        seat: RemoteSeat,
        schedule: Schedule,
        drafter: Drafter | None,
        reserve: Reserve,
        keep: bool,
        wait: float,
        most: int,
        trace: Trace | None = None,
    ) -> None:
        """drafter: the schedule's, who may have to speak alone. keep: what it says then stays. wait: seconds
        that a reply waits for a server when nobody here can say more. most: tokens that the drafter says
        alone."""

        def release() -> None:
            seat.close()
            reserve.close()

        super().__init__(host, seat, schedule, release, trace)
        self._drafter, self._reserve = drafter, reserve
        self._keeps, self._wait, self._most = keep, wait, most
        self._part: Part | None = None  # asked for
        self._alone: Deputy | None = None  # while its answer is late

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent to the server and received from it, the transport's own aside."""
        return self.cache.traffic

    @property
    def rounds(self) -> int:
        """That the server was asked for, prompts' among them."""
        return self.cache.rounds

    def new_reply(
        self,
        prompt: Sequence[int] | Array,
        options: GenerationOptions | None = None,
        progress: ProgressCallback | None = None,
    ) -> Reply:
        """See `Session`. Raises OptionError for an acceptance that a server cannot do, too."""
        reply = super().new_reply(prompt, options, progress)
        as_manner(reply.chooser.sampler.options, reply.chooser.acceptance.name)
        return reply

    def _begin(self, reply: Reply) -> None:
        super()._begin(reply)
        chooser = reply.chooser
        self.cache.choose(as_manner(chooser.sampler.options, chooser.acceptance.name))

    def _end(self, reply: Reply) -> None:
        self._dismiss()
        if not self._closed:
            self.cache.give_up()
        super()._end(reply)

    def _dismiss(self) -> None:
        """Nobody stands in for the server any more."""
        alone, self._part, self._alone = self._alone, None, None
        if alone is not None:
            alone.end()

    def _pass(self, reply: Reply) -> Iterator[Response]:
        if reply.safe < len(reply.prompt):
            return self._privately(reply)
        if self._alone is not None:
            return self._without(reply, self._alone)
        part = self._part = self._ask(reply)
        back = self.cache.advance
        try:
            with reply.trace.telling(part.phase):
                self.cache.compute(part, lambda: self._reserve.read(reply, back))
        except LinkError:
            reply.stats.lost += 1
            self._alone = self._deputy(reply, self._most, back)
            return iter(())
        finally:
            self._reserve.rest()
        return self._answer(reply, part)

    def _deputy(self, reply: Reply, most: int, back: Callable[[], bool]) -> Deputy:
        """most: tokens that a drafter may say. back: see `Standby`."""
        if (here := self._reserve.deputy(reply, back)) is not None:
            return here
        self.schedule.end()  # its drafter says now what comes
        said = reply.writer.tokens
        context = reply.chooser.context([*reply.prompt, *said], reply.cancellation.check)
        return Alone(self._drafter, context, len(said), most)

    def _privately(self, reply: Reply) -> Iterator[Response]:
        """A little more of a reply to what may not leave this machine: no round has any of it, and no server
        verifies it."""
        reply.cancellation.check()
        if self._alone is None:
            self._read_safe(reply)
            self._alone = self._deputy(reply, reply.limit, lambda: False)
        tokens = self._alone.say()
        reply.cancellation.check()
        return reply.say(tokens, self._alone.verified) if tokens else iter([reply.cut_short()])

    def _read_safe(self, reply: Reply) -> None:
        """The server reads what is safe, if it can: a prompt that goes on otherwise finds it there."""
        self._refuse_second()
        self._replying = reply
        self.keep(shared_prefix(self.tokens, reply.prompt[: reply.safe]))
        reply.begin(self.cache, self.schedule)
        chooser = reply.chooser
        self.cache.choose(as_manner(chooser.sampler.options, chooser.acceptance.name))
        with suppress(LinkError):
            verifier, safe = self.host.verifier, reply.prompt[self.cache.length : reply.safe]
            for block in blocks(self.cache, safe, reply.observer, verifier.together):
                block.last = False
                verifier.compute([block])
        self.tokens = reply.prompt[: self.cache.length]

    def _without(self, reply: Reply, alone: Deputy) -> Iterator[Response]:
        """A little more of the reply without the server; or what that has said at last."""
        reply.cancellation.check()
        if self.cache.advance():
            return self._rejoin(reply, alone)
        tokens = [] if alone.held is not None else alone.say()
        steps = list(reply.say(tokens, alone.verified))
        stays = alone.verified or self._keeps
        if steps and steps[-1].finish_reason is not None and not stays:
            alone.held = steps.pop()
            reply.writer.hold(alone.held)
        if not tokens:
            if min(alone.waited, time.monotonic() - self.cache.links.answered) > self._wait:
                return self._give_up(reply, alone)
            alone.wait(lambda: self.cache.wait(TICK))
        return iter(steps)

    def _rejoin(self, reply: Reply, alone: Deputy) -> Iterator[Response]:
        part, said = self._part, len(reply.writer.tokens) - alone.said
        assert part is not None
        self._dismiss()
        if said and (alone.verified or self._keeps):
            text = [*reply.prompt, *reply.writer.tokens[:-1]]
            self.cache.adopt(text)
            self.tokens = text
            reply.go_on()
            return iter(())
        withdrawn = [reply.writer.withdraw(said)] if said else []
        if isinstance(part, PrefillBlock):
            return chain(withdrawn, self._answer(reply, part))
        root, late = reply.root, reply.answer_late(part)
        assert reply.cycle is not None
        self.tokens += committed(root, reply.cycle.outcome)
        return chain(withdrawn, late)

    def _give_up(self, reply: Reply, alone: Deputy) -> Iterator[Response]:
        if alone.held is None:
            raise LinkError(
                f"the server has not come back for {alone.seconds:.0f} s; what was said until then is in the "
                "reply"
            )
        return iter([reply.writer.release(alone.held)])
