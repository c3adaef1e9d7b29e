"""Tiny random models on disk, made with transformers, for all tests.

    make_checkpoint(path, "qwen3", dtype="bfloat16", tied=True, shards=2)      a Hugging Face directory
    write_gguf(checkpoint, path, "Q8_0")                                      the same model as GGUF

Weights are large enough that logits are far from uniform and greedy text neither repeats one token nor
hangs on near ties; norms and biases are random too, so that a forgotten one is seen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights

ARCHITECTURES = ("llama2", "llama3", "mistral", "qwen2", "qwen3")

_SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3_SCALING = {  # so short an original context that all three ranges of wavelengths occur
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4}),
    "llama3": ("Llama", {"rope_parameters": _LLAMA3_SCALING}),
    "mistral": ("Mistral", {"sliding_window": 24, "head_dim": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),  # not hidden_size / heads
}


def make_checkpoint(
    path: Path,
    architecture: str = "llama3",
    *,
    dtype: str = "float32",
    tied: bool = False,
    shards: int = 1,
    seed: int = 0,
    tokenizer: bool = True,
    **overrides: Any,
) -> Path:
    """Write a Hugging Face directory; `overrides` are config fields. Returns `path`."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    family, settings = _KINDS[architecture]
    config_class = getattr(transformers, family + "Config")
    config = config_class(**{**_SHAPE, **settings, "tie_word_embeddings": tied, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, family + "ForCausalLM")(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.uniform_(0.5, 1.5)
                elif name.endswith(".bias"):
                    parameter.normal_(0.0, 0.5)
    model.to(getattr(torch, dtype))
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    largest = max(p.numel() * p.element_size() for p in model.parameters())
    limit = total + 1 if shards == 1 else max(total // shards, largest) + 1
    model.save_pretrained(path, max_shard_size=limit)
    if tokenizer:
        make_tokenizer(path, vocab_size=config.vocab_size)
    return path


def make_tokenizer(path: Path, vocab_size: int = 320) -> None:
    """A byte-level BPE of at most `vocab_size` tokens: <unk>, <s>, </s>, the bytes, some merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([__doc__ or "", (make_checkpoint.__doc__ or "") * 2], trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    tokenizer.save(str(path / "tokenizer.json"))
    template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{{ 'assistant:' }}"
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "chat_template": template,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def load_oracle(path: Path, dtype: str = "float32") -> Any:
    """transformers' own model of a checkpoint, with plain attention."""
    import transformers

    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(path, attn_implementation="eager", dtype=getattr(torch, dtype)).eval()


def open_resident(path: Path, dtype: torch.dtype | None = None) -> TorchTarget:
    """Our target over a checkpoint or a GGUF file, all of it in memory; `dtype` of the activations."""
    files = describe_model(path)
    weights = Weights(files.table, 0, dtype or files.dtype)
    weights.pin(range(len(files.table.chunks)))
    return TorchTarget(files.config, weights, slots=64)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, by name, from however many shards."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for shard in sorted(path.glob("*.safetensors")):
        tensors.update(load_file(shard))
    return tensors


# --- GGUF -----------------------------------------------------------------------------------------------

_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight."""
    stem, _, kind = name.rpartition(".")
    if stem in _GGUF_TOP:
        return f"{_GGUF_TOP[stem]}.{kind}"
    layer, _, module = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_GGUF_LAYER[module]}.{kind}"


def permute(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """q or k rows [heads * head_dim, ...] from halves to pairs, as convert_hf_to_gguf does for llama."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpermute(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """The inverse of `permute`."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def rope_factors(head_dim: int, scaling: dict[str, Any]) -> NDArray[np.float32]:
    """[head_dim / 2] divisors of the frequencies, as convert_hf_to_gguf stores llama3 scaling."""
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for frequency in 1.0 / scaling["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def write_gguf(
    checkpoint: Path,
    path: Path,
    encoding: str = "F32",
    *,
    tokenizer: bool = True,
    metadata: dict[str, Any] | None = None,
    packed: dict[str, NDArray[np.uint8]] | None = None,
) -> Path:
    """The checkpoint as GGUF: matrices in `encoding` (F32, F16, BF16, Q8_0 or Q4_0), vectors in F32.

    `metadata` adds keys or replaces them; `packed` gives some matrices' bytes [rows, row_bytes], by Hugging
    Face name and in GGUF's row order, where the gguf package cannot pack `encoding`. Returns `path`.
    """
    import gguf

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    name = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}[config["model_type"]]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config["rope_parameters"]
    kind = gguf.GGMLQuantizationType[encoding]
    values: dict[str, Any] = {
        f"{name}.context_length": config["max_position_embeddings"],
        f"{name}.embedding_length": config["hidden_size"],
        f"{name}.block_count": config["num_hidden_layers"],
        f"{name}.feed_forward_length": config["intermediate_size"],
        f"{name}.attention.head_count": heads,
        f"{name}.attention.head_count_kv": kv_heads,
        f"{name}.attention.key_length": head_dim,
        f"{name}.attention.value_length": head_dim,
        f"{name}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{name}.rope.freq_base": float(rope["rope_theta"]),
        f"{name}.vocab_size": config["vocab_size"],
    }
    if config.get("sliding_window") and config["model_type"] == "mistral":
        values[f"{name}.attention.sliding_window"] = config["sliding_window"]
    if config.get("use_sliding_window"):
        raise ValueError("GGUF cannot say which layers of a Qwen have a window")
    if rope["rope_type"] == "linear":
        values[f"{name}.rope.scaling.type"] = "linear"
        values[f"{name}.rope.scaling.factor"] = float(rope["factor"])
    if tokenizer:
        values.update(tokenizer_metadata(checkpoint))
    writer = gguf.GGUFWriter(path, name)
    for key, value in {**values, **(metadata or {})}.items():
        add_value(writer, key, value)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(head_dim, rope))
    for tensor, weight in read_tensors(checkpoint).items():
        rows: NDArray[Any] = weight.float().numpy()
        if name == "llama" and "_proj." in tensor and ".self_attn.q" in tensor:
            rows = permute(rows, heads)
        if name == "llama" and "_proj." in tensor and ".self_attn.k" in tensor:
            rows = permute(rows, kv_heads)
        if packed and tensor in packed:
            writer.add_tensor(gguf_name(tensor), packed[tensor], raw_dtype=kind)
        elif rows.ndim == 1:
            writer.add_tensor(gguf_name(tensor), rows)
        else:
            writer.add_tensor(gguf_name(tensor), gguf.quants.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: Any, key: str, value: Any) -> None:
    """One metadata entry, of the type that a converter would choose."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def tokenizer_metadata(path: Path) -> dict[str, Any]:
    """The metadata entries of a directory's byte-level BPE tokenizer."""
    stored = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    ids = dict(stored["model"]["vocab"])
    control = {t["content"]: t["id"] for t in stored["added_tokens"] if t["special"]}
    ids.update({t["content"]: t["id"] for t in stored["added_tokens"]})
    tokens = sorted(ids, key=lambda token: ids[token])
    user = {t["content"] for t in stored["added_tokens"] if not t["special"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in control else 4 if t in user else 1 for t in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in stored["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": ids[settings["bos_token"]],
        "tokenizer.ggml.eos_token_id": ids[settings["eos_token"]],
        "tokenizer.ggml.add_bos_token": settings["add_bos_token"],
        "tokenizer.chat_template": settings["chat_template"],
    }
