"""Training of drafters that are one module, end to end on a tiny random target."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import edgespec
from edgespec.apps.main import run
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import ModelError, OptionError
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.eagle import EagleShape, eagle_shapes
from edgespec.runtimes.torch.spd import SpdShape
from edgespec.runtimes.torch.specformer import SpecFormerShape, specformer_shapes
from edgespec.runtimes.torch.streaming import StreamingShape, streaming_shapes
from edgespec.runtimes.torch.trained_files import describe_module
from edgespec.training.corpus import Sample
from edgespec.training.eagle import EaglePupil, EagleRecipe, train_eagle
from edgespec.training.held_out import Agreement
from edgespec.training.log import LOG, read_log
from edgespec.training.losses import BLOCK_BYTES, BLOCK_ROWS, name_tokens
from edgespec.training.options import (
    EagleOptions,
    SpdOptions,
    SpecFormerOptions,
    StreamingOptions,
    TrainingOptions,
)
from edgespec.training.spd import train_spd
from edgespec.training.specformer import SpecFormerRecipe, by_draft, next_tokens, train_specformer
from edgespec.training.streaming import StreamingPupil, StreamingRecipe, train_streaming
from edgespec.training.target import FrozenTarget
from edgespec.training.trainer import CHECKPOINT, Report
from tests.allocated import Allocated
from tests.test_training_cascade import model, text
from tests.tiny import open_tiny

__all__ = ["model", "text"]  # fixtures

SHORT: dict[str, Any] = {"steps": 6, "length": 64, "batch_tokens": 256, "rate": 3e-3}
KINDS: dict[str, tuple[Callable[..., None], type[TrainingOptions]]] = {
    "eagle": (train_eagle, EagleOptions),
    "specformer": (train_specformer, SpecFormerOptions),
    "streaming": (train_streaming, StreamingOptions),
    "spd": (train_spd, SpdOptions),
}

SHAPES = {
    "eagle": (EagleShape, eagle_shapes),
    "specformer": (SpecFormerShape, specformer_shapes),
    "streaming": (StreamingShape, streaming_shapes),
    "spd": (SpdShape, streaming_shapes),
}


def train(kind: str, model: Path, text: Path, out: Path, **changes: Any) -> list[Report]:
    reports: list[Report] = []
    function, options = KINDS[kind]
    more = {name: changes.pop(name) for name in ("stop_after",) if name in changes}
    function(model, text, out, options(**SHORT | changes), EngineOptions(), report=reports.append, **more)
    return reports


@pytest.mark.parametrize("kind", KINDS)
def test_loss_falls_and_what_was_saved_drafts(kind: str, model: Path, text: Path, tmp_path: Path) -> None:
    reports = train(kind, model, text, tmp_path, steps=24)
    steps = [r for r in reports if r.held_out is None]
    tests = [r.held_out for r in reports if r.held_out is not None]
    assert sum(steps[-1].losses.values()) < sum(steps[0].losses.values())
    assert tests[-1][kind]["loss"] < tests[0][kind]["loss"]
    assert tests[-1][kind]["agreement"] > tests[0][kind]["agreement"]
    files = describe_model(model)
    found = describe_module(tmp_path, kind, *SHAPES[kind], files)  # type: ignore[type-var]
    assert found.training["held_out"] == tests[-1][kind]
    trained = load_file(tmp_path / "run" / CHECKPOINT)
    for name, tensor in load_file(tmp_path / f"{kind}.safetensors").items():
        assert torch.equal(tensor, trained[f"model.{name}"])
    reply = GenerationOptions(max_tokens=30, ignore_eos=True)
    with edgespec.load(model, memory="2GB", context=200, drafter="none") as engine:
        expected = edgespec.generate(engine, "the fox sees", reply).tokens
    with edgespec.load(model, memory="2GB", context=200, adapters=tmp_path) as engine:
        assert engine.drafters == ("ngram", kind)
        assert edgespec.generate(engine, "the fox sees", reply).tokens == expected


@pytest.mark.usefixtures("steady_threads")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_two_parts_equals_one_bit_for_bit(
    kind: str, model: Path, text: Path, tmp_path: Path
) -> None:
    train(kind, model, text, tmp_path / "one")
    train(kind, model, text, tmp_path / "two", stop_after=3)
    train(kind, model, text, tmp_path / "two")
    a, b = (load_file(tmp_path / name / "run" / CHECKPOINT) for name in ("one", "two"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    logs = [[x["loss"] for x in read_log(tmp_path / n / "run" / LOG) if "loss" in x] for n in ("one", "two")]
    assert logs[0] == logs[1]


def test_a_run_begins_with_an_earlier_one_of_its_shape(model: Path, text: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        earlier = train(kind, model, text, tmp_path / kind)
        on = train(kind, model, text, tmp_path / f"{kind}-on", from_=tmp_path / kind, stop_after=1)
        assert on[0].held_out == earlier[-1].held_out
    with pytest.raises(OptionError, match=r"has SpecFormerShape\(length=8.*train anew"):
        train("specformer", model, text, tmp_path / "x", positions=3, from_=tmp_path / "specformer")
    with pytest.raises(ModelError, match="of drafter specformer, not eagle"):
        train("eagle", model, text, tmp_path / "y", from_=tmp_path / "specformer")
    with pytest.raises(OptionError, match="a run with causal = False, not True"):
        train("specformer", model, text, tmp_path / "specformer", causal=True, steps=8)
    for changes in ({"layers": 5}, {"layers": 2, "stream_layers": 3}):
        with pytest.raises(OptionError, match="layers is "):
            train("streaming", model, text, tmp_path / "v", **changes)
    for changes in ({"tracks": 3}, {"layers": 1}, {"stream_layers": 2}):
        with pytest.raises(OptionError, match=r"tracks is 3|stream_layers is "):
            train("spd", model, text, tmp_path / "w", **changes)
    with pytest.raises(OptionError, match=r"has SpdShape\(.*tracks=8\), not .*train anew"):
        train("spd", model, text, tmp_path / "u", tracks=2, from_=tmp_path / "spd")
    with pytest.raises(OptionError, match="causal is of the draft's attention"):
        SpecFormerOptions(causal=True, draft_attention=False)
    for hooks in ((0, 2, 3, 5), (0, 0, 1, 2), (0, 1, 2, 3, 4)):
        with pytest.raises(OptionError, match="hooks"):
            train("specformer", model, text, tmp_path / "z", hooks=hooks)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("eagle", {"mlp": 40}),
        ("eagle", {"mlp": 200}),  # than the target's, 172
        ("specformer", {"positional": False, "draft_attention": False, "hooks": (4,), "mlp": 40}),
        ("streaming", {"layers": 2, "streams": 0, "mlp": 40}),
        ("spd", {"layers": 3, "streams": 0, "mlp": 40, "tracks": 4, "stream_layers": 1}),
    ],
)
def test_other_shapes_train_and_draft(
    kind: str, changes: dict[str, Any], model: Path, text: Path, tmp_path: Path
) -> None:
    train(kind, model, text, tmp_path, **changes, steps=2)
    tensors = load_file(tmp_path / f"{kind}.safetensors")
    (width,) = {len(tensor) for name, tensor in tensors.items() if name.endswith("mlp.up_proj")}
    assert width == changes["mlp"]
    assert not {"position_proj", "draft.q_proj", "stream_proj"} & tensors.keys()
    with edgespec.load(model, memory="2GB", context=200, drafter=kind, adapters=tmp_path) as engine:
        assert edgespec.generate(engine, "the fox sees", GenerationOptions(max_tokens=4)).tokens


def test_eagle_learns_each_reply_token_but_the_first(model: Path) -> None:
    """Features of positions before the first token there are none."""
    target = open_tiny(model)
    frozen = FrozenTarget(target, [0, 4])
    recipe = EagleRecipe(describe_model(model), EagleOptions())
    pupil = recipe.begin(frozen, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert isinstance(pupil, EaglePupil)
    samples = [Sample([1, 9, 30, 40, 50, 60], ((1, 3), (4, 6))), Sample([1, 200, 7], ((2, 3),))]
    features = frozen(samples)
    drafted, wanted = pupil._drafted(pupil.module, samples, noise=False)
    assert len(drafted) == len(wanted) == len(features.final) - 1
    states = pupil.module.feature(features.hidden[4])
    assert torch.allclose(
        wanted, torch.stack([states[0, 1], states[0, 3], states[0, 4], states[1, 1]]), atol=1e-5
    )
    one = pupil.module(states[:1, :-1], features.hidden[0][:1, 1:])
    assert torch.allclose(drafted[:3], one[0, [0, 2, 3]], atol=1e-5)
    noisy = [pupil._drafted(pupil.module, samples, noise=True)[0] for _ in range(2)]
    assert torch.equal(*noisy)
    assert not torch.allclose(noisy[0], drafted)
    with torch.no_grad():
        found = pupil.evaluate(pupil.module, [samples])["eagle"]
    assert 0 <= found["agreement"] <= 1
    frozen.close()


def test_sequences_of_a_pass_come_in_any_order(model: Path) -> None:
    """Those that are as short as a tree's rows among the others."""
    frozen = FrozenTarget(open_tiny(model), [4])
    lengths = [60, 5, 40, 32, 33, 3]
    samples = [Sample([1, *range(3, 2 + n)], ((1, n),)) for n in lengths]
    together = frozen(samples)
    for index, sample in enumerate(samples):
        alone = frozen([sample]).hidden[4][0]
        assert torch.allclose(together.hidden[4][index, : len(alone)], alone, atol=1e-4)
    frozen.close()


def test_positions_have_the_tokens_behind_the_next(model: Path) -> None:
    samples = [Sample([1, 9, 30, 40, 50, 60], ((2, 4), (5, 6))), Sample([1, 200, 7, 8, 9], ((1, 5),))]
    assert next_tokens(samples, 3).tolist() == [
        [40, -1, -1],
        [-1, -1, -1],
        [-1, -1, -1],
        [7, 8, 9],
        [8, 9, -1],
        [9, -1, -1],
        [-1, -1, -1],
    ]


def heads_peak(length: int, rows: int = 3 * BLOCK_ROWS) -> tuple[int, Tensor, Tensor]:
    """The most logits that are there at once, the loss and the drafts' gradient."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(500, 16, generator=generator)
    drafts = torch.randn(rows, length, 16, generator=generator).requires_grad_()
    labels = torch.randint(0, 500, (rows, length), generator=generator)
    labels[::7, -1] = -1
    alive: list[weakref.ref[Tensor]] = []
    peak = 0

    def head(x: Tensor) -> Tensor:
        nonlocal peak
        logits = F.linear(x, matrix)
        alive.append(weakref.ref(logits))
        peak = max(peak, sum(kept.numel() for found in alive if (kept := found()) is not None))
        return logits

    total, _ = name_tokens(head, drafts, labels)
    total.backward()
    assert drafts.grad is not None
    whole = F.cross_entropy(
        F.linear(drafts, matrix).flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"
    )
    (slopes,) = torch.autograd.grad(whole, drafts)
    assert torch.allclose(drafts.grad, slopes, atol=1e-4)
    assert torch.allclose(total, whole, rtol=1e-5)
    return peak, total, drafts.grad


def test_each_stream_learns_what_comes_behind_the_next_token(model: Path) -> None:
    """Of the same reply: stream j at t, the target's own distribution at t + j."""
    frozen = FrozenTarget(open_tiny(model), [0])
    recipe = StreamingRecipe(describe_model(model), StreamingOptions(layers=2, streams=2))
    pupil = recipe.begin(frozen, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert isinstance(pupil, StreamingPupil)
    samples = [Sample([1, 9, 30, 40, 50, 60], ((1, 3), (4, 6))), Sample([1, 200, 7, 8, 9], ((2, 5),))]
    drafted, wanted = pupil._drafted(pupil.module, samples)
    features = frozen(samples)
    assert torch.equal(wanted, features.final)
    said = pupil.module(features.hidden[0])  # [b, 3, t, d]
    places = [(0, 0), (0, 1), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3)]  # supervised, by sequence
    behind = {"main": range(7), "stream-1": (1, 3, 5, 6), "stream-2": (6,)}
    assert drafted.keys() == behind.keys()
    for stream, (name, rows) in enumerate(behind.items()):
        assert drafted[name][0].tolist() == list(rows)
        own = torch.stack([said[places[row][0], stream, places[row][1] - stream] for row in rows])
        assert torch.equal(drafted[name][1], own)
    losses = pupil.loss(pupil.module, samples, 0.0).sums
    torch.autograd.backward(list(losses.values()))
    assert all(p.grad is not None and p.grad.any() for p in pupil.module.parameters())
    short = [Sample([1, 9, 30], ((2, 3),))]
    losses = pupil.loss(pupil.module, short, 0.0).sums
    assert losses["main"] > 0
    assert losses["stream-1"] == losses["stream-2"] == 0
    assert losses["stream-2"].requires_grad, "processes of one run all have it"
    with torch.no_grad():
        assert pupil.evaluate(pupil.module, [short])["streaming"]["streams"] == [0.0, 0.0]
    frozen.close()


def test_memory_at_the_head_does_not_grow_with_the_draft() -> None:
    """A block of rows of one position is all that has logits."""
    peaks = [heads_peak(length)[0] for length in (1, 2, 8)]
    assert peaks == [BLOCK_ROWS * 500] * 3


def test_logits_and_their_gradients_take_what_one_position_does(model: Path) -> None:
    """Of whole passes, forward and backward: 8 positions take what 1 does; at once, 8 times that."""
    files = describe_model(model)
    frozen = FrozenTarget(open_tiny(model), [0, 2, 3, 4])
    samples = [Sample(list(range(3, 63)), ((4, 60),))] * 8  # 448 positions: three blocks and a part

    def wide(tensor: Tensor) -> bool:
        return tensor.shape[-1:] == (files.config.vocab_size,) and tensor.is_floating_point()

    peaks, at_once = {}, {}
    for length in (1, 8):
        recipe = SpecFormerRecipe(files, SpecFormerOptions(positions=length))
        pupil = recipe.begin(frozen, torch.Generator().manual_seed(0), torch.device("cpu"))
        with Allocated(wide) as held:
            torch.autograd.backward(list(pupil.loss(pupil.module, samples, 0.0).sums.values()))
        peaks[length] = held.peak
        drafts, labels = pupil._drafts(pupil.module, samples)
        with Allocated(wide) as held:
            logits = frozen.head(drafts.flatten(0, 1))
            F.cross_entropy(logits, labels.flatten(), ignore_index=-1).backward()
        at_once[length] = held.peak
    frozen.close()
    block = BLOCK_ROWS * files.config.vocab_size
    assert 4 * block < peaks[1] <= BLOCK_BYTES * block, "what the ledger has for it"
    assert peaks[8] <= 1.1 * peaks[1]
    assert at_once[8] > 7 * at_once[1]


def test_drafts_are_counted_as_decoding_would_meet_them() -> None:
    found = Agreement(3)
    # The first draft has its first two right, then the fourth token is the next root: of its draft none is.
    text = np.array(
        [[1, 1, 0], [1, 1, 1], [0, 0, 0], [0, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], np.bool_
    )
    found.add([by_draft(text), by_draft(text[:1])], 4.0)
    result = found.result()
    assert found.cycles == 3  # positions 0, 3 and 4; behind it the text ends within the draft
    assert found.reached.tolist() == [2, 2, 1]
    assert result["positions"] == [0.6667, 1.0, 0.5]
    assert result["accepted"] == pytest.approx(1 + 2 / 3 + 2 / 3 + 1 / 3)
    assert (found.positions, found.agreed) == (7, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_trains_and_resumes(
    kind: str, model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    line = ["train", kind, str(model), "--data", str(text), "--out", str(out), "--length", "64"]
    line += ["--steps", "2", "--batch-tokens", "128"]
    assert run(line) == 0
    shown, told = capsys.readouterr()
    assert "2 steps" in shown
    assert "parameters: " in told
    assert "held-out loss" in told
    assert json.loads((out / "adapter.json").read_text())["kind"] == kind
    assert run(line) == 0
    assert "is finished" in capsys.readouterr().err
    assert run([*line[:3], "--out", str(out)]) == 2
    if kind == "specformer":
        assert run([*line, "--hooks", "0,1,2,9"]) == 2
        assert "--hooks" in capsys.readouterr().err
        assert run([*line, "--positions", "17"]) == 2


def test_the_models_own_replies_are_learned_from(model: Path, text: Path, tmp_path: Path) -> None:
    reports = train("specformer", model, text, tmp_path, generate=6, length=32, batch_tokens=64, steps=1)
    assert reports[-1].held_out is not None
    assert replace(SpecFormerOptions(), generate=6).generate == 6
