"""The mirror schedule with a draft worker: what the exit says goes over the pipe, and is used there."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.early_exit import Trust
from edgespec.core.acceptance import Logits
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree
from edgespec.drafters import channel
from edgespec.drafters.beside import BesideDrafter
from edgespec.drafters.channel import Beat, Expect, GoAhead, Hear, Nonsense, Open, Prefill, Sent, Stop, Worked
from edgespec.drafters.combined import Combined
from edgespec.drafters.desk import Desk
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.ngram import NGram
from edgespec.drafters.opened import Opened
from edgespec.models.asked import check_options
from edgespec.schedules.mirror import Mirror
from tests import table_runtime
from tests.table_runtime import GREEDY, HOT, TableRuntime, plain
from tests.test_mirror import BUDGET, COUNT, LAYERS, Known, TableExit, said_in
from tests.test_ssd import VOCABULARY


class Worker:
    """See `drafters.process.Worker`: a desk that has done its work before more is said; through frames."""

    lost: str | None = None
    damaged = False

    def __init__(self, noise: float) -> None:
        self.desk = Desk(
            self._hear, Opened(lambda capacity: TableRuntime(capacity=capacity, noise=noise)).drafter
        )
        self.nodes, self.seconds = dict[int, int](), dict[int, float]()
        self.heard, self.questions, self.told = 0.0, dict[int, Any](), list[Sent]()

    def new_seat(self) -> int:
        self.nodes[1], self.seconds[1] = 0, 0.0
        return 1

    def leave(self, seat: int, message: Sent) -> None:
        pass

    def tell(self, message: Sent) -> None:
        self.told.append(message)
        read = channel.read_frame(io.BytesIO(channel.frame(message)), channel.REQUESTS, channel.REQUEST_BYTES)
        assert read is not None
        self._work(not isinstance(message, Expect))  # which follows the tree at once
        self.desk.take(read)
        self._work(not isinstance(message, GoAhead | Expect))

    def _work(self, now: bool) -> None:
        while now and not self.desk.idle:
            self.desk.work()

    def ask(self, kind: type, message: Callable[[int], Sent]) -> Any:
        number = len(self.questions) + 1
        question = self.questions[number] = SimpleNamespace(answer=None, asked=0.0, beat=0.0)
        self.tell(message(number))
        return question

    def _hear(self, message: Sent) -> None:
        answer = channel.read_frame(io.BytesIO(channel.frame(message)), channel.ANSWERS, channel.ANSWER_BYTES)
        if isinstance(answer, Beat):
            self.nodes[answer.seat], self.seconds[answer.seat] = answer.nodes, answer.seconds
        elif not isinstance(answer, Worked):
            self.questions[answer.question].answer = answer  # type: ignore[union-attr]

    @property
    def trust(self) -> Trust:
        return self.desk.seats[1].trust


def drafter_of(noise: float) -> tuple[BesideDrafter, Worker]:
    worker: Any = Worker(noise)
    return BesideDrafter(worker, 400, VOCABULARY), worker


def reply(schedule: Mirror, waits: int, options: GenerationOptions = GREEDY) -> tuple[list[int], list[Cycle]]:
    """So many waits a layer, or fewer when nothing is to do."""
    exit = schedule.exit
    assert isinstance(exit, TableExit)

    def verify(tree: TokenTree, logits: Logits) -> float:
        exit.coming = logits
        for layer in range(LAYERS):
            for _ in range(waits):
                if not schedule.on_wait():
                    break
            rows: Any = SimpleNamespace(prefill=False, n=len(tree))
            schedule.on_layer(layer, layer, rows)  # type: ignore[arg-type]
        return 1.0

    return table_runtime.reply(schedule, verify, options, count=COUNT)


def misses(cycles: Sequence[Cycle]) -> int:
    return sum(cycle.overlap.hit is False for cycle in cycles if cycle.overlap)


@pytest.mark.parametrize("options", [GREEDY, HOT])
@pytest.mark.parametrize(("noise", "wrong"), [(0.5, 2.5), (50.0, 0.0), (0.5, 100.0)])
def test_a_worker_hears_what_a_drafter_of_this_process_does(
    options: GenerationOptions, noise: float, wrong: float
) -> None:
    """Tree by tree, and the same trust in the exit is learned, there; text as ever."""
    drafter, worker = drafter_of(noise)
    beside = Mirror(drafter, Known(BUDGET, 6.0), 64, TableExit(noise=wrong))
    own = ModelDrafter(TableRuntime(noise=noise), VOCABULARY)
    inside = Mirror(own, Known(BUDGET, 6.0), 64, TableExit(noise=wrong))
    said, cycles = reply(beside, 300, options)
    expected, others = reply(inside, 300, options)
    assert said == expected == plain(options, COUNT)
    for cycle, other in zip(cycles, others, strict=True):
        assert cycle.tree.tokens.tolist() == other.tree.tokens.tolist()
        assert cycle.overlap is not None
        assert other.overlap is not None
        assert cycle.overlap.hit is other.overlap.hit
        assert cycle.overlap.nodes == other.overlap.nodes
    assert len(said_in(cycles)) == len(said_in(others)) > 5
    assert worker.trust.share == pytest.approx(inside.trust.share)
    assert worker.trust.share != 0.5
    assert beside.trust.share == 0.5, "whoever drafts learns it"


def test_what_the_exit_names_is_prepared_for_by_the_worker() -> None:
    found = []
    for able in (True, False):
        drafter, worker = drafter_of(noise=50.0)
        schedule = Mirror(
            Combined([NGram(), drafter]), Known(BUDGET, 6.0), 64, TableExit(noise=0.0, able=able)
        )
        said, cycles = reply(schedule, 30)
        assert said == plain(GREEDY, COUNT)
        found.append(misses(cycles[:-1]))
        assert any(isinstance(message, Hear) for message in worker.told) == able
    assert found[0] == 0 < 10 < found[1]


def test_a_target_that_never_waits_asks_its_exit_at_once() -> None:
    """For a worker; a drafter of this process would get no turn. What it takes is no more hidden."""
    drafter, _ = drafter_of(noise=50.0)
    seconds = iter(range(10**9))
    beside = Mirror(
        drafter, Known(BUDGET, 60.0), 64, TableExit(noise=0.0), clock=lambda: float(next(seconds))
    )
    said, cycles = reply(beside, 0)
    assert said == plain(GREEDY, COUNT)
    exited = said_in(cycles)
    assert len(exited) == len(cycles)
    assert misses(cycles[:-1]) == 0
    for law in (e.law for e in exited):
        assert law is not None
        assert law.early > 0
        assert law.predicted == pytest.approx(
            law.late + law.before + law.early + max(law.behind, law.draft) + law.final
        )
    own = ModelDrafter(TableRuntime(noise=50.0), VOCABULARY)
    assert not said_in(reply(Mirror(own, Known(BUDGET, 6.0), 64, TableExit()), 0)[1])


def test_the_workers_seconds_are_the_drafting_of_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since it has heard: told in its beats, by its own clock."""
    seconds = iter(range(10**9))
    monkeypatch.setattr("edgespec.drafters.desk.monotonic", lambda: float(next(seconds)))
    drafter, worker = drafter_of(noise=0.5)
    schedule = Mirror(drafter, Known(BUDGET, 1e9), 64, TableExit())
    _, cycles = reply(schedule, 30)
    drafts = [e.law.draft for e in said_in(cycles) if e.law is not None]
    assert max(drafts) > 3
    before = [at for at, message in enumerate(worker.told) if isinstance(message, GoAhead)]
    assert all(isinstance(worker.told[at + 1], Expect) for at in before)


def test_a_worker_without_a_tree_to_hear_of() -> None:
    worker = Worker(0.5)
    worker.tell(Open(1, 400, VOCABULARY))
    worker.tell(Prefill(1, [3, 1, 4], False, 0, 0.0, 1.0, 0, 0.0))
    for message in (Expect(1), Hear(1, [])):
        with pytest.raises(Nonsense, match="nothing is drafted ahead"):
            worker.tell(message)
    drafter, worker = drafter_of(0.5)
    reply(Mirror(drafter, Known(BUDGET, 6.0), 64, TableExit()), 9)
    worker.tell(Stop(1))
    with pytest.raises(Nonsense, match="nothing is drafted ahead"):
        worker.tell(Hear(1, []))


def test_the_options_go_together() -> None:
    check_options(EngineOptions(drafter="model", draft_model="m", draft_worker=1, schedule="mirror"))
