"""A GGUF file as a checkpoint: its metadata as our config, its tensors under Hugging Face's names.

Nothing is rearranged: blocks stay packed, and llama's q and k rows stay in the order that llama.cpp stores
them for pairwise rotation (`Rope.interleaved`). Llama 3.x's rope scaling is one divisor for each frequency
(`Rope.factors`). Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from edgespec.errors import CorruptFileError, ModelError, StorageError, UnsupportedModelError
from edgespec.kernels.gguf_blocks import dequantize
from edgespec.offload.chunks import TensorSource
from edgespec.runtimes.config import ARCHITECTURES, EMBEDDING, FINAL_NORM, HEAD, ModelConfig, Rope
from edgespec.runtimes.formats.checkpoint import Checkpoint, sample_digest, stream_order
from edgespec.runtimes.formats.gguf_file import GGUFFile, Value
from edgespec.runtimes.formats.gguf_metadata import Metadata, read_gguf_parts
from edgespec.runtimes.formats.gguf_tokenizer import read_tokenizer, special_tokens

PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class GGUFLayout:
    """How GGUF stores one of our architectures."""

    architecture: str
    interleaved: bool  # q and k rows are permuted for pairwise rotation


LAYOUTS: Mapping[str, GGUFLayout] = {
    "llama": GGUFLayout("LlamaForCausalLM", interleaved=True),  # Mistral too
    "qwen2": GGUFLayout("Qwen2ForCausalLM", interleaved=False),
    "qwen3": GGUFLayout("Qwen3ForCausalLM", interleaved=False),
}

_TOP = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FREQUENCIES = "rope_freqs.weight"
# Numbers that other models of these families multiply by or clamp to; with them ours would be another model.
_FOREIGN = (
    "attention.scale",
    "attention.clamp_kqv",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "expert_count",
)


@dataclass(frozen=True)
class GGUFCheckpoint(Checkpoint):
    """A checkpoint whose `directory` is the GGUF file, and whose tokenizer is in its `metadata`."""

    metadata: dict[str, Value] = field(repr=False)

    def companions(self) -> dict[str, bytes]:
        """The tokenizer as Hugging Face files, for a packed copy. Raises like `read_tokenizer`."""
        return read_tokenizer(self.metadata).files()


def read_gguf(path: Path) -> GGUFCheckpoint:
    """The checkpoint in a GGUF file, or in the parts of a split one (give the first).

    Raises ModelError (no such file, a missing part or tensor), CorruptFileError (damaged or absurd),
    UnsupportedModelError (architecture, tensor type, rope scaling), StorageError.
    """
    path = Path(path)
    parts, stored = read_gguf_parts(path)
    first = parts[0]
    config = _config(first, stored)
    tensors = {
        name: replace(tensor, name=name)
        for key, tensor in stored.items()
        if key != _FREQUENCIES
        for name in [_canonical(path, key)]
    }
    order = stream_order(config, tensors)
    for vector in order.small:
        if vector.encoding not in PLAIN:
            raise UnsupportedModelError(f"{path}: {vector.name} is a vector stored as {vector.encoding}")
    encodings = {t.encoding for layer in order.layers for t in layer}
    dtype = PLAIN[encodings.pop()] if len(encodings) == 1 and encodings <= PLAIN.keys() else "bfloat16"
    digest = sample_digest(b"GGUF", [part.header_digest for part in parts], list(stored.values()))
    return GGUFCheckpoint(replace(config, dtype=dtype), tensors, path, digest, first.metadata)


def _canonical(path: Path, name: str) -> str:
    """blk.3.ffn_up.weight -> model.layers.3.mlp.up_proj.weight."""
    if name in _TOP:
        return _TOP[name]
    match = re.fullmatch(r"blk\.(\d{1,5})\.(\w+)\.(weight|bias)", name)
    if not match or match[2] not in _LAYER:
        raise UnsupportedModelError(
            f"{path} has tensor {name[:200]!r}, which no supported architecture has: it is a variant that "
            "would be computed wrongly without it"
        )
    return f"model.layers.{int(match[1])}.{_LAYER[match[2]]}.{match[3]}"


def _config(file: GGUFFile, tensors: Mapping[str, TensorSource]) -> ModelConfig:
    """The config that the metadata, and the tensors there are, describe; its dtype is set by the caller."""
    name = Metadata(file).text("general.architecture")
    if name not in LAYOUTS:
        raise UnsupportedModelError(
            f"{file.path}: architecture {name[:200]!r} is not supported; known are {', '.join(LAYOUTS)}"
        )
    layout, meta = LAYOUTS[name], Metadata(file, name + ".")
    for key in _FOREIGN:
        if meta.number(key, default=0.0):
            raise UnsupportedModelError(
                f"{file.path}: {name}.{key} is {meta.number(key)}, which is not supported"
            )
    hidden = meta.whole("embedding_length")
    heads = meta.uniform("attention.head_count")
    kv_heads = meta.uniform("attention.head_count_kv", default=heads)
    head_dim = meta.whole("attention.key_length", default=max(1, hidden // heads))
    if heads % kv_heads or head_dim % 2:
        raise CorruptFileError(
            f"{file.path}: {heads} heads of {head_dim} with {kv_heads} key-value heads are not possible"
        )
    for key in ("attention.value_length", "rope.dimension_count"):
        if meta.whole(key, default=head_dim) != head_dim:
            raise UnsupportedModelError(
                f"{file.path}: {name}.{key} is {meta.whole(key)} beside a head size of {head_dim}, "
                "which is not supported"
            )
    layers, context = meta.whole("block_count", limit=10_000), meta.whole("context_length", limit=2**31)
    window = meta.whole("attention.sliding_window", default=0, least=0, limit=2**31)
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path} has no token_embd.weight; fetch the model again")
    bos, eos = special_tokens(file.metadata)
    return ModelConfig(
        architecture="MistralForCausalLM" if window and name == "llama" else layout.architecture,
        hidden_size=hidden,
        intermediate_size=meta.uniform("feed_forward_length"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        max_context=context,
        norm_eps=meta.number("attention.layer_norm_rms_epsilon", default=1e-6),
        rope=replace(_rope(meta, tensors.get(_FREQUENCIES), head_dim), interleaved=layout.interleaved),
        tied_head="output.weight" not in tensors,
        dtype="bfloat16",
        qkv_bias="blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm=ARCHITECTURES[layout.architecture].qk_norm,
        windows=(window,) * layers if 0 < window < context else (),
        bos=bos,
        eos=eos,
    )


def _rope(meta: Metadata, frequencies: TensorSource | None, head_dim: int) -> Rope:
    theta = meta.number("rope.freq_base", default=10000.0)
    kind = meta.text("rope.scaling.type", default="none")
    factor = meta.number("rope.scaling.factor", default=meta.number("rope.scale_linear", default=1.0))
    if not 0 < theta < np.inf or not 0 < factor < np.inf:
        raise CorruptFileError(f"{meta.file.path}: rope base {theta} or factor {factor} is not positive")
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"{meta.file.path}: rope scaling {kind[:200]!r} is not supported (none, linear, or Llama 3's)"
        )
    linear = factor != 1.0 and (kind == "linear" or "rope.scaling.type" not in meta)
    rope = Rope(theta, "linear", factor) if linear else Rope(theta)
    if frequencies is None:
        return rope
    if frequencies.shape != (head_dim // 2,) or frequencies.encoding != "F32":
        raise CorruptFileError(
            f"{meta.file.path}: {_FREQUENCIES} is {frequencies.encoding} {list(frequencies.shape)}; "
            f"expected F32 [{head_dim // 2}]"
        )
    try:
        with frequencies.file.open("rb") as stream:
            stream.seek(frequencies.offset)
            raw = np.frombuffer(stream.read(frequencies.nbytes), np.uint8)
    except OSError as error:
        raise StorageError(f"{frequencies.file} cannot be read: {error}") from None
    factors = dequantize("F32", raw[None], head_dim // 2)[0]
    if not ((factors > 0) & np.isfinite(factors)).all():
        raise CorruptFileError(f"{meta.file.path}: {_FREQUENCIES} has a divisor that is not positive")
    if (factors == 1).all():
        return rope
    if linear:
        raise UnsupportedModelError(
            f"{meta.file.path}: linear rope scaling beside {_FREQUENCIES} is not supported"
        )
    return replace(rope, factors=tuple(map(float, factors)))
