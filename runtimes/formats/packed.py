"""A packed directory as a model: its config, and a chunk table that fits it. Needs no torch."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

from edgespec.errors import CorruptFileError
from edgespec.offload.chunk_store import Store, open_store
from edgespec.offload.chunks import ChunkTable
from edgespec.offload.manifest import TARGET
from edgespec.runtimes.config import ARCHITECTURES, FINAL_NORM, HEAD, ModelConfig

SUBSTITUTE = "substitute"  # folder in a packed directory: a low-bit copy of the same model, packed likewise


def open_packed(path: Path, name: str = TARGET) -> tuple[ModelConfig, Store]:
    """The config of a packed directory, and its set of weights called `name`. Reads no weights.

    Raises like `open_store`, and CorruptFileError when the config is absurd or the weights are another
    shape's.
    """
    store = open_store(path, name)
    config = ModelConfig.from_dict(store.config)
    try:
        check_config(config)
        _check_table(config, store.table)
    except ValueError as error:
        raise CorruptFileError(f"{path}: {error}; pack the model again") from None
    return config, store


def check_config(config: ModelConfig) -> None:
    """The bounds that `from_hf` keeps; raises ValueError."""
    counts = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layers": config.layers,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_context": config.max_context,
    }
    for key, value in counts.items():
        limit = {"layers": 10_000, "max_context": 2**31}.get(key, 2**24)
        if not 0 < value <= limit:
            raise ValueError(f"the config's {key} is {value}; expected 1 to {limit}")
    if config.architecture not in ARCHITECTURES:
        raise ValueError(f"the config's architecture {config.architecture!r} is not known")
    if config.dtype not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"the config's dtype {config.dtype!r} is not known")
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise ValueError(
            f"{config.heads} heads of {config.head_dim} over {config.kv_heads} key-value heads cannot be"
        )
    if config.windows and (
        len(config.windows) != config.layers or any(w is not None and w < 1 for w in config.windows)
    ):
        raise ValueError("the config's windows do not fit its layers")
    rope = config.rope
    if rope.kind not in ("default", "linear", "llama3") or (
        rope.factors and len(rope.factors) != config.head_dim // 2
    ):
        raise ValueError(f"the config's rope scaling ({rope.kind}) is not sound")
    numbers = (rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor, *rope.factors)
    if not all(math.isfinite(n) and n > 0 for n in numbers) or rope.original_context < 1:
        raise ValueError("a number of the config's rope is not positive and finite")
    if not 0 <= config.norm_eps < 1:
        raise ValueError(f"the config's norm_eps is {config.norm_eps}")


def _check_table(config: ModelConfig, table: ChunkTable) -> None:
    """The table holds exactly the matrices and vectors that the config asks for; raises ValueError."""
    if table.layers != config.layers:
        raise ValueError(f"the weights have {table.layers} layers, the config {config.layers}")
    stored: dict[tuple[int, str], tuple[int, int]] = defaultdict(lambda: (0, 0))  # [rows, columns]
    for chunk in table.chunks:
        for piece, _ in chunk.matrices():
            key = chunk.layer, piece.tensor
            stored[key] = (stored[key][0] + piece.shape[0], piece.shape[1])
    wanted = [((i, k), v) for i in range(config.layers) for k, v in config.matrix_shapes(i).items()]
    wanted.append(((config.layers, HEAD), (config.vocab_size, config.hidden_size)))
    if list(stored) != [key for key, _ in wanted]:
        raise ValueError("the chunks are not the config's matrices in the order of their use")
    for key, shape in wanted:
        if stored[key] != shape:
            raise ValueError(f"{key[1]} is stored as {list(stored[key])}, the config asks for {list(shape)}")
    small = {tensor.name: tensor.shape for tensor in table.small}
    vectors: dict[str, tuple[int, ...]] = {FINAL_NORM: (config.hidden_size,)}
    for layer in range(config.layers):
        vectors |= config.vector_shapes(layer)
    for name, vector in vectors.items():
        if small.get(name) != vector:
            raise ValueError(f"{name} is stored as {small.get(name)}, the config asks for {vector}")
    if table.embedding.shape != (config.vocab_size, config.hidden_size):
        raise ValueError(f"the embedding is stored as {list(table.embedding.shape)}")
