"""Kinds of drafters are rows: what they say of themselves holds, and pairs that cannot be are refused."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import pytest

import edgespec
from edgespec.apps.settings import resolve
from edgespec.config import DRAFTING, EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import make_acceptance
from edgespec.core.schedule import Controller, Place
from edgespec.core.tree import TokenTree
from edgespec.drafters import kinds
from edgespec.drafters.base import Drafter, Root, TreeBudget, Watching
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.kind import Kind
from edgespec.drafters.kinds import KINDS, drafter_names, find_drafters
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.resident import Drafters, Found, Search
from edgespec.engine import Engine
from edgespec.errors import BudgetError, ModelError, OptionError
from edgespec.models.asked import check_options
from edgespec.models.packing import pack_model
from edgespec.models.planning import plan_engine
from edgespec.offload.plan.needs import Extras, MustPin
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.describe import describe_model
from edgespec.schedules import kinds as schedules
from edgespec.schedules.kinds import SCHEDULES, ScheduleKind, check_acceptance, check_schedule
from edgespec.schedules.serial import Plain, Serial
from edgespec.text.tokenizer import load_tokenizer
from edgespec.values import Option, options_of
from tests import fake_drafter
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


def with_rows(monkeypatch: pytest.MonkeyPatch, *rows: Kind) -> None:
    monkeypatch.setattr(kinds, "KINDS", (*KINDS, *rows))


def chosen(drafter: str, **changes: object) -> tuple[str, ...]:
    return choose_drafters(EngineOptions(drafter=drafter, **changes))  # type: ignore[arg-type]


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
        assert not isinstance(drafter, Watching)
        assert kind.roots
        assert drafter.resident == (kind.make is None)
        assert bool(engine.resident) == (kind.find is not None)
        drafting = drafter.start([Root((5,)), Root((5, 9))], TreeBudget(8, 3, 3))
        while drafting.step():
            pass
        assert [drafting.tree(i).tokens[0] for i in range(2)] == [5, 9]


def test_every_row_leads_to_its_file() -> None:
    """What rows name by text is there, and is what type checkers cannot see that it is."""
    options = options_of(EngineOptions)
    for kind in KINDS:
        assert (kind.make is None) != (kind.find is None)
        assert kind.option is None or kind.option in options
        assert set(kind.takes) <= {other.name for other in KINDS}
        if kind.find is not None:
            assert list(inspect.signature(resolve_name(kind.find)).parameters) == ["search", "found"]
    for schedule in SCHEDULES:
        made = inspect.signature(resolve_name(schedule.make))
        assert list(made.parameters) == ["drafter", "controller", "options", "place"]


def test_names_follow_from_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["none", "auto", "ngram", "model", "substitute", "cascade", "moa", "eagle", "specformer"]
    names += ["streaming", "spd", "remote"]
    joined = [f"ngram+{name}" for name in names[3:]] + ["cascade+substitute"]
    assert drafter_names() == names + joined
    with_rows(monkeypatch, SECOND)
    assert drafter_names() == [*names, "early", *joined[:-1], "ngram+early", joined[-1]]


SECOND = Kind("early", "the early exit", roots=False, draws=True, inside_target=True, find="no.where:find")


def test_one_name_twice_and_two_for_one_file_are_refused() -> None:
    with pytest.raises(OptionError, match=r"names ngram twice"):
        chosen("ngram+ngram")
    with pytest.raises(OptionError, match=r"model and substitute both want draft_model="):
        chosen("model+substitute", draft_model="m")


def test_pairs_that_cannot_be_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rows(monkeypatch, SECOND)
    with pytest.raises(OptionError, match="the cascade and the early exit would both draft"):
        chosen("cascade+early", adapters="a")
    with pytest.raises(OptionError, match="the cascade and the early exit would both draft"):
        chosen("auto", adapters="a")
    with pytest.raises(OptionError, match="the early exit and the low-bit copy would both draft"):
        chosen("substitute+early")
    with pytest.raises(OptionError, match=r"the early exit and a draft model would.*leave draft_model= out$"):
        chosen("auto", draft_model="m")
    assert chosen("ngram+early") == ("ngram", "early")
    assert chosen("cascade+substitute", adapters="a") == ("cascade", "substitute")


def test_files_for_two_that_exclude_each_other_are_refused_under_auto() -> None:
    with pytest.raises(OptionError) as refused:
        chosen("auto", adapters="a", draft_model="m")
    assert str(refused.value) == (
        "the cascade and a draft model would both draft; leave adapters= or draft_model= out, or say "
        "drafter=cascade+substitute when draft_model= names the low-bit copy"
    )


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


def find_large(search: Search, found: dict[str, Found]) -> Few:
    return Few(LARGE)


def find_pins(search: Search, found: dict[str, Found]) -> Few:
    return Few(PINS)


@pytest.mark.parametrize(("needs", "find"), [(LARGE, find_large), (PINS, find_pins)], ids=["large", "pins"])
def test_a_new_kind_is_a_row(
    model: Path, needs: Extras, find: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned for as it says, and left out by auto where it does not fit."""
    where = f"{__name__}:{find.__name__}"  # type: ignore[attr-defined]
    with_rows(monkeypatch, Kind("few", "the few", True, True, spare=True, find=where))
    members = chosen("auto")
    assert members == ("ngram", "substitute", "few")
    search = searching(model, members=members)
    drafters = find_drafters(search)
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
        asked_for = find_drafters(replace(search, drafter="few", members=("few",)))
        with pytest.raises(BudgetError, match="few"):
            planned(2 * 10**9, asked_for)


def test_a_copy_that_is_named_is_no_draft_model_too(packed: Path, model: Path) -> None:
    copy = packed / "substitute"
    auto = searching(model, members=("ngram", "model", "substitute"), given={"draft_model": copy})
    assert list(find_drafters(auto).found) == ["substitute"]
    with pytest.raises(OptionError, match=r"is a low-bit copy of .*, and no model beside it"):
        find_drafters(replace(auto, drafter="model+substitute"))
    both = searching(
        packed,
        members=("model", "substitute"),
        given={"draft_model": model},
        drafter="model+substitute",
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


@pytest.mark.parametrize("cause", ["damage", "handover"])
def test_a_drafter_without_files_is_left_when_models_are_gone(
    model: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Whoever made it: its row says that it needs none."""
    with_rows(monkeypatch, fake_drafter.FREE)
    reply = GenerationOptions(max_tokens=12, ignore_eos=True)
    fixed = Fixed(TreeBudget(4, 3, 1))
    drafting = {"drafter": "always+model", "draft_model": model}
    with edgespec.load(model, memory="2GB", context=200, **drafting) as engine:  # type: ignore[arg-type]
        plain = edgespec.generate(engine, prompt_of(20), reply).tokens
        session = engine.new_session(100, fixed)
        schedule = session.schedule
        assert isinstance(schedule, Serial)
        if cause == "damage":

            def damaged(*arguments: object) -> object:
                raise ModelError("not finite")

            monkeypatch.setattr(ModelDrafter, "prefill", damaged)
        else:
            schedule.give_back("pinned instead")
        said = list(session.generate(prompt_of(20), reply))
        assert [response.token for response in said] == plain
        tree = schedule.next_tree(5)
        assert tree.tokens.tolist() == [5]
        schedule.left = 5
        assert schedule.next_tree(5).tokens.tolist() == [5, *[fake_drafter.ALWAYS] * 3]


@dataclass(frozen=True)
class WithScript(EngineOptions):
    """One field more."""

    script: Annotated[str | None, Option("What it will say.", metavar="FILE", panel=DRAFTING)] = None


def test_a_new_drafter_with_an_option_is_a_file_a_row_and_a_field(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen, refused, found, planned for, opened; and it drafts."""
    prompt, reply = prompt_of(20), GenerationOptions(max_tokens=30, ignore_eos=True)
    wanted = partial(WithScript, memory=2 * 10**9, context=200)
    with Engine.load(model, wanted(drafter="none")) as engine:
        plain = edgespec.generate(engine, prompt, reply)
    script = tmp_path / "script.json"
    script.write_text(json.dumps([*prompt, *plain.tokens]))
    with_rows(monkeypatch, fake_drafter.ROW)

    options = wanted(script=script)
    flags, variables = {"memory": "2GB", "context": 200}, {"EDGESPEC_SCRIPT": str(script)}
    assert options == resolve(WithScript, flags, variables, tmp_path / "no.toml")
    assert choose_drafters(options) == ("ngram", "substitute", "script")
    assert "ngram+script" in drafter_names()
    assert "script+cascade" not in drafter_names()
    with pytest.raises(OptionError, match=r"drafter script needs a file of token ids; name it with script="):
        choose_drafters(wanted(drafter="script"))
    with pytest.raises(OptionError, match=r"ngram does not use the script .*; use drafter=script or auto"):
        choose_drafters(wanted(drafter="ngram", script=script))
    with pytest.raises(OptionError, match=r"the cascade and the script would both draft; leave adapters= or"):
        choose_drafters(wanted(adapters="a", script=script))
    for drafter in ("auto", "script"):
        with pytest.raises(OptionError, match="there is no such file"):
            Engine.load(model, wanted(drafter=drafter, script=tmp_path / "none"))

    for drafter, drafters in (("script", ("script",)), ("auto", ("ngram", "script"))):
        with Engine.load(model, wanted(drafter=drafter, script=script)) as engine:
            assert engine.drafters == drafters
            assert engine.plan.owners["script"] == script.stat().st_size
            (opened,) = engine.resident
            session = engine.new_session(100, Fixed(TreeBudget(4, 3, 1)))
            said = list(session.generate(prompt, reply))
            assert [response.token for response in said if response.token is not None] == plain.tokens
            assert sum(response.from_draft for response in said) > 20
        assert opened.closed  # type: ignore[attr-defined]


class Pair(Serial):
    """Drafts for another outcome, too."""

    asked = 0

    def _draft(self, root: int, budget: TreeBudget) -> TokenTree:
        drafting = self.drafter.start([Root((root,)), Root((root, 5))], budget)
        while drafting.step():
            pass
        self.asked += drafting.tree(1).tokens[0] == 5
        return drafting.tree()


def make_pair(drafter: Drafter, controller: Controller, options: EngineOptions, place: Place) -> Pair:
    return Pair(drafter, controller, options.tree_nodes)


def with_schedules(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    rows: Sequence[ScheduleKind] = [ScheduleKind(n, True, f"{__name__}:make_pair") for n in names]
    monkeypatch.setattr(schedules, "SCHEDULES", (*SCHEDULES, *rows))


def test_a_schedule_refuses_drafters_that_cannot_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        OptionError, match=r"schedule 'pair' is unknown; choose from auto, serial, ssd, mirror$"
    ):
        check_options(EngineOptions(schedule="pair"))
    with_schedules(monkeypatch, "pair")
    with pytest.raises(OptionError, match=r"schedule 'pears' is unknown; did you mean pair\?"):
        check_options(EngineOptions(schedule="pears"))
    with pytest.raises(
        OptionError, match=r"schedule 'x' is unknown; choose from auto, serial, ssd, mirror, pair$"
    ):
        check_options(EngineOptions(schedule="x"))
    for drafter in ("cascade", "auto", "ngram+cascade", "cascade+substitute"):
        with pytest.raises(OptionError) as refused:
            check_options(EngineOptions(schedule="ssd", drafter=drafter, adapters="a"))
        assert str(refused.value) == (
            "schedule ssd drafts behind several roots at once, and the cascade behind one, in the slots that "
            "the target's own pass writes; use a drafter that can (ngram, model, substitute, moa, eagle, "
            "streaming, spd, remote) or schedule=serial"
        )
    check_options(EngineOptions(schedule="ssd", drafter="ngram+model", draft_model="m"))
    check_options(EngineOptions(schedule="ssd", drafter="none"))
    check_schedule("serial", ["cascade"])


SET: dict[str, Any] = {
    "fan_out": "geometric",
    "fan_out_budget": 99,
    "fallback": "none",
    "exit_layer": 3,
    "kappa": 4,
}
USERS = {"exit_layer": "mirror", "kappa": "mirror", "fallback": "ssd or mirror"}


@pytest.mark.parametrize("schedule", ["auto", "serial", "ssd", "mirror"])
@pytest.mark.parametrize("name", SET)
def test_an_option_of_another_schedule_is_refused_by_name(name: str, schedule: str) -> None:
    """Unless `auto` may come to a schedule that asks for it; and what is given as by default is no matter."""
    users = USERS.get(name, "ssd")
    given = {"schedule": schedule, name: SET[name]}
    if name == "fan_out_budget" and schedule == "ssd":
        with pytest.raises(OptionError, match="fan_out_budget changes nothing with fan_out=best-first"):
            check_options(EngineOptions(**given))
        given["fan_out"] = "uniform"
    if schedule in ("auto", *users.split(" or ")):
        check_options(EngineOptions(**given))
        return
    with pytest.raises(OptionError) as refused:
        check_options(EngineOptions(**given))
    assert refused.value.option == name
    assert str(refused.value) == (
        f"{name} changes nothing under schedule {schedule}; use schedule={users}, or leave it out"
    )
    check_options(EngineOptions(**{**given, name: options_of(EngineOptions)[name].default}))


@pytest.mark.parametrize("schedule", ["auto", "ssd"])
@pytest.mark.parametrize("fan_out", ["uniform", "geometric", "measured"])
def test_fewer_outcomes_than_a_draft_may_have_are_refused(schedule: str, fan_out: str) -> None:
    """K + 1 of them, for the longest chain of K that a tree has room for: drafts are not cut short."""
    asked = EngineOptions(schedule=schedule, fan_out=fan_out, fan_out_budget=24, tree_nodes=25)
    with pytest.raises(OptionError) as refused:
        check_options(asked)
    assert refused.value.option == "fan_out_budget"
    assert str(refused.value) == (
        "fan_out_budget is 24, below the 25 outcomes that a chain of 24 drafted tokens has before its bonus "
        "token is guessed, and trees of 25 nodes (tree_nodes=) may be such a chain; use fan_out_budget=25 or "
        "more, or tree_nodes=24"
    )
    check_options(replace(asked, fan_out_budget=25))
    check_options(replace(asked, tree_nodes=24))
    check_options(EngineOptions(schedule=schedule, fan_out=fan_out))  # as both are by default


def test_an_acceptance_that_a_schedule_cannot_honour_is_refused() -> None:
    hot = GenerationOptions(temperature=1.0)
    ratio, sample = make_acceptance("ratio", hot), make_acceptance("sample", hot)
    mirror = EngineOptions(schedule="mirror", drafter="model", draft_model="m")
    with pytest.raises(OptionError) as refused:
        check_acceptance(ratio, mirror, ("model",))
    assert str(refused.value) == (
        "ratio acceptance needs drafts that are drawn at random, and schedule mirror prepares likely ones, "
        "that the target's early exit names; use schedule=serial or schedule=ssd, or acceptance=sample"
    )
    check_acceptance(ratio, mirror, ())  # plain decoding
    check_acceptance(sample, mirror, ("model",))
    for schedule in ("auto", "serial", "ssd"):
        check_acceptance(ratio, replace(mirror, schedule=schedule), ("model",))
    with pytest.raises(OptionError, match="are copied"):
        check_acceptance(ratio, replace(mirror, schedule="ssd"), ("ngram", "model"))


def test_every_option_of_a_schedule_is_of_the_engine() -> None:
    assert {name for row in SCHEDULES for name in row.options} == set(SET) <= set(options_of(EngineOptions))


def test_a_new_schedule_is_a_file_and_a_row(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen by name and made; the text is the same."""
    prompt, reply = prompt_of(20), GenerationOptions(max_tokens=30, ignore_eos=True)
    with_schedules(monkeypatch, "pair")
    said = []
    for schedule, kind in (("serial", Serial), ("pair", Pair)):
        load = partial(edgespec.load, model, memory="2GB", context=200, schedule=schedule)
        with load(drafter="ngram", tree_nodes=20) as engine:
            session = engine.new_session(100, Fixed(TreeBudget(8, 3, 1)))
            assert type(session.schedule) is kind
            assert session.schedule.nodes == 20
            said.append([response.token for response in session.generate(prompt, reply)])
        assert getattr(session.schedule, "asked", 1) > 0
        with load(drafter="none") as engine:
            assert type(engine.new_session().schedule) is Plain
    assert said[0] == said[1]
