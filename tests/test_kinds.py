"""Kinds of drafters are rows: what they say of themselves holds, and pairs that cannot be are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.drafters import kinds
from edgespec.drafters.base import Root, TreeBudget, Watching
from edgespec.drafters.kinds import KINDS, Kind, choose_drafters, find_drafters
from edgespec.drafters.resident import Drafters, Search
from edgespec.errors import BudgetError, OptionError
from edgespec.models.packing import pack_model
from edgespec.models.planning import plan_engine
from edgespec.offload.plan.needs import Extras, MustPin
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.describe import describe_model
from edgespec.text.tokenizer import load_tokenizer
from tests.machine import GIVEN
from tests.test_session import prompt_of, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("kinds") / "m")


@pytest.fixture(scope="module")
def packed(model: Path) -> Path:
    out = model.parent / "packed"
    pack_model(str(model), out, substitute="int4")
    return out


def searching(path: Path, **changes: object) -> Search:
    files = describe_model(path)
    return replace(Search("auto", (), files, load_tokenizer(files, path)), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ngram", "model", "substitute"])
def test_what_a_row_says_of_its_drafter_holds(name: str, packed: Path, model: Path) -> None:
    (kind,) = kinds.kinds_of([name])
    with edgespec.load(
        packed,
        memory="2GB",
        context=200,
        drafter=name,
        draft_model=model if name == "model" else None,
        resident_layers=1,
    ) as engine:
        session = engine.new_session(100)
        list(session.generate(prompt_of(20), GenerationOptions(max_tokens=3)))
        drafter = session.schedule.drafter  # type: ignore[attr-defined]
        assert isinstance(drafter, Watching) == kind.watches
        assert kind.roots
        assert bool(engine.resident) == (kind.find is not None)
        drafting = drafter.start([Root((5,)), Root((5, 9))], TreeBudget(8, 3, 3))
        while drafting.step():
            pass
        assert [drafting.tree(i).tokens[0] for i in range(2)] == [5, 9]


SECOND = Kind(
    "early",
    "the early exit",
    roots=False,
    draws=True,
    watches=True,
    inside_target=True,
    find=lambda s, f: None,
)


def test_one_name_twice_and_two_for_one_file_are_refused() -> None:
    with pytest.raises(OptionError, match=r"names ngram twice"):
        choose_drafters("ngram+ngram", None, "serial")
    with pytest.raises(OptionError, match=r"model and substitute both want draft_model="):
        choose_drafters("model+substitute", "m", "serial")


def test_pairs_that_cannot_be_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (*KINDS, SECOND)
    with pytest.raises(OptionError, match="the cascade and the early exit would both draft"):
        choose_drafters("cascade+early", None, "serial", "a", rows)
    with pytest.raises(OptionError, match="the early exit and the low-bit copy would both draft"):
        choose_drafters("substitute+early", None, "serial", None, rows)
    assert choose_drafters("ngram+early", None, "serial", None, rows) == ("ngram", "early")
    assert choose_drafters("cascade+substitute", None, "serial", "a") == ("cascade", "substitute")
    monkeypatch.setitem(kinds.SCHEDULES, "ssd", True)
    with pytest.raises(OptionError, match=r"schedule ssd drafts behind several.*the cascade behind one"):
        choose_drafters("cascade", None, "ssd", "a")
    with pytest.raises(OptionError, match="the cascade behind one"):
        choose_drafters("auto", None, "ssd", "a")
    assert choose_drafters("ngram+model", "m", "ssd") == ("ngram", "model")


class Few:
    """Has the needs that it is told."""

    def __init__(self, extras: Extras) -> None:
        self.extras = extras

    def unused(self, plan: Plan) -> str | None:
        return None if set(self.extras.owners) <= set(plan.owners) else "it has no room"

    def reads(self, plan: Plan) -> int:
        return 0

    def resident(self, *_: object) -> Few:
        raise AssertionError("opened")


LARGE = Extras({"few": lambda n: 3 * 10**9})
PINS = Extras(must_pin=MustPin("few", "has", (2,)))


@pytest.mark.parametrize("needs", [LARGE, PINS], ids=["large", "pins"])
def test_a_new_kind_is_a_row(model: Path, needs: Extras) -> None:
    """Planned for as it says, and left out by auto where it does not fit."""
    few = Few(needs)
    row = Kind("few", "the few", True, True, False, spare=True, find=lambda search, found: few)
    rows = (*KINDS, row)
    members = choose_drafters("auto", None, "serial", None, rows)
    assert members == ("ngram", "substitute", "few")
    search = searching(model, members=members)
    drafters = find_drafters(search, rows)
    assert list(drafters.found) == ["few"]

    def planned(memory: int, drafters: Drafters) -> Plan:
        return plan_engine(search.files, EngineOptions(memory=memory, context=100), GIVEN, drafters)

    roomy = planned(5 * 10**9, drafters)
    assert roomy.extras.names == needs.names
    assert roomy.depth == max(needs.depths, default=0)
    if needs is LARGE:
        assert roomy.owners["few"] == 3 * 10**9
        tight = planned(2 * 10**9, drafters)
        assert tight.reasons[-1] == "no room to draft with the few"
        assert "few" not in tight.owners
        asked_for = find_drafters(replace(search, drafter="few", members=("few",)), rows)
        with pytest.raises(BudgetError, match="few"):
            planned(2 * 10**9, asked_for)


def test_a_copy_that_is_named_is_no_draft_model_too(packed: Path, model: Path) -> None:
    copy = packed / "substitute"
    auto = searching(model, members=("ngram", "model", "substitute"), named=copy)
    assert list(find_drafters(auto).found) == ["substitute"]
    with pytest.raises(OptionError, match=r"is a low-bit copy of .*, and no model beside it"):
        find_drafters(replace(auto, drafter="model+substitute"))
    both = replace(
        searching(packed, members=("model", "substitute"), named=model), drafter="model+substitute"
    )
    assert list(find_drafters(both).found) == ["model", "substitute"]
    with pytest.raises(OptionError, match="no low-bit copy to draft with"):  # asked for, and not there
        find_drafters(replace(both, files=describe_model(model)))


def test_on_another_device_auto_does_without(packed: Path) -> None:
    found = find_drafters(searching(packed, members=("ngram", "substitute"), device="cuda"))
    assert not found.found
    assert found.reasons == ("the low-bit copy drafts on the CPU only, not on cuda",)
    explicit = searching(packed, drafter="substitute", members=("substitute",), device="cuda")
    with pytest.raises(OptionError, match="drafter substitute runs on the CPU only"):
        find_drafters(explicit)
