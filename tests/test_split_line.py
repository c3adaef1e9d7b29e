"""Requests that wait to be heard are counted by two threads, and the count stays right."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from edgespec.split.guest import Guest
from edgespec.split.line import UNHEARD, UNHEARD_BYTES, Line
from edgespec.split.protocol import (
    ANSWERS,
    AT_ONCE,
    AskTokenizer,
    Heard,
    Hello,
    Judge,
    Judged,
    Recalled,
    Refusal,
    Request,
    TakeSeat,
    Upload,
    Why,
    read,
    written,
)
from tests.sessions import WAIT

FRAME = written(TakeSeat(b"", 10))
TOO_MANY = f"more than {UNHEARD} requests, or {UNHEARD_BYTES} bytes of them, wait to be heard"


class Clerk:
    """See `split.line.Listener`: takes what is said when a test says so."""

    def __init__(self) -> None:
        self.mail = SimpleQueue[Callable[[], None]]()
        self.post, self.taken, self.sent = self.mail.put, 0, list[bytes]()
        self.reasons = list[Why]()
        self.line = Line(self, self.sent.append, lambda: None)
        self.line.greeted = True

    def introduce(self, line: Line, request: Hello | AskTokenizer) -> None:
        raise AssertionError("nobody asks for what takes no pass")

    def take(self, line: Line, request: Request, digest: bytes) -> None:
        self.taken += 1

    def left(self, guest: Guest) -> None:
        raise AssertionError("nobody has a seat")

    def refused(self, why: Why) -> None:
        self.reasons.append(why)


def refusals(clerk: Clerk) -> list[str]:
    said = [read(frame, ANSWERS) for frame in clerk.sent]
    return [answer.words for answer in said if isinstance(answer, Refusal)]


def test_who_does_not_wait_for_answers_is_refused() -> None:
    clerk = Clerk()
    for _ in range(UNHEARD):
        clerk.line.hear(FRAME)
    assert not refusals(clerk)
    clerk.mail.get()()
    clerk.line.hear(FRAME)
    assert not refusals(clerk), "one was heard"
    clerk.line.hear(FRAME)
    assert refusals(clerk) == [TOO_MANY]
    assert clerk.reasons == ["nonsense"]
    while not clerk.mail.empty():
        clerk.mail.get()()
    assert clerk.taken == 1, "a connection that has ended is not heard"


def test_what_waits_is_bounded_in_bytes() -> None:
    clerk = Clerk()
    frame = written(Upload(bytes(16), 1, 0, bytes(8), -1, False, False, bytes(UNHEARD_BYTES // 2 - 100)))
    for _ in range(2):
        clerk.line.hear(frame)
    clerk.mail.get()()
    clerk.line.hear(frame)
    assert not refusals(clerk), "one was taken"
    clerk.line.hear(frame)
    assert refusals(clerk) == [TOO_MANY]


def test_nothing_waits_before_hello() -> None:
    clerk = Clerk()
    clerk.line.greeted = False
    clerk.line.hear(FRAME)
    assert refusals(clerk) == ["the first frame of a connection is Hello"]
    while not clerk.mail.empty():
        clerk.mail.get()()
    assert clerk.taken == 0


def test_the_answer_to_a_round_that_was_given_up_is_not_the_next_ones() -> None:
    clerk = Clerk()
    for number in (1, 2):
        clerk.line.hear(written(Judge(bytes(16), number, 0, bytes(8), -1, 3, b"")))
        clerk.mail.get()()
    clerk.line.tell(Judged(1, 1, bytes(8), b"123"))
    assert clerk.line.owes, "the second is under way, and its client is to hear so"
    clerk.line.tell(Judged(2, 1, bytes(8), b"123"))
    assert not clerk.line.owes


def test_two_threads_count_the_same_requests() -> None:
    clerk, count = Clerk(), 20_000
    room = threading.Semaphore(UNHEARD)

    def hear() -> None:
        for _ in range(count):
            assert room.acquire(timeout=WAIT)
            clerk.line.hear(FRAME)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=hear)
        thread.start()
        for _ in range(count):
            clerk.mail.get(timeout=WAIT)()
            room.release()
        thread.join()
    finally:
        sys.setswitchinterval(switching)
    assert (clerk.taken, refusals(clerk)) == (count, [])
    for _ in range(UNHEARD):
        clerk.line.hear(FRAME)
    assert not refusals(clerk), "as many may wait as in the beginning"
    clerk.line.hear(FRAME)
    assert len(refusals(clerk)) == 1, "and no more"


def kinds(clerk: Clerk) -> str:
    return "".join(type(read(frame, ANSWERS)).__name__[0] for frame in clerk.sent)


def test_an_answer_waits_behind_few_vectors() -> None:
    clerk, asked = Clerk(), list[int]()
    line = clerk.line
    for start in range(2 * AT_ONCE):
        assert line.takes(lambda: asked.append(1))
        line.tell(Recalled(1, start, start + 1, False, b"123"))
    assert not line.takes(lambda: asked.append(2)), "as many wait as may be under way"
    line.tell(Judged(1, 1, bytes(8), b"123"))
    assert kinds(clerk) == "R" * AT_ONCE + "J"
    line.hear(written(Heard()))
    assert kinds(clerk) == "R" * AT_ONCE + "JR"
    clerk.mail.get(timeout=WAIT)()
    assert asked == [2], "who could not send more is told when it can, once"
    line.hear(written(Judge(bytes(16), 2, 0, bytes(8), -1, 3, b"")))
    clerk.mail.get(timeout=WAIT)()
    for _ in range(3 * AT_ONCE):  # more than there were
        line.hear(written(Heard()))
    assert kinds(clerk) == "R" * AT_ONCE + "JR", "what is of no use any more is not sent"
    for start in range(2 * AT_ONCE):
        line.tell(Recalled(2, start, start + 1, False, b"123"))
    assert len(clerk.sent) == 2 * AT_ONCE + 2, "words that were not due are no credit"
    line.lost()
    line.hear(written(Heard()))
    assert len(clerk.sent) == 2 * AT_ONCE + 2
    assert not line.takes(lambda: asked.append(3))
    assert clerk.mail.qsize() == 1, "the connection is left, and nothing else"


def judge(number: int, committed: int, known: int) -> Judge:
    return Judge(bytes(16), number, committed, bytes(8), known, 3, b"")


def test_vectors_under_way_are_not_sent_again() -> None:
    clerk = Clerk()
    line = clerk.line
    line.hear(written(judge(1, 40, 0)))
    for start in range(0, 10 * (AT_ONCE + 2), 10):
        line.tell(Recalled(1, start, start + 10, False, b"123"))
    coming = 10 * (AT_ONCE + 1)  # the last token of a frame under way, once one of them was heard
    line.hear(written(Heard()))
    request = judge(2, coming + 10, 10)
    line.hear(written(request))
    assert line.known(request) == coming
    line.hear(written(Heard()))
    assert len(clerk.sent) == AT_ONCE + 1, "what was not sent is made anew, behind the answer"
    assert line.known(request) == coming, "this frame has come behind the question"
    line.tell(Recalled(1, coming, coming + 10, False, b"just made"))
    assert len(clerk.sent) == AT_ONCE + 2
    assert line.known(request) == coming + 10
    line.tell(Recalled(1, coming + 10, coming + 20, False, b"more, and as many are under way as may be"))
    line.hear(written(Heard()))
    assert len(clerk.sent) == AT_ONCE + 2
    for other in (judge(3, coming + 20, 15), judge(4, coming - 1, 30)):  # it has not taken them; another text
        line.hear(written(other))
        assert line.known(other) == other.known
        line.tell(Recalled(2, coming + 20, coming + 30, False, b"behind a gap"))
        assert len(clerk.sent) == AT_ONCE + 2
    for _ in range(AT_ONCE):
        line.hear(written(Heard()))
    last = judge(5, coming + 20, 20)
    line.hear(written(last))
    assert line.known(last) == 20, "nothing is under way"
