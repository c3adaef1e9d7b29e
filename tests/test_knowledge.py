"""What a controller learned in one process, another begins with; files of others change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.controller import Adaptive
from edgespec.control.fixed import Fixed
from edgespec.control.knowledge import APART, FILES, LIMIT, Knowledge
from edgespec.core.schedule import TreeBudget
from edgespec.devices.rates import cache_folder
from edgespec.engine import Engine
from edgespec.offload.plan.costs import CostModel
from edgespec.schedules.serial import Plain
from tests.models import make_checkpoint
from tests.test_controller import LIMIT as ROOM
from tests.test_controller import REGIMES, SUBSTITUTES, World, converse

REPLY = 16  # cycles
WORLDS = {name: row for name, row in (REGIMES | SUBSTITUTES).items() if row[0].oracle()[1] > 0}


def learned(name: str = "flash-bound", cycles: int = 60) -> Adaptive:
    world, prior = WORLDS[name]
    controller = Adaptive(prior)
    converse([(cycles, world)], controller)
    return controller


def passed_on(controller: Adaptive, prior: Any) -> Adaptive:
    """What the next process begins with."""
    Knowledge("a model").keep(controller)
    return Knowledge("a model").recall(Adaptive(prior))


def kept() -> Path:
    (path,) = (cache_folder() / "learned").glob("*.json")
    return path


@pytest.mark.parametrize("name", WORLDS)
def test_the_first_reply_of_the_next_process_is_as_quick_as_later_ones(name: str) -> None:
    world, prior = WORLDS[name]
    taught = learned(name)
    later = [converse([(REPLY, world)], learned(name).successor(), seed).rate() for seed in range(4)]
    first = [converse([(REPLY, world)], passed_on(taught, prior), seed).rate() for seed in range(4)]
    assert np.mean(first) >= 0.97 * np.mean(later)


def test_careful_cycles_are_spared() -> None:
    world, unknown = WORLDS["right 0.95"][0], CostModel()
    cold = converse([(REPLY, world)], Adaptive(unknown))
    warm = converse([(REPLY, world)], passed_on(learned("right 0.95", 250), unknown))
    assert cold.steps[0] is None  # it measures a plain cycle, and then drafts by and by
    assert (warm.steps[0] or 0) >= 8
    assert warm.rate() > 1.05 * cold.rate()


@pytest.mark.parametrize("change", [{"step": 2.0}, {"hit": 0.0}, {"hit": 0.0, "step": 1.0}], ids=str)
def test_another_machine_or_text_is_found_out(change: dict[str, float]) -> None:
    world, prior = WORLDS["right 0.9"]
    other: World = replace(world, **change)
    taught = learned("right 0.9")
    for seed in range(4):
        run = converse([(60, other)], passed_on(taught, prior), seed)
        lost = run.seconds.sum() * other.plain_rate - run.tokens.sum()  # plain cycles
        assert lost <= 18.0  # dear cycles until it is noticed; with all it had believed it was 28
        assert run.rate(30) >= 0.93 * other.plain_rate


def test_what_was_learned_is_all_passed_on() -> None:
    before = learned()
    before.hits.add(True, 0.25)
    before.costs.add(9, 1.5, 3, 0.1, overlapped=True)
    after = passed_on(before, None)
    for counts in ([1, 2, 4, 8, 40], [0, 1, 3, 8]):
        for curve in ("verify", "overlapped", "draft"):
            expected = [p.median for _, p in sorted(getattr(before.costs, curve)._points.items())]
            found = [p.median for _, p in sorted(getattr(after.costs, curve)._points.items())]
            assert found == pytest.approx(expected, rel=1e-6), (curve, counts)
    heir = before.successor()
    assert after.beliefs.chances.by_depth == pytest.approx(heir.beliefs.chances.by_depth, rel=1e-4)
    assert after.hits.rate == pytest.approx(heir.hits.rate, rel=1e-4)
    assert after.costs.longest == pytest.approx(before.costs.longest, rel=1e-3)
    for mine, its in zip(
        after.beliefs.gives.expect(after.beliefs.chances.by_depth),
        heir.beliefs.gives.expect(heir.beliefs.chances.by_depth),
        strict=True,
    ):
        assert mine == pytest.approx(its, rel=1e-4)


def test_drafts_that_do_not_pay_are_forgotten() -> None:
    world, prior = REGIMES["hopeless and dear"]
    assert passed_on(learned(), None).costs.verify.known
    hopeless = Adaptive(prior)
    converse([(60, world)], hopeless)
    assert hopeless.budget(ROOM, world.paid) is None
    assert not passed_on(hopeless, prior).costs.verify.known


def damage() -> dict[str, Callable[[Any], Any]]:
    def put(value: Any, *keys: Any) -> Callable[[Any], Any]:
        def change(whole: Any) -> Any:
            at = whole["learned"]
            for key in keys[:-1]:
                at = at[key]
            at[keys[-1]] = value
            return whole

        return change

    found = {
        "another model": lambda whole: whole | {"about": "another"},
        "a list": lambda whole: [whole],
        "nothing learned": lambda whole: {"about": whole["about"]},
        "learned text": lambda whole: whole | {"learned": "text"},
    }
    numbers = {
        "NaN": float("nan"),
        "negative": -1.0,
        "huge": 10**400,
        "text": "1e3x",
        "none": None,
        "deep": [[[1]]],
    }
    for name, value in numbers.items():
        found[f"{name} hits"] = put(value, "hits", "sums", 0)
        found[f"{name} seconds"] = put(value, "costs", "verify", "seconds", 0)
        found[f"{name} asking"] = put(value, "asking", "sums", 1, 3)
        found[f"{name} longest"] = put(value, "costs", "longest")
        found[f"{name} chance"] = put(value, "beliefs", "chances", "claimed", 3, 1)
        found[f"{name} yield"] = put(value, "beliefs", "gives", "own", 2, 5)
    found["too few"] = put([1.0, 2.0], "beliefs", "gives", "trees")
    found["too many counts"] = put(list(range(9)), "costs", "draft", "counts")
    found["rows past any pass"] = put(2**40, "costs", "verify", "counts", 0)
    return found


@pytest.mark.parametrize("name", damage())
def test_a_damaged_file_is_as_if_it_were_not_there(name: str) -> None:
    assert passed_on(learned(), None).costs.verify.known
    whole = json.loads(kept().read_text())
    kept().write_text(json.dumps(damage()[name](whole)))
    assert Knowledge("a model").recall(Adaptive()).notes() == Adaptive().notes()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[" * 30_000, b" " * (LIMIT + 1), b'{"about": 1e999}'],
    ids=["empty", "cut", "not text", "deep", "too large", "infinite"],
)
def test_a_file_of_others_is_as_if_it_were_not_there(content: bytes) -> None:
    passed_on(learned(), None)
    path = kept()
    path.write_bytes(content)
    assert Knowledge("a model").recall(Adaptive()).notes() == Adaptive().notes()
    path.unlink()
    path.mkdir()
    assert passed_on(learned(), None).notes() == Adaptive().notes()


def test_no_folder_no_knowledge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file" / "cache"))
    assert passed_on(learned(), None).notes() == Adaptive().notes()


def test_files_are_few() -> None:
    for number in range(FILES + 3):
        Knowledge(f"model {number}").keep(learned(cycles=20))
    assert len(list((cache_folder() / "learned").iterdir())) == FILES
    assert Knowledge(f"model {FILES + 2}").recall(Adaptive()).costs.verify.known


def test_short_replies_do_not_write_all_the_time() -> None:
    now = [0.0]
    knowledge, controller = Knowledge("a model", clock=lambda: now[0]), learned(cycles=20)
    knowledge.keep(controller)
    kept().unlink()
    now[0] = APART - 1
    knowledge.keep(controller)
    assert not list((cache_folder() / "learned").iterdir())
    now[0] = APART
    knowledge.keep(controller)
    assert kept().exists()


def test_one_way_to_run_is_not_another() -> None:
    options = EngineOptions(memory=10**9, drafter="model", draft_model="small")

    def about(dial: int = 10**9, digest: str = "d", **changes: Any) -> str:
        return Knowledge.of(digest, replace(options, **changes), dial).about

    assert about(memory=None, context=100, dial=10**9 + 1) == about()
    others = [about(dial=2 * 10**9), about(digest="e"), about(drafter="ngram", draft_model=None)]
    others += [about(draft_model="large"), about(schedule="serial"), about(threads=1), about(tree_nodes=9)]
    assert len({about(), *others}) == len(others) + 1


def test_a_draft_model_that_was_made_anew_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "model.safetensors").write_bytes(b"old")
    options = EngineOptions(drafter="model", draft_model="small")
    before = Knowledge.of("d", options, 10**9).about
    assert Knowledge.of("d", options, 10**9).about == before
    (tmp_path / "small" / "model.safetensors").write_bytes(b"newer")
    after = Knowledge.of("d", options, 10**9).about
    monkeypatch.chdir(tmp_path / "small")  # the same name, of something else
    assert len({before, after, Knowledge.of("d", options, 10**9).about}) == 3


def test_what_is_learned_at_two_dials_is_not_kept_for_one(tmp_path: Path) -> None:
    target = make_checkpoint(tmp_path / "target")
    with edgespec.load(target, memory="2GB", context=200, drafter="ngram") as engine:
        engine.set_memory("1900MB")
        engine.learn(Paying())
    assert not (cache_folder() / "learned").exists()


class Paying(Plain):
    """Drafts that were worth their time."""

    def lesson(self) -> Adaptive:
        return learned()


def test_an_engine_begins_with_what_the_one_before_has_learned(tmp_path: Path) -> None:
    target = make_checkpoint(tmp_path / "target")
    given = {"memory": "2GB", "context": 200, "resident_layers": 1, "drafter": "model", "draft_model": target}
    asked, texts = GenerationOptions(max_tokens=40, ignore_eos=True), []

    def text(engine: Engine) -> list[int]:
        return edgespec.generate(engine, [5, 6, 7], asked).tokens

    for again in (False, True):
        with edgespec.load(target, **given) as engine:
            assert isinstance(engine.controller, Adaptive)
            assert engine.controller.costs.verify.known == again
            engine.learn(Paying())  # whatever these timings would say
            texts.append(text(engine))
    assert texts[0] == texts[1]
    with edgespec.load(target, **given | {"drafter": "ngram", "draft_model": None}) as engine:
        assert isinstance(engine.controller, Adaptive)
        assert not engine.controller.costs.verify.known


def test_what_was_fixed_teaches_nothing() -> None:
    Knowledge("a model").keep(Fixed(TreeBudget(8, 4, 4)))
    assert not (cache_folder() / "learned").exists()
