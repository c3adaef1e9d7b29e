"""Training a MoA drafter on a tiny random target: masks, what it learns from, loss, resume, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import edgespec
from edgespec.apps.main import run
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.errors import OptionError
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.moa_sizes import choose_sizes
from edgespec.runtimes.torch.moa import Moa, token_states
from edgespec.training.bounded import ask, at_gap, bounded, local_share, supervised
from edgespec.training.corpus import Sample
from edgespec.training.held_out import Agreement
from edgespec.training.moa import MoaPupil, MoaRecipe, train_moa, training_bytes
from edgespec.training.options import MoaOptions
from edgespec.training.target import FrozenTarget
from edgespec.training.trainer import CHECKPOINT, Report
from tests.moa import random_moa
from tests.sessions import tokens_of
from tests.test_training_cascade import LAYERS, model, text
from tests.tiny import fill, open_tiny

__all__ = ["model", "text"]  # fixtures

OPTIONS = MoaOptions(steps=6, length=64, batch_tokens=256, rate=3e-3)
SAMPLES = [Sample(list(range(3, 60)), ((4, 20), (30, 57))), Sample(list(range(90, 130)), ((1, 40),))]


def train(model: Path, text: Path, out: Path, options: MoaOptions = OPTIONS, **more: Any) -> list[Report]:
    reports: list[Report] = []
    train_moa(model, text, out, options, EngineOptions(), report=reports.append, **more)
    return reports


# --- what may be seen -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stale", [0.0, 0.4, 1.0])
def test_memory_is_as_in_cycles(stale: float) -> None:
    gaps: list[int] = []
    chance = np.random.default_rng(0)
    for sample in SAMPLES * 50:
        until, place = bounded(sample, chance, stale), supervised(sample)
        assert len(until) == len(place) == sum(stop - start for start, stop in sample.spans)
        assert np.all(until <= place), "its own memory, which only the target could make"
        first = 0
        for start, stop in sample.spans:
            known = until[first : first + stop - start]
            assert known[0] == start - 1
            assert np.all(known[1:] >= start), "what was asked is remembered"
            assert np.all(np.diff(known) >= 0)
            first += stop - start
            gaps += (place[first - stop + start + 1 : first] - known[1:] + 1).tolist()
    assert min(gaps) == 1
    assert max(gaps) == (15 if not stale else max(gaps))
    assert max(gaps) <= 30
    late = np.mean(np.array(gaps) > 15)
    assert (late == 0) if not stale else (late > 0.1 * stale)
    if not stale:  # of cycles of 5 to 15 tokens, each as often
        counts = np.bincount(gaps, minlength=16)[1:]
        assert counts[:5].max() < 1.25 * counts[:5].min()  # the last cycle of a reply may be short
        assert np.all(np.diff(counts[4:]) < 0)


def test_the_same_chance_cuts_alike() -> None:
    one, two, other = (bounded(SAMPLES[0], np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_what_is_asked_is_in_order() -> None:
    asked = ask(SAMPLES, [at_gap(s, 3) for s in SAMPLES])
    assert asked.positions.shape == asked.there.shape == (2, 43)
    assert asked.there.sum(1).tolist() == [43, 39]
    assert asked.positions[0][asked.there[0]].tolist() == [*range(3, 19), *range(29, 56)]
    assert asked.until[0, :3].tolist() == [1, 2, 3]
    assert asked.until[1, :4].tolist() == [0, 0, 0, 1]


def test_local_ones_see_no_text_that_is_remembered() -> None:
    chance = np.random.default_rng(0)
    until = [bounded(s, chance) for s in SAMPLES]
    asked = ask(SAMPLES, until, [False, True])
    assert not asked.since[0].any()
    assert np.array_equal(asked.since[1], asked.until[1])
    assert np.all(asked.since <= asked.positions), "each sees itself"
    assert not ask(SAMPLES, until).since.any()
    assert [local_share(done) for done in (0.0, 0.25, 0.5, 0.75)] == [1.0, 0.5, 0.0, 0.0]


def test_each_draft_of_a_chain_has_an_agreement_of_its_own() -> None:
    """Chains of 3: the first draft is right at 0, 1, 3, the second at 1 and 4, the third at 2."""
    hits = np.array([[1, 1, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]], dtype=bool)
    agreement = Agreement(gamma=3)
    agreement.add([hits], 6.0)
    found = agreement.result()
    # From 0: all three; from 4: none. From 5: none.
    assert agreement.cycles == 3
    assert found["positions"] == [0.3333, 1.0, 1.0]
    assert found["agreement"] == 0.5
    plain = Agreement(gamma=3)
    plain.add([hits[0]], 6.0)
    same = Agreement(gamma=3)
    same.add([np.stack([hits[0]] * 3)], 6.0)
    assert plain.result() == same.result()


# --- what it learns from ----------------------------------------------------------------------------------


def test_it_learns_from_the_targets_own_keys_and_values(model: Path) -> None:
    target = open_tiny(model)
    frozen = FrozenTarget(target, [0])
    features = frozen(SAMPLES, layers=True)
    expected = []
    for sample in SAMPLES:
        cache = target.new_cache(64)
        fill(target, cache, sample.tokens)
        keys, values = (torch.stack(part) for part in zip(*map(cache.view, range(LAYERS)), strict=True))
        expected.append(token_states(keys, values))
    assert features.layers is not None
    assert torch.allclose(features.layers, torch.cat(expected), atol=1e-5)
    assert not features.layers.is_inference()
    assert torch.equal(features.hidden[0][1, :40], target.embed(SAMPLES[1].tokens))
    assert frozen(SAMPLES).layers is None
    frozen.close()


@pytest.mark.parametrize(
    ("masks", "local", "done"),
    [(True, False, 0.0), (False, True, 0.0), (True, True, 0.0), (True, True, 0.5)],
    ids=["masks", "no masks", "local", "no longer local"],
)
def test_the_loss_is_equation_2(model: Path, masks: bool, local: bool, done: float) -> None:
    """Over one sequence at a time, without padding or blocks."""
    files = describe_model(model)
    frozen = FrozenTarget(open_tiny(model), [0])
    moa = random_moa(files, choose_sizes(files.config))
    pupil = MoaPupil(frozen, moa, MoaRecipe(files, replace(OPTIONS, masks=masks, local_attention=local)))
    until: list[np.ndarray] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "edgespec.training.moa.ask", lambda s, known, own: until.extend(known) or ask(s, known, own)
        )
        found = pupil.loss(pupil.module, SAMPLES, done)
    kl = near = 0.0
    with torch.no_grad():
        for sample, known in zip(SAMPLES, until, strict=True):
            features = frozen([sample], layers=True)
            assert features.layers is not None
            memory = moa.summary(features.layers)[None]
            assert np.array_equal(known, at_gap(sample, 1)) != masks
            since = known * (masks and local and not done)
            out = moa(features.hidden[0], memory, supervised(sample)[None], known[None], since[None])[0]
            wanted, said = (frozen.head(x).double().log_softmax(-1) for x in (features.final, out))
            kl -= float((wanted.exp() * said).sum())
            difference = (out - features.final).abs().double()
            near += float(torch.where(difference < 1, difference**2 / 2, difference - 0.5).mean(-1).sum())
    assert found.count == 82
    assert found.sums["KL"].item() == pytest.approx(0.1 * kl, rel=1e-4)
    assert found.sums["L1"].item() == pytest.approx(near, rel=1e-4)
    torch.autograd.backward(list(found.sums.values()))
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in moa.parameters())
    frozen.close()


def test_its_memory_is_foreseen(model: Path) -> None:
    files = describe_model(model)
    sizes = choose_sizes(files.config)
    smaller, larger = (training_bytes(files, sizes, rows) for rows in (256, 4096))
    assert smaller < larger < 20 * smaller
    assert training_bytes(files, choose_sizes(files.config, mlp=(9, 9, 9)), 256) < smaller


# --- a run ------------------------------------------------------------------------------------------------


def test_loss_falls_and_what_is_saved_drafts(model: Path, text: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=30, stale=0.2, mlp=(32, 16, 64))
    reports = train(model, text, tmp_path / "moa", options)
    steps = [r for r in reports if r.held_out is None]
    first, last = ([r.held_out for r in reports if r.held_out is not None][i]["moa"] for i in (0, -1))
    for name in ("KL", "L1"):
        assert steps[-1].losses[name] < steps[0].losses[name]
    assert last["loss"] < first["loss"]
    assert last["agreement"] > first["agreement"]
    assert len(last["positions"]) == 5
    prompt, reply = list(range(20, 40)), GenerationOptions(max_tokens=12, ignore_eos=True)
    with edgespec.load(model, memory="2GB", drafter="none") as engine:
        plain = edgespec.generate(engine, prompt, reply).tokens
    with edgespec.load(model, memory="2GB", drafter="moa", adapters=tmp_path / "moa") as engine:
        (resident,) = engine.resident
        trained = load_file(tmp_path / "moa" / "run" / CHECKPOINT)
        for name, parameter in resident.module.named_parameters():
            assert torch.equal(parameter, trained[f"model.moa.{name}"])
        with engine.new_session(controller=Fixed(TreeBudget(8, 3, 3))) as session:
            assert tokens_of(list(session.generate(prompt, reply))) == plain


@pytest.mark.usefixtures("steady_threads")
def test_a_run_in_two_parts_equals_one_bit_for_bit(model: Path, text: Path, tmp_path: Path) -> None:
    train(model, text, tmp_path / "one")
    train(model, text, tmp_path / "two", stop_after=3)
    train(model, text, tmp_path / "two")
    a, b = (load_file(tmp_path / name / "run" / CHECKPOINT) for name in ("one", "two"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    for other in (
        {"masks": False},
        {"layer_attention": False},
        {"mlp": (8, 8, 8)},
        {"stale": 0.5},
        {"local_attention": False},
        {"target_layers": 1},
    ):
        with pytest.raises(OptionError, match=rf"holds a run with {next(iter(other))} = "):
            train(model, text, tmp_path / "two", replace(OPTIONS, **other))


def test_a_run_begins_with_what_another_learned(model: Path, text: Path, tmp_path: Path) -> None:
    (*_, end) = train(model, text, tmp_path / "first")
    (begin, *_) = train(model, text, tmp_path / "second", replace(OPTIONS, from_=tmp_path / "first"))
    assert begin.held_out is not None
    assert end.held_out is not None
    assert begin.held_out["moa"]["loss"] == pytest.approx(end.held_out["moa"]["loss"], rel=1e-3)
    with pytest.raises(OptionError, match=r"has kv_heads=2,2,2, mlp=.* train it on with the same"):
        train(model, text, tmp_path / "third", replace(OPTIONS, from_=tmp_path / "first", mlp=(8, 8, 8)))


def test_it_learns_through_the_last_layers(model: Path, text: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=20, target_layers=2, mlp=(32, 16, 64))
    reports = train(model, text, tmp_path / "moa", options)
    first, last = ([r.held_out for r in reports if r.held_out is not None][i] for i in (0, -1))
    assert first is not None
    assert last is not None
    assert last["moa"]["loss"] < first["moa"]["loss"]
    prompt, reply = list(range(20, 40)), GenerationOptions(max_tokens=12, ignore_eos=True)
    with edgespec.load(model, memory="2GB", drafter="none") as engine:
        plain = edgespec.generate(engine, prompt, reply).tokens
    with (
        edgespec.load(model, memory="2GB", drafter="moa", adapters=tmp_path / "moa") as engine,
        engine.new_session(controller=Fixed(TreeBudget(8, 3, 3))) as session,
    ):
        assert tokens_of(list(session.generate(prompt, reply))) == plain
    with pytest.raises(OptionError, match=r"drafts cannot go through 4 of the target's 4 layers"):
        train(model, text, tmp_path / "deep", replace(OPTIONS, target_layers=4))


def test_ablations_train(model: Path, text: Path, tmp_path: Path) -> None:
    without = replace(OPTIONS, steps=2, layer_attention=False, masks=False)
    train(model, text, tmp_path, without)
    with edgespec.load(model, memory="2GB", drafter="moa", adapters=tmp_path) as engine:
        (resident,) = engine.resident
        assert isinstance(resident.module, Moa)
        assert resident.module.over_layers is None
        assert edgespec.generate(engine, [5, 6, 7], max_tokens=4).tokens


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--mlp", "1,2"], "--mlp has 2 numbers; give three"),
        (["--kv-heads", "2,3,2"], "3 heads of keys cannot serve the 4 heads"),
        (["--stale", "0.5", "--no-masks"], "stale is of cycles, which there are none of without masks"),
        (["--stale", "2"], "stale is 2.0; it must be from 0 to 1"),
        (["--draft-layers", "1"], "No such option"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    line = ["train", "moa", str(model), "--data", str(text), "--out", str(tmp_path / "out"), *flags]
    assert run(line) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "out" / "run").exists()


def test_the_command_trains_and_tells(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["train", "moa", str(model), "--data", str(text), "--out", str(tmp_path / "out"), "--steps", "2"]
    assert run([*line, "--length", "64", "--batch-tokens", "256", "--memory", "2GB"]) == 0
    err = capsys.readouterr().err
    assert "drafter: " in err
    assert "moa: held-out loss" in err
