"""What a client's drafter attends to, by both ends: when it is made, and what of it is believed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.errors import ProtocolError
from edgespec.split.payload import pack_vectors, unpack_vectors, unsqueeze, vector_bytes
from edgespec.split.protocol import Recalled
from edgespec.split.recall import Recall, Recollection, in_frame


@dataclass
class Guest:
    """Of which only the length of its text is of interest; token i's vector is [text + i]."""

    text: int
    length: int
    round: int = 1
    heard: list[Recalled] = field(default_factory=list)
    full: bool = False

    @property
    def transcript(self) -> Any:
        return range(self.length)

    @property
    def cache(self) -> int:
        return self.text

    def tell(self, message: Any) -> None:
        self.heard.append(message)

    def takes(self, then: Callable[[], None]) -> bool:
        self.then = then
        return not self.full

    def __hash__(self) -> int:
        return id(self)

    def recollected(self) -> tuple[int, list[float]]:
        """From which token on, and what."""
        [answer] = self.heard
        body = unsqueeze(answer.packed, answer.vectors, 10**6)
        return answer.start, unpack_vectors(body, len(body) // vector_bytes(1, 1), 1)[:, 0].tolist()


class Steps:
    """A memory whose steps are of three tokens."""

    digest, width, each, step = b"", 1, 1, 3

    def __init__(self) -> None:
        self.made: list[list[tuple[int, range]]] = []

    def vectors(self, spans: Sequence[tuple[int, range]]) -> NDArray[np.float32]:
        self.made.append(list(spans))
        return np.array([[text + i] for text, span in spans for i in span], dtype=np.float32)


class Recalls:
    """A server's end, whose memory takes so many seconds for each part, and what is to be done in gaps."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.memory, self.posted, self.now = Steps(), list[Callable[[], None]](), 0.0
        make = self.memory.vectors

        def vectors(spans: Sequence[tuple[int, range]]) -> NDArray[np.float32]:
            self.now += seconds
            return make(spans)

        self.memory.vectors = vectors  # type: ignore[method-assign]
        self.recall = Recall(self.memory, self.posted.append, lambda: self.now)

    def gap(self) -> list[list[tuple[int, range]]]:
        """What is made in it."""
        self.memory.made.clear()
        posted, self.posted[:] = [*self.posted], []
        for work in posted:
            work()
        return [*self.memory.made]


def test_parts_of_several_conversations_are_made_at_once() -> None:
    recalls = Recalls()
    guests = [Guest(100 * n, length) for n, length in enumerate((10, 11, 14, 18, 10))]
    for guest in guests:
        recalls.recall.answer(guest, 10)
    gone = Guest(900, 12)
    recalls.recall.answer(gone, 10)
    recalls.recall.forget(gone)
    assert len(recalls.posted) == 1, "it is asked for once, whoever waits"
    first = [[(100, range(10, 11))], [(200, range(10, 13))], [(300, range(10, 13))]]
    rest = [[(200, range(13, 14))], [(300, range(13, 16))], [(300, range(16, 18))]]
    assert recalls.gap() == first + rest
    assert recalls.gap() == []
    for guest in guests[1:4]:
        expected = [guest.text + i for i in range(10, guest.length)]
        start, found = guest.recollected()
        assert (start, found) == (10, pytest.approx(expected, rel=0.01))
    assert not any(guest.heard for guest in (guests[0], guests[4], gone))

    for guest in guests[:3]:
        guest.length += 1
        recalls.recall.answer(guest, guest.length - 1)
    assert recalls.gap() == [[(0, range(10, 11)), (100, range(11, 12)), (200, range(14, 15))]]


def test_passes_come_between_slow_parts() -> None:
    recalls = Recalls(0.02)
    long, short = Guest(0, 9), Guest(100, 1)
    recalls.recall.answer(long, 0)
    recalls.recall.answer(short, 0)
    assert recalls.gap() == [[(0, range(3))]]
    recalls.now += 0.4  # a pass, of which a tenth is as long as two parts
    assert recalls.gap() == [[(100, range(1))], [(0, range(3, 6))]]
    assert short.heard
    assert recalls.gap() == [[(0, range(6, 9))]]
    assert long.recollected() == (0, pytest.approx([*range(9)], abs=0.1))
    assert recalls.gap() == []


def test_who_asks_again_and_again_is_remembered_once() -> None:
    recalls, guest = Recalls(0.02), Guest(0, 6)
    for _ in range(1000):
        recalls.recall.answer(guest, 0)
    assert len(recalls.posted) == 1
    assert [*recalls.gap(), *recalls.gap()] == [[(0, range(3))], [(0, range(3, 6))]]
    assert recalls.gap() == []
    assert len(guest.heard) == 1


def test_nothing_is_made_for_whom_it_could_not_be_sent_to() -> None:
    recalls, guest = Recalls(), Guest(0, 3, full=True)
    recalls.recall.answer(guest, 0)
    assert recalls.gap() == []
    assert not recalls.posted, "a turn in every gap, for nothing"
    guest.full = False
    guest.then()
    assert recalls.gap() == [[(0, range(3))]]


def test_a_memory_that_fails_ends_no_conversation(caplog: pytest.LogCaptureFixture) -> None:
    recalls, guests = Recalls(), [Guest(0, 3), Guest(100, 3)]
    make = recalls.memory.vectors

    def fails(spans: Sequence[tuple[int, range]]) -> NDArray[np.float32]:
        if spans[0][0] == 0:
            raise RuntimeError("out of memory")
        return make(spans)

    recalls.memory.vectors = fails  # type: ignore[method-assign]
    for guest in guests:
        recalls.recall.answer(guest, 0)
    assert recalls.gap() == [[(100, range(3))]]
    assert recalls.gap() == []
    assert (len(guests[0].heard), len(guests[1].heard)) == (0, 1)
    assert "out of memory" in caplog.text


# What is believed


def recalled(
    start: int, count: int, width: int = 8, packed: bool = False, extra: bytes = b"", value: float = 1.0
) -> Recalled:
    body = pack_vectors(np.full((count, width), value, dtype=np.float32)) + extra
    return Recalled(1, start, start + count, packed, zlib.compress(body) if packed else body)


def test_what_is_recalled_is_bounded() -> None:
    recollection = Recollection(8)
    recollection.take(recalled(0, 3), 10)
    recollection.take(recalled(0, 3), 10)  # a round that was asked again: it is here
    assert recollection.length == 3
    for beyond in (
        recalled(3, 8),
        recalled(3, 0),
        recalled(3, 2, extra=b"1"),
        Recalled(1, 3, 4, True, b"nothing"),
        Recalled(1, 3, 4, True, zlib.compress(bytes(10**7))),
        Recalled(1, 3, 4, False, b"\xff\xff" + bytes(8)),  # its scale is NaN
    ):
        with pytest.raises(ProtocolError):
            recollection.take(beyond, 10)
    assert recollection.length == 3
    recollection.take(recalled(3, 7, packed=True), 10)
    assert recollection.vectors(0, 10) == pytest.approx(np.ones((10, 8)), rel=0.01)
    recollection.truncate(4, 6)
    recollection.take(recalled(4, 2), 10)  # late, and of the text before
    assert recollection.length == 4


def test_no_more_than_a_frame_is_recalled_at_once() -> None:
    most = in_frame(vector_bytes(1, 8))
    recollection = Recollection(8)
    with pytest.raises(ProtocolError, match=f"{most + 1} tokens at once; {most} are the most"):
        recollection.take(recalled(0, most + 1, packed=True), 10**6)
    recollection.take(recalled(0, most, packed=True), 10**6)
    assert recollection.length == most


def test_vectors_of_a_text_that_was_cut_are_of_use_as_far_as_it_goes() -> None:
    recollection = Recollection(8)
    recollection.take(recalled(0, 3), 10)  # of round 1
    recollection.truncate(7, 1)
    recollection.truncate(6, 1)
    recollection.take(recalled(3, 4), 10)
    assert recollection.length == 3, "to 7, of which the last is another"
    recollection.take(recalled(3, 3), 10)
    assert recollection.length == 6
    recollection.truncate(4, 2)
    recollection.truncate(4, 3)
    recollection.take(recalled(4, 1), 10)
    assert recollection.length == 4
    recollection.truncate(2, 9)
    recollection.take(recalled(2, 2), 10)
    assert recollection.length == 2, "nobody knows any more what that round's text was"


def test_an_answer_to_who_has_heard_more_since() -> None:
    """A round is asked before all that the one before recalls has come: so its own begins too early."""
    recollection = Recollection(8)
    recollection.take(recalled(0, 3), 10)
    recollection.take(recalled(1, 4, value=2.0), 10)
    assert recollection.vectors(0, 5)[:, 0].tolist() == pytest.approx([1, 1, 1, 2, 2], rel=0.01)
    recollection.take(recalled(1, 2, value=3.0), 10)
    assert recollection.vectors(0, 5)[:, 0].tolist() == pytest.approx([1, 1, 1, 2, 2], rel=0.01)
    with pytest.raises(ProtocolError):
        recollection.take(recalled(1, 10), 10)
    recollection.take(recalled(6, 2), 10)  # what is between has not come
    assert recollection.length == 5


def test_numbers_that_a_client_cannot_keep_are_its_largest() -> None:
    recollection = Recollection(2)
    scale = np.array([np.finfo(np.float16).max], dtype="<f2").tobytes()
    recollection.take(Recalled(1, 0, 1, False, scale + bytes([127, 128])), 10)
    assert recollection.vectors(0, 1).tolist() == [[65504.0, -65504.0]]
