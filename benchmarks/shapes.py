"""The model shapes that benchmarks use: real sizes, made-up weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


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
    rope_theta: float = 10000.0
    context: int = 4096
    tied: bool = False

    def matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(canonical name, shape) of every tensor, layer by layer."""
        d, f, q, kv = self.hidden, self.ffn, self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocab, d)
        for i in range(self.layers):
            p = f"model.layers.{i}."
            yield p + "input_layernorm.weight", (d,)
            yield p + "self_attn.q_proj.weight", (q, d)
            yield p + "self_attn.k_proj.weight", (kv, d)
            yield p + "self_attn.v_proj.weight", (kv, d)
            yield p + "self_attn.o_proj.weight", (d, q)
            yield p + "post_attention_layernorm.weight", (d,)
            yield p + "mlp.gate_proj.weight", (f, d)
            yield p + "mlp.up_proj.weight", (f, d)
            yield p + "mlp.down_proj.weight", (d, f)
        yield "model.norm.weight", (d,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, d)

    def parameters(self) -> int:
        total = 0
        for _, shape in self.matrices():
            total += shape[0] * (shape[1] if len(shape) == 2 else 1)
        return total

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
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "mlp_bias": False,
            "hidden_act": "silu",
            "bos_token_id": 1,
            "eos_token_id": None,
            "torch_dtype": dtype,
        }


SHAPES = {
    "tiny": Shape(layers=4, hidden=256, ffn=688, heads=4, kv_heads=2, vocab=2048, head_dim=64),
    "0.5b": Shape(24, 896, 4864, 14, 2, 32000, head_dim=64, tied=True),  # Qwen2-0.5B's body
    "1b": Shape(22, 2048, 5632, 32, 4, 32000, head_dim=64),  # TinyLlama 1.1B
    "7b": Shape(32, 4096, 11008, 32, 32, 32000),  # Llama 2 7B
    "7b-gqa": Shape(32, 4096, 14336, 32, 8, 128256, rope_theta=500000.0, context=8192),  # Llama 3 8B
    "70b": Shape(80, 8192, 28672, 64, 8, 32000),  # Llama 2 70B
}


def get_shape(name: str, layers: int | None = None) -> Shape:
    if name not in SHAPES:
        raise SystemExit(f"unknown shape {name!r}; known are {', '.join(SHAPES)}")
    return SHAPES[name] if layers is None else replace(SHAPES[name], layers=layers)


def models_dir() -> Path:
    """Where benchmark models lie: $EDGESPEC_BENCH_DIR, else `models` beside the checkout."""
    return Path(os.environ.get("EDGESPEC_BENCH_DIR") or Path(__file__).resolve().parents[2] / "models")
