"""Small random models on disk, and targets over them, for tests that need no transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import Greedy, Logits, Outcome
from edgespec.core.batch import Verification, blocks, run_pass
from edgespec.core.decode import Chooser, Decoding
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.verify import Verifier
from edgespec.offload.chunk_store import in_place
from edgespec.offload.chunks import Chunk
from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig, from_hf
from edgespec.runtimes.formats.checkpoint import read_checkpoint
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import PassObserver
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights
from edgespec.schedules.serial import Plain

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for layer in range(config.layers):
        shapes |= config.matrix_shapes(layer)
        shapes |= config.vector_shapes(layer)
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tied_head:
        shapes[HEAD] = shapes[EMBEDDING]
    return shapes


def write_checkpoint(path: Path, seed: int = 0, **changes: Any) -> Path:
    """A random checkpoint in `path`; its logits are far from uniform, so greedy text is not degenerate."""
    raw = SHAPE | changes
    config = from_hf(raw)
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config.dtype)
    tensors = {
        name: (torch.randn(shape, generator=generator) * (1.5 / shape[-1] ** 0.5 if len(shape) == 2 else 0.1))
        .add(0 if len(shape) == 2 else 1)
        .to(dtype)
        for name, shape in tensor_shapes(config).items()
    }
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(raw))
    return path


def open_tiny(
    path: Path, pinned: Callable[[Chunk], bool] = lambda chunk: True, ring_chunks: int = 3, slots: int = 300
) -> TorchTarget:
    """A target over a checkpoint, with the chunks that `pinned` picks in memory and the rest streamed."""
    checkpoint = read_checkpoint(path)
    table = in_place(checkpoint.order, str(path))
    ring = ring_chunks * max(c.read_bytes for c in table.chunks)
    weights = Weights(table, ring, getattr(torch, checkpoint.config.dtype))
    weights.pin([c.index for c in table.chunks if pinned(c)])
    return TorchTarget(checkpoint.config, weights, slots)


def fill(target: TorchTarget, cache: TorchKVCache, tokens: np.ndarray | list[int]) -> None:
    """Commit a prompt in one block."""
    rows = Rows.append(cache, np.arange(-1, len(tokens) - 1), prefill=True)
    target.run(target.embed(tokens), rows, range(target.config.layers))
    cache.commit(np.arange(len(tokens)))


def run_tree(
    target: TorchTarget,
    cache: TorchKVCache,
    tokens: np.ndarray | list[int],
    parents: np.ndarray | list[int],
    observer: PassObserver | None = None,
) -> torch.Tensor:
    """Logits [n, V] of a tree's nodes behind the committed prefix; the slots stay open."""
    rows = Rows.append(cache, parents)
    layers = range(target.config.layers)
    return target.logits(target.run(target.embed(tokens), rows, layers, observer)).clone()


def verify(
    target: TorchTarget, parts: Sequence[Verification], observer: PassObserver | None = None
) -> list[Outcome]:
    """One pass over these trees, without a verifier."""
    run_pass(target, parts, observer)
    return [part.result() for part in parts]


def prefill(
    target: TorchTarget, cache: TorchKVCache, tokens: list[int], observer: PassObserver | None = None
) -> Logits:
    """Commit a prompt in passes of its own, without a verifier: what follows it, [V]."""
    for block in blocks(cache, tokens, observer):
        run_pass(target, [block], observer)
        block.raise_error()
    return block.result()


def greedily(verifier: Verifier[Any], seat: Any, prompt: list[int], observer: Any = None) -> Decoding:
    """A greedy reply without drafts."""
    chooser = Chooser(Sampler(GenerationOptions()), Noise(0), Greedy())
    return Decoding(verifier, seat, prompt, chooser, Plain(), 10**6, observer)
