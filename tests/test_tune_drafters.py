"""Ways of drafting, as the tuner finds them and as the engine loads them."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.config import EngineOptions
from edgespec.drafters import draft_model
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.kinds import drafter_names
from edgespec.errors import ModelError, OptionError, TokenizerError
from edgespec.models.packing import pack_model
from edgespec.tuning import tune as tuning
from edgespec.tuning.acceptance import PRIORS
from edgespec.tuning.candidate import PLAIN
from edgespec.tuning.candidates import find_candidates
from edgespec.tuning.profile import settings_of
from edgespec.tuning.subject import open_subject
from edgespec.tuning.tune import tune_model
from edgespec.tuning.watch import Watch
from tests.eagles import write_eagle
from tests.machine import GB, MACHINE
from tests.moa import write_moa
from tests.models import make_checkpoint
from tests.specformers import write_specformer
from tests.streamings import write_spd, write_streaming
from tests.tuned import SEVEN, checkpoint, config_only, seven

__all__ = ["checkpoint", "seven"]  # fixtures
pytestmark = pytest.mark.usefixtures("tuned_machine")


# Draft models and copies.


@pytest.mark.parametrize("schedule", ["serial", "ssd"])
@pytest.mark.parametrize("drafter", ["substitute", "model", "moa", "ngram"])
def test_the_memory_of_drafters_is_what_loading_takes(
    checkpoint: Path, tmp_path: Path, drafter: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "arithmetic", lambda: MACHINE.arithmetic)
    pack_model(str(checkpoint), tmp_path / "p", substitute="int4")
    draft = str(make_checkpoint(tmp_path / "d", dtype="bfloat16", num_hidden_layers=1))
    adapters = str(write_moa(tmp_path / "p", tmp_path / "moa")) if drafter == "moa" else None
    options = EngineOptions(
        memory=GB,
        drafter=drafter,
        draft_model=draft if drafter == "model" else None,
        adapters=adapters,
        schedule=schedule,
        context=128,
        resident_layers=1,
    )
    with edgespec.Engine.load(tmp_path / "p", options, machine=MACHINE) as engine:
        (row,) = tune_model(str(tmp_path / "p"), options).rows
        (found,) = [s for s in row.settings if s.drafter == drafter]
        assert found.plan.owners == engine.plan.owners
        assert found.plan.copied == engine.plan.copied
        assert engine.schedule == found.schedule
        if drafter == "moa":
            candidate = candidate_of(tmp_path / "p", options)
            (resident,) = engine.resident
            assert sum(candidate.reads(found.plan).values()) == resident.nbytes


def test_a_gigabyte_more_is_what_a_dial_of_so_much_gives(seven: str) -> None:
    """By whatever is best there, and not by the drafter that is best here."""
    with tuning.open_tuner(seven, EngineOptions()) as tuner:
        for gigabytes in (4, 12):
            row, more = tuner.search.row(gigabytes * GB), tuner.search.at((gigabytes + 1) * GB)
            assert row.best is not None
            assert more.best is not None
            assert row.more == pytest.approx(more.best.speed.middle / row.best.speed.middle)
            assert row.more >= 1


def test_a_copy_that_packing_would_make_is_told_apart(seven: str) -> None:
    found = tune_model(seven, memory=["8GB"])
    assert found.later is not None
    assert found.later.exact
    assert [call.function for call in found.later.before] == ["pack_model"]
    assert found.later.plan.owners["substitute"] > 0
    assert found.later.speed.middle > found.recommended.speed.middle


def test_a_draft_model_is_known_by_its_headers_too(seven: str, tmp_path: Path) -> None:
    small = SEVEN | {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}
    draft = config_only(tmp_path / "small", small)
    found = tune_model(seven, EngineOptions(draft_model=draft), ["8GB"])
    with_it = [s for s in found.rows[0].settings if "model" in s.drafter]
    assert {s.schedule for s in with_it} == {"serial", "ssd", "mirror"}
    assert all(s.plan.owners["drafter"] > 0 and s.files == {"draft_model": draft} for s in with_it)
    assert found.recommended.drafter == "ngram+model"
    # It reads the prompt, too; in a process of its own, while the target does.
    first = {s.drafter: s.first_token.middle for s in found.rows[0].settings if s.schedule == "serial"}
    apart = tune_model(seven, EngineOptions(draft_model=draft, draft_worker=1), ["8GB"]).rows[0].settings
    beside = {s.drafter: s.first_token.middle for s in apart if s.schedule == "serial"}
    assert first["ngram+model"] > 1.01 * first["none"]
    assert beside["ngram+model"] == pytest.approx(first["none"])
    with pytest.raises(ModelError):
        tune_model(seven, EngineOptions(draft_model=str(tmp_path / "gone")), ["8GB"])


def test_a_draft_model_of_other_tokens_is_refused(seven: str, checkpoint: Path, tmp_path: Path) -> None:
    other = config_only(tmp_path / "other", SEVEN | {"vocab_size": 2 * SEVEN["vocab_size"]})
    with pytest.raises(TokenizerError, match="a vocabulary of 64000, and the target's has 32000"):
        tune_model(seven, EngineOptions(draft_model=other), ["8GB"])
    padded = config_only(tmp_path / "padded", SEVEN | {"vocab_size": SEVEN["vocab_size"] + 64})
    assert tune_model(seven, EngineOptions(draft_model=padded), ["16GB"])
    swapped = tmp_path / "swapped"
    shutil.copytree(checkpoint, swapped)
    file = swapped / "tokenizer.json"
    stored = json.loads(file.read_text())
    ids = stored["model"]["vocab"]
    first, second = sorted(ids, key=ids.__getitem__)[-2:]
    ids[first], ids[second] = ids[second], ids[first]
    file.write_text(json.dumps(stored))
    with pytest.raises(TokenizerError, match="2 of the target's"):
        tune_model(str(checkpoint), EngineOptions(draft_model=str(swapped)), ["1GB"])


def test_a_named_copy_of_the_model_drafts(checkpoint: Path, tmp_path: Path) -> None:
    pack_model(str(checkpoint), tmp_path / "low", precision="int4")
    options = EngineOptions(draft_model=str(tmp_path / "low"), resident_layers=1)
    with open_subject(str(checkpoint)) as subject, ExitStack() as stack:
        found = find_candidates(subject, options, frozenset(), stack)
        assert [c.drafter for c in found] == ["none", "ngram", "ngram+substitute"]
        assert not found[-1].before
        assert found[0] is PLAIN


# Cascades.


def test_a_cascade_is_known_by_its_adapters() -> None:
    demo = Path(edgespec.__file__).parent / "demo_model"
    options = EngineOptions(
        memory=GB, drafter="cascade", adapters=str(demo / "cascade"), resident_layers=8, context=128
    )
    with edgespec.Engine.load(demo, options, machine=MACHINE) as engine:
        (row,) = tune_model(str(demo), options).rows
        (found,) = [s for s in row.settings if s.drafter == "cascade" and not s.set_]
        assert found.plan.owners == engine.plan.owners
        assert found.depth == engine.plan.depth > 0
        assert found.schedule == engine.schedule == "serial"
        candidate = candidate_of(demo, options)
        # One step reads what an open one says it reads, give or take what the verifier's adapter has.
        (cascade,) = engine.resident
        assert sum(candidate.reads(found.plan).values()) == pytest.approx(cascade.nbytes, rel=0.02)
        assert PRIORS["cascade"].source != candidate.prior(found.plan).source
    with pytest.raises(OptionError, match="cascade\\+substitute"):  # there is no copy
        tune_model(str(demo), replace(options, drafter="cascade+substitute"))
    with pytest.raises(ModelError):
        tune_model(str(demo), replace(options, adapters=str(demo)))


@pytest.mark.parametrize("kind", ["eagle", "specformer", "streaming", "spd"])
def test_a_trained_module_is_known_by_its_headers(tmp_path: Path, kind: str) -> None:
    demo = Path(edgespec.__file__).parent / "demo_model"
    if kind == "eagle":
        write_eagle(demo, "exits", out=tmp_path)
    elif kind == "specformer":
        write_specformer(demo, out=tmp_path)
    else:
        (write_spd if kind == "spd" else write_streaming)(demo, out=tmp_path)
    options = EngineOptions(
        memory=GB, drafter=kind, adapters=str(tmp_path), resident_layers=8, context=128, schedule="serial"
    )
    with edgespec.Engine.load(demo, options, machine=MACHINE) as engine:
        (row,) = tune_model(str(demo), options).rows
        same = [s for s in row.settings if s.drafter == kind and s.plan.owners == engine.plan.owners]
        assert same, "of other precisions, too, which are packed first"
        with open_subject(str(demo)) as subject, ExitStack() as stack:
            (_, candidate) = find_candidates(subject, options, frozenset(), stack)
        (resident,) = engine.resident
        assert sum(candidate.reads(same[0].plan).values()) == pytest.approx(resident.nbytes, rel=0.02)
    auto = tune_model(str(demo), replace(options, drafter="auto")).rows[0]
    assert f"ngram+{kind}" in {s.drafter for s in auto.settings}
    with pytest.raises(ModelError, match=f"of drafter {kind}, not cascade"):
        tune_model(str(demo), replace(options, drafter="cascade"))


def test_a_cascade_with_a_copy_is_predicted_as_it_is_loaded(tmp_path: Path) -> None:
    """And under drafter auto whatever the engine would take by name is compared."""
    demo = Path(edgespec.__file__).parent / "demo_model"
    pack_model(str(demo), tmp_path / "packed", substitute="int4")
    model = str(tmp_path / "packed")
    options = EngineOptions(
        memory=GB,
        drafter="cascade+substitute",
        adapters=str(demo / "cascade"),
        resident_layers=6,
        context=128,
    )
    with edgespec.Engine.load(model, options, machine=MACHINE) as engine:
        (row,) = tune_model(model, options).rows
        (found,) = [s for s in row.settings if s.drafter == "cascade+substitute"]
        assert found.plan.owners == engine.plan.owners
        assert (found.depth, found.schedule) == (engine.plan.depth, engine.schedule)
        assert found.plan.copied == engine.plan.copied != frozenset()
        watched = Watch(engine).expected()
        assert watched is not None
        assert (watched.drafter, watched.speed) == (found.drafter, found.speed)
    (row,) = tune_model(model, replace(options, drafter="auto")).rows
    others = {"auto", "model", "moa", "eagle", "specformer", "streaming", "spd", "remote"}  # with other files
    legal = {name for name in drafter_names() if not others & {*name.split("+")}}
    exact = {s.drafter.removeprefix("ngram+") for s in row.settings if s.exact}
    assert exact | {"ngram+cascade", "ngram+substitute"} == legal
    for setting in row.settings:
        choose_drafters(EngineOptions(**settings_of(setting, replace(options, drafter="auto"))))


def test_every_verifier_of_a_cascade_is_compared_and_can_be_named() -> None:
    """L_SV: planned as the engine does when it is named; the deepest with room is its own choice."""
    demo = Path(edgespec.__file__).parent / "demo_model"
    options = EngineOptions(memory=GB, drafter="cascade", adapters=str(demo / "cascade"), context=128)
    (row,) = tune_model(str(demo), options).rows
    found = {s.depth: s for s in row.settings if s.drafter == "cascade" and s.exact}
    assert sorted(found) == [2, 3, 5, 7]
    assert {depth for depth, s in found.items() if not s.set_} == {7}
    for depth in (3, 7):
        asked = EngineOptions(**settings_of(found[depth], options))
        assert asked.verifier_layers == (None if depth == 7 else depth)
        with edgespec.Engine.load(demo, asked, machine=MACHINE) as engine:
            assert engine.plan.depth == depth
            assert engine.plan.owners == found[depth].plan.owners
    (row,) = tune_model(str(demo), replace(options, verifier_layers=3)).rows
    assert {s.depth for s in row.settings if s.drafter == "cascade"} == {3}
    (row,) = tune_model(str(demo), replace(options, resident_layers=4)).rows  # no room for the deeper ones
    assert {s.depth for s in row.settings if s.drafter == "cascade"} == {2, 3}


@pytest.mark.parametrize("layers", [1, 4, 99])
def test_a_verifier_that_is_not_there_is_refused(layers: int) -> None:
    demo = Path(edgespec.__file__).parent / "demo_model"
    options = EngineOptions(
        memory=GB, drafter="cascade", adapters=str(demo / "cascade"), verifier_layers=layers
    )
    for refuses in (lambda: tune_model(str(demo), options), lambda: edgespec.Engine.load(demo, options)):
        with pytest.raises(OptionError, match=r"can verify behind 2, 3, 5, 7 layers") as refused:
            refuses()
        assert refused.value.option == "verifier_layers"
    with pytest.raises(OptionError, match="changes nothing without a cascade"):
        edgespec.Engine.load(demo, EngineOptions(drafter="ngram", verifier_layers=3))


def candidate_of(model: Path, options: EngineOptions) -> Any:
    with open_subject(str(model)) as subject, ExitStack() as stack:
        return next(
            c for c in find_candidates(subject, options, frozenset(), stack) if c.drafter == options.drafter
        )
