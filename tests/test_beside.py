"""A drafter in a process of its own: as in this one, and a target that goes on alone when it is gone."""

from __future__ import annotations

import gc
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import pytest

from edgespec.config import GenerationOptions
from edgespec.control.controller import Adaptive
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Logits, Outcome
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree
from edgespec.drafters import beside, colleague, patience, process
from edgespec.drafters import desk as desk_module
from edgespec.drafters.base import Drafter, Elsewhere, Foreseeing, Root
from edgespec.drafters.beside import Beside, BesideDrafter
from edgespec.drafters.channel import (
    Beat,
    Cancel,
    Close,
    Commit,
    Committed,
    Draft,
    GoAhead,
    Load,
    Nonsense,
    Open,
    Prefill,
    RootPath,
    Sent,
    Stop,
    Trees,
    frame,
)
from edgespec.drafters.colleague import Colleague, Question
from edgespec.drafters.combined import Combined
from edgespec.drafters.desk import Desk
from edgespec.drafters.inbox import Inbox
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.ngram import NGram
from edgespec.drafters.opened import Opened
from edgespec.drafters.process import Program, command
from edgespec.drafters.sent_trees import as_sent
from edgespec.errors import Cancelled, CorruptFileError, DeviceError
from edgespec.schedules.serial import Serial
from edgespec.schedules.ssd import Ssd
from tests import table_runtime, worker_programs
from tests.covering import covering
from tests.drafted import Never
from tests.sessions import WAIT, in_threads, wait_for
from tests.table_runtime import GREEDY, HOT, PROMPT, TABLE, VOCABULARY, TableRuntime

BUDGET = TreeBudget(12, 4, 4)
COUNT = 70  # tokens of a reply


def start(program: str = "table", **options: Any) -> Beside:
    where = Program(command(f"{worker_programs.__name__}:{program}"))
    return Beside(Load("none", 1), 1000, 192, program=where, **options)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be busy; those tests that are about waiting in vain say how long."""
    monkeypatch.setattr(beside, "SILENCE", WAIT)
    monkeypatch.setattr(patience, "UNTIMED", 0.0)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each wait for an answer, as asked for."""
    found: list[float] = []
    wait = Question.wait

    def counting(self: Question, seconds: float) -> None:
        found.append(seconds)
        wait(self, seconds)

    monkeypatch.setattr(Question, "wait", counting)
    return found


@pytest.fixture(scope="module")
def started() -> Iterator[list[Beside]]:
    found: list[Beside] = []
    yield found
    for opened in found:
        opened.close()


@pytest.fixture
def worker(started: list[Beside]) -> Beside:
    """The one of the tests before, for other conversations; another where they have lost it."""
    if not started or started[-1].gone:
        started.append(start())
    return started[-1]


def drafter_of(opened: Beside, capacity: int = 400) -> BesideDrafter:
    return BesideDrafter(opened.worker, capacity, VOCABULARY)


def in_process(capacity: int = 400) -> ModelDrafter:
    return ModelDrafter(TableRuntime(worker_programs.ROWS, capacity, noise=worker_programs.NOISE), VOCABULARY)


def reply(
    schedule: Serial,
    options: GenerationOptions = GREEDY,
    count: int = COUNT,
    verify: Callable[[int], None] = lambda cycle: None,
) -> tuple[list[int], list[Cycle]]:
    """`verify` gets the cycle's number while a tree is verified."""
    numbers = itertools.count()

    def timed(tree: TokenTree, logits: Logits) -> float:
        began = time.perf_counter()
        verify(next(numbers))
        return time.perf_counter() - began

    return table_runtime.reply(schedule, timed, options, count=count)


def plain(options: GenerationOptions = GREEDY, count: int = COUNT) -> list[int]:
    return table_runtime.plain(options, count)


def same(a: TokenTree, b: TokenTree) -> bool:
    columns = zip((a.tokens, a.parents, a.logprobs), (b.tokens, b.parents, b.logprobs), strict=True)
    return all(np.array_equal(one, other) for one, other in columns)


@pytest.mark.parametrize(
    ("kind", "options", "names"),
    covering({"serial": Serial, "ssd": Ssd}, {"greedy": GREEDY, "sampled": HOT}, ("model", "ngram+model")),
)
def test_the_text_is_plain_decodings(
    worker: Beside, kind: type[Serial], options: GenerationOptions, names: str
) -> None:
    for controller in (Fixed(BUDGET), Adaptive()):
        members: list[Drafter] = [NGram()] if "ngram" in names else []
        drafter = drafter_of(worker)
        schedule = kind(Combined([*members, drafter]), controller, 64)

        def verify(cycle: int, waits: bool = kind is Ssd and isinstance(controller, Fixed)) -> None:
            if waits and cycle < 12:  # however busy the machine is
                wait_for(lambda: worker.worker.nodes[drafter.seat] > 40)  # noqa: B023
            else:
                time.sleep(0.003)

        for _ in range(3):
            said, cycles = reply(schedule, options, verify=verify)
            assert said == plain(options)
        if isinstance(controller, Fixed):
            assert sum(cycle.outcome.accepted for cycle in cycles) > 15
            if kind is Ssd:
                hits = [c.overlap.hit for c in cycles[:12] if c.overlap is not None]
                assert hits.count(True) > len(hits) // 2
                assert sum(c.overlap.nodes for c in cycles if c.overlap) > 50
                assert not any(c.overlap.steps for c in cycles if c.overlap), "none of this process"


def test_trees_are_those_of_the_same_drafter_in_this_process(worker: Beside) -> None:
    """Tokens, parents and log-probabilities to the last bit, whatever the outcomes, rounds kept and not."""
    rng = np.random.default_rng(0)
    for options, keyed in ((GREEDY, False), (HOT, True)):
        ours, theirs = in_process(), drafter_of(worker)
        text = list(PROMPT)
        for _ in range(3):
            context = Context(list(text), Sampler(options), Noise(options.seed), keyed=keyed)
            ours.prefill(context)
            theirs.prefill(context)
            root = int(rng.integers(VOCABULARY))
            for cycle in range(12):
                assert theirs.prepared() == ours.prepared()
                budget = TreeBudget(*map(int, rng.integers((1, 0, 0), (40, 9, 9))))
                roots = [Root((root,))]
                if cycle % 5 == 4:
                    roots = [Root((root, int(t)), float(-rng.random())) for t in rng.permutation(12)[:3]]
                rounds = [drafter.start(roots, budget) for drafter in (ours, theirs)]
                for drafting in rounds:
                    while drafting.step():
                        pass
                for i in range(len(roots)):
                    assert same(rounds[0].tree(i), rounds[1].tree(i))
                tree = rounds[0].tree() if len(roots) == 1 else TokenTree.root(root)
                end = rng.choice(["stop", "cancel", "leave"])
                for drafting in rounds:
                    if end != "leave":
                        getattr(drafting, end)()
                path = tree.path_to(int(rng.integers(len(tree))))
                tokens = (*tree.tokens[path[1:]].tolist(), int(rng.integers(VOCABULARY)))
                for drafter in (ours, theirs):
                    drafter.commit(root, Outcome(path, tokens))
                text += [root, *tokens[:-1]]
                root = tokens[-1]
            text = text[: len(PROMPT) + int(rng.integers(20))]


def test_what_it_prepares_is_what_this_process_would(worker: Beside) -> None:
    """With all the time it needs, a round ahead leaves the same trees below the outcome."""
    ours, theirs = in_process(), drafter_of(worker)
    text, root = list(PROMPT), 2
    for drafter in (ours, theirs):
        drafter.prefill(Context(PROMPT))
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(10):
        trees = []
        for drafter in (ours, theirs):
            drafting = drafter.start([Root((root,))], TreeBudget(8, 3, 0 if drafter.prepared() else 3))
            while drafting.step():
                pass
            drafting.stop()
            trees.append(drafting.tree())
        assert same(*trees)
        ahead = [drafter.ahead(trees[0], TreeBudget(64, 40, 0)) for drafter in (ours, theirs)]
        while ahead[0].step():
            pass
        assert not ahead[1].step()
        wait_for(lambda: ahead[1].nodes == ahead[0].nodes)  # noqa: B023
        for drafting_ahead in ahead:
            drafting_ahead.stop()
        path = trees[0].path_to(int(rng.integers(len(trees[0]))))
        bonus = int(
            TABLE[
                trees[0].tokens[path[-2]] if len(path) > 1 else text[-1], trees[0].tokens[path[-1]]
            ].argmax()
        )
        outcome = Outcome(path, (*trees[0].tokens[path[1:]].tolist(), bonus))
        for drafter in (ours, theirs):
            drafter.commit(root, outcome)
        assert theirs.prepared() == ours.prepared()
        hits += ours.prepared()
        text += [root, *outcome.tokens[:-1]]
        root = bonus
    assert hits > 3


@pytest.mark.parametrize("alone", [True, False])
def test_to_ask_what_it_can_does_not_wait_for_it(
    worker: Beside, monkeypatch: pytest.MonkeyPatch, waited: list[float], alone: bool
) -> None:
    """On Python 3.10 and 3.11 `isinstance` evaluates the properties that a protocol names."""
    drafter = drafter_of(worker)
    drafter.prefill(Context(PROMPT))
    monkeypatch.setattr(beside, "SILENCE", 0.2)
    monkeypatch.setattr(worker.worker, "tell", lambda message: None)  # it never hears of it
    drafter.ahead(TokenTree.root(2), BUDGET)
    drafter.commit(2, Outcome(np.array([0]), (3,)))
    asked = drafter if alone else Combined([NGram(), drafter])
    assert isinstance(asked, Foreseeing)
    assert isinstance(asked, Elsewhere)
    assert not waited
    assert not asked.prepared()
    assert waited


def test_what_has_no_pass_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    """Nobody waits for it either, nor for what was prepared, where nothing was drafted: the worker is still
    reading the prompt. Then it drafts as any other."""
    monkeypatch.setenv("TEST_GO", str(tmp_path / "go"))
    opened = start("slow_prompt")
    told, tell = list[Sent](), opened.worker.tell

    def listening(message: Sent) -> None:
        told.append(message)
        tell(message)

    monkeypatch.setattr(opened.worker, "tell", listening)
    drafter = drafter_of(opened)
    schedule = Serial(Combined([NGram(), drafter]), Fixed(TreeBudget(12, 4, 0)), 64)
    said, cycles = reply(schedule)
    assert said == plain()
    assert sum(cycle.outcome.drafted for cycle in cycles) > 5
    assert not drafter.prepared()
    assert not waited
    assert not any(isinstance(message, Draft) for message in told)
    (tmp_path / "go").touch()
    assert sum(c.outcome.accepted for c in reply(Serial(drafter, Fixed(BUDGET), 64))[1]) > 15
    opened.close()


@pytest.mark.parametrize("kind", [Serial, Ssd])
def test_while_nothing_is_drafted_nobody_waits_for_it(
    worker: Beside, kind: type[Serial], monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    """Though it hears of what was committed, and takes its time."""
    tell, told = worker.worker.tell, list[Sent]()

    def late(message: Sent) -> None:
        told.append(message)
        if not isinstance(message, Commit):
            tell(message)

    monkeypatch.setattr(worker.worker, "tell", late)
    monkeypatch.setattr(beside, "SILENCE", 0.05)
    schedule = kind(drafter_of(worker), Never(BUDGET), 64)
    assert reply(schedule)[0] == plain()
    assert any(isinstance(message, Commit) for message in told)
    assert not waited


def test_a_sign_of_life_says_what_was_drafted_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "BEAT", -1.0)  # one with each step
    said = list[Sent]()
    desk = Desk(said.append, Opened(partial(TableRuntime, worker_programs.ROWS)).drafter)
    desk.take(Open(1, 400, VOCABULARY))
    desk.take(Prefill(1, list(PROMPT), False, 0, 0.0, 1.0, 0, 0.0))
    desk.take(GoAhead(1, as_sent(TokenTree.root(2)), 64, 30))
    while not desk.idle:
        desk.work()
    nodes = [message.nodes for message in said if isinstance(message, Beat)]
    assert len(set(nodes)) > 3
    assert len(nodes) > len(set(nodes)), "beside those with which something was drafted"
    assert nodes == sorted(nodes)
    seconds = [message.seconds for message in said if isinstance(message, Beat)]
    assert seconds[-1] > 0
    assert seconds == sorted(seconds)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("kind", [Serial, Ssd])
@pytest.mark.parametrize("names", ["model", "ngram+model"])
def test_a_killed_worker_costs_no_token(kind: type[Serial], names: str, waited: list[float]) -> None:
    """At any moment: while it loads its prompt, drafts, is asked, or has nothing to do."""
    rng = np.random.default_rng(0)
    for moment in range(4):
        opened = start("device" if moment % 2 else "table")
        members: list[Drafter] = [NGram()] if "ngram" in names else []
        schedule = kind(Combined([*members, drafter_of(opened)]), Fixed(BUDGET), 64)
        pid = opened.worker._process.pid
        after = float(rng.random()) * 0.3
        timer = threading.Timer(after, lambda pid=pid: os.kill(pid, signal.SIGKILL))  # type: ignore[misc]
        timer.start()
        began = time.monotonic()
        while time.monotonic() < began + after + 0.1:
            said, cycles = reply(schedule, verify=lambda cycle: time.sleep(0.002))
            assert said == plain()
        timer.join()
        wait_for(lambda: opened.worker.lost is not None)  # noqa: B023
        waited.clear()
        said, cycles = reply(schedule)
        assert said == plain()
        assert schedule.undrafted == "the draft worker is lost: it was killed by signal 9"
        assert not schedule.damaged
        drafted = sum(cycle.outcome.drafted for cycle in cycles)
        assert (drafted > 0) == ("ngram" in names)
        assert not waited, "nobody waits for it any more"
        fresh = kind(drafter_of(opened), Fixed(BUDGET), 64)
        assert reply(fresh)[0] == plain(), "another conversation of the same engine"
        assert fresh.undrafted == schedule.undrafted
        opened.close()
        assert opened.worker._process.poll() is not None


@pytest.mark.parametrize("kind", [Serial, Ssd])
def test_one_that_is_at_work_for_ever_is_waited_for_once(
    kind: type[Serial], monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    opened = start("busy")
    monkeypatch.setattr(beside, "SILENCE", 0.2)
    schedule = kind(drafter_of(opened), Fixed(BUDGET), 64)
    said, cycles = reply(schedule)
    assert said == plain()
    assert not any(cycle.outcome.drafted for cycle in cycles)
    assert 0.4 < sum(waited) < 0.8, "three times as long as for silence, in one cycle"
    opened.close()


@pytest.mark.parametrize("end", [Cancel, Stop, Close])
def test_a_round_that_nobody_waits_for_ends_at_once(end: type[Cancel | Stop | Close]) -> None:
    """What was asked is answered with what there is, and of a conversation that waits for nothing, nothing is
    done; others go on."""
    said = list[Sent]()
    desk = Desk(said.append, Opened(partial(TableRuntime, worker_programs.ROWS)).drafter)
    for seat in (1, 2):
        desk.take(Open(seat, 400, VOCABULARY))
        desk.take(Prefill(seat, list(PROMPT), False, 0, 0.0, 1.0, 0, 0.0))
    desk.take(GoAhead(2, as_sent(TokenTree.root(2)), 64, 30))
    desk.take(Draft(1, 7, [RootPath([2], 0.0)], 64, 12, 9))
    for _ in range(3 + 1):  # parts of a pass, and of the next
        desk.work()
    assert not any(isinstance(message, Trees) for message in said)
    assert desk.seats[2].nodes == 0, "who waits goes first"
    desk.take(end(1))
    (answer,) = (message for message in said if isinstance(message, Trees))
    assert answer.question == 7
    assert len(answer.trees[0].tokens) == 1 + 8
    for _ in range(3):
        desk.work()
    assert desk.seats[2].nodes == 1
    desk.take(end(2))
    assert desk.idle


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("kind", [Serial, Ssd])
def test_a_stalled_worker_is_waited_for_once_and_caught_up_with(
    worker: Beside, kind: type[Serial], monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    """It costs one wait, then none; when it goes on it is told what it has missed, and drafts rightly."""
    pid = worker.worker._process.pid
    schedule = kind(drafter_of(worker), Fixed(BUDGET), 64)
    waits: list[float] = []

    def stall(cycle: int) -> None:
        if cycle == 5:
            os.kill(pid, signal.SIGSTOP)
            monkeypatch.setattr(beside, "SILENCE", 0.2)
            waited.clear()
        if cycle == 25:
            waits.extend(waited)
            os.kill(pid, signal.SIGCONT)
            wait_for(lambda: schedule.drafter.caught_up)  # type: ignore[attr-defined]
            monkeypatch.setattr(beside, "SILENCE", WAIT)

    said, cycles = reply(schedule, verify=stall, count=120)
    assert said == plain(count=120)
    assert sum(cycle.outcome.drafted for cycle in cycles[6:26]) == 0
    assert 0.1 < sum(waits) < 0.3
    assert sum(cycle.outcome.accepted for cycle in cycles[26:]) > 5
    assert schedule.undrafted is None
    ours, text = in_process(), [*PROMPT, *said[:90]]
    ours.prefill(Context(text[:-1]))
    schedule.begin(Context(text[:-1]), 100)
    expected = ours.start([Root((text[-1],))], BUDGET)
    while expected.step():
        pass
    assert same(schedule.next_tree(text[-1]), expected.tree())


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("kind", [Serial, Ssd])
def test_a_worker_that_stays_silent_is_given_up(
    worker: Beside, kind: type[Serial], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LOST", 0.4)
    monkeypatch.setattr(beside, "SILENCE", 0.2)
    schedule = kind(drafter_of(worker), Fixed(BUDGET), 64)
    said, _ = reply(schedule)
    os.kill(worker.worker._process.pid, signal.SIGSTOP)
    for _ in range(2):
        gone = worker.worker.lost is not None
        said, cycles = reply(schedule, verify=lambda cycle: time.sleep(0.0 if gone else 0.01), count=120)  # noqa: B023
        assert said == plain(count=120)
    assert schedule.undrafted is not None
    assert re.search(r"it has said nothing for \d+ s$", schedule.undrafted)
    wait_for(lambda: worker.worker._process.poll() is not None)
    assert not cycles[-1].outcome.drafted


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_silent_worker_is_given_up_though_nobody_asks_it(
    monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    """The controller has refused: what the worker holds is of use elsewhere."""
    monkeypatch.setattr(patience, "LOST", 0.2)
    opened = start()
    schedule = Serial(drafter_of(opened), Never(BUDGET), 64)
    assert reply(schedule, verify=lambda cycle: time.sleep(0.01))[0] == plain()
    assert schedule.undrafted is None
    os.kill(opened.worker._process.pid, signal.SIGSTOP)
    assert reply(schedule, verify=lambda cycle: time.sleep(0.01))[0] == plain()
    assert re.search(r"it has said nothing for \d+ s$", schedule.undrafted or "")
    assert not waited
    opened.close()


class Slow(Colleague):
    """It answers, or says that it is at work, after so many seconds of `clock`; or never."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: float = math.inf, beats: float = math.inf):
        super().__init__()
        self.clock, self.answers, self.beats = 100.0, answers, beats
        for module in (patience, colleague):
            monkeypatch.setattr(module, "monotonic", lambda: self.clock)
        monkeypatch.setattr(Question, "wait", lambda question, seconds: self.go_on(seconds))

    def go_on(self, seconds: float) -> None:
        self.clock += min(seconds, 0.001)
        for number, open_one in list(self._questions.items()):
            if self.clock - open_one.asked >= self.beats:
                open_one.beat = self.clock
            if self.clock - open_one.asked >= self.answers:
                kind = open_one.kind
                self._take(Trees(number, [self.tree]) if kind is Trees else Committed(number, True, 0))

    tree = as_sent(TokenTree.root(2))


@pytest.mark.parametrize(
    ("passes", "answers", "beats", "most"),
    [
        (0.005, math.inf, math.inf, beside.SILENCE),  # it stalls: that many times a pass of a small model
        (0.3, math.inf, math.inf, 0.3),  # or one
        (0.3, math.inf, 0.02, 3 * 0.3),  # it is at work, as it says
        (0.3, 0.16, math.inf, 0.3),  # each answer is in time, but not all of them
        (0.3, 0.05, math.inf, 0.1),
    ],
)
def test_a_cycle_waits_as_long_as_a_pass_takes_for_all_that_it_asks(
    passes: float, answers: float, beats: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # what is waited for in truth, by a clock of our own
    worker = Slow(monkeypatch, answers, beats)
    drafter = BesideDrafter(worker, 400, VOCABULARY)
    drafter.prefill(Context(PROMPT))
    for cycle in range(4):
        began = worker.clock
        if cycle:
            drafter.prepared()
        drafting = drafter.start([Root((2,))], BUDGET)
        while drafting.step():
            pass
        waited = worker.clock - began
        if cycle:
            allowed = most if cycle == 1 or answers < math.inf else 0.0
            assert waited <= allowed + 0.002, "of a question that came too late nothing more"
        if cycle == 1:
            assert waited >= most - 0.002
        worker.clock += passes
        if cycle == 0:
            for question in list(worker._questions.values()):
                question.answer = Trees(0, [worker.tree])
            worker._questions.clear()
        drafter.commit(2, Outcome(np.array([0]), (2,), seconds=passes))


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_worker_that_takes_no_messages_is_given_up(worker: Beside) -> None:
    """Also when a prompt is longer than a pipe holds; and nobody waits for it."""
    drafter = drafter_of(worker, 10**6)
    os.kill(worker.worker._process.pid, signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(colleague.MOST_WAITING + 5):
        drafter.prefill(Context([1] * 200_000))
    assert time.monotonic() - began < WAIT / 2
    assert drafter.lost is not None
    assert "has not taken the last 64 messages" in drafter.lost


LIES = """root, vocabulary, parents, columns, nan, infinite, large, deep, twice, noise, text, long, request,
two roots, above 0, two trees, other question, other answer, twice answered, ready again"""


@pytest.mark.parametrize("lie", re.split(r",\s+", LIES))
def test_nonsense_ends_the_worker_and_not_the_reply(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_LIE", lie)
    opened = start("liar")
    for kind in (Serial, Ssd):
        schedule = kind(drafter_of(opened), Fixed(BUDGET), 64)
        said, cycles = reply(schedule)
        assert said == plain()
        if kind is Serial:
            assert sum(cycle.outcome.drafted for cycle in cycles[:2]) > 0
        assert not any(cycle.outcome.drafted for cycle in cycles[4:])
        assert schedule.undrafted is not None
        assert "it answered nonsense" in schedule.undrafted
    opened.close()


def test_an_error_in_the_worker_is_told() -> None:
    opened = start("failing")
    schedule = Ssd(drafter_of(opened), Fixed(BUDGET), 64)
    assert reply(schedule)[0] == plain()
    assert schedule.undrafted == "the draft worker is lost: MemoryError: of the accelerator"
    assert not schedule.damaged
    opened.close()


@pytest.mark.parametrize("names", ["model", "ngram+model"])
def test_a_model_that_computes_nan_there_is_damaged_as_one_here(names: str) -> None:
    opened = start("damaged")
    for kind in (Serial, Ssd):  # another conversation of the same engine
        members: list[Drafter] = [NGram()] if "ngram" in names else []
        schedule = kind(Combined([*members, drafter_of(opened)]), Fixed(BUDGET), 64)
        said, cycles = reply(schedule)
        assert said == plain()
        assert schedule.damaged
        assert schedule.undrafted is None
        assert (sum(cycle.outcome.drafted for cycle in cycles[-5:]) > 0) == ("ngram" in names)
    opened.close()


def test_a_long_prompt_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    """The target goes on alone until the worker has read it: it is at work all the time, and says so."""
    monkeypatch.setenv("TEST_GO", str(tmp_path / "go"))
    monkeypatch.setattr(beside, "SILENCE", 0.2)
    monkeypatch.setattr(patience, "LOST", 0.5)
    opened = start("slow_prompt")
    drafter = drafter_of(opened)
    schedule = Serial(drafter, Fixed(BUDGET), 64)

    def verify(cycle: int) -> None:
        if cycle < 20:
            time.sleep(0.05)
        if cycle == 20:
            assert 0.1 < sum(waited) < 0.3
            (tmp_path / "go").touch()
            wait_for(lambda: drafter.caught_up)
            monkeypatch.setattr(beside, "SILENCE", WAIT)

    said, cycles = reply(schedule, verify=verify, count=120)
    assert said == plain(count=120)
    assert not any(cycle.outcome.drafted for cycle in cycles[:21])
    assert sum(cycle.outcome.accepted for cycle in cycles[21:]) > 15
    assert schedule.undrafted is None
    opened.close()


def test_a_prompt_that_nobody_needs_any_more_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply was cancelled, or another begins: what comes then is taken at once, and is answered rightly."""
    monkeypatch.setenv("TEST_GO", str(tmp_path / "never"))
    opened, ours = start("slow_prompt"), in_process()
    ours.prefill(Context(PROMPT))
    expected = ours.start([Root((2,))], BUDGET)
    while expected.step():
        pass
    ends = [
        lambda drafter: drafter.rest(),
        lambda drafter: [
            drafter.prefill(Context([7, *PROMPT])),
            drafter.prefill(Context(PROMPT)),
            drafter.rest(),
        ],
    ]
    for end in ends:
        drafter = drafter_of(opened)
        drafter.prefill(Context(PROMPT))
        time.sleep(0.05)
        end(drafter)
        drafting = drafter.start([Root((2,))], BUDGET)
        while drafting.step():
            pass
        assert same(drafting.tree(), expected.tree())
    abandoned = drafter_of(opened)
    abandoned.prefill(Context(PROMPT))
    del abandoned, drafting
    gc.collect()
    assert drafter.caught_up
    drafter.commit(2, Outcome(np.array([0]), (3,)))
    wait_for(lambda: drafter.caught_up)
    opened.close()


def test_a_prompt_that_was_broken_off_is_read_on() -> None:
    """Wherever that was: from there on, and when it is asked for."""
    text = [*PROMPT, *([3, 5, 1] * 9)]
    for part in range(len(text)):
        said, left = list[Sent](), [part]

        def recalls(seat: int) -> bool:
            left[0] -= 1  # noqa: B023
            return seat == 1 and left[0] < 0  # noqa: B023

        desk = Desk(said.append, Opened(partial(TableRuntime, worker_programs.ROWS)).drafter, recalls)
        for seat in (1, 2):
            desk.take(Open(seat, 400, VOCABULARY))
            desk.take(Prefill(seat, text, False, 0, 0.0, 1.0, 0, 0.0))
        first, second = (desk.seats[seat].drafter for seat in (1, 2))
        assert (first.tokens, first.tail) == (text[: part + 1], text[part + 1 :])
        assert second.tokens == text
        for seat in (1, 2):
            desk.take(Cancel(seat))
            desk.take(Draft(seat, seat, [RootPath([2], 0.0)], 64, 12, 3))
            while not desk.idle:
                desk.work()
        answers = {m.question: m.trees for m in said if isinstance(m, Trees)}
        assert answers[1] == answers[2]
        assert len(answers[1][0].tokens) > 9


def test_messages_keep_their_order_however_one_looks() -> None:
    inbox, (read, write) = Inbox(), os.pipe()
    told = [Stop(1), Commit(2, 9, 3, [4]), Cancel(2), Prefill(1, [1], False, 0, 0.0, 1.0, 0, 0.0), Stop(2)]
    with os.fdopen(write, "wb") as pipe:
        for message in told:
            pipe.write(frame(message))
        pipe.write(b"nonsense that no frame begins with")
    with os.fdopen(read, "rb") as pipe:
        inbox.listen(pipe)
    assert inbox.take(wait=True) == told[0]
    assert [inbox.recalls(seat) for seat in (1, 2, 3)] == [True, True, False]
    assert [inbox.take(wait=True) for _ in range(2)] == told[1:3]
    assert [inbox.recalls(seat) for seat in (1, 2)] == [True, False]
    assert [inbox.take(wait=True) for _ in range(2)] == told[3:]
    assert not inbox.recalls(1)
    assert isinstance(inbox.take(wait=True), Nonsense)
    with pytest.raises(Empty):
        inbox.take(wait=False)


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        ("corrupt", CorruptFileError, r"^model.safetensors is truncated$"),
        ("out_of_memory", DeviceError, r"did not start: MemoryError: 4 GB; leave draft_worker= out"),
        ("dies", DeviceError, r"did not start: it ended with code 3: no such library: libdevice.so; leave"),
        ("nowhere", DeviceError, r"did not start: it ended with code 1: AttributeError: .*nowhere.*; leave"),
        (
            "talks_first",
            DeviceError,
            r"did not start: it answered nonsense \(Committed, out of turn\); leave",
        ),
    ],
)
def test_a_worker_that_cannot_start(program: str, error: type[Exception], words: str) -> None:
    seen: list[int] = []
    with pytest.raises(error, match=words):
        start(program, progress=seen.append)
    assert seen == ([7] if program in ("corrupt", "out_of_memory") else [])
    with pytest.raises(DeviceError, match=r"the draft worker did not start: .*No such file.*; walk$"):
        Beside(Load("none", 1), 1, 192, program=Program(["/nowhere/python"], "walk"))


def test_a_start_ends_when_it_takes_too_long_or_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START", 0.2)
    with pytest.raises(DeviceError, match=r"did not start: it said nothing for 0 s; leave"):
        start("mute")
    monkeypatch.undo()
    made: list[process.Worker] = []

    class Watched(process.Worker):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(beside, "Worker", Watched)

    def progress(nbytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start("corrupt", progress=progress)
    assert made[0]._process.poll() is not None


def test_who_says_that_it_compiles_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """For minutes on a Mac, and perhaps unable to speak; which is told as it begins, and ends some time."""
    seen: list[tuple[int, int]] = []

    def progress(nbytes: int, compiling: tuple[int, int] = (0, 0)) -> None:
        seen.append(compiling)
        monkeypatch.setattr(process, "START", 0.1)  # the interpreter's own start is over

    worker = start("compiles", progress=progress)
    assert seen == [(1, 2), (2, 2)]
    assert worker.worker.lost is None
    worker.close()
    monkeypatch.undo()
    monkeypatch.setattr(process, "COMPILES", 0.1)
    with pytest.raises(DeviceError, match=r"did not start: it said nothing for 0 s"):
        start("compiles")


def test_two_conversations_share_a_worker(worker: Beside) -> None:
    """One reply by turns with another, and in threads of their own; closing one frees its place."""

    def talk(options: GenerationOptions) -> list[int]:
        schedule = Ssd(drafter_of(worker), Fixed(BUDGET), 64)
        return reply(schedule, options, verify=lambda cycle: time.sleep(0.001))[0]

    several = [GenerationOptions(temperature=0.5, seed=number) for number in range(4)]
    assert in_threads([partial(talk, options) for options in several]) == list(map(plain, several))
    assert worker.worker.lost is None
    gc.collect()
    assert not worker.worker.nodes, "all have left"


@pytest.mark.parametrize("kind", [Serial, Ssd])
def test_cancelling_and_interrupting(worker: Beside, kind: type[Serial]) -> None:
    """While it is waited for; the next reply goes on with the same worker."""
    drafter = drafter_of(worker)
    schedule = kind(drafter, Fixed(BUDGET), 64)
    for error in (Cancelled("enough"), KeyboardInterrupt()):
        for calls in range(12):
            left = calls

            def check(error: BaseException = error) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise error

            with suppress(type(error)):
                schedule.begin(Context(PROMPT, check=check), 50)
                for root in (2, 5, 7):
                    tree = schedule.next_tree(root)
                    schedule.settle(Outcome(tree.path_to(0), (root + 1,)))
            said, _ = reply(schedule, count=30)
            assert said == plain(count=30)
    assert drafter.lost is None


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_ctrl_c_is_not_for_the_worker(worker: Beside) -> None:
    os.kill(worker.worker._process.pid, signal.SIGINT)
    schedule = Ssd(drafter_of(worker), Fixed(BUDGET), 64)
    assert reply(schedule)[0] == plain()
    assert schedule.undrafted is None
    if hasattr(os, "getpgid"):
        assert os.getpgid(worker.worker._process.pid) != os.getpgid(0)


def test_closing_while_it_drafts() -> None:
    """By its engine, in another thread; nobody waits for long, and nothing is left."""
    opened = start("device")
    schedule = Serial(drafter_of(opened), Fixed(TreeBudget(60, 16, 16)), 64)
    timer = threading.Timer(0.2, opened.close)
    timer.start()
    assert reply(schedule)[0] == plain()
    timer.join()
    assert schedule.undrafted == "the draft worker is lost: it was ended"
    assert not any(thread.is_alive() for thread in opened.worker._threads)


def test_a_worker_that_nobody_holds_is_ended() -> None:
    opened = start()
    schedule = Ssd(drafter_of(opened), Fixed(BUDGET), 64)
    reply(schedule)
    process_of_it = opened.worker._process
    del opened
    gc.collect()
    assert process_of_it.poll() is not None
    assert reply(schedule)[0] == plain()


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("how", ["kill", "exit", "fork"])
def test_it_ends_with_its_parent(how: str) -> None:
    """Whatever it does just then; also when a child of the parent holds the pipe open."""
    code = f"""
import os, time
from tests import test_beside
opened = test_beside.start("device")
drafter = test_beside.drafter_of(opened)
drafter.prefill(test_beside.Context([1, 2, 3]))
drafter.ahead(test_beside.TokenTree.root(4), test_beside.TreeBudget(64, 300, 0))
print(opened.worker._process.pid, flush=True)
if {how!r} == "fork" and not os.fork():
    time.sleep(20)
    os._exit(0)
if {how!r} != "exit":
    time.sleep(1000)
"""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if how != "exit":
            os.kill(pid, 0)
            parent.kill()
        parent.wait(WAIT)

        def gone() -> bool:
            with suppress(ProcessLookupError), open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
            return True

        if sys.platform == "linux":
            with suppress(FileNotFoundError):
                wait_for(gone)


def test_a_device_of_its_own_drafts_while_the_target_verifies() -> None:
    """A pass of drafting sleeps as long as an accelerator would take. While the target verifies there is time
    for what matters: after a hit little is left to be drafted."""
    opened = start("device")
    drafter = drafter_of(opened)
    schedule = Ssd(drafter, Fixed(BUDGET), 64)

    def verify(cycle: int) -> None:
        wait_for(lambda: cycle >= 12 or opened.worker.nodes[drafter.seat] > 60)

    said, cycles = reply(schedule, verify=verify, count=150)
    assert said == plain(count=150)
    hits = [cycle for cycle in cycles[:12] if cycle.overlap is not None and cycle.overlap.hit]
    assert len(hits) > 6
    assert sum(cycle.passes or 0 for cycle in hits) < 2 * len(hits), "of 4 each"
    assert sum(cycle.outcome.accepted for cycle in hits) > 6
    opened.close()
