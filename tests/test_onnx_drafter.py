"""ONNX Runtime drafts for a target, in a process of its own: the text is the target's, whatever happens."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.drafters.beside import Beside
from edgespec.drafters.engines import ENGINES, with_engine
from edgespec.drafters.kinds import KINDS
from edgespec.drafters.model import DRAFT_ROWS, PASS_ROWS
from edgespec.drafters.onnx_model import find
from edgespec.drafters.resident import Search
from edgespec.engine import Engine
from edgespec.errors import (
    Call,
    CorruptFileError,
    DeviceError,
    EdgeSpecError,
    ModelError,
    OptionError,
    TokenizerError,
    UnsupportedModelError,
)
from edgespec.models.asked import check_options
from edgespec.models.exporting import export_model
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.formats.describe import describe_model
from edgespec.text.tokenizer import load_tokenizer
from edgespec.values import options_of
from tests.models import make_tokenizer
from tests.sessions import tokens_of
from tests.tiny import write_checkpoint

pytest.importorskip("onnxruntime")

PROMPT = [5, 9, 17, 3, 8, 44]
BUDGET = TreeBudget(12, 5, 5)
REPLIES = [
    GenerationOptions(max_tokens=40, ignore_eos=True),
    GenerationOptions(max_tokens=40, temperature=0.9, seed=3, ignore_eos=True),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target, and x, which says mostly the same; of the same tokens."""
    folder = tmp_path_factory.mktemp("models")
    for name, precision in (("target", "fp32"), ("draft", "int8")):
        write_checkpoint(folder / name, vocab_size=320)
        make_tokenizer(folder / name)
        export_model(str(folder / name), folder / ("x" if name == "draft" else "same"), precision=precision)
    return folder


def load(models: Path, draft: str = "x", **options: Any) -> Engine:
    asked = {"memory": "2GB", "context": 300, "drafter": "model", "draft_model": models / draft}
    return edgespec.load(models / "target", **{**asked, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def expected(models: Path) -> list[list[int]]:
    with edgespec.load(models / "target", memory="2GB", context=300, drafter="none") as engine:
        return [edgespec.generate(engine, PROMPT, options).tokens for options in REPLIES]


def workers(engine: Engine) -> Iterator[Beside]:
    return (resident for resident in engine.resident if isinstance(resident, Beside))


@pytest.mark.parametrize("schedule", ["serial", "ssd", "mirror"])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_text_is_the_targets(
    schedule: str, streamed: bool, models: Path, expected: list[list[int]]
) -> None:
    layers = {"resident_layers": 1} if streamed else {}
    with load(models, schedule=schedule, **layers) as engine:
        assert (engine.plan.bytes_per_pass > 0) == streamed
        (worker,) = workers(engine)
        assert worker.placement.startswith("ONNX Runtime runs ")
        assert f"drafts: {worker.placement}" in engine.plan.reasons
        assert engine.options.draft_engine == "onnx"
        assert engine.options.draft_worker == 1
        for options, tokens in zip(REPLIES, expected, strict=True):
            session = engine.new_session(controller=Fixed(BUDGET))
            responses = list(session.generate(PROMPT, options))
            session.close()
            assert tokens_of(responses) == tokens
            stats = responses[-1].stats
            assert stats.accepted > 0.4 * stats.reply_tokens, "it drafts"
            assert stats.undrafted is None or "LM head is read from flash" in stats.undrafted


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_it_is_killed_while_it_drafts(models: Path, expected: list[list[int]]) -> None:
    with load(models) as engine:
        (worker,) = workers(engine)
        process = worker.worker._process
        session = engine.new_session(controller=Fixed(BUDGET))
        responses = []
        for response in session.generate(PROMPT, REPLIES[0]):
            responses.append(response)
            if len(responses) == 9:
                os.kill(process.pid, signal.SIGKILL)
        assert tokens_of(responses) == expected[0]
        assert responses[-1].stats.undrafted == "the draft worker is lost: it was killed by signal 9"
        session.close()
    assert process.poll() is not None


def test_damaged_weights_are_told_by_the_worker(models: Path, tmp_path: Path) -> None:
    """In words that need no library: `edgespec` shows commands."""
    shutil.copytree(models / "x", tmp_path / "x")
    weights = tmp_path / "x" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(CorruptFileError, match=r"has checksum .* or export the model anew$"):
        load(models, draft_model=tmp_path / "x")


def test_its_memory_is_in_the_plan(models: Path) -> None:
    with load(models) as engine:
        (worker,) = workers(engine)
        planned = engine.plan.owners["drafter"] + engine.plan.owners["draft worker"]
        assert 0 < worker.outside < planned
        assert engine.peak_memory() > worker.outside


def test_static_shapes(models: Path, expected: list[list[int]], tmp_path: Path) -> None:
    """Larger passes go in several; a context that has no room is refused before weights are read."""
    export_model(str(models / "draft"), tmp_path / "x", rows=4, positions=400)
    with load(models, draft_model=tmp_path / "x") as engine:
        assert edgespec.generate(engine, PROMPT, REPLIES[0]).tokens == expected[0]
    words = "exported for 400 positions, of which 100 are for drafts; the context is 301: use context=300, or"
    with pytest.raises(OptionError, match=words):
        load(models, draft_model=tmp_path / "x", context=301)


def test_a_further_conversation_has_room_in_the_plan(models: Path, tmp_path: Path) -> None:
    """A cache of static shapes whatever its context, and its logits while it drafts."""
    files = describe_model(models / "target")
    tokenizer = load_tokenizer(files, files.path)
    made = {"any": {}, "static": {"rows": 8, "positions": 2000}}
    rows = {}
    for name, shapes in made.items():
        export_model(str(models / "target"), tmp_path / name, **shapes)
        search = Search("model", ("model",), files, tokenizer, {"draft_model": tmp_path / name}, worker=1)
        rows[name] = find(search, {}).further_rows(files.config)
    position, logits = files.config.kv_bytes(1, 4), 4 * PASS_ROWS * 320
    shared = position + files.config.kv_bytes(1, 2)
    assert rows["any"] * shared >= (DRAFT_ROWS - TREE_ROWS) * position + logits
    assert rows["static"] * shared >= 2000 * position + logits


def test_another_vocabulary(models: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m", vocab_size=300)
    make_tokenizer(tmp_path / "m", 300)
    export_model(str(tmp_path / "m"), tmp_path / "x")
    with pytest.raises(TokenizerError, match=r"x has another tokenizer: \d+ of the target's"):
        load(models, draft_model=tmp_path / "x")
    shutil.copytree(models / "x", tmp_path / "y")
    manifest = tmp_path / "y" / "exported.json"
    manifest.write_text(manifest.read_text().replace('"vocabulary": "', '"vocabulary": "00'))
    with pytest.raises(EdgeSpecError, match="manifest"):
        load(models, draft_model=tmp_path / "y")


def test_what_changed_since_it_was_found_is_refused_by_the_worker(models: Path, tmp_path: Path) -> None:
    """Whose error has its type here."""
    shutil.copytree(models / "x", tmp_path / "x")
    (tmp_path / "x" / "head.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match=r"head\.onnx is not what EdgeSpec writes for this model"):
        load(models, draft_model=tmp_path / "x")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"draft_engine": "onxn"}, r"draft_engine 'onxn' is unknown; did you mean onnx"),
    ({"draft_engine": "torch:cpu"}, r"draft_engine is torch:cpu, but only onnx has providers"),
    (
        {"draft_engine": "onnx", "draft_model": None, "drafter": "auto"},
        r"there is no draft model for it to run",
    ),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check_options(EngineOptions(**{"drafter": "model", "draft_model": "m", **options}))


def test_who_runs_what(models: Path) -> None:
    """A directory says its engine itself; another than that is refused, and so is a missing provider."""
    plain, exported = {"draft_model": models / "draft"}, {"draft_model": models / "x"}
    options = EngineOptions(drafter="model", draft_model="m")

    def settled(given: dict[str, Path], **changes: Any) -> tuple[str | None, int | None]:
        found = with_engine(EngineOptions(drafter="model", draft_model="m", **changes), given)
        return found.draft_engine, found.draft_worker

    assert with_engine(options, {}) == options
    assert settled(plain) == ("torch", None)
    assert settled(plain, draft_worker=2) == ("torch", 2)
    assert settled(exported) == ("onnx", 1)
    assert settled(exported, draft_worker=2, draft_engine="onnx:cpu") == ("onnx:cpu", 2)
    with pytest.raises(
        OptionError, match=r"draft_engine is onnx, but .*draft was not exported for it"
    ) as raised:
        settled(plain, draft_engine="onnx")
    made = {"model": str(models / "draft"), "out": "DIR"}
    assert raised.value.hint == Call("export_model", made)
    with pytest.raises(OptionError, match=r"draft_engine is torch, but .*x was exported for onnx; leave"):
        settled(exported, draft_engine="torch")
    with pytest.raises(DeviceError, match="no provider qnn here"):
        load(models, draft_engine="onnx:qnn")
    with pytest.raises(OptionError, match="provider 'npu' is unknown"):
        load(models, draft_engine="onnx:npu")
    with pytest.raises(OptionError, match="batch is 4, and onnx drafts in a process of its own, for one"):
        load(models, batch=4)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            "onnx:qnn",
            r"no provider qnn here, only cpu(.|\n)*pip install 'onnxruntime>=1\.24' 'onnxruntime-qnn>=2'",
        ),
        ("onnx:coreml", "(.|\n)*pip install 'onnxruntime>=1.22' on macOS"),
        ("onnx:npu", "provider 'npu' is unknown; choose cpu, coreml"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="others have more providers")
def test_what_cannot_run_here_is_told_before_torch_is_read(models: Path, engine: str, words: str) -> None:
    program = (
        "import sys, edgespec\n"
        "try: edgespec.load(sys.argv[1], draft_model=sys.argv[2], draft_engine=sys.argv[3])\n"
        "except edgespec.EdgeSpecError as error: print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, str(models / "target"), str(models / "x"), engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(words, done.stdout)


@pytest.mark.parametrize(
    ("manifest", "error", "words"),
    [
        ("{", CorruptFileError, "exported.json is not valid JSON"),
        ("[]", CorruptFileError, "exported.json holds a list"),
        ('{"format": 3, "engine": "tflite"}', UnsupportedModelError, "for 'tflite', an engine that this"),
        ('{"format": 3, "engine": "torch"}', UnsupportedModelError, "for 'torch', an engine that this"),
    ],
)
def test_an_export_for_nobody_is_refused_by_its_manifest(
    models: Path, tmp_path: Path, manifest: str, error: type[Exception], words: str
) -> None:
    """Nobody has named an engine, so nothing is said of draft_engine."""
    shutil.copytree(models / "x", tmp_path / "x")
    (tmp_path / "x" / "exported.json").write_text(manifest)
    with pytest.raises(error, match=words) as raised:
        load(models, draft_model=tmp_path / "x")
    assert "draft_engine" not in str(raised.value)


def test_the_help_names_all_engines() -> None:
    said = options_of(EngineOptions)["draft_engine"].option.help
    assert all(engine.name in said for engine in ENGINES)
    assert next(kind.find for kind in KINDS if kind.name == "model") == "edgespec.drafters.engines:find"
