"""A model's shape, read from its `config.json`, and the table of known architectures.

Adding an architecture that is a variation on Llama is one row of `ARCHITECTURES`. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from edgespec.errors import Call, CorruptFileError, UnsupportedModelError


@dataclass(frozen=True)
class Architecture:
    """What sets an architecture apart from plain Llama."""

    qkv_bias: bool = False
    qk_norm: bool = False  # RMSNorm over head_dim on q and k, before RoPE (Qwen3)
    window: str = "none"  # "all": every layer when the config has one; "upper": Qwen2's max_window_layers


ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture(),  # Llama 2, 3, 3.x, Vicuna, TinyLlama
    "MistralForCausalLM": Architecture(window="all"),
    "Qwen2ForCausalLM": Architecture(qkv_bias=True, window="upper"),
    "Qwen3ForCausalLM": Architecture(qk_norm=True, window="upper"),
}


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: base frequency and, for Llama 3.x, its long-context rescaling."""

    theta: float = 10000.0
    kind: str = "default"  # "default", "linear" or "llama3"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    interleaved: bool = False  # GGUF's llama layout: rotated pairs are (2i, 2i+1), not (i, i + head_dim/2)
    factors: tuple[float, ...] = ()  # GGUF's rope_freqs.weight: pair i's frequency is divided by factors[i]


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a decoder-only model."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    norm_eps: float
    rope: Rope
    tied_head: bool
    dtype: str  # the checkpoint's own: "float32", "float16" or "bfloat16"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()  # per layer: attention reaches this many positions back; None = all
    bos: int | None = None
    eos: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As a packed directory's manifest keeps it."""
        return asdict(self)

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`; raises CorruptFileError when a manifest's config is not sound."""
        try:
            return msgspec.convert(raw, ModelConfig)
        except (msgspec.ValidationError, TypeError) as error:
            raise CorruptFileError(f"the manifest's model config is not sound: {error}") from None

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def kv_bytes(self, positions: int, element: int) -> int:
        """Bytes of keys and values of all layers for `positions` positions of `element`-byte numbers."""
        return 2 * self.layers * self.kv_size * positions * element

    def matrix_shapes(self, layer: int) -> dict[str, tuple[int, int]]:
        """[out, in] of each matrix of one layer, in the order a pass uses them, by canonical name."""
        p, d, f = f"model.layers.{layer}.", self.hidden_size, self.intermediate_size
        return {
            p + "self_attn.q_proj.weight": (self.q_size, d),
            p + "self_attn.k_proj.weight": (self.kv_size, d),
            p + "self_attn.v_proj.weight": (self.kv_size, d),
            p + "self_attn.o_proj.weight": (d, self.q_size),
            p + "mlp.gate_proj.weight": (f, d),
            p + "mlp.up_proj.weight": (f, d),
            p + "mlp.down_proj.weight": (d, f),
        }

    def vector_shapes(self, layer: int) -> dict[str, tuple[int]]:
        """Shape of each norm and bias of one layer, by canonical name."""
        p, d = f"model.layers.{layer}.", self.hidden_size
        shapes = {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,)}
        if self.qk_norm:
            shapes[p + "self_attn.q_norm.weight"] = (self.head_dim,)
            shapes[p + "self_attn.k_norm.weight"] = (self.head_dim,)
        if self.qkv_bias:
            shapes[p + "self_attn.q_proj.bias"] = (self.q_size,)
            shapes[p + "self_attn.k_proj.bias"] = (self.kv_size,)
            shapes[p + "self_attn.v_proj.bias"] = (self.kv_size,)
        if self.o_bias:
            shapes[p + "self_attn.o_proj.bias"] = (d,)
        if self.mlp_bias:
            shapes[p + "mlp.gate_proj.bias"] = (self.intermediate_size,)
            shapes[p + "mlp.up_proj.bias"] = (self.intermediate_size,)
            shapes[p + "mlp.down_proj.bias"] = (d,)
        return shapes


EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def from_hf(raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """The config of a Hugging Face `config.json` (and `generation_config.json`, which owns EOS).

    Raises UnsupportedModelError for an unknown architecture, rope scaling, activation or quantisation,
    CorruptFileError for missing or absurd values.
    """
    names = raw.get("architectures") or []
    name = names[0] if isinstance(names, list) and names else f"model_type {raw.get('model_type')!r}"
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModelError(f"architecture {name} is not supported; known are {known}")
    if raw.get("quantization_config"):
        method = dict(raw["quantization_config"]).get("quant_method", "unknown")
        raise UnsupportedModelError(
            f"the checkpoint is quantised ({method}), which is not supported; "
            "use a GGUF file, or the unquantised checkpoint, which can be packed at int8 or int4",
            hint=Call("pack_model", {"model": "MODEL", "out": "DIR", "precision": "int8"}),
        )
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedModelError(f"activation {raw['hidden_act']!r} is not supported (only silu)")
    arch = ARCHITECTURES[name]
    hidden = _count(raw, "hidden_size")
    heads = _count(raw, "num_attention_heads")
    layers = _count(raw, "num_hidden_layers", limit=10_000)
    context = _count(raw, "max_position_embeddings", default=2048, limit=2**31)
    kv_heads = _count(raw, "num_key_value_heads", default=heads)
    head_dim = _count(raw, "head_dim", default=hidden // heads)
    if heads % kv_heads:
        raise CorruptFileError(f"config.json: {heads} heads cannot share {kv_heads} key-value heads evenly")
    if head_dim % 2:
        raise CorruptFileError(f"config.json: head_dim {head_dim} is odd; rotary embedding needs pairs")
    generation = generation or {}
    return ModelConfig(
        architecture=name,
        hidden_size=hidden,
        intermediate_size=_count(raw, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_count(raw, "vocab_size"),
        max_context=context,
        norm_eps=_positive(raw.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
        rope=_rope(raw, context),
        tied_head=_flag(raw, "tie_word_embeddings"),
        dtype=_dtype(raw),
        qkv_bias=arch.qkv_bias or _flag(raw, "attention_bias"),
        o_bias=_flag(raw, "attention_bias") and not arch.qkv_bias,
        mlp_bias=_flag(raw, "mlp_bias"),
        qk_norm=arch.qk_norm,
        windows=_windows(raw, arch, layers),
        bos=next(iter(_tokens(generation, raw, "bos_token_id")), None),
        eos=_tokens(generation, raw, "eos_token_id"),
    )


def _count(raw: Mapping[str, Any], key: str, default: int | None = None, limit: int = 2**24) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= limit:
        raise CorruptFileError(f"config.json: {key} is {value!r}; expected a whole number from 1 to {limit}")
    return value


def _flag(raw: Mapping[str, Any], key: str) -> bool:
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise CorruptFileError(f"config.json: {key} is {value!r:.80}; expected true or false")
    return bool(value)


def _positive(value: Any, key: str) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise CorruptFileError(f"config.json: {key} is {value!r}; expected a positive number")
    return number


def _dtype(raw: Mapping[str, Any]) -> str:
    names = (raw.get("dtype"), raw.get("torch_dtype"), "float32")
    name = next(name for name in names if name is not None)
    if name not in ("float32", "float16", "bfloat16"):
        raise UnsupportedModelError(
            f"checkpoint dtype {name!r:.80} is not supported (float32, float16, bfloat16)"
        )
    return str(name)


def _rope(raw: Mapping[str, Any], context: int) -> Rope:
    # transformers >= 5 writes rope_parameters (theta inside); before, rope_scaling beside rope_theta.
    scaling = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = _positive(scaling.get("rope_theta", raw.get("rope_theta", 10000.0)), "rope_theta")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", _positive(scaling["factor"], "rope factor"))
    if kind == "llama3":
        low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
        if not 0 < low < high < math.inf:
            raise CorruptFileError(f"config.json: rope scaling from {low} to {high}; expected 0 < low < high")
        original = int(scaling.get("original_max_position_embeddings", context))
        return Rope(theta, "llama3", _positive(scaling["factor"], "rope factor"), low, high, original)
    raise UnsupportedModelError(f"rope scaling {kind!r} is not supported (default, linear, llama3)")


def _windows(raw: Mapping[str, Any], arch: Architecture, layers: int) -> tuple[int | None, ...]:
    size = raw.get("sliding_window")
    if arch.window == "none" or size is None:
        return ()
    if arch.window == "all":
        return (_count(raw, "sliding_window", limit=2**31),) * layers
    if not _flag(raw, "use_sliding_window"):
        return ()
    size = _count(raw, "sliding_window", limit=2**31)
    kinds = raw.get("layer_types")
    if kinds:
        if len(kinds) != layers:
            raise CorruptFileError(f"config.json: {len(kinds)} layer_types for {layers} layers")
        return tuple(size if kind == "sliding_attention" else None for kind in kinds)
    first = raw.get("max_window_layers", layers)
    return tuple(size if layer >= first else None for layer in range(layers))


def _tokens(generation: Mapping[str, Any], raw: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """One id, several or none; a negative one is none."""
    where, given = ("generation_config.json", generation) if key in generation else ("config.json", raw)
    value = given.get(key)
    values: list[Any] = value if isinstance(value, list) else [value]
    if not all(v is None or (isinstance(v, int) and not isinstance(v, bool)) for v in values):
        raise CorruptFileError(f"{where}: {key} is {value!r:.80}; expected a token's id, or a list of them")
    return tuple(v for v in values if v is not None and v >= 0)
