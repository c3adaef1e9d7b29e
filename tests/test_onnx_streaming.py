"""Speculative streaming drafters exported for ONNX Runtime: the same as torch's; and what is not exported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import Context, TreeBudget
from edgespec.drafters.beside import Beside
from edgespec.drafters.client_model import ClientModel
from edgespec.drafters.onnx_model import open_onnx, streamed_rows
from edgespec.drafters.streaming.drafter import STREAM_ROWS, StreamingDrafter
from edgespec.errors import CorruptFileError, ModelError, OptionError
from edgespec.models.exporting import UNEXPORTED, export_model
from edgespec.runtimes.exported.draft import ExportedDraft
from edgespec.runtimes.exported.streams import ExportedStreams
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.onnx.directory import open_exported
from edgespec.runtimes.onnx.model import OnnxModel, model_bytes
from edgespec.runtimes.onnx.streams import OnnxStreams
from edgespec.runtimes.torch import streaming
from edgespec.runtimes.torch.streaming import Streaming, StreamingShape, streaming_shapes
from edgespec.runtimes.torch.streaming_draft import StreamingDraft
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import describe_module, save_module
from edgespec.runtimes.torch.weights import Weights
from edgespec.text.tokenizer import load_tokenizer
from tests.models import make_tokenizer, write_gguf
from tests.sessions import tokens_of
from tests.streamings import random_streaming, run, write_spd, write_streaming
from tests.tiny import write_checkpoint

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).resolve().parent.parent
PROMPT = [5, 9, 17, 3, 8, 44]
SHAPES = {
    "one layer before": StreamingShape(layers=2, streams=2, stream_layers=1),
    "none before": StreamingShape(layers=2, streams=3, stream_layers=2, mlp=40),
}
WAYS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in SHAPES]
WAYS += [("none before", {"rows": 4, "positions": 400}), ("one layer before", {"precision": "fp16"})]
WAYS += [("one layer before", {"precision": "int8", "rows": 64, "positions": 400})]


def tiny_target(path: Path, **changes: Any) -> Path:
    write_checkpoint(path, vocab_size=320, **changes)
    make_tokenizer(path)
    return path


def write_random(path: Path, shape: StreamingShape) -> Path:
    files = describe_model(path)
    module = random_streaming(Streaming(files.config, shape))
    save_module(path / "random", streaming.KIND, shape, module, files, {}, torch.float32)
    return path / "random"


def torchs(path: Path, trained: Path, context: int, rows: int, width: int) -> tuple[StreamingDraft, Weights]:
    files = describe_model(path)
    weights = Weights(files.table, 0, torch.float32)
    weights.pin(range(len(files.table.chunks)))
    found = describe_module(trained, streaming.KIND, StreamingShape, streaming_shapes, files)
    module = Streaming(files.config, found.shape, torch.float32)
    found.read(module)
    return StreamingDraft(module, TorchTarget(files.config, weights, 1), context, rows, width), weights


def ours(path: Path, context: int, rows: int, width: int) -> ExportedStreams:
    return ExportedStreams(OnnxStreams(open_exported(path)), context, rows, width)


@pytest.mark.parametrize(
    ("name", "how"), WAYS, ids=[f"{n}-{'-'.join(map(str, h.values()))}" for n, h in WAYS]
)
def test_it_says_what_torch_says(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    """Prompts, trees, what is kept below an outcome; streams of them all, and passes that have none."""
    path = tiny_target(tmp_path / "m", attention_bias=True)
    trained = write_random(path, SHAPES[name])
    export_model(str(path), tmp_path / "x", adapters=trained, **how)
    one, weights = torchs(path, trained, 300, 90, 24)
    other = ours(tmp_path / "x", 300, 90, 24)
    bound = {"fp32": 1e-4, "fp16": 0.1, "int8": 1.0}[how.get("precision", "fp32")]
    rng = np.random.default_rng(0)

    def same(tokens: list[int], parents: list[int]) -> None:
        expected, found = (run(runtime, tokens, parents) for runtime in (one, other))  # type: ignore[arg-type]
        assert expected.shape == found.shape == (len(tokens), 1 + SHAPES[name].streams, 320)
        assert np.abs(expected - found).max() < bound

    prompt = rng.integers(3, 320, 150).tolist()
    for runtime in (one, other):
        assert [*runtime.prefill(prompt)][-1] == 150
    same([7, 8, 9, 10, 11], [-1, 0, 0, -1, 3])
    same(rng.integers(3, 320, 20).tolist(), [int(rng.integers(-1, 5 + i)) for i in range(20)])
    for runtime in (one, other):
        runtime.commit([3, 4], [])
    same([5, 6, 7, 8], [-1, 0, 1, 1])
    for runtime in (one, other):
        runtime.commit([0], [1, 2, 3])
    same([9], [2])
    for runtime in (one, other):
        runtime.truncate(100)
    wide = rng.integers(3, 320, 30).tolist(), [-1] * 30
    said = []
    for runtime in (one, other):
        under_way = runtime.begin(*wide)
        while not under_way.advance():
            pass
        assert runtime.beyond.size == 0, "more than may have streams"
        said.append(under_way.logits)
        runtime.truncate(100)
        runtime.streams = 0
    assert np.abs(said[0] - said[1]).max() < bound
    under_way = other.begin([5], [-1])
    assert under_way.advance()
    assert other.beyond.size == 0, "they are silent"
    weights.close()


def test_greedy_drafts_are_torchs(tmp_path: Path) -> None:
    """At 2,100 positions, of all streams."""
    path = tiny_target(tmp_path / "m", max_position_embeddings=4096)
    trained = write_random(path, SHAPES["one layer before"])
    export_model(str(path), tmp_path / "x", adapters=str(trained))
    one, weights = torchs(path, trained, 2112, 64, 64)
    other = ours(tmp_path / "x", 2112, 64, 64)
    text = np.random.default_rng(1).integers(3, 320, 2112).tolist()
    checked = 0
    for start in range(0, 2112, 64):
        said = [run(r, text[start : start + 64], [*range(-1, 63)]).argmax(2) for r in (one, other)]  # type: ignore[arg-type]
        assert np.array_equal(*said)
        checked += len(said[0])
        for runtime in (one, other):
            runtime.commit(range(64), [])
    assert checked == 2112
    weights.close()


def test_a_gguf_target(tmp_path: Path) -> None:
    """Whose rotation has other pairs, in the drafter's layers, too."""
    made = {"hidden_size": 128, "intermediate_size": 256, "model_type": "llama", "vocab_size": 320}
    write_checkpoint(tmp_path / "m", **made)
    make_tokenizer(tmp_path / "m")
    raw = json.loads((tmp_path / "m" / "config.json").read_text())
    rope = {"rope_type": "default", "rope_theta": 500.0}
    (tmp_path / "m" / "config.json").write_text(json.dumps({**raw, "rope_parameters": rope}))
    path = tmp_path / "m.gguf"
    write_gguf(tmp_path / "m", path, "F16")
    files = describe_model(path)
    assert files.config.rope.interleaved
    shape = SHAPES["one layer before"]
    module = random_streaming(Streaming(files.config, shape))
    save_module(tmp_path / "s", streaming.KIND, shape, module, files, {}, torch.float32)
    export_model(str(path), tmp_path / "x", adapters=tmp_path / "s")
    assert (tmp_path / "x" / "tokenizer.json").is_file()
    one, weights = torchs(path, tmp_path / "s", 100, 20, 20)
    other = ours(tmp_path / "x", 100, 20, 20)
    for runtime in (one, other):
        list(runtime.prefill(PROMPT))
    expected, found = (run(runtime, [9, 8, 7], [-1, 0, 0]) for runtime in (one, other))  # type: ignore[arg-type]
    assert np.abs(expected - found).max() < 0.02
    weights.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m, a target; m/exits, a drafter for it; x, that exported."""
    folder = tmp_path_factory.mktemp("made")
    path = tiny_target(folder / "m")
    export_model(str(path), folder / "x", adapters=write_streaming(path, out=path / "exits"))
    return folder


@pytest.mark.parametrize("schedule", ["serial", "ssd", "mirror"])
def test_the_text_is_the_targets(schedule: str, made: Path) -> None:
    replies = [
        GenerationOptions(max_tokens=24, ignore_eos=True),
        GenerationOptions(max_tokens=24, temperature=0.9, seed=3, ignore_eos=True),
    ]
    options: dict[str, Any] = {"memory": "2GB", "context": 300}
    with edgespec.load(made / "m", drafter="none", **options) as engine:
        expected = [edgespec.generate(engine, PROMPT, reply).tokens for reply in replies]
    options |= {"drafter": "model", "draft_model": made / "x", "schedule": schedule, "resident_layers": 1}
    with edgespec.load(made / "m", **options) as engine:
        (worker,) = (resident for resident in engine.resident if isinstance(resident, Beside))
        assert worker.placement.startswith("ONNX Runtime runs ")
        for reply, tokens in zip(replies, expected, strict=True):
            with engine.new_session(controller=Fixed(TreeBudget(12, 5, 2))) as session:
                responses = list(session.generate(PROMPT, reply))
            assert tokens_of(responses) == tokens
            assert responses[-1].stats.drafted > 24, "it drafts"
        planned = engine.plan.owners["drafter"] + engine.plan.owners["draft worker"]
        assert 0 < worker.outside < planned


def test_streams_are_in_the_plan(made: Path) -> None:
    exported = open_exported(made / "x")
    assert streamed_rows(exported) == STREAM_ROWS * 3
    wide = model_bytes(exported, 300, 64, STREAM_ROWS * 3)
    assert wide - model_bytes(exported, 300, 64) > 4 * 320 * (STREAM_ROWS * 3 - 64)


def test_streams_are_silent_where_chains_are_drawn(made: Path) -> None:
    drafter = open_onnx(open_exported(made / "x"), "cpu", 1).drafter(300, 320)
    assert isinstance(drafter, StreamingDrafter)
    for drawn in (True, False):
        drafter.prefill(Context(PROMPT, drawn=drawn))
        assert (drafter.named == 0) == drawn


def test_a_client_drafts_with_it(made: Path) -> None:
    client = ClientModel(made / "x", EngineOptions(draft_model=str(made / "x")))
    client.open(load_tokenizer(describe_model(made / "m"), made / "m"))
    drafter = client.drafter(300, 320)
    assert isinstance(drafter, StreamingDrafter)
    assert drafter.runtime.capacity <= 300


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # whoever imports it fails
from edgespec.drafters.channel import Load
from edgespec.drafters.onnx_model import onnx_model
drafter = onnx_model(Load(sys.argv[1], 1, "cpu"), lambda nbytes: None).drafter(100, 320)
from edgespec.core.schedule import Context, TreeBudget
from edgespec.drafters.base import Root
drafter.prefill(Context(list(range(3, 40))))
drafting = drafter.start([Root((7,))], TreeBudget(12, 5, 2))
while drafting.step():
    pass
print(*drafting.tree().tokens)
"""


def test_it_drafts_without_torch(made: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(made / "x")]
    there = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert there.returncode == 0, there.stderr
    assert len(there.stdout.split()) > 2


def edited(directory: Path, out: Path, **changes: Any) -> Path:
    """A copy with another manifest."""
    out.mkdir()
    for file in directory.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    raw = json.loads((out / "exported.json").read_text())
    (out / "exported.json").write_text(json.dumps({**raw, **changes}))
    return out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lookahead": {"streams": 2, "layers": 9}}, "streams through 9 of 2 layers"),
        ({"lookahead": {"streams": 10**6, "layers": 1}}, "not a sound manifest"),
        ({"lookahead": {"streams": 1, "layers": 1}}, "does not hold the weights"),
        ({"lookahead": None}, "does not hold the weights"),
        ({"lookahead": {"streams": 2, "layers": 2}}, "is not what EdgeSpec writes"),
        ({"digest": "0" * 32}, "has checksum"),
        ({"trained": {"path": "/etc", "digest": "0"}}, "not a sound manifest"),
    ],
)
def test_manifests_from_strangers(changes: dict[str, Any], words: str, made: Path, tmp_path: Path) -> None:
    path = edited(made / "x", tmp_path / "x", **changes)
    with pytest.raises(CorruptFileError, match=words):
        OnnxStreams(open_exported(path))


def test_an_export_older_than_the_drafter(made: Path, tmp_path: Path) -> None:
    path = tiny_target(tmp_path / "m")
    trained = write_random(path, SHAPES["one layer before"])
    export_model(str(path), tmp_path / "x", adapters=trained)
    open_exported(tmp_path / "x")
    write_streaming(path, out=trained)
    with pytest.raises(ModelError, match="m/random, which has changed since") as raised:
        open_exported(tmp_path / "x")
    assert raised.value.hint is not None
    assert raised.value.hint.arguments["adapters"] == str(trained)


def test_one_without_streams_is_an_ordinary_model(tmp_path: Path) -> None:
    path = tiny_target(tmp_path / "m")
    trained = write_random(path, StreamingShape(layers=1, streams=0, stream_layers=1))
    export_model(str(path), tmp_path / "x", adapters=trained)
    exported = open_exported(tmp_path / "x")
    assert sorted(f.name for f in (tmp_path / "x").glob("*.onnx")) == ["head.onnx", "layers.onnx"]
    one, weights = torchs(path, trained, 100, 20, 20)
    other = ExportedDraft(OnnxModel(exported), 100, 20)
    for runtime in (one, other):
        list(runtime.prefill(PROMPT))
    said = []
    for runtime in (one, other):
        under_way = runtime.begin([9, 8, 7], [-1, 0, 0])
        while not under_way.advance():
            pass
        said.append(under_way.logits)
    assert np.abs(said[0] - said[1]).max() < 1e-4
    weights.close()


def test_what_is_not_exported(tmp_path: Path) -> None:
    """The reason is named; other kinds' manifests are not looked at."""
    path = tiny_target(tmp_path / "m")
    out = tmp_path / "x"
    with pytest.raises(OptionError, match="layers are tracks"):
        export_model(str(path), out, adapters=write_spd(path))
    for kind, reason in UNEXPORTED.items():
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "adapter.json").write_text(json.dumps({"format": 1, "kind": kind}))
        with pytest.raises(OptionError) as raised:
            export_model(str(path), out, adapters=tmp_path / kind)
        assert reason in raised.value.message
    with pytest.raises(ModelError, match="does not exist"):
        export_model(str(path), out, adapters=tmp_path / "none")
    with pytest.raises(OptionError, match="exported for onnx only"):
        export_model(str(path), out, adapters=tmp_path / "spd", engine="coreml")
    other = tiny_target(tmp_path / "other", seed=1)
    with pytest.raises(ModelError, match="were trained for 'other'"):
        export_model(str(path), out, adapters=write_streaming(other))
    assert not out.exists()


def test_the_trained_kinds_are_all_known() -> None:
    """Each is exported, or it is said why not."""
    from edgespec.drafters.kind import TRAINED
    from edgespec.drafters.kinds import KINDS

    assert {kind.name for kind in KINDS if kind.option == TRAINED} == {*UNEXPORTED, "streaming"}
