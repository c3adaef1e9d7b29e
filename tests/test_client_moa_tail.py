"""A MoA drafter over the link that goes through the target's last layers (TLI): a client has these, and the
server sends what they have of committed tokens."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.tree import TokenTree
from edgespec.engine import Engine
from edgespec.errors import CorruptFileError, OptionError, ProtocolError
from edgespec.models.client_half import export_client
from edgespec.response import whole
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.moa_client import MOST_TOLD, read_client
from edgespec.runtimes.formats.moa_sizes import KIND, MoaSizes
from edgespec.runtimes.portable.moa import PortableMoa, PortableMoaDraft
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.moa_draft import MoaDraft
from edgespec.runtimes.torch.moa_memory import MoaMemory, MoaMemoryFiles
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import save_module
from edgespec.split.payload import pack_vectors, unpack_vectors, vector_bytes
from edgespec.split.protocol import ANSWERS, Judged, Recalled, Welcome, read, written
from edgespec.split.recall import Recollection
from tests.moa import random_moa, write_moa
from tests.models import make_checkpoint, open_resident, write_gguf
from tests.split_ends import Caller, Running, listening
from tests.test_architectures import TOKENS
from tests.test_client_moa import BUDGET, CONTEXT, PROMPT, REPLY, caller, engine, patient, with_halves
from tests.test_moa import ROWS, drafting, finish
from tests.test_session import write_model
from tests.tiny import fill

__all__ = ["caller", "engine", "patient"]
LAYERS = 5
KV_HEADS, MLP = (2, 1, 2), (24, 40, 48)
LENGTH = 40


# The two halves


@dataclass
class Halves:
    """The network in one process, its halves apart, and the target that both draft for."""

    ours: MoaDraft
    theirs: PortableMoaDraft
    recollection: Recollection
    memory: MoaMemory
    target: TorchTarget[Any]
    cache: TorchKVCache
    tokens: list[int]

    @staticmethod
    def of(path: Path, folder: Path, target_layers: int) -> Halves:
        """The target has committed all but the last of some tokens; nothing of it has come."""
        files = describe_model(path)
        sizes = MoaSizes(KV_HEADS, MLP, target_layers=target_layers)
        moa = random_moa(files, sizes).requires_grad_(False).eval()
        save_module(folder / "moa", KIND, sizes, moa, files, {}, torch.float32)
        export_client(files.path, folder / "moa", folder / "client")
        manifest, tensors = read_client(folder / "client")
        recollection = Recollection(manifest.width, manifest.config.width)
        portable = PortableMoaDraft(PortableMoa(manifest.config, tensors), sizes, recollection, 300, ROWS)
        target = open_resident(path, torch.float32)
        cache = target.new_cache(300, ROWS)
        tokens = np.random.default_rng(9).integers(0, files.config.vocab_size, LENGTH).tolist()
        fill(target, cache, tokens[:-1])
        ours = drafting(moa, target, cache)
        return Halves(ours, portable, recollection, MoaMemory(moa, b""), target, cache, tokens)

    def come(self) -> None:
        """What the server has of all that is committed there."""
        span = range(self.recollection.length, self.cache.length)
        if span:
            self.recollection.put(self.memory.vectors([(self.cache, span)]))

    def prefill(self, tokens: list[int]) -> None:
        for draft in (self.ours, self.theirs):
            list(draft.prefill(tokens))

    def commit(self, path: list[int], keep: list[int]) -> None:
        for draft in (self.ours, self.theirs):
            draft.commit(path, keep)

    def same(self, tokens: list[int], parents: list[int]) -> None:
        found, wanted = (finish(draft.begin(tokens, parents)) for draft in (self.theirs, self.ours))
        assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


def the_same_all_along(halves: Halves) -> None:
    """Branches, slots that are kept, a prefix that is gone back to."""
    root = halves.tokens[-1]
    halves.prefill(halves.tokens[:-1])
    halves.come()
    halves.same([root, 3, 4], [-1, 0, 0])
    halves.same([5, 6, 7], [1, 2, 3])
    fill(halves.target, halves.cache, [root, 3])
    halves.come()
    halves.commit([0, 1], [3, 5])  # these keep the keys that they had as drafts
    halves.same([9, 8], [1, -1])
    fill(halves.target, halves.cache, [5, 7])
    halves.come()
    halves.commit([0, 1], [2])
    halves.same([2], [0])
    for one in (halves.cache, halves.ours, halves.theirs):
        one.truncate(20)
    halves.recollection.truncate(20, 0)
    halves.same([1, 2], [-1, 0])
    for draft in (halves.ours, halves.theirs):
        draft.commit([], [])
    fill(halves.target, halves.cache, [5, 6, 7])
    halves.prefill([5, 6, 7])
    halves.come()
    halves.same([1, 2], [-1, 0])
    assert halves.theirs.tail is not None
    assert halves.theirs.length == halves.theirs.tail.come == 23


@pytest.mark.parametrize(
    ("changes", "target_layers"),
    [
        ({}, 1),
        ({}, 3),
        ({"tie_word_embeddings": True}, 1),
        ({"architectures": ["Qwen2ForCausalLM"]}, 2),
        ({"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}, 2),
        ({"attention_bias": True, "mlp_bias": True}, 1),
    ],
    ids=["1", "3", "tied", "qwen2", "qwen3", "biases"],
)
def test_the_halves_are_the_network(tmp_path: Path, changes: dict[str, Any], target_layers: int) -> None:
    path = write_model(tmp_path / "m", num_hidden_layers=LAYERS, **changes)
    the_same_all_along(Halves.of(path, tmp_path, target_layers))


def test_the_halves_are_the_network_of_a_gguf_file(tmp_path: Path) -> None:
    """Whose heads are rotated in pairs."""
    checkpoint = make_checkpoint(tmp_path / "m", "llama3", tokenizer=False)
    path = write_gguf(checkpoint, tmp_path / "m.gguf", tokenizer=False, metadata=TOKENS)
    halves = Halves.of(path, tmp_path, 1)
    assert halves.theirs.moa.config.interleaved
    the_same_all_along(halves)


def test_what_was_drafted_is_attended_to_until_the_targets_own_comes(tmp_path: Path) -> None:
    """Else the text that goes on without a server has a hole."""
    path = write_model(tmp_path / "m", num_hidden_layers=LAYERS)
    halves = Halves.of(path, tmp_path, 2)
    draft, tokens = halves.theirs, halves.tokens
    list(draft.prefill(tokens[:-1]))
    halves.come()
    finish(draft.begin([tokens[-1], 3, 4], [-1, 0, 1]))
    said = finish(draft.begin([5], [2]))
    draft.commit([0, 1, 2], [])
    alone = finish(draft.begin([5], [-1]))
    assert np.allclose(alone, said, atol=1e-4)
    draft.commit([], [])
    fill(halves.target, halves.cache, [tokens[-1], 3, 4])
    halves.come()
    known = finish(draft.begin([5], [-1]))
    assert not np.allclose(known, said, atol=1e-2)
    assert draft.tail is not None
    assert draft.tail.come == draft.length == len(tokens) + 2


def test_what_has_neither_come_nor_been_drafted_is_not_seen(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", num_hidden_layers=LAYERS)
    halves = Halves.of(path, tmp_path, 1)
    tail = halves.theirs.tail
    assert tail is not None
    tail.extend(7)
    hidden = np.random.default_rng(1).normal(size=(2, halves.target.config.hidden_size)).astype(np.float32)
    tail.begin(2)
    said = tail.run(0, hidden, np.array([7, 8]), np.tri(2, dtype=bool))
    tail.truncate(0)
    tail.begin(2)
    alone = tail.run(0, hidden, np.array([7, 8]), np.tri(2, dtype=bool))
    assert np.allclose(said, alone, atol=1e-5)
    tail.truncate(0)
    tail.extend(7)
    tail.take(np.ones((3, halves.recollection.width - halves.recollection.each), np.float32))
    tail.begin(2)
    assert not np.allclose(tail.run(0, hidden, np.array([7, 8]), np.tri(2, dtype=bool)), alone, atol=1e-2)


def test_a_pass_that_is_left_in_a_layer_leaves_nothing(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", num_hidden_layers=LAYERS)
    halves = Halves.of(path, tmp_path, 3)
    draft = halves.theirs
    halves.prefill(halves.tokens[:-1])
    halves.come()
    halves.same([halves.tokens[-1], 3], [-1, 0])
    for parts in range(6):
        under_way = draft.begin([4, 5], [1, 0])
        for _ in range(parts):
            assert not under_way.advance()
        draft.commit([], range(2))  # as the forest does
    halves.same([6, 7], [1, 0])


# Over the link


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_halves(tmp_path_factory.mktemp("through"), target_layers=1, torch_dtype="bfloat16")


@pytest.mark.parametrize("schedule", ["serial", "ssd"])
def test_text_is_the_servers_and_drafts_are_accepted(
    engine: Engine, model: Path, schedule: str, patient: None
) -> None:
    expected = edgespec.generate(engine, PROMPT, REPLY).tokens
    options: dict[str, Any] = {"memory": "2GB", "context": 900, "drafter": "moa"}
    with (
        edgespec.load(model, adapters=str(model.parent / "moa"), **options) as local,
        local.new_session(CONTEXT, Fixed(BUDGET)) as session,
    ):
        together = whole(session.generate(PROMPT, REPLY)).stats.accepted
    assert together >= 5
    with Running(engine) as running, listening(running.host) as url:
        far = edgespec.connect(url, drafter="moa", adapters=str(model.parent / "client"), schedule=schedule)
        with far, far.new_session(CONTEXT, Fixed(BUDGET)) as session:
            for prompt, tokens in ((PROMPT, expected), (PROMPT[:9], None), (PROMPT, expected)):
                reply = whole(session.generate(prompt, REPLY))
                assert tokens is None or reply.tokens == tokens
                assert reply.verified
                assert session.cache.recollection is not None
                assert len(session.cache.transcript) - session.cache.recollection.length <= 2
            # As where all is in one process, but for the 8 bits of what is attended to.
            assert abs(reply.stats.accepted - together) <= 3


def test_a_rounds_bytes_are_those_of_the_paper(engine: Engine, caller: Caller) -> None:
    """Table 7: 2 A E_kv (TLI + 1), and 2 bytes a vector."""
    caller.recalled = 0
    frames: list[bytes] = []
    hear = caller.line._send
    caller.line._send = lambda frame: (frames.append(frame), hear(frame))[1]  # type: ignore[assignment]
    e_kv, through = engine.config.kv_size, 1

    def body(tokens: int) -> bytes:
        """Of all that was recalled."""
        answers = [read(frame, ANSWERS) for frame in frames]
        parts = [answer for answer in answers if isinstance(answer, Recalled)]
        assert sum(len(zlib.decompress(p.vectors) if p.packed else p.vectors) for p in parts) == tokens * (
            2 * e_kv * (through + 1) + 2 * (through + 1)
        )
        return zlib.decompress(parts[0].vectors) if parts[0].packed else parts[0].vectors

    caller.say(caller.upload(PROMPT))
    sent = body(len(PROMPT))
    first = read(frames[0], ANSWERS).token  # type: ignore[union-attr]

    # Each vector has a scale of its own: the last layer's keys and values are what the target has.
    with engine.new_session(CONTEXT) as session:
        whole(session.generate(PROMPT, GenerationOptions(max_tokens=1)))
        k, v = (kv[-1, :, :3].float().numpy() for kv in session.cache.prefix)  # [kv_heads, 3, e]
    expected = np.concatenate([k, v], -1).transpose(1, 0, 2).reshape(3, -1)
    count = len(sent) // vector_bytes(through + 1, 2 * e_kv)
    found = unpack_vectors(sent, count * (through + 1), 2 * e_kv).reshape(count, through + 1, 2 * e_kv)
    assert np.abs(found[:3, 1] - expected).max() <= 0.01 * np.abs(expected).max()

    caller.text.extend(PROMPT)
    caller.recalled = len(PROMPT)
    frames.clear()
    caller.say(caller.judge(TokenTree.root(first)))
    assert isinstance(read(frames[0], ANSWERS), Judged)
    assert len(body(1)) == vector_bytes(through + 1, 2 * e_kv)


def test_what_is_recalled_is_whole_tokens() -> None:
    recollection = Recollection(12, 4)
    vectors = np.repeat(np.array([[1000.0], [1.0], [0.01]], np.float32), 4, axis=1)  # of one token

    def told(start: int, stop: int, body: bytes) -> Recalled:
        return Recalled(1, start, stop, False, body)

    recollection.take(told(0, 2, pack_vectors(np.tile(vectors, (2, 1)))), 5)
    assert recollection.length == 2
    assert recollection.vectors(0, 2) == pytest.approx(np.tile(vectors.reshape(1, 12), (2, 1)), rel=0.01)
    for count in (1, 2, 4, 12):  # too few vectors for a token, and too many
        with pytest.raises(ProtocolError):
            recollection.take(told(2, 3, pack_vectors(np.tile(vectors, (4, 1))[:count])), 5)
    assert recollection.length == 2
    recollection.take(told(1, 3, pack_vectors(2 * np.tile(vectors, (2, 1)))), 5)
    assert recollection.vectors(1, 3)[:, 0].tolist() == pytest.approx([1000, 2000], rel=0.01)


# What cannot be


def test_the_most_that_is_sent_of_a_token_is_what_a_client_takes() -> None:
    for width, taken in ((MOST_TOLD, True), (MOST_TOLD + 1, False)):
        welcome = Welcome(1, "m", 9, [], 9, 9, 9, bytes(16), bytes(16), bytes(16), width)
        try:
            read(written(welcome), ANSWERS)
        except ProtocolError:
            assert not taken
        else:
            assert taken


def test_more_than_can_be_sent_of_a_token_is_refused_at_both_ends(tmp_path: Path) -> None:
    changes = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 32, "num_hidden_layers": 33}
    path = write_model(tmp_path / "m", **changes)
    files = describe_model(path)
    sizes = MoaSizes((1, 1, 1), (1, 1, 1), target_layers=32)
    save_module(
        tmp_path / "moa", KIND, sizes, random_moa(files, sizes, torch.bfloat16), files, {}, torch.bfloat16
    )
    for refused in (
        lambda: export_client(path, tmp_path / "moa", tmp_path / "client"),
        lambda: MoaMemoryFiles.find(str(tmp_path / "moa"), files),
    ):
        with pytest.raises(OptionError, match="67584 numbers of each token, and 65536 are the most"):
            refused()


def test_a_window_in_the_last_layers_is_refused_by_name(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", architectures=["MistralForCausalLM"], sliding_window=24)
    write_moa(path, tmp_path / "moa", target_layers=1)
    with pytest.raises(OptionError, match="a MistralForCausalLM of this config has a sliding window"):
        export_client(path, tmp_path / "moa", tmp_path / "client")
    write_moa(path, tmp_path / "short")
    export_client(path, tmp_path / "short", tmp_path / "client")


TAIL: dict[str, Any] = {
    "mlp": 172, "qkv_bias": False, "o_bias": False, "mlp_bias": False, "qk_norm": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": {"tail": None}}, "says otherwise"),
        ({"sizes": {"target_layers": 0}}, "says otherwise"),
        ({"sizes": {"target_layers": -1}}, "no client has"),
        ({"sizes": {"target_layers": 10**9}}, "no client has"),
        ({"sizes": {"target_layers": 2}}, "holds"),
        ({"config": {"tail": {**TAIL, "mlp": 0}}}, "not a sound manifest"),
        ({"config": {"tail": {**TAIL, "mlp": 171}}}, "last.0.gate_proj is BF16"),
        ({"config": {"tail": {**TAIL, "qkv_bias": True}}}, "holds"),
        ({"config": {"tail": {**TAIL, "o_bias": True}}}, "holds"),
        ({"config": {"tail": {**TAIL, "mlp_bias": True}}}, "holds"),
        ({"config": {"tail": {**TAIL, "qk_norm": True}}}, "holds"),
        ({"config": {"tail": {**TAIL, "more": 1}}}, "not a sound manifest"),
    ],
)
def test_files_whose_last_layers_lie_are_refused(
    model: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    client = model.parent / "client"
    manifest = json.loads((client / "client.json").read_text())
    assert manifest["config"]["tail"] == TAIL
    for name, value in change.items():
        manifest[name] = {**manifest[name], **value}
    (tmp_path / "client.json").write_text(json.dumps(manifest))
    (tmp_path / "client.safetensors").write_bytes((client / "client.safetensors").read_bytes())
    with pytest.raises(CorruptFileError, match=said):
        read_client(tmp_path)


@pytest.mark.parametrize("name", ["last.0.q_proj", "last.0.input_norm", "norm"])
def test_tensors_of_another_shape_are_refused(model: Path, tmp_path: Path, name: str) -> None:
    client = model.parent / "client"
    tensors = load_file(client / "client.safetensors")
    tensors[name] = tensors[name][:-1].clone()
    (tmp_path / "client.json").write_bytes((client / "client.json").read_bytes())
    save_file(tensors, tmp_path / "client.safetensors")
    with pytest.raises(CorruptFileError, match=f"{name} is BF16"):
        read_client(tmp_path)
