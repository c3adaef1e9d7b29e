"""Another dial while the model runs: the text stays, memory follows, what goes wrong changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import cgroup, measure
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.handover import HandOver
from edgespec.core.trace import Cycle, Trace
from edgespec.engine import Engine
from edgespec.errors import BudgetError, BusyError, ClosedError, CorruptFileError, DeviceError, OptionError
from edgespec.models import holdings
from edgespec.models.packing import pack_model
from edgespec.offload.chunks import ChunkEvent
from edgespec.offload.plan.replan import at_dial
from edgespec.runtimes.torch import stored
from edgespec.runtimes.torch.substitute import LowBitCopy
from edgespec.schedules.ssd import Ssd
from edgespec.session import Session
from tests.covering import covering
from tests.machine import GIVEN
from tests.moa import write_moa
from tests.sessions import WAIT, in_threads
from tests.test_cascade import quiet_model, train
from tests.test_session import prompt_of, write_model

LAYERS = 24
ROOT = Path(__file__).parent.parent
PROMPT = prompt_of(20)
REPLY = GenerationOptions(max_tokens=24, ignore_eos=True)
DRAFTERS = ["none", "ngram", "model", "ngram+substitute", "cascade", "cascade+substitute", "moa"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dial")
    model = quiet_model(folder / "m", num_hidden_layers=LAYERS)
    pack_model(str(model), folder / "packed", substitute="int4")
    train(model, "exits")
    write_moa(model, folder / "moa")
    return folder / "packed"


def load(packed: Path, drafter: str = "none", share: float = 0.5, **options: Any) -> Engine:
    """Under a dial with room for this share of the weights, beside what must be there."""
    if "model" in drafter:
        options["draft_model"] = packed.parent / "m"
    if "moa" in drafter:
        options["adapters"] = packed.parent / "moa"
    if "cascade" in drafter:
        options["adapters"] = packed.parent / "m" / "exits"
    settings = {"memory": "1MB", "context": 200, "drafter": drafter, **options}
    with pytest.raises(BudgetError) as refused:
        Engine.load(packed, EngineOptions(**settings), machine=GIVEN)
    weights = sum(file.stat().st_size for file in packed.glob("*.safetensors"))
    settings["memory"] = sum(refused.value.owners.values()) + int(share * weights)
    return Engine.load(packed, EngineOptions(**settings), machine=GIVEN)


def smallest(engine: Engine) -> int:
    with pytest.raises(BudgetError) as refused:
        engine.set_memory("1MB")
    return refused.value.smallest


def dial_of(engine: Engine, share: float) -> int:
    """A dial with room for this share of the weights, more or less."""
    least = smallest(engine)
    return least + int(share * engine.plan.table.nbytes)


def replying(
    engine: Engine, at_cycle: Callable[[int], object] = lambda count: None, **options: Any
) -> tuple[Session, list[int]]:
    """A whole reply; `at_cycle` is called between its cycles."""
    count = 0

    def cycle(event: Cycle) -> None:
        nonlocal count
        count += 1
        at_cycle(count)

    session = engine.new_session(trace=Trace(cycle=cycle), **options)
    said = [r.token for r in session.generate(PROMPT, REPLY) if r.token is not None]
    return session, said


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is looked at in other processes; a collection takes 70 ms in one that has seen many tests."""
    monkeypatch.setattr(holdings, "return_freed_memory", lambda: None)


@pytest.fixture(scope="module")
def expected(packed: Path) -> list[int]:
    with load(packed, resident_layers=0) as engine:
        said = replying(engine)[1]
    assert len(set(said)) > 5
    return said


def settled(engine: Engine) -> None:
    """Memory is as planned."""
    weights, plan = engine.target.weights, engine.plan
    assert weights.pinned.keys() == plan.pinned
    assert plan.ledger.free >= 0
    if plan.streamed:
        assert weights.ring_bytes == plan.ring_bytes
        assert {c.index for c in weights.streamer._rotation.chunks} == {c.index for c in plan.streamed}
        assert weights.streamer._ring.nbytes == plan.ring_bytes
    else:
        assert weights.streamer is None


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_text_stays_whatever_the_dial_does(packed: Path, expected: list[int], drafter: str) -> None:
    chance = Random(drafter)
    with load(packed, drafter, 0.1) as engine:
        assert engine.drafters == tuple(drafter.split("+")) or drafter in ("none", "cascade+substitute")

        def change(count: int) -> None:
            if chance.random() < 0.6:
                engine.set_memory(dial_of(engine, chance.choice([0, 0.2, 0.5, 0.8, 1.5])))

        session, said = replying(engine, change)
        session.close()
        assert said == expected
        engine.set_memory(dial_of(engine, 0.4))
        assert replying(engine)[1] == expected
        settled(engine)


def test_growing_reads_nothing_twice(packed: Path, expected: list[int]) -> None:
    """What a pass reads stays; from the next one on, only the rest is read, in its order."""
    read: list[int] = []

    def hear(event: ChunkEvent) -> None:
        if event.kind == "read":
            read.append(event.chunk.index)

    with load(packed, share=0.1) as engine:
        before = engine.plan
        looked: list[int] = []

        def change(count: int) -> None:
            if count == 3:
                engine.set_memory(dial_of(engine, 0.7))
                engine.target.weights.listen(hear)
            if count == 4:
                settled(engine)
                looked.append(engine.bytes_read)
            if count == 14:
                looked.append(engine.bytes_read)

        assert replying(engine, change)[1] == expected
        after = engine.plan
        assert after.pinned > before.pinned
        assert len(after.streamed) > 3
        for chunk in before.streamed:
            assert chunk.index not in after.pinned or read.count(chunk.index) <= 1  # 0: it was in the ring
        ten = looked[1] - looked[0]
        embedding = 10 * 4 * 4096
        ahead = after.ring_bytes
        assert abs(ten - 10 * after.bytes_per_pass) <= embedding + ahead
        assert engine.target.weights.streamer.seeks == 0


def test_to_everything_and_back(packed: Path, expected: list[int]) -> None:
    with load(packed, share=0.3) as engine:
        session, said = replying(engine, lambda count: engine.set_memory("8GB") if count == 5 else None)
        assert said == expected
        settled(engine)
        assert not engine.plan.streamed
        assert engine.plan.pin_embedding
        assert engine.target.weights.embedding.whole is not None
        read = engine.bytes_read
        session.close()
        session, said = replying(engine)
        assert said == expected
        assert engine.bytes_read == read
        session.close()
        engine.set_memory(dial_of(engine, 0.2))
        settled(engine)  # at once
        assert engine.target.weights.embedding.whole is None
        assert replying(engine)[1] == expected


def test_a_smaller_dial_only_lets_go_and_a_larger_one_only_adds(packed: Path) -> None:
    with load(packed, share=0.5) as engine:
        plan = engine.plan
        for share in (0.4, 0.1, 0.0):
            smaller = at_dial(plan, dial_of(engine, share))
            assert smaller.pinned < plan.pinned
            assert smaller.ledger.free < smaller.dial // 10
            assert {k: v for k, v in smaller.owners.items() if "KV" in k or "inter" in k} == {
                k: v for k, v in plan.owners.items() if "KV" in k or "inter" in k
            }
            again = at_dial(smaller, plan.dial)
            assert again.pinned > smaller.pinned
            assert sum(c.nbytes for c in again.streamed) == pytest.approx(plan.streamed_bytes, rel=0.2)


@contextmanager
def in_a_thread(work: Callable[[], Any]) -> Iterator[list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    yield found
    thread.join(WAIT)
    assert not thread.is_alive()


def test_another_thread_waits_a_cycle_at_most(packed: Path, expected: list[int]) -> None:
    """Also where replies give the turn away for microseconds only, time and again."""
    with load(packed, share=0.6) as engine:
        begun, over, cycles = threading.Event(), threading.Event(), 0
        took: list[int] = []
        low, high = dial_of(engine, 0.1), dial_of(engine, 0.6)

        def change(count: int) -> None:
            nonlocal cycles
            cycles += 1
            begun.set()

        def work() -> None:
            assert begun.wait(WAIT)
            for dial in (low, high) * 10:
                since = cycles
                engine.set_memory(dial)
                took.append(cycles - since)
                assert engine.plan.dial == dial
                assert engine.target.weights.pinned.keys() <= engine.plan.pinned
            over.set()

        def talk() -> None:
            while not over.is_set():
                session, said = replying(engine, change)
                session.close()
                assert said == expected

        with in_a_thread(work):
            assert in_threads([talk]) == [None]
        assert len(took) == 20
        assert max(took) <= 2  # one is under way when the call begins, and one may be when it has returned


def test_refusals(packed: Path, expected: list[int]) -> None:
    with load(packed, "ngram") as engine:
        session, _ = replying(engine)
        before = engine.plan
        for bad in ("soon", 0, -1, 5, "", float("nan"), True, [], None):
            with pytest.raises(OptionError):
                engine.set_memory(bad)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="is all that this machine"):
            engine.set_memory("500TB")
        with pytest.raises(BudgetError, match=r"The smallest dial that works here is \d+MB with context 200"):
            engine.set_memory("100MB")
        assert engine.plan is before
        least = smallest(engine)
        with pytest.raises(BudgetError):
            engine.set_memory(least - 10**6)
        engine.set_memory(least)
        session.close()
        assert replying(engine)[1] == expected
        settled(engine)
    with pytest.raises(ClosedError):
        engine.set_memory("4GB")


def test_layers_pinned_as_asked_stay(packed: Path, expected: list[int]) -> None:
    with load(packed, resident_layers=5) as engine:
        pinned = engine.plan.pinned
        for dial in ("2GB", "8GB", smallest(engine)):
            engine.set_memory(dial)
            assert engine.plan.pinned == engine.target.weights.pinned.keys() == pinned
            session, said = replying(engine)
            assert said == expected
            session.close()
        assert engine.plan.ring_bytes < 2**20


@pytest.mark.parametrize("place", ["layers", "prefill", "cycle"])
def test_callbacks(packed: Path, expected: list[int], place: str) -> None:
    """Within a pass a callback would wait for itself; between two it may."""
    with load(packed, share=0.4) as engine:
        high = dial_of(engine, 0.9)
        session = engine.new_session(
            trace=Trace(cycle=lambda cycle: engine.set_memory(high) if place == "cycle" else None)
        )
        before = engine.plan

        def progress(at: Any) -> None:
            if at.stage == place:
                engine.set_memory(high)

        def reply() -> list[int | None]:
            return [r.token for r in session.generate(PROMPT, REPLY, progress)]

        (found,) = in_threads([reply])
        if place == "layers":
            assert type(found) is BusyError
            assert engine.plan is before
            (found,) = in_threads([lambda: replying_on(session)])
        else:
            assert engine.plan.dial == high
        assert found == expected


def replying_on(session: Session) -> list[int | None]:
    return [r.token for r in session.generate(PROMPT, REPLY)]


@pytest.mark.parametrize(
    ("error", "share"), covering({"device": DeviceError, "interrupt": KeyboardInterrupt}, (0.0, 0.8))
)
def test_a_refused_ring_leaves_the_dial(
    packed: Path,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    share: float,
) -> None:
    class Refused(stored.Streamer):
        def __init__(self, *args: Any) -> None:
            if refuse:
                refuse.pop()
                raise error("no")
            super().__init__(*args)

    refuse: list[int] = []
    monkeypatch.setattr(stored, "Streamer", Refused)
    with load(packed, share=0.4) as engine:
        engine.target.weights.ring_bytes += 4096  # so that every dial has another
        session, said = replying(engine)
        session.close()
        before, dial = engine.plan, dial_of(engine, share)
        for times in (1, 2):
            refuse += [0] * times
            with pytest.raises(error):
                engine.set_memory(dial)
            assert not refuse
            assert engine.plan is before
            session, said = replying(engine)
            assert said == expected
            assert engine.target.weights.pinned.keys() == before.pinned
            session.close()
            engine.target.weights.ring_bytes += 4096
        engine.set_memory(dial)
        assert replying(engine)[1] == expected
        settled(engine)


def test_memory_refused_while_growing_streams_on(
    packed: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(packed, share=0.1) as engine:
        real, left = stored.aligned_buffer, 3

        def refuse(nbytes: int) -> memoryview:
            nonlocal left
            left -= 1
            if left < 0:
                raise DeviceError("the system refused")
            return real(nbytes)

        monkeypatch.setattr(stored, "aligned_buffer", refuse)
        held = len(engine.target.weights.pinned)
        session, said = replying(engine, lambda n: engine.set_memory("8GB") if n == 3 else None)
        assert said == expected
        assert len(engine.target.weights.pinned) == held + 3
        monkeypatch.undo()
        engine.set_memory("8GB")
        assert replying_on(session) == expected
        settled(engine)


def test_the_copy_stands_for_what_is_let_go(
    packed: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HandOver, "record", lambda *args: False)
    with load(packed, "substitute", 0.1) as engine:
        (substitute,) = engine.resident
        before = engine.plan
        assert before.copied
        assert len(before.copied) < len(before.table.chunks)
        assert before.copied.isdisjoint(before.pinned)
        _, said = replying(engine, lambda n: engine.set_memory(smallest(engine)) if n == 3 else None)
        assert said == expected
        after = engine.plan
        assert after.copied > before.copied
        assert after.owners["substitute"] > before.owners["substitute"]
        weights = substitute.weights  # type: ignore[attr-defined]
        copies = sum(
            b.data.nbytes + b.scale.nbytes
            for bs in weights.blocks.values()
            for b in bs
            if b.scale is not None
        )
        assert copies == after.owners["substitute"]
        assert list(weights.blocks) == list(engine.target.weights.blocks)
        for name, blocks in engine.target.weights.blocks.items():
            assert sum(b.rows for b in weights.blocks[name]) == sum(p.shape[0] for _, p, _ in blocks)
        assert said == expected


def test_a_copy_that_cannot_be_read_is_given_up(
    packed: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(packed, "ngram+substitute", 0.1) as engine:
        before, caught = engine.plan, []

        def fail(*args: Any) -> Any:
            raise CorruptFileError("damaged")

        def change(count: int) -> None:
            if count == 3:
                monkeypatch.setattr(LowBitCopy, "load", fail)
                with pytest.raises(CorruptFileError) as error:
                    engine.set_memory(smallest(engine))
                caught.append(error)
                assert engine.plan is before
                assert not engine.resident

        session, said = replying(engine, change)
        assert said == expected
        assert caught
        assert engine.dial == before.dial
        assert engine.plan.pinned > before.pinned  # what the copy had is theirs
        settled(engine)
        assert "follow the dial" in str(session.schedule.undrafted)
        session.close()
        assert replying(engine)[1] == expected


def test_a_draft_schedule_for_what_streams_now(packed: Path) -> None:
    """Who begins after the change drafts in the waits that there are now."""
    with load(packed, "model", 2.0) as engine:
        assert not engine.plan.streamed
        assert engine.schedule == "serial"
        engine.set_memory(dial_of(engine, 0.3))
        assert isinstance(engine.new_session().schedule, Ssd)


def test_stats_have_the_dial_of_now(packed: Path) -> None:
    with load(packed, share=0.8) as engine:
        low = dial_of(engine, 0.1)
        session = engine.new_session()
        stats = None
        for count, response in enumerate(session.generate(PROMPT, REPLY)):
            stats = response.stats
            if count == 5:
                engine.set_memory(low)
        assert stats is not None
        assert stats.dial == engine.dial == engine.plan.dial == low
        assert "memory set to" in engine.plan.describe()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """250 MB of weights: more than what comes and goes with libraries."""
    folder = tmp_path_factory.mktemp("large")
    model = write_model(folder / "m", hidden_size=512, intermediate_size=2048, num_hidden_layers=16)
    pack_model(str(model), folder / "packed", substitute="int4")
    return folder / "packed"


def in_a_process(model: Path, drafter: str, what: dict[str, Any], memory: int | None = None) -> Any:
    """What `benchmarks.dial_process` tells; in a cgroup that begins with this limit, if any."""
    command = [sys.executable, "-m", "benchmarks.dial_process", str(model)]
    command += [json.dumps({"context": 200, "drafter": drafter}), json.dumps(what)]
    if memory is None:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])
    try:
        usage = measure.run(command, memory=memory)
    except cgroup.CgroupUnavailable as error:
        pytest.skip(str(error))
    assert usage.exit_code == 0, usage.stderr
    return json.loads(usage.stdout.splitlines()[-1]) | {"hits": usage.limit_hits, "kills": usage.oom_kills}


def check(told: Any) -> None:
    """The same text, memory below each dial when the call returns, and none of it lost."""
    assert told["same"]
    for made in told["changes"]:
        assert made["rss"] < made["dial"], made
        assert made["cycles"] <= 2
    first, last = told["rss"]
    assert abs(last - first) < 30 * 10**6, (first, last)


def test_memory_goes_back_before_the_call_returns(large: Path) -> None:
    check(in_a_process(large, "none", {"random": 6, "tokens": 24}))


def test_in_a_cgroup_that_follows(large: Path) -> None:
    told = in_a_process(large, "ngram+substitute", {"random": 6, "tokens": 24}, memory=4 * 10**9)
    check(told)
    assert told["drafters"] == ["ngram", "substitute"]
    assert not told["hits"]
    assert not told["kills"]


@pytest.mark.slow
def test_a_leak_shows(large: Path) -> None:
    told = in_a_process(large, "none", {"random": 4, "tokens": 8, "leak": 12 * 10**6})
    with pytest.raises(AssertionError):
        check(told)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["none", "ngram+substitute"])
def test_a_thousand_changes(large: Path, drafter: str) -> None:
    told = in_a_process(large, drafter, {"random": 1000, "tokens": 64}, memory=4 * 10**9)
    check(told)
    assert len(told["changes"]) == 1001
    assert not told["hits"]
    assert not told["kills"]
