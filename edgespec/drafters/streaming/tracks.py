"""The tracks of an SPD drafter in several processes: the draft worker leads, and others follow it.

    leader       Join ─ Sit ─ Prompt ─ Advance, Advance ... ─ Nodes ─ Advance, Advance ... ─ Keep ...
    followers     run the same on tracks of their own, and meet it in all-reduces: see `track_group`

Each layer is a step, so what the leader leaves in the middle is left by all. A follower has nothing to
answer: what its tracks come to is in the sums, and it runs nothing of the head. It ends when the pipe does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from edgespec.drafters.channel import REQUEST_BYTES, Natural, Sent, frame, read_frame
from edgespec.drafters.worker import end_with_parent
from edgespec.errors import DeviceError
from edgespec.runtimes.torch.streaming import Streaming
from edgespec.runtimes.torch.streaming_draft import StreamingDraft, StreamingPass
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.track_group import join
from edgespec.runtimes.torch.weights import Weights


class Join(Sent):
    """Open the drafter in `adapters`, of this model, as one of so many workers that meet through `store`."""

    model: str
    adapters: str
    store: str
    workers: Natural
    rank: Natural


class Sit(Sent):
    """A conversation begins, of so many positions."""

    seat: Natural
    context: Natural


class Leave(Sent):
    """It is over."""

    seat: Natural


class Prompt(Sent):
    """Read these tokens from now on."""

    seat: Natural
    tokens: list[Natural]


class Nodes(Sent):
    """From now on, a pass over these slots, each with so many lookahead streams."""

    seat: Natural
    tokens: list[Natural]
    parents: list[int]
    streams: Natural


class Advance(Sent):
    """By one layer."""

    seat: Natural


class Keep(Sent):
    """See `runtimes.base.DraftRuntime.commit`."""

    seat: Natural
    path: list[Natural]
    keep: list[Natural]


class Back(Sent):
    """See `runtimes.base.DraftRuntime.truncate`."""

    seat: Natural
    length: Natural


Order = Join | Sit | Leave | Prompt | Nodes | Advance | Keep | Back
ORDERS: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)


class Followers:
    """The leader's hand on the other workers, which it starts. They end with this process."""

    def __init__(self, program: Sequence[str], model: str, adapters: str, workers: int) -> None:
        """program: what each of them runs. Raises DeviceError when they cannot be started, or do not come."""
        self.seats, self.left = count(1), list[int]()
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            try:
                self._processes = [
                    subprocess.Popen(list(program), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
                    for _ in range(1, workers)
                ]
            except OSError as error:
                raise DeviceError(f"a worker of the drafter's tracks did not start: {error}") from None
            for rank, process in enumerate(self._processes, 1):
                _write(process, Join(model, adapters, str(store), workers, rank))
            join(store, workers, 0)

    def tell(self, order: Order) -> None:
        """Raises DeviceError when one is gone."""
        while self.left:
            self.tell(Leave(self.left.pop()))
        for process in self._processes:
            _write(process, order)


def _write(process: subprocess.Popen[bytes], order: Order) -> None:
    pipe = cast(BinaryIO, process.stdin)
    try:
        pipe.write(frame(order))
        pipe.flush()
    except OSError:
        raise DeviceError("a worker of the drafter's tracks is gone") from None


class LeadingDraft(StreamingDraft):
    """See `runtimes.base.DraftRuntime`. Its followers are told all that it does."""

    def __init__(
        self,
        followers: Followers,
        module: Streaming,
        target: TorchTarget[Weights],
        context: int,
        rows: int,
        width: int,
    ) -> None:
        """As `StreamingDraft`."""
        super().__init__(module, target, context, rows, width)
        self.followers, self.seat = followers, next(followers.seats)
        followers.tell(Sit(self.seat, context))
        weakref.finalize(self, followers.left.append, self.seat)  # told with the next order, in its thread

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        layers = super().prefill(tokens)
        self.followers.tell(Prompt(self.seat, [*map(int, tokens)]))
        while True:
            self.followers.tell(Advance(self.seat))
            done = next(layers, None)
            if done is None:
                return
            yield done

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> StreamingPass:
        under_way = LeadingPass(self, tokens, parents)
        self._latest = weakref.ref(under_way)
        slots = [*map(int, tokens)], [*map(int, parents)]
        self.followers.tell(Nodes(self.seat, *slots, self.streams))
        return under_way

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        super().commit(path, keep)
        self.followers.tell(Keep(self.seat, [*map(int, path)], [*map(int, keep)]))

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.followers.tell(Back(self.seat, length))


class LeadingPass(StreamingPass):
    """See `StreamingPass`."""

    draft: LeadingDraft

    def advance(self) -> bool:
        if self.layer < self.draft.module.shape.layers:  # the head is the leader's alone
            self.draft.followers.tell(Advance(self.draft.seat))
        return super().advance()


@dataclass
class _Following:
    """A conversation. steps: of the prompt, or the pass, under way."""

    draft: StreamingDraft
    steps: Iterator[object] | None = None


class Follower:
    """Does what it is told, on its own tracks."""

    def __init__(self, open_draft: Callable[[int], StreamingDraft]) -> None:
        """open_draft: a conversation of so many positions."""
        self.open_draft = open_draft
        self.seats: dict[int, _Following] = {}

    def take(self, order: Order) -> None:
        """Raises KeyError and AssertionError for what makes no sense now, and whatever a step raises."""
        assert not isinstance(order, Join)
        if isinstance(order, Sit):
            self.seats[order.seat] = _Following(self.open_draft(order.context))
            return
        seat = self.seats[order.seat]
        if isinstance(order, Advance):
            assert seat.steps is not None
            next(seat.steps, None)
            return
        seat.steps = None  # left, if it was under way
        draft = seat.draft
        if isinstance(order, Leave):
            del self.seats[order.seat]
        elif isinstance(order, Prompt):
            seat.steps = draft.prefill(order.tokens)
        elif isinstance(order, Nodes):
            draft.streams = order.streams
            seat.steps = iter(draft.begin(order.tokens, order.parents).advance, None)
        elif isinstance(order, Keep):
            draft.commit(order.path, order.keep)
        else:
            draft.truncate(order.length)


def follow(open_tracks: Callable[[Join], Callable[[int], StreamingDraft]]) -> None:
    """Serve on the standard input, until that ends. open_tracks: reads this worker's own, when it has met the
    others."""
    end_with_parent()
    try:
        with os.fdopen(os.dup(0), "rb") as hear:
            joined = read_frame(hear, ORDERS, REQUEST_BYTES)
            assert isinstance(joined, Join)
            join(Path(joined.store), joined.workers, joined.rank)
            follower = Follower(open_tracks(joined))
            while (order := read_frame(hear, ORDERS, REQUEST_BYTES)) is not None:
                follower.take(order)
    except BaseException as error:
        with suppress(OSError):
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # not held up by threads, nor by what they hold
    os._exit(0)
