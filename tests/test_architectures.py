"""Every architecture computes what transformers computes: logits, greedy text, trees; from GGUF files too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgespec.kernels.gguf_blocks import BLOCKS, row_bytes
from edgespec.offload.pack.pack import pack
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.gguf import read_gguf
from edgespec.runtimes.formats.gguf_file import read_gguf_file
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.target import TorchTarget
from tests.models import (
    gguf_name,
    load_oracle,
    make_checkpoint,
    make_tokenizer,
    open_resident,
    read_tensors,
    unpermute,
    write_gguf,
)
from tests.test_compiled import FACTORS

TOLERANCE = 1e-4  # of fp32 logits
REPLY = 100  # behind a prompt of 40: three blocks of attention, and several windows
SHARED = Path("/work/shared")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("llama2", {}),
    "llama2-biases": ("llama2", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2}),
    "llama-linear-rope": (
        "llama2",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    ),
    "llama3": ("llama3", {"shards": 3}),
    "llama3-tied": ("llama3", {"tied": True}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {"shards": 2}),
    "qwen2-upper-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen2-tied": ("qwen2", {"tied": True}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tied": True, "shards": 2}),
}


@dataclass
class Case:
    """One model, ours and theirs."""

    path: Path

    @cached_property
    def oracle(self) -> Any:
        return load_oracle(self.path)

    @cached_property
    def target(self) -> TorchTarget:
        return open_resident(self.path)

    @cached_property
    def text(self) -> list[int]:
        """Any tokens."""
        return [int(t) for t in np.random.default_rng(3).integers(3, 320, 100)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    root = tmp_path_factory.mktemp("models")
    return {
        name: Case(make_checkpoint(root / name, architecture, seed=7, tokenizer=False, **settings))
        for name, (architecture, settings) in CASES.items()
    }


@torch.inference_mode()
def oracle_logits(oracle: Any, tokens: list[int]) -> Tensor:
    """[n, V] without a cache."""
    logits: Tensor = oracle(torch.tensor([tokens])).logits[0].float()
    return logits


def oracle_greedy(oracle: Any, prompt: list[int], n: int) -> list[int]:
    """With transformers' own cache."""
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": n}
    tokens: list[int] = oracle.generate(torch.tensor([prompt]), **options)[0].tolist()
    assert len(tokens) == len(prompt) + n
    return tokens


def run(
    target: TorchTarget, cache: TorchKVCache, tokens: list[int], parents: list[int], prefill: bool = False
) -> Tensor:
    """Logits [n, V] of uncommitted rows."""
    rows = Rows.append(cache, parents, prefill=prefill)
    hidden = target.run(target.embed(tokens), rows, range(target.config.layers))
    return target.logits(hidden).clone()


def chain(n: int) -> list[int]:
    return list(range(-1, n - 1))


def extend(target: TorchTarget, cache: TorchKVCache, tokens: list[int], prefill: bool) -> Tensor:
    """Logits of tokens that are committed behind what the cache holds."""
    logits = run(target, cache, tokens, chain(len(tokens)), prefill)
    cache.commit(chain(len(tokens) + 1)[1:])
    return logits


def greedy(target: TorchTarget, prompt: list[int], n: int) -> list[int]:
    """Prompt in one block, then a pass for every token."""
    cache = target.new_cache(len(prompt) + n)
    tokens = [*prompt, int(extend(target, cache, prompt, prefill=True)[-1].argmax())]
    while len(tokens) < len(prompt) + n:
        tokens.append(int(extend(target, cache, tokens[-1:], prefill=False)[-1].argmax()))
    return tokens


def error(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


@pytest.mark.parametrize("name", CASES)
def test_logits(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    tokens = case.text[:100]
    expected = oracle_logits(case.oracle, tokens)
    assert float(expected.std()) > 0.5  # far from uniform, so that errors would show

    whole = extend(case.target, case.target.new_cache(100), tokens, prefill=True)
    assert error(whole, expected) <= TOLERANCE

    cache = case.target.new_cache(100)
    blocks = [extend(case.target, cache, tokens[i : i + 33], prefill=True) for i in range(0, 100, 33)]
    assert error(torch.cat(blocks), expected) <= TOLERANCE

    cache = case.target.new_cache(100)
    singles = [extend(case.target, cache, [token], prefill=False) for token in tokens]
    assert error(torch.cat(singles), expected) <= TOLERANCE


@pytest.mark.parametrize("name", ["llama2", "llama3", "mistral", "qwen2", "qwen2-upper-window", "qwen3"])
def test_greedy_reply(cases: dict[str, Case], name: str) -> None:
    case, prompt = cases[name], cases[name].text[:40]
    text = oracle_greedy(case.oracle, prompt, REPLY)
    assert len(set(text[40:])) > 30  # not a loop of a few tokens
    assert greedy(case.target, prompt, REPLY) == text
    # Without a cache: each next token from a pass over everything before it. Theirs first.
    assert oracle_logits(case.oracle, text[:-1])[39:].argmax(1).tolist() == text[40:]
    cache = case.target.new_cache(len(text))
    logits = run(case.target, cache, text[:-1], chain(len(text) - 1), prefill=True)
    assert logits[39:].argmax(1).tolist() == text[40:]
    for end in range(40, len(text), 31):  # and from passes of their own
        cache.truncate(0)
        logits = run(case.target, cache, text[:end], chain(end), prefill=True)
        assert int(logits[-1].argmax()) == text[end]


@pytest.mark.parametrize("name", CASES)
def test_tree_nodes(cases: dict[str, Case], name: str) -> None:
    """Each node of a tree sees the prefix and its own ancestors, at the position of its depth."""
    case = cases[name]
    rng = np.random.default_rng(11)
    cache = case.target.new_cache(200)
    extend(case.target, cache, case.text[:50], prefill=True)
    parents = [-1, -1] + [int(rng.integers(-1, i)) for i in range(2, 24)]
    parents += [0, *range(24, 52)]  # and, behind node 0, a branch longer than the windows
    tokens = [int(t) for t in rng.integers(0, 320, len(parents))]
    logits = run(case.target, cache, tokens, parents)

    def path(node: int) -> list[int]:
        return [] if node < 0 else [*path(parents[node]), node]

    for node in (*range(0, 24, 2), *range(24, 53, 7)):
        through = [tokens[i] for i in path(node)]
        expected = oracle_logits(case.oracle, case.text[:50] + through)[-1]
        assert error(logits[node], expected) <= TOLERANCE, node
    deep = path(len(parents) - 1)
    cache.commit(deep)  # the accepted branch becomes the prefix of what follows
    committed = case.text[:50] + [tokens[i] for i in deep]
    after = extend(case.target, cache, [5], prefill=False)[0]
    assert error(after, oracle_logits(case.oracle, [*committed, 5])[-1]) <= TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["llama3", "mistral", "qwen2", "qwen3"])
def test_half_precision_errs_no_more_than_transformers(tmp_path: Path, architecture: str, dtype: str) -> None:
    path = make_checkpoint(tmp_path, architecture, dtype=dtype, tokenizer=False)
    tokens = [int(t) for t in np.random.default_rng(5).integers(0, 320, 90)]
    exact = oracle_logits(load_oracle(path, "float32"), tokens)
    theirs = (oracle_logits(load_oracle(path, dtype), tokens) - exact).square().mean().sqrt()
    target = open_resident(path)
    assert target.dtype == getattr(torch, dtype)
    for prefill in (True, False):
        cache = target.new_cache(90)
        step = 90 if prefill else 30
        parts = [extend(target, cache, tokens[i : i + step], prefill) for i in range(0, 90, step)]
        ours = (torch.cat(parts) - exact).square().mean().sqrt()
        assert 0 < ours <= 1.25 * theirs


# --- GGUF ------------------------------------------------------------------------------------------------


def oracle_of_gguf(path: Path, checkpoint: Path) -> Any:
    """transformers' model with the numbers that a GGUF file holds, as the gguf package unpacks them."""
    oracle = load_oracle(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    packed = {t.name: t for t in gguf.GGUFReader(path).tensors}
    state = oracle.state_dict()
    for name in read_tensors(checkpoint):
        tensor = packed[gguf_name(name)]
        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(state[name].shape)
        if config["model_type"] in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            rows = unpermute(rows, heads)
        state[name].copy_(torch.from_numpy(np.array(rows, dtype=np.float32)))
    return oracle


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        (name, "F32")
        for name in ("llama2-biases", "llama-linear-rope", "llama3", "mistral", "qwen2", "qwen3-tied")
    ]
    + [("llama3", encoding) for encoding in ("F16", "BF16", "Q8_0", "Q4_0")],
)
def test_gguf_logits(tmp_path: Path, cases: dict[str, Case], name: str, encoding: str) -> None:
    case = cases[name]
    path = write_gguf(case.path, tmp_path / "m.gguf", encoding, tokenizer=False, metadata=TOKENS)
    oracle = oracle_of_gguf(path, case.path)
    expected = oracle_logits(oracle, case.text[:90])
    target = open_resident(path, torch.float32)
    assert error(extend(target, target.new_cache(90), case.text[:90], prefill=True), expected) <= TOLERANCE
    cache = target.new_cache(90)
    parts = [extend(target, cache, case.text[i : i + 30], prefill=False) for i in range(0, 90, 30)]
    assert error(torch.cat(parts), expected) <= TOLERANCE
    # At the dtype that a user gets, the text is the model's own wherever its choice is clear.
    target = open_resident(path)
    assert target.dtype == {"F32": torch.float32, "F16": torch.float16}.get(encoding, torch.bfloat16)
    ours = extend(target, target.new_cache(90), case.text[:90], prefill=True)
    top = expected.topk(2).values
    clear = top[:, 0] - top[:, 1] > 0.5
    assert int(clear.sum()) > 10
    assert torch.equal(ours.argmax(1)[clear], expected.argmax(1)[clear])


TOKENS = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "c"]}


def random_blocks(encoding: str, rows: int, cols: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Packed bytes [rows, row_bytes] whose weights spread by about 0.06 around 0."""
    raw = rng.integers(0, 256, (rows, row_bytes(encoding, cols)), dtype=np.uint8)
    blocks = raw.reshape(-1, BLOCKS[encoding].nbytes)
    scale_at = FACTORS.get(encoding, (0,))[0]
    spread = {"Q4_K": 200, "Q6_K": 1300, "Q3_K": 42, "Q4_1": 4.6, "Q5_0": 9.2, "Q5_1": 9.2}  # of numbers
    d = 0.06 / spread[encoding]
    blocks[:, scale_at : scale_at + 2] = np.frombuffer(np.float16(d).tobytes(), np.uint8)
    if added := {"Q4_K": 7.5, "Q4_1": -7.5, "Q5_1": -15.5}.get(encoding):
        blocks[:, 2:4] = np.frombuffer(np.float16(added * d).tobytes(), np.uint8)
    return raw


@pytest.mark.parametrize("encoding", ["Q4_K", "Q6_K", "Q3_K", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("architecture", ["llama3", "qwen3"])
def test_gguf_blocks(tmp_path: Path, architecture: str, encoding: str) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 64}
    checkpoint = make_checkpoint(tmp_path / "m", architecture, tokenizer=False, **shape)
    rng = np.random.default_rng(0)
    packed = {
        name: random_blocks(encoding, *weight.shape, rng)
        for name, weight in read_tensors(checkpoint).items()
        if weight.ndim == 2
    }
    path = write_gguf(
        checkpoint, tmp_path / "m.gguf", encoding, tokenizer=False, metadata=TOKENS, packed=packed
    )
    assert {t.encoding for t in read_gguf_file(path).tensors.values()} == {encoding, "F32"}
    tokens = [int(t) for t in rng.integers(0, 320, 70)]
    expected = oracle_logits(oracle_of_gguf(path, checkpoint), tokens)
    assert float(expected.std()) > 0.5
    target = open_resident(path, torch.float32)
    cache = target.new_cache(70)
    assert error(extend(target, cache, tokens[:60], prefill=True), expected[:60]) <= TOLERANCE
    assert error(extend(target, cache, tokens[60:], prefill=False), expected[60:]) <= TOLERANCE


def test_gguf_greedy_reply(tmp_path: Path, cases: dict[str, Case]) -> None:
    """Rotation of interleaved pairs and stored divisors, over a whole reply."""
    case = cases["llama3"]
    path = write_gguf(case.path, tmp_path / "m.gguf", tokenizer=False, metadata=TOKENS)
    assert greedy(open_resident(path), case.text[:40], REPLY) == oracle_greedy(
        case.oracle, case.text[:40], REPLY
    )


@pytest.mark.parametrize("precision", ["source", "bf16", "int8", "int4"])
def test_packed_gguf(tmp_path: Path, cases: dict[str, Case], precision: str) -> None:
    """A packed copy keeps what only GGUF has: pairwise rotation, stored divisors, the tokenizer inside."""
    case, tokens = cases["llama3"], cases["llama3"].text[:60]
    make_tokenizer(case.path)
    path = write_gguf(case.path, tmp_path / "m.gguf", "Q8_0")
    source, out = read_gguf(path), tmp_path / "packed"
    pack(
        source.order,
        out,
        precision=precision,
        config=source.config.to_dict(),
        source=str(path),
        source_digest=source.digest,
        beside=source.companions(),
    )
    again = Tokenizer.from_file(str(out / "tokenizer.json"))
    original = Tokenizer.from_file(str(case.path / "tokenizer.json"))
    assert again.encode("A round trip").ids == original.encode("A round trip").ids
    assert describe_model(out).config == source.config
    logits = [extend(t, t.new_cache(90), tokens, prefill=False) for t in map(open_resident, (path, out))]
    exact = oracle_logits(oracle_of_gguf(path, case.path), tokens)
    off = [float((x - exact).square().mean().sqrt()) for x in logits]
    if precision == "source":
        assert torch.equal(logits[0], logits[1])
    # int4 loses much on so small a model; a wrong layout would be off by 1.4 standard deviations.
    worst = {"bf16": 1.3 * off[0], "int8": 1.6 * off[0], "int4": 0.75 * float(exact.std())}
    assert off[1] <= worst.get(precision, off[0])


# --- a trained model -------------------------------------------------------------------------------------


def test_stories260k_continues_as_with_transformers() -> None:
    path = SHARED / "models/stories260k"
    if not path.is_dir():
        pytest.skip("needs /work/shared/models/stories260k")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    prompt = tokenizer.encode("Once upon a time").ids
    expected = oracle_greedy(load_oracle(path), prompt, REPLY)
    assert greedy(open_resident(path), prompt, REPLY) == expected
    assert tokenizer.decode(expected).startswith("Once upon a time")
