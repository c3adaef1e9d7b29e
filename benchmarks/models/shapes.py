"""The model shapes that benchmarks use: real sizes, made-up weights."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD, from_hf


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-style decoder."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128
    context: int = 4096
    tied: bool = False

    def matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(canonical name, shape) of every tensor, layer by layer."""
        config = from_hf(self.hf_config("bfloat16"))
        yield EMBEDDING, (self.vocab, self.hidden)
        for layer in range(self.layers):
            yield from config.matrix_shapes(layer).items()
            yield from config.vector_shapes(layer).items()
        yield FINAL_NORM, (self.hidden,)
        if not self.tied:
            yield HEAD, (self.vocab, self.hidden)

    def parameters(self) -> int:
        return sum(math.prod(dims) for _, dims in self.matrices())

    def hf_config(self, dtype: str) -> dict[str, Any]:
        """config.json. No EOS: a random model would stop at a random place, and a benchmark counts tokens."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "mlp_bias": False,
            "hidden_act": "silu",
            "bos_token_id": 1,
            "eos_token_id": None,
            "torch_dtype": dtype,
        }


SHAPES = {
    "0.5b": Shape(24, 896, 4864, 14, 2, 32000, head_dim=64, tied=True),  # Qwen2-0.5B's body
    "1b": Shape(22, 2048, 5632, 32, 4, 32000, head_dim=64),  # TinyLlama 1.1B
    "7b": Shape(32, 4096, 11008, 32, 32, 32000),  # Llama 2 7B
    "70b": Shape(80, 8192, 28672, 64, 8, 32000),  # Llama 2 70B
}


def get_shape(name: str, layers: int | None = None) -> Shape:
    if name not in SHAPES:
        raise SystemExit(f"unknown shape {name!r}; known are {', '.join(SHAPES)}")
    return SHAPES[name] if layers is None else replace(SHAPES[name], layers=layers)


def models_dir() -> Path:
    """Where benchmark models lie: $EDGESPEC_BENCH_DIR, else `models` beside the checkout."""
    return Path(os.environ.get("EDGESPEC_BENCH_DIR") or Path(__file__).resolve().parents[3] / "models")
