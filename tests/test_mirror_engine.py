"""The mirror schedule on engines that stream: text, figures, and what the exit of a real model is worth."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgespec
from edgespec.apps.stats import stats_object
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.control.overlap import overlap_mass
from edgespec.core.batch import Part
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Trace
from edgespec.engine import Engine
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.models.asked import check_options
from edgespec.models.packing import pack_model
from edgespec.runtimes.base import EXIT_ROWS
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER, Layers
from edgespec.schedules.kinds import check_model, choose_schedule
from edgespec.schedules.mirror import Mirror
from tests.covering import covering
from tests.sessions import tokens_of
from tests.test_mirror import Known
from tests.test_session import packed_with_copy, prompt_of, write_model
from tests.test_ssd_engine import waiting
from tests.tiny import write_checkpoint

DEMO = Path(edgespec.__file__).parent / "demo_model"
COUNT = 24
GREEDY = GenerationOptions(max_tokens=COUNT, ignore_eos=True)
SAMPLED = GenerationOptions(max_tokens=COUNT, ignore_eos=True, temperature=0.9, top_p=0.95, seed=7)
BUDGET = TreeBudget(12, 4, 3)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_with_copy(tmp_path_factory.mktemp("mirror"), num_hidden_layers=4)


def load(path: Path, drafter: str, head: bool = True, **options: Any) -> Engine:
    """Its layers stream, but for the first, and its head is in memory, or not."""
    if "model" in drafter:
        options = {"draft_model": path.parent / "m", **options}
    settings = {"memory": "4GB", "context": 400, "resident_layers": 1, "schedule": "mirror", **options}
    engine = edgespec.load(path, drafter=drafter, **settings)
    if head:
        table = engine.plan.table
        engine.target.weights.pin([chunk.index for chunk in table.chunks if chunk.layer == table.layers])
    return engine


@pytest.mark.parametrize(
    ("drafter", "options"),
    covering(("ngram", "model", "ngram+substitute"), {"greedy": GREEDY, "sampled": SAMPLED}),
)
def test_the_exit_speaks_where_there_are_waits(
    packed: Path, monkeypatch: pytest.MonkeyPatch, drafter: str, options: GenerationOptions
) -> None:
    """To those who prepare outcomes. (Texts under all waits: `test_schedule_identity`.)"""
    prompt = prompt_of(70)
    with load(packed, "none") as engine:
        expected = edgespec.generate(engine, prompt, options).tokens
    with load(packed, drafter) as engine, waiting(monkeypatch, lambda: 6):
        with engine.new_session(200, Fixed(BUDGET)) as session:
            assert isinstance(session.schedule, Mirror)
            said = list(session.generate(prompt, options))
        assert tokens_of(said) == expected
        assert (said[-1].stats.early_exit.cycles > 5) == (drafter != "ngram")


def test_what_the_exit_keeps_is_in_the_ledger(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is the target's own head, with no file of its own."""
    for drafter, schedule in (("model", "ssd"), ("ngram", "mirror")):
        with load(packed, drafter, schedule=schedule) as engine:
            assert "early exit" not in engine.plan.owners
    kept, ask = list[int](), Mirror._ask

    def asking(self: Mirror) -> bool:
        worked, now = ask(self), self._passing
        kept.append(
            sum(part.nbytes for part in (now.logits, getattr(now.asking, "normed", None)) if part is not None)
        )
        return worked

    monkeypatch.setattr(Mirror, "_ask", asking)
    wide = TreeBudget(40, 6, 6)
    with (
        load(packed, "model") as engine,
        waiting(monkeypatch, lambda: 8),
        engine.new_session(200, Fixed(wide)) as session,
    ):
        list(session.generate(prompt_of(70), GREEDY))
        logits = EXIT_ROWS * engine.config.vocab_size * 4
        assert logits < max(kept) <= engine.plan.owners["early exit"]


def test_what_is_told_of_a_reply(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cycles: list[Cycle] = []
    with (
        load(packed, "model", kappa=3, exit_layer=3) as engine,
        waiting(monkeypatch, lambda: 8),
        engine.new_session(200, Known(BUDGET, 0.5), Trace(cycle=cycles.append)) as session,
    ):
        stats = list(session.generate(prompt_of(70), GREEDY))[-1].stats
    exited = [cycle.overlap.exited for cycle in cycles if cycle.overlap and cycle.overlap.exited]
    told = stats.early_exit
    assert (stats.schedule, told.layers, told.kappa, told.cycles) == ("mirror", 3, 3, len(exited))
    assert len(exited) == len(cycles)
    assert told.tokens == sum(e.tokens for e in exited) > 0
    assert told.found == sum(e.found for e in exited)
    assert told.overlap_mass == told.found / told.tokens
    laws = [e.law for e in exited if e.law is not None]
    assert told.timed == len(laws) == len(exited)
    assert told.law_seconds == pytest.approx(sum(law.predicted for law in laws))
    assert told.measured_seconds == pytest.approx(sum(law.took for law in laws))
    for law, cycle in zip(laws, cycles, strict=True):
        assert law.took >= cycle.draft_seconds + cycle.verify_seconds
        assert law.before + law.behind == pytest.approx(0.5), "as passes take by themselves, not this one"
        assert 0 < law.early + law.draft < cycle.verify_seconds
        assert law.late == cycle.draft_seconds
        hidden = max(law.behind, law.early + law.draft)  # whatever the machine is busy with
        assert law.predicted == pytest.approx(law.late + law.before + hidden + law.final)
        assert 0 < law.final < law.took - cycle.draft_seconds - cycle.verify_seconds + 1e-6
    terms = ("late", "before", "early", "behind", "draft", "final")
    assert told.terms == pytest.approx({name: sum(getattr(law, name) for law in laws) for name in terms})
    looked_up = stats.cache_hits + stats.cache_misses
    assert stats.fallback_frequency == stats.cache_misses / looked_up
    said = json.loads(json.dumps(stats_object(stats, {})))
    assert said["fallback_frequency"] == stats.fallback_frequency
    assert said["early_exit"]["overlap_mass"] == told.overlap_mass
    assert {"layers", "kappa", "cycles", "law_seconds", "measured_seconds"} < said["early_exit"].keys()
    assert said["early_exit"]["terms"] == told.terms


def test_drafts_drawn_at_random_are_refused_before_any_work(packed: Path) -> None:
    """They would be ssd's, without a word."""
    drawn = GenerationOptions(max_tokens=COUNT, temperature=0.9, acceptance="ratio")
    with load(packed, "model", head=False) as engine, engine.new_session(200) as session:
        with pytest.raises(OptionError, match=r"schedule mirror prepares likely ones, .*schedule=ssd"):
            session.generate(prompt_of(70), drawn)
        assert list(session.generate(prompt_of(9), GREEDY))[-1].finish_reason == "length"


def test_a_head_that_streams_says_nothing(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        load(packed, "model", head=False) as engine,
        waiting(monkeypatch, lambda: 8),
        engine.new_session(200, Fixed(BUDGET)) as session,
    ):
        stats = list(session.generate(prompt_of(70), GREEDY))[-1].stats
        assert stats.early_exit.cycles == 0
        assert stats.early_exit.overlap_mass is None
        assert "the LM head is read from flash" in str(stats.undrafted)
        assert stats.drafted_while_verifying > 0


def test_a_lower_dial_between_a_tree_and_its_pass(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the head away that the exit was to be multiplied by: it says no more, and drafts go on."""
    with (
        load(packed, "model") as engine,
        waiting(monkeypatch, lambda: 8),
        engine.new_session(200, Fixed(BUDGET)) as session,
    ):
        compute, passes = engine.verifier.compute, 0

        def lowered(parts: Sequence[Part]) -> Sequence[Part]:
            nonlocal passes
            passes += 1
            if passes == 5:
                assert isinstance(session.schedule, Mirror)
                assert session.schedule.exit.able
                engine.set_memory("3GB")
                assert not session.schedule.exit.able
            return compute(parts)

        monkeypatch.setattr(engine.verifier, "compute", lowered)
        stats = list(session.generate(prompt_of(70), GREEDY))[-1].stats
        assert session.schedule.drafter.resident  # type: ignore[attr-defined]
    assert 0 < stats.early_exit.cycles < 5
    assert "the LM head is read from flash" in str(stats.undrafted)


def test_a_cancelled_reply_does_not_cancel_the_next(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was drafting while the target verified does not go on in the waits of the next one's prompt."""
    for schedule in ("ssd", "mirror"):
        with (
            load(packed, "model", schedule=schedule) as engine,
            waiting(monkeypatch, lambda: 4),
            engine.new_session(200, Fixed(BUDGET)) as session,
        ):
            replying = session.generate(prompt_of(70), GREEDY)
            next(replying)
            next(replying)
            session.cancel()
            assert list(replying)[-1].finish_reason == "cancelled"
            said = list(session.generate(prompt_of(30, seed=4), GREEDY))
            assert said[-1].finish_reason == "length"


def test_options_that_this_model_cannot_have_are_refused_before_it_is_loaded(
    packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("edgespec.models.loading.load_model", lambda *_: pytest.fail("loaded"))
    load_it = {"schedule": "mirror", "drafter": "ngram", "memory": "2GB"}
    for options, words in (
        ({"exit_layer": 4}, r"exit_layer is 4, and the model has 4 layers: .* behind 1 to 3 .*exit_layer=2"),
        ({"exit_layer": 99}, r"exit_layer is 99, and the model has 4 layers"),
        ({"kappa": 161}, r"kappa is 161, and the model's vocabulary has 160 tokens"),
    ):
        for schedule in ("mirror", "auto"):
            with pytest.raises(OptionError, match=words):
                edgespec.load(packed, **load_it | {"schedule": schedule} | options)  # type: ignore[arg-type]
    write_model(tmp_path / "flat", num_hidden_layers=1)
    with pytest.raises(OptionError, match="the model has 1 layer, and an early exit lies between two"):
        edgespec.load(tmp_path / "flat", **load_it)  # type: ignore[arg-type]
    flat = describe_model(tmp_path / "flat").config
    check_model(EngineOptions(fallback="none"), flat)  # not mirror's alone
    check_model(EngineOptions(), replace(flat, vocab_size=4))
    with pytest.raises(OptionError, match="schedule mirror drafts behind several roots at once"):
        check_options(EngineOptions(schedule="mirror", drafter="cascade", adapters="a"))


def test_auto_is_not_mirror_by_name() -> None:
    """But ssd, whose exit is asked where that is measured to pay (`test_asking`)."""
    assert {choose_schedule("auto", ["model"], streams) for streams in (True, False)} == {"ssd", "serial"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model, and a draft model with its tokens that knows nothing."""
    folder = tmp_path_factory.mktemp("demo")
    write_checkpoint(folder / "m", vocab_size=1536, max_position_embeddings=2048)
    shutil.copy(DEMO / "tokenizer.json", folder / "m")
    pack_model(str(DEMO), folder / "packed")
    return folder / "packed"


def test_fallbacks_do_not_rise_with_kappa(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real model: Proposition 1. The drafter knows nothing, so what is prepared in time is what the exit
    names; a later exit names more of what comes, here."""
    found = list[float]()
    options = GenerationOptions(max_tokens=24, ignore_eos=True)
    for layers, kappa in ((5, 1), (5, 8), (5, 64), (9, 64)):
        with (
            load(demo, "model", exit_layer=layers, kappa=kappa) as engine,
            waiting(monkeypatch, lambda: 100),
            engine.new_session(200, Fixed(TreeBudget(4, 2, 1))) as session,
        ):
            stats = list(session.generate(engine.encode("What is EdgeSpec?"), options))[-1].stats
        assert stats.fallback_frequency is not None
        found.append(stats.fallback_frequency)
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


Asked = list[tuple[list[int], GenerationOptions, list[int]]]


@pytest.fixture(scope="module")
def asked(demo: Path) -> tuple[list[int], Asked]:
    """A prompt that is asked before each of the others, and cancelled; and these with their replies."""
    options = GenerationOptions(max_tokens=16, ignore_eos=True)
    hot = GenerationOptions(max_tokens=16, ignore_eos=True, temperature=0.8, seed=3)
    with load(demo, "none", schedule="auto") as engine:
        first = engine.encode("What is EdgeSpec?")
        longer = [*first, *edgespec.generate(engine, first, options).tokens, *first]
        prompts = [(first, options), (longer, hot), (first[:3], options), (longer, options)]
        other = [*longer[:9], longer[9] + 1]  # so many tokens of it are kept for a prompt, whatever was said
        with engine.new_session(200) as session:  # a prompt in other blocks may have other last bits
            found: Asked = []
            for prompt, o in prompts:
                next(session.generate(other, o))
                found.append((prompt, o, tokens_of(list(session.generate(prompt, o)))))
    return other, found


@pytest.mark.parametrize("waits", [0, 3, pytest.param(12, marks=pytest.mark.slow)])
def test_a_trained_adapter_is_the_exit_and_follows(
    demo: Path, asked: tuple[list[int], Asked], monkeypatch: pytest.MonkeyPatch, waits: int
) -> None:
    """Through replies that share beginnings, one that is cancelled, and passes in which nobody asks it."""
    other, wanted = asked
    turns = iter(range(10**9))
    with (
        load(demo, "model", adapters=DEMO / "cascade") as engine,
        waiting(monkeypatch, lambda: waits * (next(turns) // 50 % 3 > 0)),
        engine.new_session(200, Fixed(BUDGET)) as session,
    ):
        assert engine.plan.owners["early exit"] > 0
        exit = session.schedule.exit  # type: ignore[attr-defined]
        assert exit.layers == 5, "half of 10"
        spoke = 0
        for prompt, o, tokens in wanted:
            replying = session.generate(other, o)
            next(replying)
            next(replying)
            session.cancel()
            assert list(replying)[-1].finish_reason == "cancelled"
            said = list(session.generate(prompt, o))
            assert tokens_of(said) == tokens
            assert exit.able
            assert exit.follower.length == session.cache.length
            spoke += said[-1].stats.early_exit.cycles
        assert (spoke > 20) == (waits > 0)


def test_an_adapter_says_what_its_training_promised(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows more than the bare head behind the same layer; and in slots, what it says of a prompt."""
    masses = []
    for options in ({"exit_layer": 5}, {"adapters": DEMO / "cascade"}):
        with (
            load(demo, "model", kappa=1, **options) as engine,
            waiting(monkeypatch, lambda: 40),
            engine.new_session(200, Fixed(TreeBudget(4, 2, 1))) as session,
        ):
            wanted = GenerationOptions(max_tokens=24, ignore_eos=True)
            stats = list(session.generate(engine.encode("What is EdgeSpec?"), wanted))[-1].stats
        assert stats.early_exit.layers == 5
        assert stats.early_exit.overlap_mass is not None
        masses.append(stats.early_exit.overlap_mass)
    assert masses[1] >= 0.6 > masses[0]


def test_adapters_that_cannot_be_the_exit_are_refused(demo: Path) -> None:
    for options, words in (
        (
            {"exit_layer": 4},
            r"exit_layer is 4, and the adapters in .* lie behind 1, 2, .* layers; use exit_layer=",
        ),
        ({"exit_layer": 0}, r"exit_layer is 0, so the early exit would move"),
        ({"adapters": demo.parent}, "has no adapter.json"),
        ({"drafter": "ngram", "draft_model": None}, "tells drafters that prepare outcomes .* there is none"),
    ):
        with pytest.raises(EdgeSpecError, match=words):
            load(demo, **{"drafter": "model", "adapters": DEMO / "cascade", **options})  # type: ignore[arg-type]


class States:
    """Keeps what each layer of a pass produced; see `runtimes.target.PassObserver`."""

    hears: Layers = EVERY_LAYER

    def __init__(self) -> None:
        self.hidden: list[torch.Tensor] = []

    def on_chunk(self) -> None:
        pass

    def on_layer(self, index: int, hidden: torch.Tensor, rows: Rows) -> None:
        self.hidden.append(hidden)
        self.rows = rows

    def on_wait(self) -> bool:
        return False


def test_the_exit_is_the_targets_own_head_on_its_states_so_far(demo: Path) -> None:
    """Behind all layers it says what the target says, to the bit; behind fewer, the mass that the target has
    on what it names (Equation 9) grows with kappa, and there is more of it at last than at first."""
    with load(demo, "none", schedule="auto") as engine:
        target, tokens = engine.target, engine.encode("EdgeSpec runs models that are larger than memory.")
        seen, cache = States(), target.new_cache(64)
        rows = Rows.append(cache, np.arange(-1, len(tokens) - 1))
        hidden = target.run(target.embed(tokens), rows, range(target.config.layers), seen)
        final = target.logits(hidden).cpu().numpy()
        chances = torch.softmax(torch.from_numpy(final), 1).numpy().astype(np.float64)
        masses = []
        for layers in range(1, target.config.layers + 1):
            exit = target.early_exit(layers)
            assert exit.able
            exit.observe(seen.hidden[layers - 1], seen.rows)
            nodes = list(range(0, len(tokens), 2))
            saying = exit.begin(nodes)
            while not saying.advance():
                pass
            assert saying.logits.shape == (len(nodes), target.config.vocab_size)
            pairs = list(zip(saying.logits, chances[nodes], strict=True))
            kappas = (1, 2, 8, 64, target.config.vocab_size)
            mass = [np.mean([overlap_mass(early, late, kappa) for early, late in pairs]) for kappa in kappas]
            assert mass == sorted(mass)
            assert mass[-1] == pytest.approx(1)
            masses.append(mass[2])
        assert np.array_equal(saying.logits, final[nodes])
        assert masses[-1] == max(masses) > masses[0]


def test_a_head_that_is_partly_in_memory_is_of_no_use(demo: Path) -> None:
    with load(demo, "none", schedule="auto", head=False) as engine:
        exit, table = engine.target.early_exit(5), engine.plan.table
        head = [chunk.index for chunk in table.chunks if chunk.layer == table.layers]
        assert not exit.able
        for done, index in enumerate(head, 1):
            engine.target.weights.pin([index])
            assert exit.able == (done == len(head))
