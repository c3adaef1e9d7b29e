"""A client that drafts with a small model on ONNX Runtime, without torch: the text is the server's."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.apps import main
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.engine import Engine
from edgespec.errors import (
    CorruptFileError,
    DeviceError,
    MissingExtraError,
    ModelError,
    OptionError,
    TokenizerError,
    UnsupportedModelError,
)
from edgespec.models.exporting import export_model
from edgespec.response import Response, whole
from edgespec.runtimes.onnx.directory import FORMAT
from edgespec.runtimes.onnx.model import OnnxModel
from edgespec.split.client import RemoteEngine
from edgespec.split.options import ConnectOptions
from tests.bare_site import bare_environ, bare_site, in_site
from tests.models import make_tokenizer
from tests.sessions import in_threads, long_passes
from tests.split_ends import Running, Wires, listening
from tests.test_split_websocket import BARRED
from tests.tiny import write_checkpoint

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).resolve().parent.parent
PROMPT = [5, 9, 17, 3, 8, 44]
BUDGET = TreeBudget(12, 5, 5)
GREEDY = GenerationOptions(max_tokens=40, ignore_eos=True)
HOT = GenerationOptions(max_tokens=40, temperature=0.9, seed=3, ignore_eos=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target, same, which says the same, x, which mostly does, and other, of other tokens."""
    folder = tmp_path_factory.mktemp("models")
    for name, vocabulary, out in (("target", 320, "x"), ("small", 300, "other")):
        write_checkpoint(folder / name, vocab_size=vocabulary)
        make_tokenizer(folder / name, vocabulary)
        export_model(str(folder / name), folder / out, precision="int8")
    export_model(str(folder / "target"), folder / "same", precision="fp32")
    return folder


@pytest.fixture(scope="module")
def engine(models: Path) -> Iterator[Engine]:
    with edgespec.load(models / "target", memory="2GB", context=512, drafter="none") as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: Engine) -> dict[float, list[int]]:
    return {told.temperature: edgespec.generate(engine, PROMPT, told).tokens for told in (GREEDY, HOT)}


@pytest.fixture
def wires(engine: Engine) -> Iterator[Wires]:
    with Running(engine) as running:
        yield Wires(running.host)


@pytest.fixture
def url(engine: Engine) -> Iterator[str]:
    with Running(engine) as running, listening(running.host) as url:
        yield url


def remote(wires: Wires, model: Path, asked: ConnectOptions | None = None, **options: Any) -> RemoteEngine:
    told = EngineOptions(**{"drafter": "model", "draft_model": str(model), **options})
    return RemoteEngine(wires, "the server", asked or ConnectOptions(wait=20.0), told)


@pytest.mark.parametrize("told", [GREEDY, HOT], ids=["greedy", "sample"])
@pytest.mark.parametrize("schedule", ["serial", "ssd"])
@pytest.mark.parametrize("drafter", ["model", "ngram+model"])
def test_the_text_is_the_servers(
    wires: Wires,
    models: Path,
    expected: dict[float, list[int]],
    drafter: str,
    schedule: str,
    told: GenerationOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long_passes(monkeypatch)
    with (
        remote(wires, models / "x", drafter=drafter, schedule=schedule) as far,
        far.new_session(200, Fixed(BUDGET)) as session,
    ):
        reply = whole(session.generate(PROMPT, told))
    assert reply.tokens == expected[told.temperature]
    assert reply.verified
    assert reply.stats.accepted >= 15, "it drafts, and mostly what the target says"
    assert reply.stats.undrafted is None
    assert (reply.stats.drafted_while_verifying > 100) == (schedule == "ssd"), "while a round is under way"


def test_auto_drafts_with_whatever_there_is(
    wires: Wires, models: Path, expected: dict[float, list[int]]
) -> None:
    with remote(wires, models / "x", drafter="auto") as far:
        assert (far.drafters, far.schedule) == (("ngram", "model"), "ssd")
        assert edgespec.generate(far, PROMPT, GREEDY).tokens == expected[0]


def test_conversations_share_the_model(wires: Wires, models: Path, engine: Engine) -> None:
    prompts = [[*PROMPT, last] for last in (11, 12, 13)]
    alone = [edgespec.generate(engine, prompt, GREEDY).tokens for prompt in prompts]

    def reply_in(far: RemoteEngine, prompt: list[int]) -> Response:
        with far.new_session(100, Fixed(BUDGET)) as session:
            return whole(session.generate(prompt, GREEDY))

    with remote(wires, models / "x") as far:
        replies = in_threads([partial(reply_in, far, prompt) for prompt in prompts])
    for reply, tokens in zip(replies, alone, strict=True):
        assert reply.tokens == tokens
        assert reply.stats.accepted >= 10


def test_threads_and_provider_are_as_asked(
    wires: Wires, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    class Opened(OnnxModel):
        def __init__(self, exported: Any, provider: str, threads: int) -> None:
            super().__init__(exported, provider, threads)
            told = self._graphs["layers"][0][1]._session.get_session_options()
            opened.append((provider, threads, told.intra_op_num_threads))

    monkeypatch.setattr("edgespec.drafters.onnx_model.OnnxModel", Opened)
    monkeypatch.setattr("edgespec.drafters.client_model.cpu_count", lambda: 3)
    remote(wires, models / "x").close()
    remote(wires, models / "x", threads=2, draft_engine="onnx:cpu").close()
    assert opened == [("cpu", 3, 3), ("cpu", 2, 2)]


def test_where_static_shapes_end_it_drafts_no_more(
    wires: Wires, models: Path, engine: Engine, tmp_path: Path
) -> None:
    export_model(str(models / "target"), tmp_path / "x", rows=8, positions=64)
    long = GenerationOptions(max_tokens=100, ignore_eos=True)
    with (
        remote(wires, tmp_path / "x", schedule="serial") as far,
        far.new_session(200, Fixed(BUDGET)) as session,
    ):
        steps = list(session.generate(PROMPT, long))
    assert whole(steps).tokens == edgespec.generate(engine, PROMPT, long).tokens
    drafted = [place for place, step in enumerate(steps) if step.from_draft]
    assert 30 < max(drafted) <= 48 - len(PROMPT), "16 positions are for drafts"


WITHOUT_TORCH = """
import json, sys
from importlib.util import find_spec
assert not any(map(find_spec, ("torch", "transformers", "safetensors", "onnx", "uvicorn")))

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {barred!r}:  # of which the extra asks for some, and EdgeSpec for none
            raise ImportError(name + " is not there")

sys.meta_path.insert(0, Nothing())
import edgespec
with edgespec.connect({url!r}, draft_model={model!r}, drafter="ngram+model", threads=1) as engine:
    told = dict(max_tokens=40, ignore_eos=True)
    replies = [edgespec.generate(engine, {prompt!r}, **told, **how) for how in {hows!r}]
print(json.dumps([[reply.tokens, reply.verified, engine.drafters] for reply in replies]))
"""


def test_it_drafts_where_there_is_no_torch(
    url: str, models: Path, expected: dict[float, list[int]], tmp_path: Path
) -> None:
    """In an environment of the extra `client` alone."""
    site = bare_site(tmp_path / "site", "client")
    hows: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 3}]
    code = WITHOUT_TORCH.format(barred=BARRED, url=url, model=str(models / "x"), prompt=PROMPT, hows=hows)
    ran = subprocess.run(
        [sys.executable, *in_site(site, code)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=bare_environ(),
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [
        [expected[temperature], True, ["ngram", "model"]] for temperature in (0, 0.9)
    ]


def test_a_link_that_is_cut_leaves_the_text_to_the_model(
    wires: Wires, models: Path, expected: dict[float, list[int]]
) -> None:
    """Marked; and a model that says what the target does goes on as the target would."""
    steps: list[Response] = []
    with remote(wires, models / "same") as far, far.new_session(200, Fixed(BUDGET)) as session:
        for step in session.generate(PROMPT, GREEDY):
            steps.append(step)
            if len(steps) == 10:
                wires.cut()
            if sum(not step.verified for step in steps) == 8:
                wires.down = False
    first = next(place for place, step in enumerate(steps) if not step.verified)
    alone = [step.token for step in steps if not step.verified]
    assert len(alone) >= 8
    assert alone == expected[0][first : first + len(alone)]
    reply = whole(steps)
    assert (reply.tokens, reply.verified, reply.stats.lost) == (expected[0], True, 1)


def test_a_link_that_stays_cut(wires: Wires, models: Path) -> None:
    asked = ConnectOptions(wait=0.2, unverified="keep")
    with remote(wires, models / "x", asked) as far, far.new_session(200, Fixed(BUDGET)) as session:
        steps = []
        for step in session.generate(PROMPT, GREEDY):
            steps.append(step)
            if len(steps) == 5:
                wires.cut()
        reply = whole(steps)
        assert (len(reply.tokens), reply.verified) == (40, False)
        assert reply.stats.unverified_tokens == sum(not step.verified for step in steps) > 0
        wires.down = False


# Refusals: before the conversation, and what a file or a provider lacks before anybody is asked.


def test_another_vocabulary_is_refused(wires: Wires, models: Path) -> None:
    words = r"other has another tokenizer: \d+ of the target's 320 tokens.*; use a smaller model of the"
    with pytest.raises(TokenizerError, match=words):
        remote(wires, models / "other")
    assert len(wires.made) == 1, "a conversation would have a connection of its own"


def refused(wires: Wires, error: type[Exception], words: str, model: Path, **options: Any) -> Any:
    """Before anybody is asked."""
    with pytest.raises(error, match=words) as caught:
        remote(wires, model, **options)
    assert not wires.made
    return caught.value


def test_what_was_not_exported_is_refused(wires: Wires, models: Path, tmp_path: Path) -> None:
    for name in (str(models / "target"), "org/small"):
        error = refused(wires, OptionError, "was not exported, and a client drafts without torch", Path(name))
        assert error.hint.function == "export_model"
        assert error.hint.arguments == {"model": name, "out": "DIR"}
    refused(wires, ModelError, "check the spelling", Path(tmp_path / "nowhere"))
    refused(wires, ModelError, "cannot be looked up", tmp_path / ("x" * 300))
    (tmp_path / "exported.json").write_text(f'{{"format": {FORMAT}, "engine": "onnx"}}')
    refused(wires, CorruptFileError, "not a sound manifest", tmp_path)
    (tmp_path / "exported.json").write_text('{"format": 1, "engine": "coreml"}')
    refused(wires, OptionError, "was exported for coreml, and a client drafts with onnx", tmp_path)
    (tmp_path / "exported.json").write_text('{"format": 1, "engine": "tensorrt"}')
    refused(wires, UnsupportedModelError, "exported for 'tensorrt', an engine that this EdgeSpec", tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"draft_engine": "onnx:qnn"},
            DeviceError,
            r"no provider qnn here(.|\n)*pip install 'onnxruntime>=1\.24' 'onnxruntime-qnn>=2'",
        ),
        ({"draft_engine": "onnx:npu"}, OptionError, "provider 'npu' is unknown"),
        ({"draft_engine": "torch"}, OptionError, "was exported for onnx; leave"),
        ({"draft_engine": "onxn"}, OptionError, "did you mean onnx"),
        ({"draft_worker": 2}, OptionError, "draft_worker is for a process beside a target.*threads="),
        ({"drafter": "substitute"}, OptionError, "the low-bit copy drafts where torch is"),
        ({"drafter": "ngram"}, OptionError, "does not use the draft model"),
        ({"drafter": "model", "draft_model": None}, OptionError, "needs a small model"),
        ({"drafter": "ngram", "draft_model": None, "draft_engine": "onnx"}, OptionError, "no draft model"),
        ({"drafter": "ngram", "draft_model": None, "threads": 2}, OptionError, "threads is the server's"),
        ({"schedule": "mirror"}, OptionError, "schedule mirror asks an early exit"),
    ],
)
def test_options_that_cannot_be(
    wires: Wires, models: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    refused(wires, error, words, models / "x", **options)


def test_a_client_without_onnxruntime_says_what_to_install(
    wires: Wires, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refused(wires, MissingExtraError, r"pip install 'onnxruntime>=1\.22'", models / "x")


# From the command line


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    url: str,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(command: str, model: str, *flags: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main.run([command, "--server", url, "--draft-model", str(models / model), *flags])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_generate(run: Run, engine: Engine) -> None:
    text = edgespec.generate(engine, "Once upon", max_tokens=12).text
    code, out, err = run("generate", "x", "--max-tokens", "12", "-p", "Once upon", "--json")
    assert code == 0, err
    assert json.loads(out)["text"] == text


def test_chat(run: Run, engine: Engine) -> None:
    with edgespec.Chat(engine, context=200) as chat:
        said = chat.send("Hello", max_tokens=12).text
    flags = "--max-tokens", "12", "--draft-engine", "onnx:cpu", "--threads", "1"
    code, out, err = run("chat", "x", *flags, stdin="Hello\n/show\n")
    assert (code, out.strip()) == (0, said.strip()), err
    assert "drafts: ngram and model, here" in err
    assert "the server goes by its own" not in err


def test_a_command_says_how_to_export(run: Run, models: Path) -> None:
    code, _, err = run("chat", "target", stdin="Hello\n")
    assert code == 2
    assert f"edgespec export {models / 'target'} --out DIR" in " ".join(err.split())
