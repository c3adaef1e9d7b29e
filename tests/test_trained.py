"""What drafters that are trained for a target share: files that say their kind; what is seen of passes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import edgespec
from edgespec.config import EngineOptions
from edgespec.core.acceptance import Greedy
from edgespec.core.batch import PrefillBlock, Verification, run_pass
from edgespec.core.observers import FanOut
from edgespec.core.sampling import IntArray, Noise
from edgespec.core.tree import TokenTree
from edgespec.drafters import kinds
from edgespec.drafters.cascade.files import find_cascade
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.kind import Kind
from edgespec.drafters.kinds import KINDS
from edgespec.drafters.watch import StateWatch, watch_bytes
from edgespec.errors import Cancelled, CorruptFileError, ModelError, UnsupportedModelError
from edgespec.runtimes.base import PREFILL_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.trained import MANIFEST, trained_kind
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER, Layers
from edgespec.runtimes.torch.adapter_files import describe_adapters
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import ModuleFile, describe_module, parameter_bytes, save_module
from tests.tiny import open_tiny, prefill, write_checkpoint

CPU = torch.device("cpu")


class ToyShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    width: Annotated[int, msgspec.Meta(ge=1, le=64)]


class Toy(nn.Module):
    def __init__(self, config: ModelConfig, shape: ToyShape) -> None:
        super().__init__()
        for name, size in toy_shapes(config, shape).items():
            values = torch.randn(size, generator=torch.Generator().manual_seed(0))
            self.register_parameter(name, nn.Parameter(values))


def toy_shapes(config: ModelConfig, shape: ToyShape) -> Mapping[str, tuple[int, ...]]:
    if shape.width > config.hidden_size // 2:
        raise ValueError(f"a width of {shape.width}")
    return {"matrix": (shape.width, config.hidden_size), "bias": (shape.width,)}


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return describe_model(write_checkpoint(tmp_path / "target"))


@pytest.fixture
def saved(files: ModelFiles, tmp_path: Path) -> Path:
    shape = ToyShape(8)
    facts = {"steps": 3, "held_out": {"agreement": 0.5}}
    save_module(tmp_path / "toy", "toy", shape, Toy(files.config, shape), files, facts, torch.float32)
    return tmp_path / "toy"


def described(directory: Path, files: ModelFiles, kind: str = "toy") -> ModuleFile[ToyShape]:
    return describe_module(directory, kind, ToyShape, toy_shapes, files)


def test_a_module_comes_back_as_it_was(saved: Path, files: ModelFiles) -> None:
    found = described(saved, files)
    assert found.shape == ToyShape(8)
    assert found.agreement == 0.5
    expected, module = Toy(files.config, found.shape), Toy(files.config, found.shape)
    assert found.nbytes == parameter_bytes(toy_shapes(files.config, found.shape), 4)
    with torch.no_grad():
        module.get_parameter("matrix").zero_()
    found.read(module)
    for name, parameter in module.named_parameters():
        assert not parameter.requires_grad
        assert torch.equal(parameter, expected.get_parameter(name))


@pytest.mark.parametrize(
    ("where", "value", "error", "told"),
    [
        (("format",), 2, UnsupportedModelError, "format 2"),
        (
            ("kind",),
            "cascade",
            ModelError,
            r"of drafter cascade, not toy; use drafter=cascade, or train some",
        ),
        (("kind",), "../etc", CorruptFileError, "not a sound manifest"),
        (("target", "digest"), "0", ModelError, "trained for"),
        (("target", "precision"), "int4", ModelError, "precision int4"),
        (("target", "kv_heads"), 1, CorruptFileError, "kv_heads is 1"),
        (("target", "more"), 1, CorruptFileError, "not a sound manifest"),
        (("shape", "width"), 65, CorruptFileError, "not a sound manifest"),
        (("shape", "width"), 33, CorruptFileError, "a width of 33"),
        (("shape", "width"), 9, CorruptFileError, r"matrix is F32 \[8, 64\], the target asks for \[9, 64\]"),
        (("shape", "depth"), 9, CorruptFileError, "not a sound manifest"),
        (("file",), "../toy/toy.safetensors", CorruptFileError, "not a file beside it"),
        (("file",), "none.safetensors", ModelError, "none.safetensors"),
        (("digest",), "0" * 31, CorruptFileError, "not a sound manifest"),
        (("more",), 1, CorruptFileError, "not a sound manifest"),
    ],
)
def test_an_unsound_manifest_is_refused(
    saved: Path, files: ModelFiles, where: tuple[str, ...], value: Any, error: type[Exception], told: str
) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    place = manifest
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(error, match=told):
        described(saved, files)


def test_other_tensors_are_refused(saved: Path, files: ModelFiles) -> None:
    path = saved / "toy.safetensors"
    state = load_file(path)
    for change in ({"bias": torch.zeros(8, dtype=torch.int32)}, {"more": torch.zeros(1)}):
        save_file({**state, **change}, path)
        with pytest.raises(CorruptFileError):
            described(saved, files)
    save_file(state, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError):
        described(saved, files)


def test_a_damaged_file_is_not_read(saved: Path, files: ModelFiles) -> None:
    path, raw = saved / "toy.safetensors", (saved / "toy.safetensors").read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    found, module = described(saved, files), Toy(files.config, ToyShape(8))  # its header is sound
    with pytest.raises(CorruptFileError, match=r"toy\.safetensors has checksum .* the file is damaged"):
        found.read(module)
    manifest = json.loads((saved / MANIFEST).read_text())
    del manifest["digest"]  # as it was before there were any
    (saved / MANIFEST).write_text(json.dumps(manifest))
    described(saved, files).read(module)
    path.write_bytes(raw)
    (saved / MANIFEST).write_text(json.dumps(manifest | {"digest": found.digest}))
    described(saved, files).read(module)


def test_the_bundled_adapters_have_checksums() -> None:
    demo = Path(edgespec.__file__).parent / "demo_model"
    found = describe_adapters(demo / "cascade", describe_model(demo))
    assert len(found) == 5
    for adapter in found:
        assert adapter.digest is not None
        adapter.check()


def test_a_directory_says_whose_it_is(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: ModelFiles
) -> None:
    assert trained_kind(saved) == "toy"
    assert trained_kind(tmp_path / "none") is None
    (tmp_path / MANIFEST).write_text("{" * 10**6)
    assert trained_kind(tmp_path) is None
    row = Kind("toy", "the toy", True, True, option="adapters", needs="adapters=DIR", find="no.where:find")
    monkeypatch.setattr(kinds, "KINDS", (*KINDS, row))

    def chosen(directory: Path) -> tuple[str, ...]:
        return choose_drafters(EngineOptions(adapters=str(directory)))

    assert chosen(saved) == ("ngram", "toy")
    assert chosen(tmp_path) == ("ngram", "cascade")  # whose `find` says what is wrong
    with pytest.raises(ModelError, match="of drafter toy, not cascade"):
        find_cascade(saved, files, None)


# --- what is seen of passes -------------------------------------------------------------------------------

DEPTHS = (0, 2, 3)


class Taken:
    """Keeps what is taken, as a drafter's cache would."""

    def __init__(self) -> None:
        self.states: list[torch.Tensor | None] = []  # by position; None: missed

    def take(self, start: int, states: torch.Tensor, prompt: bool) -> None:
        del self.states[start:]
        self.states += [None] * (start - len(self.states))
        self.states += list(states.clone())


class Watcher:
    """An observer with a watch; stops the pass behind layer `stop`."""

    hears: Layers = EVERY_LAYER

    def __init__(self, cache: TorchKVCache) -> None:
        self.taken = Taken()
        self.watch = StateWatch(cache, DEPTHS, self.taken)
        self.stop: int | None = None

    def on_layer(self, index: int, hidden: torch.Tensor, rows: Rows) -> None:
        self.watch.on_layer(index, hidden, rows)
        if index == self.stop:
            raise Cancelled("stopped")

    def on_chunk(self) -> None:
        pass

    def on_wait(self) -> bool:
        return False


@pytest.fixture(params=[True, False], ids=["resident", "streamed"])
def target(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TorchTarget]:
    path = write_checkpoint(tmp_path / "m", num_hidden_layers=3)
    opened = open_tiny(path, (lambda c: True) if request.param else (lambda c: c.layer == 0))
    yield opened
    opened.weights.close()


def expected(target: TorchTarget, tokens: list[int]) -> torch.Tensor:
    """[n, depths, d], by running it layer by layer."""
    cache, found = target.new_cache(700), []
    for start in range(0, len(tokens), PREFILL_ROWS):
        block = tokens[start : start + PREFILL_ROWS]
        rows = Rows.append(cache, np.arange(-1, len(block) - 1), prefill=True)
        states = [target.embed(block)]
        for layer in range(3):
            states.append(target.run(states[-1], rows, range(layer, layer + 1)))
        cache.commit(np.arange(len(block)))
        found.append(torch.stack([states[depth] for depth in DEPTHS], 1))
    return torch.cat(found)


def tree(tokens: list[int], parents: list[int]) -> TokenTree:
    n = len(tokens)
    return TokenTree(np.array(tokens), np.array(parents), np.zeros(n))


def said(target: TorchTarget, cache: TorchKVCache, drafted: TokenTree, observer: Any) -> IntArray:
    """Verify a tree greedily: the path's nodes."""
    part = Verification(cache, drafted, Greedy(), Noise(0), observer=observer)
    run_pass(target, [part], observer)
    return part.result().path


def test_each_committed_position_is_seen_once(target: TorchTarget) -> None:
    """Of a prompt in blocks, and of the accepted path of a tree; cancelled passes leave nothing behind."""
    cache = target.new_cache(700)
    watcher = Watcher(cache)
    prompt = np.random.default_rng(0).integers(0, 160, 520).tolist()
    logits = prefill(target, cache, prompt, watcher)
    assert len(watcher.taken.states) == 520
    root = int(logits.argmax())
    watcher.stop = 1  # behind the second depth
    with pytest.raises(Cancelled):
        said(target, cache, tree([root], [-1]), watcher)
    watcher.watch.commit(np.array([], np.int64))
    assert (cache.length, len(watcher.taken.states)) == (520, 520)
    watcher.stop = None
    nodes = [root, 3, int(logits.argsort()[-2]), 5]
    path = said(target, cache, tree(nodes, [-1, 0, 0, 1]), watcher)
    watcher.watch.commit(path)
    watcher.watch.commit(path)  # once is enough
    tokens = prompt + [nodes[node] for node in path]
    assert len(watcher.taken.states) == cache.length == len(tokens)
    found = torch.stack([s for s in watcher.taken.states if s is not None])
    assert torch.allclose(found, expected(target, tokens), atol=1e-4)


def test_what_was_cut_back_or_missed_is_known(target: TorchTarget) -> None:
    cache = target.new_cache(300)
    watcher = Watcher(cache)
    prefill(target, cache, list(range(100)), watcher)
    watcher.stop = 2
    cache.truncate(60)
    with pytest.raises(Cancelled):  # behind the deepest layer: it was handed over, and never committed
        prefill(target, cache, [7] * 30, watcher)
    watcher.stop = None
    prefill(target, cache, [8] * 5, watcher)
    tokens = [*range(60), *[8] * 5]
    found = torch.stack([s for s in watcher.taken.states if s is not None])
    assert torch.allclose(found, expected(target, tokens), atol=1e-4)
    prefill(target, cache, [9] * 4)  # others watched
    prefill(target, cache, [10] * 2, watcher)
    missing = [place for place, s in enumerate(watcher.taken.states) if s is None]
    assert missing == [65, 66, 67, 68]
    assert len(watcher.taken.states) == 71


def test_in_a_pass_of_many_each_sees_its_own(target: TorchTarget) -> None:
    caches = [target.new_cache(200) for _ in range(3)]
    watchers = [Watcher(cache) for cache in caches]
    prompts = [[1, 2, 3], [40, 50, 60, 70, 80], [9] * 20]
    for cache, prompt, watcher in zip(caches[:2], prompts, watchers, strict=False):
        prefill(target, cache, prompt, watcher)
    trees = [tree([11, 12], [-1, 0]), tree([21, 22, 23], [-1, 0, 0])]
    parts: list[Any] = [
        Verification(c, t, Greedy(), Noise(0), observer=w)
        for c, t, w in zip(caches[:2], trees, watchers, strict=False)
    ]
    parts.append(PrefillBlock(caches[2], prompts[2], observer=watchers[2]))
    watchers[1].stop = 0  # one of them is cancelled
    run_pass(target, parts, FanOut(parts))
    assert isinstance(parts[1].error, Cancelled)
    watchers[0].watch.commit(parts[0].result().path)
    tokens = [*prompts[0], 11, *([12] if len(parts[0].outcome.path) > 1 else [])]
    for watcher, whole in ((watchers[0], tokens), (watchers[1], prompts[1]), (watchers[2], prompts[2])):
        assert len(watcher.taken.states) == len(whole)
        found = torch.stack([s for s in watcher.taken.states if s is not None])
        assert torch.allclose(found, expected(target, whole), atol=1e-4)
    watchers[1].watch.commit(np.array([0]))  # nothing of its tree was committed
    assert len(watchers[1].taken.states) == 5


def test_its_memory_is_that_of_a_block(target: TorchTarget) -> None:
    cache = target.new_cache(600)
    watcher = Watcher(cache)
    peaks: list[int] = []

    class Peak(Taken):
        def take(self, start: int, states: torch.Tensor, prompt: bool) -> None:
            peaks.append(2 * states.nbytes)

    watcher.watch.reader = Peak()
    prefill(target, cache, [5] * 600, watcher)
    assert max(peaks) == watch_bytes(target.config, len(DEPTHS), 4)
    assert not watcher.watch._seen
