"""A cascade's training end to end, on a tiny random target: features, loss, replies, resume, refusals."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edgespec.api import stream_generate
from edgespec.apps.main import run
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.core.passes import LocalVerifier
from edgespec.engine import Engine
from edgespec.errors import BudgetError, ModelError, OptionError
from edgespec.kernels.reference import rms_norm
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.adapter_files import describe_adapters
from edgespec.text.tokenizer import Tokenizer, load_tokenizer
from edgespec.training import run as runs
from edgespec.training.cascade import choose_depths, train_cascade
from edgespec.training.corpus import Sample
from edgespec.training.data import Samples, Shards
from edgespec.training.generate import Replies
from edgespec.training.log import LOG, read_log
from edgespec.training.options import CascadeOptions
from edgespec.training.plots import CURVES
from edgespec.training.target import FrozenTarget, open_beside, plan_beside
from edgespec.training.trainer import CHECKPOINT, Report
from tests.machine import GIVEN
from tests.models import make_tokenizer
from tests.tiny import open_tiny, write_checkpoint

CPU = torch.device("cpu")
LAYERS = 4
OPTIONS = CascadeOptions(steps=6, length=64, batch_tokens=256, rate=3e-3)
WORDS = [
    "the",
    "a",
    "fox",
    "dog",
    "sees",
    "hears",
    "old",
    "young",
    "and",
    "or",
    "river",
    "hill",
    "quick",
    "slow",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    changes: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "num_hidden_layers": LAYERS}
    write_checkpoint(path, vocab_size=320, **changes)
    make_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    draw = random.Random(0)
    path.write_text("".join(" ".join(draw.choices(WORDS, k=12)) + ".\n" for _ in range(60)))
    return path


def described(model: Path) -> tuple[ModelFiles, Tokenizer]:
    files = describe_model(model)
    return files, load_tokenizer(files, model)


def train(model: Path, text: Path, out: Path, options: CascadeOptions = OPTIONS, **more: Any) -> list[Report]:
    reports: list[Report] = []
    engine = more.pop("engine", EngineOptions())
    options = replace(options, **{name: more.pop(name) for name in ("held_out", "from_") if name in more})
    train_cascade(model, text, out, options, engine, report=reports.append, **more)
    return reports


# --- features ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_features_are_the_targets_own_states(model: Path, streamed: bool) -> None:
    head = LAYERS  # its chunks' layer; training needs it in memory
    target = open_tiny(model, (lambda c: c.layer == head) if streamed else (lambda c: True))
    frozen = FrozenTarget(target, [1, 3])
    samples = [Sample([1, 9, 30, 40, 50, 60, 70, 80, 90], ((2, 4), (5, 9))), Sample.behind([1, 200, 7])]
    features = frozen(samples)
    assert features.supervised.tolist() == [
        [False, True, True, False, True, True, True, True, False],
        [True, True] + [False] * 7,
    ]
    expected_final, logits = [], []
    for i, sample in enumerate(samples):
        n = len(sample.tokens)
        cache = target.new_cache(64)  # an ordinary one, with memory for each layer
        rows = Rows.append(cache, np.arange(-1, n - 1), prefill=True)
        states = {0: target.embed(sample.tokens)}
        for layer in range(LAYERS):
            states[layer + 1] = target.run(states[layer], rows, range(layer, layer + 1))
        for depth in (1, 3):
            assert torch.allclose(features.hidden[depth][i, :n], states[depth], atol=1e-5)
            assert not features.hidden[depth][i, n:].any()
        norm = target.weights.small["model.norm.weight"]
        counts = [place - 1 for start, stop in sample.spans for place in range(start, stop)]
        expected_final.append(rms_norm(states[LAYERS], norm, 1e-5)[counts])
        logits.append(target.logits(states[LAYERS])[counts])
    assert torch.allclose(features.final, torch.cat(expected_final), atol=1e-4)
    assert torch.allclose(frozen.head(features.final), torch.cat(logits), atol=1e-3)
    x = features.hidden[1].clone().requires_grad_()
    frozen.head(x[0]).sum().backward()
    assert x.grad is not None
    frozen.close()


def test_the_dial_decides_how_much_a_pass_holds(model: Path) -> None:
    files, _ = described(model)
    opened: list[int] = []

    def beside(dial: int) -> None:
        target, plan, rows = open_beside(
            files, EngineOptions(memory=dial), CPU, 4096, 64, lambda n: n * 10**5, lambda n: n
        )
        opened.append(rows)
        assert plan.dial == dial
        target.weights.close()

    with pytest.raises(BudgetError) as refused:
        beside(10**6)
    smallest = refused.value.smallest + 5 * 10**6  # the LM head has to be pinned, too
    beside(smallest)
    beside(smallest + 200 * 10**6)
    assert opened[0] < opened[1] <= 4096


def test_processes_share_what_is_free(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _ = described(model)

    def dial(memory: int | None) -> int:
        options = EngineOptions(memory=memory)
        return plan_beside(files, options, GIVEN, 64, 64, lambda n: n * 10**4)[0].dial

    alone = dial(None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert 0.15 * alone < dial(None) < 0.35 * alone
    assert dial(2 * 10**9) == 2 * 10**9


# --- replies ----------------------------------------------------------------------------------------------


def test_replies_of_many_sessions_are_those_of_one(model: Path) -> None:
    prompts = [(i, [1, 10 + 7 * i, 20 + i, 5][: 2 + i % 3]) for i in range(9)]
    target = open_tiny(model)
    found: dict[int, Sample] = {}
    verifier, options = LocalVerifier(target), GenerationOptions()
    replies = Replies(verifier, frozenset([2]), sessions=4, length=24, options=options)
    replies.run(prompts, found.__setitem__)
    target.weights.close()
    assert sorted(found) == list(range(9))
    with Engine.load(model, EngineOptions(drafter="none")) as engine:
        for index, prompt in prompts:
            limit = 24 - len(prompt)
            told = [r.token for r in stream_generate(engine, prompt, max_tokens=limit)]
            assert found[index] == Sample.behind(prompt + [t for t in told if t is not None], len(prompt))


def test_interrupted_replies_are_kept_and_not_made_again(model: Path, text: Path, tmp_path: Path) -> None:
    options = CascadeOptions(steps=1, length=32, batch_tokens=64, generate=7)
    count = 0

    def interrupt(report: Any) -> None:
        nonlocal count
        count += report.stage == "generate"
        if report.stage == "generate" and report.done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model, text, tmp_path, options, progress=interrupt)
    kept = Samples(Shards(tmp_path / "data"), 320)
    assert len(kept) >= 3
    seen: list[int] = []
    train(
        model,
        text,
        tmp_path,
        options,
        progress=lambda r: seen.append(r.done) if r.stage == "generate" else None,
    )
    assert seen[0] == len(kept) + 1
    whole = Samples(Shards(tmp_path / "data"), 320)
    assert len(whole) == 7
    places = [Shards(tmp_path / "data").column("prompts").tolist().index(i) for i in range(7)]
    ends = Shards(tmp_path / "data").column("lengths")
    assert [len(s.tokens) for s in map(whole.__getitem__, range(7))] == ends[places].tolist()
    assert sorted(Shards(tmp_path / "data").column("prompts").tolist()) == list(range(7))
    for sample in map(whole.__getitem__, range(7)):
        ((start, stop),) = sample.spans
        assert 1 < start < stop == len(sample.tokens) <= 32
        assert sample.tokens[0] == 1


# --- a run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["reduced", "full"])
def test_loss_falls_and_held_out_agreement_rises(model: Path, text: Path, tmp_path: Path, loss: str) -> None:
    options = CascadeOptions(
        steps=24, length=64, batch_tokens=256, rate=3e-3, loss=loss, verify_layers=(2, 3)
    )
    reports = train(model, text, tmp_path, options)
    steps = [r for r in reports if r.held_out is None]
    tests = [r.held_out for r in reports if r.held_out is not None]
    assert tests[0].keys() == {"draft-1", "verify-2", "verify-3"}
    for name in tests[0]:
        assert steps[-1].losses[name] < steps[0].losses[name]
        assert tests[-1][name]["agreement"] > tests[0][name]["agreement"]
        assert len(tests[-1][name]["positions"]) == 5
    # What was saved is what was measured last.
    files, _ = described(model)
    found = describe_adapters(tmp_path, files)
    assert [(a.role, a.depth) for a in found] == [("draft", 1), ("verify", 2), ("verify", 3)]
    assert found[0].training["held_out"] == tests[-1]["draft-1"]
    trained = load_file(tmp_path / "run" / CHECKPOINT)
    for entry in found:
        adapter = entry.open(files.config, torch.float32)
        for name, parameter in adapter.named_parameters():
            assert torch.equal(parameter, trained[f"model.adapters.{entry.role}-{entry.depth}.{name}"])


@pytest.mark.usefixtures("steady_threads")
def test_a_run_in_two_parts_equals_one_bit_for_bit(model: Path, text: Path, tmp_path: Path) -> None:
    train(model, text, tmp_path / "one")
    train(model, text, tmp_path / "two", stop_after=3)
    assert json.loads(read_log_text(tmp_path / "two").splitlines()[-1])["step"] == 3
    train(model, text, tmp_path / "two")
    a, b = (load_file(tmp_path / name / "run" / CHECKPOINT) for name in ("one", "two"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    losses = [
        [(x["step"], x["loss"]) for x in read_log(tmp_path / n / "run" / LOG) if "loss" in x]
        for n in ("one", "two")
    ]
    assert losses[0] == losses[1]


def test_a_resumed_run_takes_the_passes_that_it_began_with(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever memory is free now: passes of another size would round otherwise."""
    plain, asked = runs.open_beside, []

    def at_most(rows: int) -> Callable[..., Any]:
        def opened(files: Any, engine: Any, device: Any, count: int, least: int, *more: Any) -> Any:
            asked.append((count, least))
            return plain(files, engine, device, max(least, min(count, rows)), least, *more)

        return opened

    monkeypatch.setattr(runs, "open_beside", at_most(64))
    train(model, text, tmp_path / "one")
    train(model, text, tmp_path / "two", stop_after=3)
    monkeypatch.setattr(runs, "open_beside", at_most(256))
    train(model, text, tmp_path / "two")
    assert asked == [(256, 64), (256, 64), (64, 64)]
    a, b = (load_file(tmp_path / name / "run" / CHECKPOINT) for name in ("one", "two"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_workers_learn_what_one_learns(model: Path, text: Path, tmp_path: Path) -> None:
    """Two processes, each with its part of every step."""
    train(model, text, tmp_path / "one")
    options = ["--steps", "6", "--length", "64", "--batch-tokens", "256", "--rate", "3e-3"]
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line += ["-m", "edgespec.apps.start", "train", "cascade", str(model), "--data", str(text)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*line, "--out", str(tmp_path / "two"), *options, "--memory", "1GB"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    logs = [read_log(tmp_path / name / "run" / LOG) for name in ("one", "two")]
    losses = [np.array([list(x["loss"].values()) for x in log if x.get("loss")]) for log in logs]
    assert losses[0].shape == losses[1].shape == (6, 2)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def read_log_text(out: Path) -> str:
    return (out / "run" / LOG).read_text()


def test_a_streamed_target_trains_as_a_resident_one(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(model, text, tmp_path / "resident", stop_after=2)
    from edgespec.training import target as module

    plain = module.plan_model

    def plan_less(*args: Any, **more: Any) -> Any:
        """As on a dial with room for the head alone."""
        from dataclasses import replace

        plan = plain(*args, **more)
        head = frozenset(c.index for c in plan.table.chunks if c.layer == LAYERS)
        ring = 3 * max(c.read_bytes for c in plan.table.chunks)
        return replace(plan, pinned=head, ring_bytes=ring)

    monkeypatch.setattr(module, "plan_model", plan_less)
    train(model, text, tmp_path / "streamed", stop_after=2)
    a, b = (load_file(tmp_path / name / "run" / CHECKPOINT) for name in ("resident", "streamed"))
    assert all(torch.allclose(a[name], b[name], atol=1e-5) for name in a)


def test_other_held_out_text_can_be_named(model: Path, text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("Something else entirely, of seven words or so.\n" * 5)
    reports = train(model, text, tmp_path / "out", held_out=other, stop_after=1)
    assert reports[0].held_out is not None
    assert len(Samples(Shards(tmp_path / "out" / "held-out"), 320)) > 0
    with pytest.raises(OptionError, match="another text"):
        train(model, other, tmp_path / "out", held_out=other)
    with pytest.raises(OptionError, match=r"a run with held-out = .*, not None"):  # it had more to learn from
        train(model, text, tmp_path / "out")


def test_a_run_begins_with_earlier_adapters(model: Path, text: Path, tmp_path: Path) -> None:
    earlier = train(model, text, tmp_path / "earlier")
    moved = tmp_path / "moved"  # a later state of the target: other weights, another digest
    write_checkpoint(
        moved,
        vocab_size=320,
        bos_token_id=1,
        eos_token_id=2,
        num_hidden_layers=LAYERS,
        tie_word_embeddings=True,
    )
    make_tokenizer(moved)
    assert describe_model(moved).digest != describe_model(model).digest
    on = train(model, text, tmp_path / "on", from_=tmp_path / "earlier")
    assert on[0].held_out == earlier[-1].held_out
    assert earlier[0].held_out != earlier[-1].held_out
    train(moved, text, tmp_path / "other", from_=tmp_path / "earlier")
    with pytest.raises(OptionError, match="no verify-3 to begin with"):
        train(
            model, text, tmp_path / "deeper", replace(OPTIONS, verify_layers=(3,)), from_=tmp_path / "earlier"
        )
    with pytest.raises(OptionError, match="first = None"):
        train(model, text, tmp_path / "earlier", replace(OPTIONS, steps=8), from_=tmp_path / "on")
    with pytest.raises(ModelError, match=r"no adapter\.json"):
        train(model, text, tmp_path / "none", from_=tmp_path)


def test_bad_text_is_found_before_replies_are_made(model: Path, text: Path, tmp_path: Path) -> None:
    options = CascadeOptions(steps=1, length=32, batch_tokens=64, generate=3)
    stages: list[str] = []
    bad = tmp_path / "bad.txt"
    for content, told in ((b"Good so far. \xff\n", "not UTF-8"), (None, "neither a file")):
        if content is None:
            bad.unlink()
        else:
            bad.write_bytes(content)
        for data, held_out in ((text, bad), (bad, text)):
            with pytest.raises(OptionError, match=told):
                train(
                    model,
                    data,
                    tmp_path / "out",
                    options,
                    held_out=held_out,
                    progress=lambda report: stages.append(report.stage),
                )
    tight = EngineOptions(memory=GIVEN.baseline + 10**6)
    with pytest.raises(BudgetError):
        train(model, text, tmp_path / "out", options, engine=tight)
    assert "generate" not in stages


# --- refusals ---------------------------------------------------------------------------------------------


def test_depths_follow_the_paper_and_the_layers() -> None:
    plain = CascadeOptions()
    assert choose_depths(32, plain) == [("draft", 3), ("verify", 15)]
    assert choose_depths(10, plain) == [("draft", 1), ("verify", 5)]
    assert choose_depths(3, plain) == [("draft", 1), ("verify", 2)]
    assert choose_depths(32, CascadeOptions(verify_layers=(20, 9))) == [
        ("draft", 3),
        ("verify", 9),
        ("verify", 20),
    ]
    assert choose_depths(80, CascadeOptions(verify_layers=(2,))) == [("draft", 1), ("verify", 2)]


@pytest.mark.parametrize(
    ("draft", "verify", "match"),
    [
        (5, (5,), "must be fewer than verify layers"),
        (6, (5, 7), "must be fewer than verify layers"),
        (1, (10,), "must be fewer than the target's 10"),
        (0, (3,), "at least 1"),
        (None, (1,), "must be fewer than verify layers"),
        (9, (), "must be fewer than the target's 10"),
    ],
)
def test_depths_that_cannot_be_are_refused(draft: int | None, verify: tuple[int, ...], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        choose_depths(10, CascadeOptions(draft_layers=draft, verify_layers=verify))


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "other"},
        {"steps": 0},
        {"top_k": 0},
        {"rate": 2.0},
        {"length": 1},
        {"generate": -1},
        {"seed": 2**63},
        {"loss": "full", "top_k": 7},
        {"temperature": 0.8},
    ],
)
def test_options_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        CascadeOptions(**change)


def test_records_say_how_many_tokens_the_loss_took() -> None:
    assert (CascadeOptions().top_k, CascadeOptions(loss="full").top_k) == (20, None)


def test_text_that_is_too_little_can_be_added_to(model: Path, text: Path, tmp_path: Path) -> None:
    """With the same --out, and even other options: what a failed run made is in nobody's way."""
    little = tmp_path / "little.txt"
    little.write_text("the fox")
    for length in (64, 32):
        with pytest.raises(OptionError, match="too few to train on"):
            train(model, little, tmp_path / "out", replace(OPTIONS, length=length))
        assert not (tmp_path / "out" / "data").exists()
    little.write_text(text.read_text())
    reports = train(model, little, tmp_path / "out", replace(OPTIONS, steps=1))
    assert reports
    with pytest.raises(OptionError, match="made with another length"):
        train(model, text.parent, tmp_path / "out", replace(OPTIONS, steps=1, length=32))


def test_empty_data_is_refused_before_weights_are_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(OptionError, match=r"empty\.txt has no text"):
        train(model, tmp_path / "empty.txt", tmp_path / "out")
    assert not (tmp_path / "out" / "data").exists()
    (tmp_path / "empty.txt").write_bytes(b"Much better. Or not? \xff\n")
    with pytest.raises(OptionError, match="not UTF-8"):
        train(model, tmp_path / "empty.txt", tmp_path / "out")
    (tmp_path / "empty.txt").write_bytes(b"Much better now, and enough of it.\n" * 20)
    train(model, tmp_path / "empty.txt", tmp_path / "out", stop_after=1)  # the same --out, once mended
    (tmp_path / "short.txt").write_text("Hi.")
    with pytest.raises(OptionError, match="makes 1 sequence, too few"):
        train(model, tmp_path / "short.txt", tmp_path / "out2")


# --- the command ------------------------------------------------------------------------------------------


def command(model: Path, text: Path, out: Path, *more: str) -> int:
    base = ["train", "cascade", str(model), "--data", str(text), "--out", str(out)]
    return run([*base, "--steps", "2", "--length", "64", "--batch-tokens", "128", *more])


def test_the_command_trains_plots_and_resumes(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert command(model, text, tmp_path, "--verify-layers", "2,3") == 0
    out, err = capsys.readouterr()
    assert "2 steps" in out
    assert "tokens/s" in out
    assert "verify after layer 3" in err
    assert "held-out loss" in err
    assert (tmp_path / CURVES).read_bytes().startswith(b"\x89PNG")
    before = (tmp_path / "run" / CHECKPOINT).read_bytes()
    (tmp_path / CURVES).unlink()
    assert command(model, text, tmp_path, "--verify-layers", "2,3") == 0
    assert "is finished" in capsys.readouterr().err
    assert (tmp_path / CURVES).is_file()
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == before
    capsys.readouterr()
    assert command(model, text, tmp_path, "--verify-layers", "3") == 2
    assert "another --out" in capsys.readouterr().err


def test_without_matplotlib_the_command_says_so_and_succeeds(
    model: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    without_matplotlib: None,
) -> None:
    assert command(model, text, tmp_path) == 0
    assert "pip install 'edgespec[plot]'" in capsys.readouterr().err
    assert not (tmp_path / CURVES).exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--draft-layers", "2", "--verify-layers", "2"], "must be fewer than verify layers"),
        (["--verify-layers", "a,b"], "not a list of numbers"),
        (["--loss", "other"], "--loss 'other' is unknown; choose from reduced, full"),
        (["--memory", "1MB"], "smallest dial"),
        (["--memory", "many"], "--memory"),
    ],
)
def test_wrong_flags_end_the_command(
    model: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    assert command(model, text, tmp_path / "out", *flags) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "run").exists()
