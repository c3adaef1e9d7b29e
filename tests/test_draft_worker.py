"""Engines whose draft model works in a process beside: the same text, its memory in the plan, refusals."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import edgespec
from edgespec.apps.options import check_together
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.controller import Adaptive
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import Context, TreeBudget
from edgespec.devices import probe
from edgespec.drafters import beside
from edgespec.drafters.base import Drafter, Root
from edgespec.drafters.beside import Beside
from edgespec.drafters.channel import Cancel, Close, Commit, Draft, GoAhead, Sent, Stop
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.kinds import find_drafters
from edgespec.drafters.resident import Search
from edgespec.engine import Engine
from edgespec.errors import CorruptFileError, OptionError
from edgespec.models.asked import check_options
from edgespec.models.planning import plan_engine
from edgespec.offload.plan import fill, pinning
from edgespec.offload.plan.plan import Plan
from edgespec.progress import Progress
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.needs import first_pass_bytes
from edgespec.runtimes.torch.machine import arithmetic
from edgespec.schedules.ssd import Ssd
from edgespec.text.tokenizer import load_tokenizer
from tests.machine import GIVEN
from tests.sessions import in_threads, tokens_of
from tests.test_session import prompt_of, write_model

PROMPT = prompt_of(40)
COUNT = 30
GREEDY = GenerationOptions(max_tokens=COUNT, ignore_eos=True)
SAMPLED = GenerationOptions(max_tokens=COUNT, ignore_eos=True, temperature=0.9, top_p=0.95, seed=7)
BUDGET = TreeBudget(12, 4, 3)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "SILENCE", 60.0)  # the machine may be busy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beside")
    write_model(folder / "draft", seed=1, num_hidden_layers=2)
    return write_model(folder / "m", max_position_embeddings=2048)


def load(model: Path, **options: Any) -> Engine:
    settings: dict[str, Any] = {"memory": "8GB", "context": 800, "draft_model": model, "draft_worker": 1}
    return edgespec.load(model, **(settings | options))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    """Its draft model is the target itself."""
    with load(model, drafter="ngram+model", resident_layers=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[float, list[int]]:
    with load(model, drafter="none", draft_model=None, draft_worker=None) as engine:
        return {o.temperature: edgespec.generate(engine, PROMPT, o).tokens for o in (GREEDY, SAMPLED)}


def worker_of(engine: Engine) -> Beside:
    (resident,) = engine.resident
    assert isinstance(resident, Beside)
    return resident


def test_the_text_is_plain_decodings(engine: Engine, expected: dict[float, list[int]]) -> None:
    for options in (GREEDY, SAMPLED):
        for controller in (Fixed(BUDGET), Adaptive()):
            with engine.new_session(200, controller) as session:
                assert isinstance(session.schedule, Ssd), "auto: something is free to draft"
                responses = list(session.generate(PROMPT, options))
                assert tokens_of(responses) == expected[options.temperature]
            stats = responses[-1].stats
            assert stats.undrafted is None or isinstance(controller, Adaptive)
            if isinstance(controller, Fixed):
                assert stats.accepted > 10
    assert worker_of(engine).worker.lost is None
    del session  # its drafter goes with it
    assert not worker_of(engine).worker.nodes


def test_a_resident_target_too(model: Path, expected: dict[float, list[int]]) -> None:
    """Its trees are those of the model in this process: the same threads, the same weights, the same bits."""
    draft = model.parent / "draft"
    trees = []
    for worker in (None, 1):
        with load(model, drafter="model", draft_model=draft, draft_worker=worker, threads=1) as engine:
            assert not engine.plan.streamed_bytes
            session = engine.new_session(200)
            drafter: Drafter = session.schedule.drafter  # type: ignore[attr-defined]
            drafter.prefill(Context(PROMPT))
            for root in (5, 9):
                drafting = drafter.start([Root((root,))], TreeBudget(40, 6, 6))
                while drafting.step():
                    pass
                trees.append(drafting.tree())
            session.close()
            for options in (GREEDY, SAMPLED):
                assert edgespec.generate(engine, PROMPT, options).tokens == expected[options.temperature]
    for here, there in zip(trees[:2], trees[2:], strict=True):
        for name in ("tokens", "parents", "logprobs"):
            assert np.array_equal(getattr(here, name), getattr(there, name))


def test_mirror_on_a_resident_target(model: Path, expected: dict[float, list[int]]) -> None:
    """Its exit speaks, though nothing waits."""
    with load(model, drafter="ngram+model", schedule="mirror", threads=1) as engine:
        assert not engine.plan.streamed_bytes
        for options in (GREEDY, SAMPLED):
            with engine.new_session(200, Fixed(BUDGET)) as session:
                responses = list(session.generate(PROMPT, options))
            assert tokens_of(responses) == expected[options.temperature]
            stats = responses[-1].stats
            assert stats.schedule == "mirror"
            assert stats.undrafted is None
            assert 0 < stats.early_exit.cycles <= stats.cycles
            assert stats.early_exit.found > 0


def test_two_conversations_at_a_time(engine: Engine, expected: dict[float, list[int]]) -> None:

    def talk(options: GenerationOptions) -> list[list[int]]:
        with engine.new_session(200, Fixed(BUDGET)) as session:
            return [tokens_of(list(session.generate(PROMPT, options))) for _ in range(3)]

    found = in_threads([partial(talk, options) for options in (GREEDY, SAMPLED)])
    assert found == [3 * [expected[options.temperature]] for options in (GREEDY, SAMPLED)]


def test_cancelling_a_reply_leaves_the_worker(engine: Engine, expected: dict[float, list[int]]) -> None:
    with engine.new_session(200, Fixed(BUDGET)) as session:
        for stop in (1, 2, 5, 9):
            for count, _ in enumerate(session.generate(PROMPT, GREEDY), 1):
                if count == stop:
                    session.cancel()
            seen = 0

            def interrupt(progress: Progress, stop: int = stop) -> None:
                nonlocal seen
                seen += 1
                if seen == 3 * stop:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                list(session.generate(PROMPT, GREEDY, interrupt))
            responses = list(session.generate(PROMPT, GREEDY))
            assert tokens_of(responses) == expected[0.0]
            assert responses[-1].stats.accepted > 5
    assert worker_of(engine).worker.lost is None


@pytest.mark.parametrize("how", ["said", "cancelled", "interrupted", "left", "closed"])
def test_a_reply_that_is_over_leaves_nothing_under_way(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """However it ends, and in the middle of a pass, for whose outcomes the worker drafts."""
    told, worker = list[Sent](), worker_of(engine).worker
    tell = worker.tell
    monkeypatch.setattr(worker, "tell", lambda message: (told.append(message), tell(message)))
    session = engine.new_session(200, Fixed(BUDGET))

    def in_a_pass(progress: Progress) -> None:
        if progress.stage == "layers" and isinstance(told[-1], GoAhead):
            if how == "cancelled":
                session.cancel()
            elif how == "interrupted":
                raise KeyboardInterrupt
            elif how == "closed":
                session.close()

    replying = session.generate(PROMPT, GREEDY, in_a_pass)
    if how == "left":
        for _ in range(COUNT // 2):
            next(replying)
        session.close()  # while somebody holds the iterator
        gc.collect()
        (seat,) = {message.seat for message in told if isinstance(message, GoAhead)}
        assert Close(seat) in told
    elif how == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            list(replying)
    else:
        list(replying)
    rounds = [m for m in told if isinstance(m, (GoAhead, Stop, Cancel, Draft, Commit))]
    assert isinstance(rounds[-1], Cancel)
    assert any(isinstance(m, GoAhead) for m in rounds)
    assert isinstance(rounds[-2], GoAhead) == (how in ("cancelled", "interrupted", "closed"))
    session.close()


def test_its_memory_is_in_the_plan_and_in_the_peak(engine: Engine, model: Path) -> None:
    owners, baseline = engine.plan.owners, engine.plan.owners["interpreter and libraries"]
    assert owners["draft worker"] == baseline, "a process more"
    assert owners["drafter"] > 0
    process = psutil.Process(worker_of(engine).worker._process.pid)
    assert worker_of(engine).outside > 0.7 * process.memory_info().rss
    assert engine.peak_memory() >= probe.process_memory().current + 0.7 * process.memory_info().rss
    options = EngineOptions(memory=4 * 10**9, context=200)
    without, beside = (plan(model, options, worker) for worker in (None, 1))
    left = first_pass_bytes(describe_model(model), arithmetic())
    assert beside.ledger.used - without.ledger.used == beside.owners["interpreter and libraries"] + left
    assert set(beside.extras.names) == {"drafter", "draft worker"}, "what a hand-over would free"


def plan(model: Path, options: EngineOptions, worker: int | None) -> Plan:
    """With the target itself for a draft model."""
    members = choose_drafters(EngineOptions(drafter="model", draft_model="m", draft_worker=1))
    files = describe_model(model)
    search = Search("model", members, files, load_tokenizer(files, model), {"draft_model": model})
    return plan_engine(files, options, GIVEN, find_drafters(replace(search, worker=worker)))


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("how", ["kill", "close"])
def test_it_goes_while_it_drafts(
    model: Path, expected: dict[float, list[int]], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of a reply, which goes on with layers pinned in its place; or its engine is
    closed, which ends both."""
    monkeypatch.setattr(pinning, "RING_CHUNKS", pinning.MIN_RING_CHUNKS)
    monkeypatch.setattr(pinning, "READS", 0)  # no ring that holds all of so small a model
    seen: list[Progress] = []
    options = with_options(model)
    bare = plan(model, replace(options, resident_layers=0), 1)
    dial = bare.ledger.planned + fill.MIN_HEADROOM + bare.table.nbytes // 3
    engine = Engine.load(str(model), replace(options, memory=dial), seen.append)
    before, peak = engine.plan, engine.peak_memory()
    assert before.streamed_bytes > 0
    loading = [progress for progress in seen if progress.stage == "load"]
    assert loading[-1].done == loading[-1].total
    assert len({progress.done for progress in loading}) > 2
    process = worker_of(engine).worker._process
    session = engine.new_session(400, Fixed(BUDGET))
    responses = []
    for response in session.generate(PROMPT, GREEDY):
        responses.append(response)
        if len(responses) == 9 and how == "kill":
            os.kill(process.pid, signal.SIGKILL)
        elif len(responses) == 9:
            engine.close()
    tokens = tokens_of(responses)
    last = responses[-1]
    if how == "kill":
        assert tokens == expected[0.0]
        assert last.stats.undrafted == "the draft worker is lost: it was killed by signal 9"
        assert engine.plan.streamed_bytes < before.streamed_bytes
        assert not engine.resident
        assert engine.peak_memory() >= peak
        assert engine.peak_memory() < peak + before.owners["draft worker"], "that is none of this process's"
        assert edgespec.generate(engine, PROMPT, SAMPLED).tokens == expected[0.9]
        engine.close()
    else:
        assert last.finish_reason == "cancelled"
        assert tokens == expected[0.0][: len(tokens)]
    assert process.poll() is not None


def with_options(model: Path) -> EngineOptions:
    return EngineOptions(
        memory=8 * 10**9, context=800, drafter="model", draft_model=str(model), draft_worker=1
    )


def test_damaged_weights_are_refused_at_the_start(model: Path, tmp_path: Path) -> None:
    """By the worker, whose error has its type here; and nothing stays open."""
    damaged = write_model(tmp_path / "m")
    file = damaged / "model.safetensors"
    load_draft: list[Callable[[], None]] = []
    start = beside.Worker.load

    def load_later(self: beside.Worker, *arguments: Any) -> None:
        file.write_bytes(file.read_bytes()[:-1000])  # since its headers were read here
        load_draft.append(self.close)
        start(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside.Worker, "load", load_later)
        with pytest.raises(CorruptFileError, match=r"model\.safetensors"):
            load(model, drafter="model", draft_model=damaged)
    assert load_draft


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"draft_worker": 0}, r"draft_worker is 0; it must be from 1 to 256"),
    ({"draft_worker": 300}, r"draft_worker is 300; it must be from 1 to 256"),
    ({"draft_worker": "many"}, r"draft_worker"),
    (
        {"drafter": "substitute"},
        r"but the low-bit copy drafts with the target's own weights, in its ",
    ),
    ({"drafter": "ngram+substitute"}, r"but the low-bit copy drafts with the target's own"),
    ({"drafter": "cascade", "adapters": "a"}, r"but the cascade drafts with the target's own weights"),
    ({"drafter": "auto", "adapters": "a"}, r"but the cascade drafts with the target's own weights"),
    (
        {"drafter": "ngram"},
        r"but drafter ngram has nothing that needs a process; use drafter=model or streaming or spd, ",
    ),
    ({"drafter": "none"}, r"but drafter none has nothing that needs a process"),
    ({"drafter": "auto"}, r"but drafter auto without draft_model= has nothing that needs a process"),
    (
        {"drafter": "model", "draft_model": "m", "fan_out": "geometric"},
        r"fan_out geometric goes by how drafts ranked .*; use fan_out=best-first, or leave draft_worker= out",
    ),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check_options(EngineOptions(**{"draft_worker": 1, **options}))


def test_what_goes_with_a_worker() -> None:
    for drafter, members in (
        ("model", ("model",)),
        ("ngram+model", ("ngram", "model")),
        ("auto", ("ngram", "model")),
    ):
        options = EngineOptions(drafter=drafter, draft_model="m", draft_worker=2)
        assert choose_drafters(options) == members
        check_options(options)
        check_together(options, SAMPLED)
        with pytest.raises(OptionError, match=r"ratio acceptance needs the distributions .*_worker= out"):
            check_together(options, replace(SAMPLED, acceptance="ratio"))


def test_ratio_is_refused_by_a_session_too(engine: Engine) -> None:
    with engine.new_session(200) as session, pytest.raises(OptionError, match="a draft worker sends only"):
        session.generate(PROMPT, replace(SAMPLED, acceptance="ratio"))
