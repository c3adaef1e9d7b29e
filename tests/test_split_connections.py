"""A client's connections: what is silent is replaced, unless it answers first. No real clock, no threads."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.errors import EdgeSpecError, LinkError, ModelError, RefusedError
from edgespec.split import alone, connections, link
from edgespec.split.alone import Alone
from edgespec.split.connections import SLOW_LINK, Connections
from edgespec.split.link import LEAST_PATIENCE, MOST_LEARNT, MOST_WORK, Link, Patience
from edgespec.split.protocol import VERSION, Answer, Seated, Still, Told, Welcome, written

SEAT = bytes(16)
TRIP = 0.2  # seconds
WELCOME = Welcome(VERSION, "m", 160, [], 100, 1, 64, bytes(16), bytes(16))


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeLink:
    """In place of `Link`."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.heard, self.seat, self.round_trip = clock, clock.now, b"", TRIP
        self.sent = self.received = 0
        self.coming = deque[Answer | Exception]()
        self.closed = False

    def send(self, frame: bytes) -> None:
        if self.closed:
            raise LinkError("it is closed")
        self.sent += len(frame)
        self.heard = self.clock.now

    def expect(self, kind: type[Seated]) -> Seated:
        return Seated(SEAT)

    def receive(self, timeout: float) -> Answer | None:
        if not self.coming:
            self.clock.sleep(timeout)
            return None
        answer = self.coming.popleft()
        if isinstance(answer, Exception):
            raise answer
        self.received += 1
        self.heard = self.clock.now
        return answer

    def close(self) -> None:
        self.closed = True


class FakeConnector:
    """In place of `Connector`: finds what the test says, when it says so."""

    made: list[FakeConnector]

    def __init__(self, make: Callable[[], Any], pause: float = 0.0) -> None:
        self.pause = pause
        self.make, self.found, self.hurried, self.stopped = make, None, 0, False
        self.failed = False
        self.error: EdgeSpecError | None = None
        FakeConnector.made.append(self)

    def find(self) -> Any:
        self.found = self.make()
        return self.found

    def take(self) -> Any:
        if self.error is not None:
            raise self.error
        found, self.found = self.found, None
        return found

    def hurry(self) -> None:
        self.hurried += 1

    def stop(self) -> None:
        self.stopped = True


class FakeThread:
    """In place of a thread: it has run once it was started."""

    def __init__(self, target: Callable[[], None], **more: Any) -> None:
        self.start = target


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (connections, link, alone):
        monkeypatch.setattr(module, "time", clock)
    FakeConnector.made = []
    monkeypatch.setattr(connections, "Connector", FakeConnector)
    monkeypatch.setattr(connections, "threading", SimpleNamespace(Thread=FakeThread))
    return clock


@pytest.fixture
def links(clock: Clock) -> Connections:
    make: Any = lambda: FakeLink(clock)  # noqa: E731
    return Connections(make, 100)


def asked(links: Connections) -> Any:
    """The present connection, which owes an answer from now on."""
    links.tell(b"what?")
    return links.present


def silence(links: Connections, clock: Clock, times: float = 1.01) -> None:
    clock.sleep(times * links.patience.seconds)


def test_a_connection_that_rests_is_not_silent(links: Connections, clock: Clock) -> None:
    clock.sleep(1000)
    assert links.get(None) is links.present
    link = asked(links)
    silence(links, clock, 0.99)
    assert links.get(link) is link
    assert not FakeConnector.made


def test_a_silent_one_is_listened_to_while_another_is_made(links: Connections, clock: Clock) -> None:
    link = asked(links)
    silence(links, clock)
    for _ in range(3):
        assert links.get(link) is link, "it is not given up"
    assert len(FakeConnector.made) == 1, "one other at a time"
    link.coming.append(Still(1))
    links.listen(0)
    assert links.inbox.pop() == Still(1)
    new = FakeConnector.made[0].find()
    assert links.get(link) is links.present is new
    assert link.closed
    assert new.seat == links.seat == SEAT
    assert links.traffic == (link.sent + new.sent, 1), "what the first one took counts"


def test_a_long_question_may_take_time_to_cross(links: Connections, clock: Clock) -> None:
    link = asked(links)
    before = links.bearable
    links.tell(bytes(3 * SLOW_LINK))
    assert links.bearable == pytest.approx(before + 3, rel=0.01)
    silence(links, clock)
    assert links.get(link) is link
    assert not FakeConnector.made
    clock.sleep(3)
    links.get(link)
    assert len(FakeConnector.made) == 1


def test_the_next_one_is_used_as_soon_as_it_has_its_seat(links: Connections, clock: Clock) -> None:
    link = asked(links)
    silence(links, clock)
    links.get(link)
    clock.sleep(1)
    new = FakeConnector.made[0].find()
    assert links.get(link) is new
    assert links.answered < clock.now, "it has not said anything yet"


def test_who_drops_each_connection_is_not_asked_at_once_again(links: Connections, clock: Clock) -> None:
    pauses = []
    for number in range(7):
        link = asked(links)
        link.coming.append(LinkError("it was cut"))
        links.listen(0)
        assert links.get(link) is None
        pauses.append(FakeConnector.made[number].pause)
        FakeConnector.made[number].find()
        assert links.get(None) is not None
    assert pauses == [0, 0.25, 0.5, 1, 2, 4, 4]
    link = asked(links)
    link.coming += [Still(1), LinkError("it was cut")]
    links.listen(0)
    links.listen(0)
    links.get(link)
    assert FakeConnector.made[7].pause == 0, "this one was of use"


def test_a_server_that_only_says_it_is_at_work_is_not_believed_for_ever(
    links: Connections, clock: Clock
) -> None:
    link = asked(links)
    links.hurry()  # a round begins
    began = clock.now
    while links.answered == clock.now or clock.now == began:
        clock.sleep(20)
        link.coming.append(Still(1))
        links.listen(0)
        assert clock.now < began + 2 * MOST_WORK
    assert clock.now - began >= MOST_WORK
    link.coming.append(Seated(SEAT))
    links.listen(0)
    assert links.answered < clock.now, "nor is another word that answers nothing"
    links.answers()
    link.coming.append(Seated(SEAT))
    links.listen(0)
    assert links.answered == clock.now, "an answer has come since"


def test_a_seat_that_went_to_the_next_one_is_no_refusal(links: Connections, clock: Clock) -> None:
    taken = RefusedError("the server refuses: this session goes on in another connection", "taken", 0)
    link = asked(links)
    silence(links, clock)
    links.get(link)
    link.coming.append(taken)
    links.listen(0)
    assert links.get(link) is None
    assert FakeConnector.made[0].find() is links.get(link)
    asked(links).coming.append(taken)
    with pytest.raises(RefusedError, match="another connection"):
        links.listen(0)  # nobody here has asked for it
    assert links.present is None


def test_what_replaces_in_vain_is_given_twice_as_long(links: Connections, clock: Clock) -> None:
    """A question that takes longer than anybody's patience to cross the link does so in the end."""
    waits = []
    for _ in range(9):
        link, began = asked(links), clock.now
        count = len(FakeConnector.made)
        while len(FakeConnector.made) == count:
            clock.sleep(links.patience.seconds / 10)
            assert links.get(link) is link
        waits.append(round((clock.now - began) / links.patience.seconds))
        FakeConnector.made[-1].find()
        assert links.get(link) is not link
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32, 32]
    asked(links).coming.append(Still(1))
    links.listen(0)
    link = asked(links)
    silence(links, clock)
    links.get(link)
    assert len(FakeConnector.made) == 10, "an answer ends that"


def test_what_ends_the_search_is_no_matter_to_a_connection_that_answers(
    links: Connections, clock: Clock
) -> None:
    link = asked(links)
    silence(links, clock)
    links.get(link)
    FakeConnector.made[0].error = RefusedError("it forbids it", "status", 0)
    clock.sleep(0.1)
    link.coming.append(Still(1))
    links.listen(0)
    assert links.get(link) is link
    silence(links, clock)
    links.get(link)
    FakeConnector.made[1].error = RefusedError("it serves another model", "model", 0)
    with pytest.raises(RefusedError, match="another model"):
        links.get(link)


def test_a_lost_one_is_made_again_at_once(links: Connections, clock: Clock) -> None:
    link = asked(links)
    link.coming.append(LinkError("it was cut"))
    links.listen(0)
    assert links.get(link) is None
    assert not links.gone, "it is being made again"
    FakeConnector.made[0].failed = True
    assert links.gone
    links.hurry()
    assert [made.hurried for made in FakeConnector.made] == [1]
    before = clock.now
    links.listen(0.5)
    assert clock.now == before + 0.5, "there is nobody to listen to"
    links.close()
    assert FakeConnector.made[0].stopped


def test_patience_is_that_of_a_link_and_not_of_its_outages() -> None:
    patience = Patience()
    patience.greeted = 0.001
    assert patience.seconds == LEAST_PATIENCE
    for _ in range(10):
        patience.learn(0.001)
    assert patience.seconds == LEAST_PATIENCE
    assert patience.usual < LEAST_PATIENCE / 5
    patience.learn(30.0)
    assert patience.seconds == LEAST_PATIENCE, "half a minute, once"
    patience.learn(30.0)
    assert LEAST_PATIENCE < patience.seconds < 2 * LEAST_PATIENCE
    for _ in range(100):
        patience.learn(0.001)
    assert patience.seconds == LEAST_PATIENCE, "it is forgotten"
    for _ in range(100):
        patience.learn(1.1)
    assert patience.seconds > 1.2 * 1.1, "a link that is slow is waited for"
    patience.greeted = 1.1
    assert patience.seconds > 3 * 1.1, "and a packet that it may lose"


def test_few_rounds_of_a_bad_link_are_taken_for_lost() -> None:
    """200 ms, of whose packets each twentieth is lost: TCP sends it again, and waits for that."""
    patience, chance = Patience(), random.Random(0)
    patience.greeted = TRIP

    def trip() -> float:
        seconds, again = TRIP / 2, TRIP + 0.2
        while chance.random() < 0.05:
            seconds, again = seconds + again, 2 * again
        return seconds * chance.uniform(1, 1.1)

    late, early, long = 0, 0, 0
    for _ in range(rounds := 20_000):
        took = trip() + trip()
        late, early = late + (took > patience.seconds), early + (took > patience.usual)
        patience.learn(took)
        long += patience.seconds > 1
    assert late < 0.01 * rounds
    assert early < 0.12 * rounds
    assert long < 0.25 * rounds, "and yet the text goes on in a second"


def test_late_rounds_teach_so_much_and_no_more() -> None:
    patience = Patience()
    patience.greeted = TRIP
    for round in range(300):
        patience.learn(100.0 if round % 30 == 0 else TRIP)
    assert patience.seconds == MOST_LEARNT


def test_a_machine_that_sleeps_has_not_waited(clock: Clock) -> None:
    context: Any = SimpleNamespace(tokens=[1, 2])
    nobody = Alone(None, context, 0, 5)
    nobody.wait(lambda: clock.sleep(3600))
    assert nobody.waited <= 1
    before = nobody.waited
    nobody.wait(lambda: clock.sleep(0.02))
    assert nobody.waited == pytest.approx(before + 0.02)


def test_a_drafter_that_computes_nonsense_says_nothing(clock: Clock) -> None:
    def prefill(context: Any) -> None:
        raise ModelError("NaN")

    drafter: Any = SimpleNamespace(prefill=prefill)
    context: Any = SimpleNamespace(tokens=[1, 2], sampler=None, noise=None, check=None)
    assert Alone(drafter, context, 0, 5).say() == []


def test_who_is_at_work_is_waited_for_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Working:
        """Says that it is at work, so many times, before each answer but the first."""

        def __init__(self, beats: int) -> None:
            self.coming: list[Told] = [WELCOME, *[Still(0)] * beats, Seated(bytes(16))]

        def send(self, frame: bytes) -> None:
            pass

        def receive(self, timeout: float) -> bytes | None:
            return written(self.coming.pop(0)) if self.coming else None

        def abort(self) -> None: ...

        def close(self) -> None: ...

    assert Link(Working(9)).expect(Seated).seat == bytes(16)
    made = Link(Working(0))
    made.expect(Seated)
    with pytest.raises(LinkError, match="has not answered for 5 s"):
        made.expect(Seated)
    monkeypatch.setattr(link, "MOST_WORK", -1.0)
    with pytest.raises(LinkError, match="at work"):
        Link(Working(9)).expect(Seated)
