"""A host whose passes are run when a test says so, and a client of it that is frames and nothing else."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from edgespec.core.batcher import Batcher
from edgespec.core.tree import TokenTree
from edgespec.engine import Engine
from edgespec.errors import LinkError
from edgespec.split.guest import Work
from edgespec.split.guests import IDLE_SECONDS
from edgespec.split.host import Host
from edgespec.split.line import Line
from edgespec.split.payload import pack_nodes, pack_tokens, squeeze
from edgespec.split.protocol import (
    ANSWERS,
    FRAME_BYTES,
    STILL_SECONDS,
    VERSION,
    Answer,
    Heard,
    Hello,
    Judge,
    Judged,
    Manner,
    Recalled,
    Seated,
    TakeSeat,
    TokenizerPart,
    Told,
    Upload,
    read,
    written,
)
from edgespec.split.transcript import Transcript
from tests.sessions import WAIT

GREEDILY = Manner(0, 0, 1, 0, 0, 0)


class Served:
    """A host and whoever runs its passes, in the test's thread."""

    def __init__(self, engine: Engine, idle: float = IDLE_SECONDS) -> None:
        self.now = 0.0  # seconds
        self.mail = deque[Callable[[], None]]()
        self.batch = Batcher[Work](engine.verifier)
        self.post, self.visit = self.mail.append, self.batch.join
        self.host = Host(engine, self, idle, lambda: self.now)
        self.passes = 0

    def spare(self, positions: int) -> bool:
        return True

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
        self.recalled = -1  # vectors that it says it has; -1 = it wants none
        if greets:
            self.say(Hello(VERSION))

    def _hear(self, frame: bytes) -> None:
        assert not self.closed, "something is sent to a connection that was closed"
        self.heard.append(read(frame, ANSWERS))
        if isinstance(self.heard[-1], (TokenizerPart, Recalled)):
            self.line.hear(written(Heard()))

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
        return Upload(self.seat, self.round, len(self.text), self.text.hash(), self.recalled, draws, *body)

    def judge(self, tree: TokenTree) -> Judge:
        """The next round's request."""
        self.round += 1
        known = len(self.text), self.text.hash()
        return Judge(self.seat, self.round, *known, self.recalled, int(tree.tokens[0]), pack_nodes(tree))


class Running:
    """A host whose passes are run in a thread of their own, until the `with` ends."""

    def __init__(self, engine: Engine) -> None:
        self.mail = SimpleQueue[Callable[[], None]]()
        self.batch = Batcher[Work](engine.verifier)
        self.post, self.visit = self.mail.put, self.batch.join
        self.host = Host(engine, self)
        self.over = False
        self.held = threading.Event()  # while it is clear, no pass is begun
        self.held.set()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self.over:
            with suppress(Empty):
                while True:
                    self.mail.get(timeout=0 if len(self.batch) else 0.02)()
            if len(self.batch):
                self.held.wait(WAIT)
                for _, error in self.batch.step():
                    assert error is None

    def spare(self, positions: int) -> bool:
        return True

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.mail.put(self.host.close)
        self.over = True
        self.held.set()
        self._thread.join()
        with suppress(Empty):
            while True:
                self.mail.get(block=False)()


class Wires:
    """Connections to a host, by queues; and what may befall them. See `split.link.Dial`."""

    def __init__(self, host: Host) -> None:
        self.host, self.made = host, list[Wire]()
        self.down = False  # no connection can be made, and those that were are lost
        self.loses = 0  # answers that are to come, and do not arrive
        self.frames: list[bytes] = []  # that clients have sent

    def __call__(self) -> Wire:
        if self.down:
            raise LinkError("nobody listens there")
        self.made.append(Wire(self))
        return self.made[-1]

    def cut(self, down: bool = True) -> None:
        """All connections are lost."""
        self.down = down
        for wire in self.made:
            wire.end()

    def mute(self) -> None:
        """The connections that are there stay, and nothing passes them any more."""
        for wire in self.made:
            wire.silent = True


class Wire:
    """See `split.link.Transport`."""

    def __init__(self, wires: Wires) -> None:
        self.wires, self.silent, self.ended = wires, False, False
        self.heard = SimpleQueue[bytes | None]()
        self.beaten = time.monotonic()
        self.line = wires.host.connect(self._arrive, self.end)

    def _arrive(self, frame: bytes) -> None:
        if self.wires.loses and isinstance(read(frame, ANSWERS), Judged):
            self.wires.loses -= 1
            self.end()
        elif not self.silent:
            self.heard.put(frame)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self.heard.put(None)
            self.line.lost()

    def send(self, frame: bytes) -> None:
        if self.ended:
            raise LinkError("it was cut")
        self.wires.frames.append(frame)
        if not self.silent:
            self.line.hear(frame)

    def receive(self, timeout: float) -> bytes | None:
        if time.monotonic() - self.beaten > STILL_SECONDS:
            self.beaten = time.monotonic()
            self.line.beat()
        try:
            frame = self.heard.get(timeout=timeout) if timeout else self.heard.get(block=False)
        except Empty:
            return None
        if frame is None:
            self.heard.put(None)
            raise LinkError("it was cut")
        return frame

    def abort(self) -> None:
        self.end()

    def close(self) -> None:
        self.end()


@contextmanager
def listening(host: Host) -> Iterator[str]:
    """The address of a WebSocket server for it."""

    def attend(socket: ServerConnection) -> None:
        def send(frame: bytes) -> None:
            with suppress(ConnectionClosed):
                socket.send(frame)

        line = host.connect(send, socket.close)
        with suppress(ConnectionClosed):
            while True:
                try:
                    frame = socket.recv(STILL_SECONDS)
                except TimeoutError:
                    line.beat()
                    continue
                assert isinstance(frame, bytes)
                line.hear(frame)
        line.lost()

    with serve(attend, "127.0.0.1", 0, compression=None, max_size=FRAME_BYTES) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()
