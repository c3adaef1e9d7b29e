"""GGUF files that llama.cpp runs: they say what torch says, and what llama.cpp says; what is refused."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.drafters.beside import Beside
from edgespec.drafters.engine_facts import engine_facts
from edgespec.drafters.engines import with_engine
from edgespec.drafters.llama_cpp_model import GGUFFiles
from edgespec.drafters.model import PASS_ROWS
from edgespec.engine import Engine
from edgespec.errors import (
    ContextError,
    CorruptFileError,
    EdgeSpecError,
    MissingExtraError,
    ModelError,
    OptionError,
    TokenizerError,
    UnsupportedModelError,
)
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.gguf_file import _FOREIGN, read_gguf_file
from edgespec.runtimes.formats.gguf_tokenizer import NORMAL, UNUSED
from edgespec.runtimes.llama_cpp.draft import LlamaCppDraft
from edgespec.runtimes.llama_cpp.files import SLOTS, read_gguf_draft
from edgespec.runtimes.llama_cpp.model import LlamaCppModel
from edgespec.runtimes.llama_cpp.package import package_version
from edgespec.runtimes.torch.draft import TorchDraft, open_draft
from edgespec.text.tokenizer import Tokenizer
from tests.models import make_tokenizer, tokenizer_metadata, write_gguf
from tests.sessions import tokens_of
from tests.test_onnx import KINDS
from tests.tiny import write_checkpoint
from tests.twins import Twins, run

ROOT = Path(__file__).resolve().parent.parent
there = importlib.util.find_spec("llama_cpp") is not None
needs_llama_cpp = pytest.mark.skipif(not there, reason="llama-cpp-python is not installed")
PROMPT = [5, 9, 17, 3, 8, 44]
BUDGET = TreeBudget(12, 5, 5)
GREEDY = GenerationOptions(max_tokens=40, ignore_eos=True)
DRAWN = GenerationOptions(max_tokens=40, temperature=0.9, seed=3, ignore_eos=True)


def gguf_source(path: Path, kind: str = "llama", **changes: Any) -> Path:
    """A checkpoint with a tokenizer, which `write_gguf` can read."""
    rope = {"rope_theta": 500.0, **KINDS[kind].get("rope_scaling", {"rope_type": "default"})}
    family = kind.removesuffix("3") if kind == "llama3" else kind
    own = {"architectures": KINDS[kind].get("architectures", ["LlamaForCausalLM"]), "model_type": family}
    head = {"head_dim": 32, "tie_word_embeddings": True} if kind == "qwen3" else {}
    write_checkpoint(path, **{"vocab_size": 320, "rope_parameters": rope, **own, **head, **changes})
    make_tokenizer(path, min(320, changes.get("vocab_size", 320)))
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target, and the same as a GGUF file of 8 bits: draft.gguf."""
    folder = tmp_path_factory.mktemp("models")
    gguf_source(folder / "target", intermediate_size=192)
    write_gguf(folder / "target", folder / "draft.gguf", "Q8_0")
    return folder


def opened(path: Path, capacity: int = 300) -> LlamaCppDraft:
    return LlamaCppDraft(LlamaCppModel(read_gguf_draft(path)), capacity)


@needs_llama_cpp
@pytest.mark.parametrize("kind", ["llama3", "qwen2", "qwen3"])
def test_it_says_what_torch_says(kind: str, tmp_path: Path) -> None:
    """A prompt, trees of several roots, what is kept below an outcome, and going back."""
    gguf_source(tmp_path / "m", kind)
    path = write_gguf(tmp_path / "m", tmp_path / "m.gguf")
    model = open_draft(describe_model(path), SLOTS)
    twins = Twins(TorchDraft.alone(model, 300), opened(path), 0.3)  # its cache is of fp16
    try:
        twins.begin(150, nodes=150)  # more than two calls'
        twins.ask(lambda runtime: run(runtime, [4, 5], [1, 3]))
        twins.tree(6, first=5)
        twins.ask(lambda runtime: runtime.commit([0, 1], [3, 4]))
        twins.tree(6, first=2)
        twins.ask(lambda runtime: runtime.truncate(90))
        twins.tree(6)
        twins.ask(lambda runtime: runtime.commit([], [0]))
        twins.tree(6, first=1)
        twins.ask(lambda runtime: runtime.commit([], []))
        for _ in range(6):  # sequences come back with what they kept
            twins.tree(60)
            twins.ask(lambda runtime: runtime.commit([0], []))
    finally:
        model.weights.close()
    assert twins.most > 5, "logits that differ"


@needs_llama_cpp
def test_a_pass_left_in_the_middle_leaves_nothing(models: Path) -> None:
    draft, calm = opened(models / "draft.gguf"), opened(models / "draft.gguf")
    for each in (draft, calm):
        list(each.prefill(PROMPT))
    run(draft, [9, 8], [-1, 0])
    draft.begin([3] * 200, [1] * 200).advance()  # of which one part has been run
    draft.commit([], [0, 1])
    run(calm, [9, 8], [-1, 0])
    for _ in range(2):
        for each in (draft, calm):
            each.commit([0], [])
        tokens, parents = list(range(3, 253)), [max(-1, i - 5) for i in range(250)]
        assert np.abs(run(draft, tokens, parents) - run(calm, tokens, parents)).max() < 0.3
    with pytest.raises(ContextError, match="256 slots; there is room for 255"):
        draft.begin([5] * 6, [-1] * 6)
    with pytest.raises(ValueError, match="earlier slot"):
        calm.begin([5], [250])
    with pytest.raises(ValueError, match="length 400"):
        draft.truncate(400)


@needs_llama_cpp
def test_drafts_are_its_own_greedy_text(models: Path, tmp_path: Path) -> None:
    import llama_cpp

    path = write_gguf(models / "target", tmp_path / "m.gguf")
    plain = llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, flash_attn=True, verbose=False)
    expected = []
    for token in plain.generate(PROMPT, temp=0.0, top_k=1):
        expected.append(token)
        if len(expected) == 48:
            break
    plain.close()
    draft = opened(path)
    list(draft.prefill(PROMPT[:-1]))
    said, token = [], PROMPT[-1]
    for turn in range(48):
        decoys = [7, 11] if turn % 2 else []  # siblings, which nobody goes on from
        logits = run(draft, [*decoys, token], [-1] * (len(decoys) + 1))
        draft.commit([len(decoys)], [])
        token = int(logits[-1].argmax())
        said.append(token)
    assert said == expected
    assert len(set(said)) > 10


def load(models: Path, **options: Any) -> Engine:
    asked = {"memory": "2GB", "context": 300, "drafter": "model", "draft_engine": "llama_cpp"}
    asked |= {"draft_model": models / "draft.gguf"}
    return edgespec.load(models / "target", **{**asked, **options})  # type: ignore[arg-type]


@needs_llama_cpp
@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("schedule", ["serial", "mirror"])
def test_the_text_is_the_targets(schedule: str, models: Path) -> None:
    """Also when the process is killed while it drafts; and its memory is in the plan."""
    with edgespec.load(models / "target", memory="2GB", context=300, drafter="none") as engine:
        expected = [edgespec.generate(engine, PROMPT, options).tokens for options in (GREEDY, DRAWN)]
    with load(models, schedule=schedule) as engine:
        (worker,) = (resident for resident in engine.resident if isinstance(resident, Beside))
        assert engine.options.draft_worker == 1
        planned = engine.plan.owners["drafter"] + engine.plan.owners["draft worker"]
        assert 0 < worker.outside < planned
        for options, tokens in zip((GREEDY, DRAWN), expected, strict=True):
            session = engine.new_session(controller=Fixed(BUDGET))
            responses = list(session.generate(PROMPT, options))
            session.close()
            assert tokens_of(responses) == tokens
            stats = responses[-1].stats
            assert stats.accepted > 0.25 * stats.reply_tokens, "it drafts"
        process = worker.worker._process
        session = engine.new_session(controller=Fixed(BUDGET))
        responses = []
        for response in session.generate(PROMPT, GREEDY):
            responses.append(response)
            if len(responses) == 9:
                os.kill(process.pid, signal.SIGKILL)
        assert tokens_of(responses) == expected[0]
        assert responses[-1].stats.undrafted == "the draft worker is lost: it was killed by signal 9"
        session.close()
    assert process.poll() is not None


@needs_llama_cpp
def test_what_llama_cpp_refuses_is_said_in_its_words(models: Path, tmp_path: Path) -> None:
    raw = (models / "draft.gguf").read_bytes()
    (tmp_path / "odd.gguf").write_bytes(raw.replace(b"llama", b"lorem"))
    with pytest.raises(ModelError, match=r"llama\.cpp cannot open .*odd\.gguf: .*architecture: 'lorem'"):
        load(models, draft_model=tmp_path / "odd.gguf")
    (tmp_path / "less.gguf").write_bytes(raw.replace(b"blk.1.ffn_up", b"blk.1.ffn_ap"))
    with pytest.raises(
        ModelError, match=r"llama\.cpp cannot open .*: tensor 'blk\.1\.ffn_up\.weight' not found"
    ):
        opened(tmp_path / "less.gguf")


@needs_llama_cpp
@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_what_llama_cpp_gives_up_on_is_said_with_its_assertion(models: Path, tmp_path: Path) -> None:
    path = edit(models, tmp_path / "experts.gguf", llama__expert_count=10**6)
    words = r"experts\.gguf: the engine gave up reading it, .*signal 6: .*GGML_ASSERT\(hparams\.n_expert"
    with pytest.raises(ModelError, match=words):
        load(models, draft_model=path)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # whoever imports it fails
from edgespec.drafters.channel import Load
from edgespec.drafters.llama_cpp_model import llama_cpp_model
read = []
runtime = llama_cpp_model(Load(sys.argv[1], 1), read.append).runtime(100)
*_, done = runtime.prefill(range(3, 40))
under_way = runtime.begin([7, 8], [-1, 0])
assert under_way.advance()
print(done, sum(read), *under_way.logits.argmax(axis=1))
"""


@needs_llama_cpp
def test_it_runs_without_torch(models: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(models / "draft.gguf")]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert said.returncode == 0, said.stderr
    draft = opened(models / "draft.gguf")
    list(draft.prefill(range(3, 40)))
    weights = read_gguf_draft(models / "draft.gguf").weights
    assert said.stdout.split() == ["37", str(weights), *map(str, run(draft, [7, 8], [-1, 0]).argmax(axis=1))]


MEASURED = """
import sys
from pathlib import Path
from edgespec.runtimes.llama_cpp.draft import LlamaCppDraft
from edgespec.runtimes.llama_cpp.files import read_gguf_draft
from edgespec.runtimes.llama_cpp.model import LlamaCppModel

def taken():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])

model, kept = LlamaCppModel(read_gguf_draft(Path(sys.argv[1]))), []
for _ in range(3):
    before = taken()
    draft = LlamaCppDraft(model, 300)
    list(draft.prefill(range(3, 40)))
    under_way = draft.begin([7] * 80, [-1] * 80)
    while not under_way.advance():
        pass
    assert under_way.logits.shape == (80, model.vocabulary)
    print(taken() - before)
    kept += draft, under_way
"""


@needs_llama_cpp
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_every_conversation_is_counted(tmp_path: Path) -> None:
    """With many tokens most of it is room for logits, and a further conversation has as much as the first."""
    source, many = gguf_source(tmp_path / "m", vocab_size=30_000, intermediate_size=192), 30_000
    about = tokenizer_metadata(source)
    names = [*about["tokenizer.ggml.tokens"], *(f"[PAD{i}]" for i in range(320, many))]
    types = [*about["tokenizer.ggml.token_type"], *[UNUSED] * (many - 320)]
    more = {"tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": types}
    path = write_gguf(source, tmp_path / "m.gguf", "Q8_0", metadata=more)
    said = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, cwd=ROOT
    )
    taken, files = [int(word) for word in said.stdout.split()], read_gguf_draft(path)
    assert len(taken) == 3, said.stderr
    assert 256 * 4 * many < min(taken) <= max(taken) <= files.context_bytes(300, PASS_ROWS)
    asked: dict[str, Any] = {"drafter": "model", "draft_engine": "llama_cpp", "draft_model": path}
    with edgespec.load(source, memory="2GB", context=400, **asked) as engine:
        (worker,) = engine.resident
        target = engine.config.kv_bytes(1, 2)
        assert worker.rows * (files.cell_bytes + target) >= max(taken) - 300 * files.cell_bytes
        session = engine.new_session(100)
        assert not engine.room_for(100), "beside it there is no room for another one's logits"
        session.close()
        assert engine.room_for(400)


def edit(models: Path, path: Path, **keys: Any) -> Path:
    return write_gguf(models / "target", path, metadata={k.replace("__", "."): v for k, v in keys.items()})


HOSTILE: list[tuple[dict[str, Any], type[EdgeSpecError], str]] = [
    ({"llama__block_count": 0}, CorruptFileError, "block_count is 0; expected a whole number from 1"),
    ({"llama__block_count": 2**31}, CorruptFileError, "block_count is 2147483648"),
    ({"llama__embedding_length": 32}, CorruptFileError, "rows of 64, beside an embedding_length of 32"),
    ({"llama__attention__head_count_kv": [2, 2]}, CorruptFileError, "head_count_kv .* expected 3 whole"),
    ({"llama__attention__key_length": 2**30}, CorruptFileError, "key_length is 1073741824"),
    ({"llama__context_length": 2**32 - 1}, CorruptFileError, "context_length"),
    ({"llama__block_count": 513}, CorruptFileError, "expected a whole number from 1 to 512"),
    ({"llama__attention__layer_norm_rms_epsilon": float("nan")}, CorruptFileError, "is nan; .* from 0 to 1"),
    ({"llama__attention__layer_norm_rms_epsilon": -1.0}, CorruptFileError, "is -1.0; .* from 0 to 1"),
    ({"llama__attention__causal": False}, UnsupportedModelError, "attends to what comes later, so it cannot"),
    ({"llama__attention__causal": 0.5}, CorruptFileError, "causal is 0.5; expected true or false"),
    ({"split__count": 3}, ModelError, "is one of 3 parts; give the first"),
]


@pytest.mark.parametrize(("keys", "kind", "words"), HOSTILE)
def test_headers_from_strangers(
    keys: dict[str, Any], kind: type[EdgeSpecError], words: str, models: Path, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        read_gguf_draft(edit(models, tmp_path / "m.gguf", **keys))


def test_sizes_of_heads_are_the_first_layers(models: Path, tmp_path: Path) -> None:
    """Where a file does not say them, llama.cpp takes them from there."""
    path = edit(models, tmp_path / "m.gguf", llama__attention__head_count=[1, 64, 1])
    for part in (b"key", b"value"):
        path.write_bytes(path.read_bytes().replace(part + b"_length", part + b"_lengtx"))
    layers_kv = read_gguf_draft(models / "draft.gguf").position_bytes // (2 * 2 * 16)
    assert read_gguf_draft(path).position_bytes == 2 * layers_kv * 2 * 64


def test_files_that_are_none(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any weight is read, whether or not llama.cpp is there."""
    monkeypatch.setattr(metadata, "version", lambda name: "0.3.36")
    monkeypatch.setattr("edgespec.runtimes.llama_cpp.package.version", lambda name: "0.3.36")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        load(models, draft_model=tmp_path / "text.gguf")
    with pytest.raises(ModelError, match="is a directory, and llama_cpp runs GGUF files"):
        load(models, draft_model=models / "target")
    (tmp_path / "cut.gguf").write_bytes((models / "draft.gguf").read_bytes()[:-100])
    with pytest.raises(CorruptFileError, match=r"ends at byte \d+; download it again"):
        load(models, draft_model=tmp_path / "cut.gguf")
    gguf_source(tmp_path / "m", vocab_size=300)
    write_gguf(tmp_path / "m", tmp_path / "other.gguf")
    with pytest.raises(TokenizerError, match=r"other\.gguf has another tokenizer: \d+ of the target's"):
        load(models, draft_model=tmp_path / "other.gguf")
    with pytest.raises(OptionError, match="only onnx has providers"):
        load(models, draft_engine="llama_cpp:cuda")


def test_types_that_only_llama_cpp_knows(models: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    sizes = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    names = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    for number, (name, *block) in _FOREIGN.items():
        assert (names[number], sizes[name]) == (name, tuple(block))
    path = write_gguf(models / "target", tmp_path / "m.gguf", "MXFP4")
    with pytest.raises(UnsupportedModelError, match="of type MXFP4, which is not supported"):
        read_gguf_file(path)
    assert read_gguf_draft(path).weights < 0.3 * sum(
        tensor.nbytes
        for tensor in read_gguf_file(write_gguf(models / "target", tmp_path / "f.gguf")).tensors.values()
    )


def test_tokens_that_stand_for_none_may_be_more(tmp_path: Path) -> None:
    """A converter fills matrices up with them; a target lists what it has."""
    source = gguf_source(tmp_path / "m", vocab_size=330)
    about = tokenizer_metadata(source)
    tokens, types = about["tokenizer.ggml.tokens"], about["tokenizer.ggml.token_type"]
    names = [f"[PAD{len(tokens) + i}]" for i in range(8)]

    def files(kind: int) -> GGUFFiles:
        more = {
            "tokenizer.ggml.tokens": [*tokens, *names],
            "tokenizer.ggml.token_type": [*types, *[kind] * 8],
        }
        path = write_gguf(source, tmp_path / "m.gguf", metadata=more)
        return GGUFFiles(path, Tokenizer.from_directory(source, 330), 1)

    assert files(UNUSED).files.fillers == set(names)
    with pytest.raises(TokenizerError, match=r"'\[PAD320\]' \(320\) is only there"):
        files(NORMAL)


def test_the_package_is_missing_or_old(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    place = "edgespec.runtimes.llama_cpp.package.version"
    monkeypatch.setattr(place, version)
    with pytest.raises(MissingExtraError, match=r"is not installed; .*\n  pip install 'llama-cpp-python>="):
        load(models)
    assert {fact.name: fact.version for fact in engine_facts()}["llama_cpp"] is None
    monkeypatch.setattr(place, lambda name: "0.2.90")
    with pytest.raises(MissingExtraError, match=r"needs llama-cpp-python, which is 0\.2\.90; install"):
        package_version()
    monkeypatch.setattr(place, lambda name: "0.3.36")
    assert {fact.name: fact.version for fact in engine_facts()}["llama_cpp"] == "0.3.36"


def test_it_is_asked_for_by_name(models: Path) -> None:
    given = {"draft_model": models / "draft.gguf"}
    options = EngineOptions(drafter="model", draft_model="m", draft_engine="llama_cpp")
    assert with_engine(options, given).draft_worker == 1
    plain = with_engine(EngineOptions(drafter="model", draft_model="m"), given)
    assert plain.draft_engine == "torch"
