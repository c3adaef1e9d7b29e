"""A host whose passes are run when a test says so, and a client of it that is frames and nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from edgespec.core.batcher import Batcher
from edgespec.core.tree import TokenTree
from edgespec.engine import Engine
from edgespec.split.guest import Work
from edgespec.split.host import IDLE_SECONDS, Host, Line
from edgespec.split.payload import pack_nodes, pack_tokens, squeeze
from edgespec.split.protocol import (
    ANSWERS,
    VERSION,
    Answer,
    Hello,
    Judge,
    Manner,
    Seated,
    TakeSeat,
    Told,
    Upload,
    read,
    written,
)
from edgespec.split.transcript import Transcript

GREEDILY = Manner(0, 0, 1, 0, 0, 0)


class Served:
    """A host and whoever runs its passes, in the test's thread."""

    def __init__(self, engine: Engine, idle: float = IDLE_SECONDS) -> None:
        self.now = 0.0  # seconds
        self.mail = deque[Callable[[], None]]()
        self.batch = Batcher[Work](engine.verifier)
        self.host = Host(engine, self.mail.append, self.batch.join, idle, lambda: self.now)
        self.passes = 0

    def step(self) -> None:
        """What has been said is heard; and a pass, if anybody wants one."""
        while self.mail:
            self.mail.popleft()()
        if len(self.batch):
            self.passes += 1
            for member, error in self.batch.step():
                assert error is None
                assert member.guest.work is not member

    def run(self) -> None:
        while self.mail or len(self.batch):
            self.step()


class Caller:
    """A client that says whatever it is told to."""

    def __init__(self, served: Served, greets: bool = True) -> None:
        self.served, self.heard, self.closed = served, list[Answer](), False
        self.line: Line = served.host.connect(self._hear, self._close)
        self.text, self.round, self.seat = Transcript(), 0, b""
        if greets:
            self.say(Hello(VERSION))

    def _hear(self, frame: bytes) -> None:
        assert not self.closed, "something is sent to a connection that was closed"
        self.heard.append(read(frame, ANSWERS))

    def _close(self) -> None:
        self.closed = True

    def say(self, *messages: Told, runs: bool = True) -> Answer | None:
        """The last answer."""
        self.heard.clear()
        for message in messages:
            self.line.hear(written(message))
        if runs:
            self.served.run()
        return self.heard[-1] if self.heard else None

    def sit(self, context: int, seat: bytes = b"", manner: Manner = GREEDILY) -> Answer | None:
        answer = self.say(TakeSeat(seat, context))
        if isinstance(answer, Seated):
            self.seat = answer.seat
            self.say(manner)
        return answer

    def upload(self, tokens: Sequence[int], draws: bool = True) -> Upload:
        """The next round's request: these, behind what was said."""
        self.round += 1
        body = squeeze(pack_tokens(tokens))
        return Upload(self.seat, self.round, len(self.text), self.text.hash(), draws, *body)

    def judge(self, tree: TokenTree) -> Judge:
        """The next round's request."""
        self.round += 1
        known = len(self.text), self.text.hash()
        return Judge(self.seat, self.round, *known, int(tree.tokens[0]), pack_nodes(tree))
