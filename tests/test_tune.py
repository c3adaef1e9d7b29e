"""Tuning: what is predicted from headers, which settings are recommended, and what is refused."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.config import EngineOptions
from edgespec.control.overlap import Drafted, speedup
from edgespec.devices.machine import Machine
from edgespec.devices.presets import PRESETS
from edgespec.drafters.kinds import choose_drafters, drafter_names
from edgespec.errors import BudgetError, CorruptFileError, ModelError, OptionError
from edgespec.models.packing import pack_model
from edgespec.offload.chunk_store import open_store
from edgespec.offload.plan.costs import CostModel
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.packed import SUBSTITUTE
from edgespec.tuning import predict as predicting
from edgespec.tuning import search as searching
from edgespec.tuning import tune as tuning
from edgespec.tuning.acceptance import MOST_NODES, PRIORS, expected_hits, tree_tokens
from edgespec.tuning.candidate import PLAIN
from edgespec.tuning.candidates import find_candidates
from edgespec.tuning.predict import Interval, Setting
from edgespec.tuning.profile import settings_of
from edgespec.tuning.subject import low_bit_bytes, open_subject
from edgespec.tuning.tune import tune_model
from edgespec.tuning.watch import Watch
from tests.machine import DISK, GB, MACHINE
from tests.models import make_checkpoint, write_gguf
from tests.test_hub import REPOS, FakeHub

pytestmark = pytest.mark.usefixtures("tuned_machine")

SEVEN = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
SEVENTY = SEVEN | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def config_only(path: Path, config: dict[str, Any]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def seven(tmp_path: Path) -> str:
    return config_only(tmp_path / "seven", SEVEN)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tune") / "m", dtype="bfloat16")


# What is known of a model.


def test_a_configuration_alone_says_what_a_checkpoint_would_hold(checkpoint: Path, tmp_path: Path) -> None:
    alone = config_only(tmp_path / "alone", json.loads((checkpoint / "config.json").read_text()))
    with open_subject(alone) as imagined, open_subject(str(checkpoint)) as real:
        assert imagined.files.config == replace(real.files.config, bos=imagined.files.config.bos)
        assert imagined.files.table.stored == real.files.table.stored
        small = [sum(t.nbytes for t in subject.files.table.small) for subject in (imagined, real)]
        assert small[0] == small[1]
        assert (imagined.here, real.here) == (False, True)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", ["int8", "int4", "bf16"])
def test_a_variant_is_what_packing_writes(tmp_path: Path, precision: str, tied: bool) -> None:
    path = make_checkpoint(tmp_path / "m", tied=tied)
    pack_model(str(path), tmp_path / "p", precision=precision)
    packed = open_store(tmp_path / "p").table
    with open_subject(str(path)) as subject:
        table = subject.variant(precision).files.table
    assert table.stored == packed.stored
    assert [(c.layer, c.nbytes, c.pieces) for c in table.chunks] == [
        (c.layer, c.nbytes, c.pieces) for c in packed.chunks
    ]
    assert table.embedding.nbytes == packed.embedding.nbytes
    assert table.precision == precision


def test_a_copy_that_would_be_has_the_bytes_of_one_that_is(checkpoint: Path, tmp_path: Path) -> None:
    from edgespec.runtimes.torch.substitute import LowBitCopy

    pack_model(str(checkpoint), tmp_path / "p", substitute="int4")
    target = describe_model(tmp_path / "p").table
    copy = LowBitCopy(describe_model(tmp_path / "p" / SUBSTITUTE).table, target)
    assert [low_bit_bytes(c, "int4") for c in target.chunks] == [copy.nbytes(c) for c in target.chunks]


def test_what_is_packed_is_not_packed_again_on_paper(checkpoint: Path, tmp_path: Path) -> None:
    pack_model(str(checkpoint), tmp_path / "p", precision="int8")
    with open_subject(str(tmp_path / "p")) as subject:
        assert subject.variant("int8") is subject
        with pytest.raises(OptionError, match="packed as int8"):
            subject.variant("int4")


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"architectures": ["Unknown"]}, "not supported"),
        (SEVEN | {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        (SEVEN | {"hidden_size": -1}, "hidden_size"),
        (SEVEN | {"rope_scaling": 7}, "wrong kind"),
    ],
)
def test_configurations_that_cannot_be_are_refused(
    tmp_path: Path, config: dict[str, Any], error: str
) -> None:
    with pytest.raises(ModelError, match=error):
        tune_model(config_only(tmp_path / "m", config))


def test_a_gguf_is_tuned_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    path = write_gguf(checkpoint, tmp_path / "m.gguf", "Q8_0")
    found = tune_model(str(path), memory=["1GB"])
    assert found.recommended.exact
    assert "Q8_0" in found.recommended.plan.table.stored


# Acceptance.


def test_a_chain_is_the_geometric_sum() -> None:
    for chance in (0.1, 0.5, 0.9):
        expected = sum(chance**i for i in range(9))
        assert tree_tokens(chance, 8, MOST_NODES, branches=False) == pytest.approx(expected)
        assert tree_tokens(chance, 3, 2) == pytest.approx(1 + chance)
        assert tree_tokens(chance, 0, 64) == 1


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.62, 0.95, 1.0])
def test_more_of_anything_never_gives_fewer_tokens(chance: float) -> None:
    for depth in (1, 2, 5, 32):
        by_nodes = [tree_tokens(chance, depth, nodes) for nodes in range(1, 70)]
        assert by_nodes == sorted(by_nodes)
        assert by_nodes[-1] <= depth + 1 + 1e-9
        assert by_nodes[-1] >= tree_tokens(chance, depth, 64, branches=False) - 1e-9
        assert tree_tokens(chance, depth + 1, 64) >= by_nodes[-1] - 1e-9
    assert tree_tokens(1.0, 32, 16) == pytest.approx(16)


def test_a_tree_takes_the_likeliest_nodes_there_are() -> None:
    """Against all trees of four nodes, of a drafter with the power law's chances."""
    p = 0.4
    rank = [p, 0.6 * (1 - 2**-0.58), 0.6 * (2**-0.58 - 3**-0.58)]
    shapes = [
        p + p * p + p**3,
        p + rank[1] + p * p,
        p + rank[1] + rank[1] * p,
        p + rank[1] + rank[2],
        p + p * p + p * rank[1],
    ]
    assert tree_tokens(p, 8, 4) == pytest.approx(1 + max(shapes))


def test_ten_guesses_hold_what_the_curve_was_drawn_through() -> None:
    assert tree_tokens(0.62, 1, 11) - 1 == pytest.approx(0.9, abs=0.01)
    assert [expected_hits(n) for n in (0, 1, 12)] == sorted(expected_hits(n) for n in (0, 1, 12))
    assert expected_hits(0) == 0
    assert all(0 < p.low < p.middle < p.high < 1 and p.source for p in PRIORS.values())


# Laws.


def tokens(depth: int, nodes: int) -> float:
    return tree_tokens(0.7, depth, nodes)


@pytest.mark.parametrize("step", [0.0, 0.01, 0.2, 5.0])
@pytest.mark.parametrize("io", [0.0, 0.4, 3.0])
def test_no_schedule_is_slower_than_drafting_in_time(io: float, step: float) -> None:
    costs = CostModel(io=io, compute=0.3, step=step, overhead=0.02, ahead=0.1)
    serial = predicting._rate("serial", costs, tokens, 32, 6)
    assert serial.tokens == tokens(6, 32)
    assert serial.seconds == pytest.approx(costs.cycle(6 if step else 0, 32))
    for schedule in ("ssd", "mirror"):
        assert predicting._rate(schedule, costs, tokens, 32, 6).speed >= serial.speed


def test_ssd_is_theorem_7_where_there_are_waits() -> None:
    costs = CostModel(io=3.0, compute=0.3, step=0.2)
    passes = int((3.0 - 0.3 * (1 + 31 / 32)) / 0.2)
    primary, fallback = Drafted(tokens(passes // 2, 32), 1.0), Drafted(tokens(6, 32), 0.2 * 6 / 3.0)
    law = predicting._ssd(costs, tokens, 32, 6)
    assert law.speed == pytest.approx(speedup(expected_hits(passes), primary, fallback) / 3.0)
    late = predicting._ssd(replace(costs, io=0.1), tokens, 32, 6)  # nothing waits: every outcome is missed
    assert late.tokens == pytest.approx(tokens(6, 32))


def test_plain_speed_is_the_plan_s(seven: str) -> None:
    found = tune_model(seven, EngineOptions(drafter="none"), ["4GB", "40GB"], preset="jetson-agx-orin")
    for row in found.rows:
        assert row.plain is not None
        assert row.plain is row.best
        assert row.plain.speed.middle == pytest.approx(row.plain.plan.predicted_tokens_per_second)
        assert row.plain.bytes_per_token == row.plain.plan.bytes_per_pass
    assert found.rows[0].plain is not None
    assert found.rows[0].plain.bound == "flash"


def test_intervals_hold_their_middle_and_never_promise_less_than_plain_decoding(seven: str) -> None:
    for row in tune_model(seven, memory=["2GB", "8GB"]).rows:
        plain = {s.precision: s.speed for s in row.settings if s.drafter == "none"}
        for s in row.settings:
            assert 0 < s.speed.low <= s.speed.middle <= s.speed.high < math.inf
            assert s.first_token.low < s.first_token.middle < s.first_token.high
            # A drafter may take memory from layers, but n-grams take none.
            if s.drafter == "ngram" and s.speed.middle > plain[s.precision].middle:
                assert s.speed.low >= 0.98 * plain[s.precision].low
    assert Interval.around(2.0, 0.0, 0.0) == Interval(2.0, 2.0, 2.0)


# The search.


def test_memory_is_what_loading_takes(checkpoint: Path) -> None:
    for layers in (None, 1):
        options = EngineOptions(memory=GB, drafter="none", context=128, resident_layers=layers)
        with edgespec.Engine.load(checkpoint, options, machine=MACHINE) as engine:
            found = tune_model(str(checkpoint), options)
            assert found.recommended.plan.owners == engine.plan.owners
            assert found.recommended.plan.pinned == engine.plan.pinned


@pytest.mark.parametrize("schedule", ["serial", "ssd"])
@pytest.mark.parametrize("drafter", ["substitute", "model", "ngram"])
def test_the_memory_of_drafters_is_what_loading_takes(
    checkpoint: Path, tmp_path: Path, drafter: str, schedule: str
) -> None:
    pack_model(str(checkpoint), tmp_path / "p", substitute="int4")
    draft = str(make_checkpoint(tmp_path / "d", dtype="bfloat16", num_hidden_layers=1))
    options = EngineOptions(
        memory=GB,
        drafter=drafter,
        draft_model=draft if drafter == "model" else None,
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


def test_more_memory_is_never_slower_and_the_front_rises(seven: str) -> None:
    found = tune_model(seven, memory=["2GB", "3GB", "4GB", "6GB", "8GB", "12GB", "16GB"])
    speeds = [row.plain.speed.middle for row in found.rows if row.plain]
    assert speeds == sorted(speeds)
    front = [(s.dial, s.speed.middle) for s in found.front]
    assert front == sorted(front)
    assert len({speed for _, speed in front}) == len(front)
    for s in (s for row in found.rows for s in row.settings if s.exact and not s.before):
        beaten = [f for f in found.front if f.dial <= s.dial and f.speed.middle >= s.speed.middle]
        assert beaten, "somebody of the front is as good"
    best = [row.best for row in found.rows if row.best]
    fastest = max(b.speed.middle for b in best)
    assert found.recommended.speed.middle >= 0.95 * fastest
    assert all(b.speed.middle < 0.95 * fastest for b in best if b.dial < found.recommended.dial)
    assert all(row.more is None or row.more > 0.99 for row in found.rows)
    assert found.rows[-1].more is None  # this machine has no more


def test_a_gigabyte_more_may_leave_a_drafter_nothing_to_do(
    seven: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a copy of what streams where nothing does: then it would give what the others do."""
    with tuning.open_tuner(seven, EngineOptions()) as tuner:
        settings = tuner.search.settings

        def idle(dial: int, like: Setting | None = None, lossy: bool = True) -> list[Setting]:
            return [] if like is not None else settings(dial, lossy=lossy)

        monkeypatch.setattr(tuner.search, "settings", idle)
        row, more = tuner.search.row(4 * GB), tuner.search.at(5 * GB, lossy=False)
    assert row.best is not None
    assert more.best is not None
    assert row.more == pytest.approx(more.best.speed.middle / row.best.speed.middle)


def test_what_is_not_the_model_s_own_output_is_never_recommended(seven: str) -> None:
    found = tune_model(seven, memory=["4GB"])
    assert any(
        not s.exact and s.speed.middle > found.recommended.speed.middle for s in found.rows[0].settings
    )
    assert found.recommended.exact
    assert not found.recommended.before
    assert all(s.exact for s in found.front)
    low = tune_model(seven, EngineOptions(precision="int4"), ["4GB"])
    assert low.recommended.precision == "int4"  # asked for
    assert low.recommended.speed.middle > found.recommended.speed.middle


def test_a_copy_that_packing_would_make_is_told_apart(seven: str) -> None:
    found = tune_model(seven, memory=["8GB"])
    assert found.later is not None
    assert found.later.exact
    assert [call.function for call in found.later.before] == ["pack_model"]
    assert found.later.plan.owners["substitute"] > 0
    assert found.later.speed.middle > found.recommended.speed.middle


def test_what_is_set_stays(seven: str) -> None:
    def all_of(**options: Any) -> list[Any]:
        rows = tune_model(seven, EngineOptions(**options), ["8GB"]).rows
        return [s for row in rows for s in row.settings if s.drafter != "none"]

    assert {s.drafter for s in all_of(drafter="ngram")} == {"ngram"}
    assert {s.schedule for s in all_of(schedule="serial")} == {"serial"}
    assert max(s.tree_nodes for s in all_of(tree_nodes=5)) == 5
    assert not all_of(drafter="none")
    assert {s.plan.context for s in all_of(context=700)} == {700}
    assert all(s.plan.streamed[0].layer == 3 for s in all_of(resident_layers=3))
    with pytest.raises(OptionError, match="needs"):
        all_of(drafter="cascade")
    with pytest.raises(OptionError, match="no low-bit copy"):
        all_of(drafter="substitute")
    with pytest.raises(OptionError, match="schedule 'now' is unknown"):
        all_of(schedule="now")
    with pytest.raises(OptionError, match="layers"):
        all_of(resident_layers=99)


def test_a_draft_model_is_known_by_its_headers_too(seven: str, tmp_path: Path) -> None:
    small = SEVEN | {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}
    draft = config_only(tmp_path / "small", small)
    found = tune_model(seven, EngineOptions(draft_model=draft), ["8GB"])
    with_it = [s for s in found.rows[0].settings if "model" in s.drafter]
    assert {s.schedule for s in with_it} == {"serial", "ssd", "mirror"}
    assert all(s.plan.owners["drafter"] > 0 and s.files == {"draft_model": draft} for s in with_it)
    assert found.recommended.drafter == "ngram+model"
    with pytest.raises(ModelError):
        tune_model(seven, EngineOptions(draft_model=str(tmp_path / "gone")), ["8GB"])


def test_a_named_copy_of_the_model_drafts(checkpoint: Path, tmp_path: Path) -> None:
    pack_model(str(checkpoint), tmp_path / "low", precision="int4")
    options = EngineOptions(draft_model=str(tmp_path / "low"), resident_layers=1)
    with open_subject(str(checkpoint)) as subject, ExitStack() as stack:
        found = find_candidates(subject, options, frozenset(), stack)
        assert [c.drafter for c in found] == ["none", "ngram", "ngram+substitute"]
        assert not found[-1].before
        assert found[0] is PLAIN


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
        candidate = find_cascade_candidate_of(demo, options)
        # One step reads what an open one says it reads, give or take what the verifier's adapter has.
        (cascade,) = engine.resident
        assert sum(candidate.reads(found.plan).values()) == pytest.approx(cascade.nbytes, rel=0.02)
        assert PRIORS["cascade"].source != candidate.prior(found.plan).source
    with pytest.raises(OptionError, match="cascade\\+substitute"):  # there is no copy
        tune_model(str(demo), replace(options, drafter="cascade+substitute"))
    with pytest.raises(ModelError):
        tune_model(str(demo), replace(options, adapters=str(demo)))


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
    legal = {name for name in drafter_names() if name != "auto" and "model" not in name.split("+")}
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


def find_cascade_candidate_of(demo: Path, options: EngineOptions) -> Any:
    with open_subject(str(demo)) as subject, ExitStack() as stack:
        return next(
            c for c in find_candidates(subject, options, frozenset(), stack) if c.drafter == "cascade"
        )


def test_dials_that_cannot_be(seven: str) -> None:
    with pytest.raises(OptionError, match=r"the dial is 20\.00 GB, but this machine has 16\.00 GB"):
        tune_model(seven, memory=["4GB", "20GB"])
    with pytest.raises(OptionError, match=r"but this machine has 8\.59 GB"):
        tune_model(seven, memory=["12GB"], preset="raspberry-pi-5")
    with pytest.raises(BudgetError, match="smallest dial"):
        tune_model(seven, memory=["500MB"])
    found = tune_model(seven, memory=["500MB", "4GB"])
    assert found.rows[0].refusal is not None
    assert "least that works" in found.rows[0].refusal
    assert found.recommended.dial == 4 * GB
    for wrong in (["big"], ["4"], ["-4GB"], ["1KB"], [math.nan], ["4GB"] * 100):
        with pytest.raises(OptionError, match="memory"):
            tune_model(seven, memory=wrong)
    with pytest.raises(OptionError, match="did you mean raspberry-pi-5"):
        tune_model(seven, preset="raspbery-pi5")


def test_usual_dials_end_where_the_whole_model_fits(seven: str, checkpoint: Path) -> None:
    rows = tune_model(seven).rows
    assert 2 <= len(rows) <= searching.SHOWN_DIALS
    assert rows[-1].dial <= MACHINE.baseline + MACHINE.available
    (row,) = tune_model(str(checkpoint)).rows
    assert row.plain is not None
    assert not row.plain.streams


@pytest.mark.parametrize("preset", [p.name for p in PRESETS])
def test_every_preset_can_be_tuned_for(seven: str, preset: str) -> None:
    found = tune_model(seven, preset=preset)
    assert found.recommended.speed.middle > 0
    assert found.reasons
    assert "data sheets" in found.notes[0]


def test_a_disk_that_nobody_knows_is_measured_once(seven: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Path] = []

    def measure(path: Path, fresh: bool = False, progress: Any = None) -> Any:
        measured.append(path)
        return type("Facts", (), {"best": DISK, "notes": ("lies in memory",)})

    monkeypatch.setattr(tuning, "measure_disk", measure)
    tune_model(seven, memory=["4GB"])
    assert not measured
    monkeypatch.setattr(Machine, "remembered", staticmethod(lambda weights: replace(MACHINE, disk=None)))
    found = tune_model(seven, memory=["4GB"])
    assert len(measured) == 1
    assert measured[0].is_dir()
    assert "lies in memory" in found.notes


def test_seventy_billion_weights_are_little_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, plans = config_only(tmp_path / "m", SEVENTY), list[int]()
    real = searching.plan_model

    def plan(files: Any, *rest: Any) -> Any:
        plans.append(len(files.table.chunks))
        return real(files, *rest)

    monkeypatch.setattr(searching, "plan_model", plan)
    found = tune_model(model, memory=["4GB", "8GB", "12GB"])
    assert found.nbytes > 130 * GB
    assert len(plans) <= 3 * 8
    assert sum(plans) < 100_000  # chunks looked at
    script = (
        "import sys; from edgespec.tuning.tune import tune_model; "
        f"tune_model({model!r}, memory=['4GB'], preset='laptop-32gb-nvme'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# The hub, by headers.


class Remote:
    """A file on a hub that is this directory's; counts what is read of it."""

    read_bytes = 0

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def read(self, count: int) -> bytes:
        data = self.file.read(count)
        Remote.read_bytes += len(data)
        return data

    def seek(self, place: int) -> None:
        self.file.seek(place)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub whose one model, org/m, is the directory that this returns."""
    import huggingface_hub

    root = tmp_path / "hub"

    class Api:
        def model_info(self, repo: str, **rest: Any) -> Any:
            files = [p for p in root.iterdir() if p.is_file()]
            listed = [type("File", (), {"rfilename": p.name, "size": p.stat().st_size}) for p in files]
            return type("Info", (), {"siblings": listed, "sha": "c0ffee"})

    class Files:
        def open(self, name: str, mode: str, block_size: int) -> Remote:
            return Remote(root / name.rpartition("/")[2])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", Files)
    Remote.read_bytes = 0
    return root


def enlarged(path: Path) -> None:
    """The weights become a hole: nobody could have read them."""
    with path.open("r+b") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        file.truncate(header)
        file.truncate(size)


def test_a_model_on_the_hub_is_known_by_its_headers(checkpoint: Path, hub: Path) -> None:
    make_checkpoint(hub, dtype="bfloat16")
    weights = hub / "model.safetensors"
    enlarged(weights)
    size = weights.stat().st_size
    with open_subject("org/m") as subject, open_subject(str(checkpoint)) as here:
        assert not subject.here
        assert subject.files.table.stored == here.files.table.stored
        assert subject.files.config == here.files.config
    assert Remote.read_bytes < size / 4
    found = tune_model("org/m", memory=["1GB"])
    assert found.model == "org/m"


def test_a_gguf_on_the_hub_is_known_by_its_header(
    checkpoint: Path, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.models import headers

    monkeypatch.setattr(headers, "BLOCK", 1000)  # so that the header comes in parts
    hub.mkdir()
    scaled = make_checkpoint(tmp_path / "scaled", "llama3", dtype="bfloat16")
    write_gguf(scaled, hub / "m.gguf", "Q8_0")
    with open_subject("org/m/m.gguf") as subject, open_subject(str(hub / "m.gguf")) as here:
        assert subject.files.config == here.files.config  # its rope frequencies among it
        assert subject.files.config.rope.factors
        assert subject.files.table.stored == here.files.table.stored
    assert Remote.read_bytes < (hub / "m.gguf").stat().st_size


@pytest.mark.parametrize("header", [2**62, 2**30, 10**6, 0])
def test_headers_on_the_hub_that_lie(hub: Path, header: int) -> None:
    make_checkpoint(hub, dtype="bfloat16")
    weights = hub / "model.safetensors"
    with weights.open("r+b") as file:
        file.write(header.to_bytes(8, "little"))
    with pytest.raises(CorruptFileError) as caught:
        tune_model("org/m", memory=["1GB"])
    assert "org/m" in str(caught.value)
    assert "edgespec-headers" not in str(caught.value)
    assert Remote.read_bytes < 2 * 10**6


def test_the_hub_s_own_library_asks_for_ranges(checkpoint: Path, tmp_path: Path) -> None:
    """Against a hub on 127.0.0.1, in a process of its own: the library reads its environment at import."""
    enlarge = make_checkpoint(tmp_path / "m", dtype="bfloat16", hidden_size=512, vocab_size=4000)
    write_gguf(enlarge, tmp_path / "m.gguf", "Q8_0")
    REPOS["org/m"] = {path.name: path.read_bytes() for path in enlarge.iterdir()}
    REPOS["org/g"] = {"m.gguf": (tmp_path / "m.gguf").read_bytes()}
    hub = FakeHub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    script = (
        "from edgespec.tuning.subject import open_subject\n"
        "for name in ('org/m', 'org/g/m.gguf'):\n"
        "    with open_subject(name) as subject:\n"
        "        print(subject.files.table.nbytes, subject.here)\n"
    )
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "0",
    }
    try:
        run = [sys.executable, "-c", script]
        done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    finally:
        hub.shutdown()
        hub.server_close()
        del REPOS["org/m"], REPOS["org/g"]
    sizes = [describe_model(path).table.nbytes for path in (enlarge, tmp_path / "m.gguf")]
    assert done.stdout.split() == [str(sizes[0]), "False", str(sizes[1]), "False"]
    ends = [int(asked.rpartition("-")[2]) for asked in hub.ranges]
    assert len(ends) == len(hub.fetched), "everything by ranges"
    assert max(ends) < sizes[0] / 2


def test_sizes_that_lie_are_refused(hub: Path) -> None:
    make_checkpoint(hub, dtype="bfloat16")
    weights = hub / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 10)
    with pytest.raises(CorruptFileError, match="truncated"):
        tune_model("org/m", memory=["1GB"])


def test_offline_nothing_is_fetched(hub: Path) -> None:
    with pytest.raises(ModelError, match="not in the cache"):
        tune_model("org/m", EngineOptions(offline=True))
    assert not Remote.read_bytes


def test_numbers_of_rows_are_numbers(seven: str) -> None:
    found = tune_model(seven, memory=["4GB"])
    figures = [s.cycle_seconds for row in found.rows for s in row.settings]
    assert np.isfinite(figures).all()
