"""Write the F16 GGUF twin of a bf16 checkpoint: the same numbers, for llama.cpp.

Streams, where the tests' writer holds the whole model; needs the `gguf` package. bf16 numbers are fp16
numbers too, down to 6e-5; smaller ones are rounded. The tokenizer is the checkpoint's, a byte-level BPE, but
for how it cuts text into words where that is not GPT-2's: of llama.cpp's list of ways Qwen's is taken.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from benchmarks.models.checkpoint import made_whole
from edgespec.offload.chunks import TensorSource
from edgespec.offload.safetensors_header import read_header
from tests.models import gguf_name, permute


def read(tensor: TensorSource) -> NDArray[np.float32]:
    """A bf16 tensor's numbers; its bytes do not stay in the page cache."""
    with tensor.file.open("rb") as file:
        count = tensor.nbytes // 2
        bits = np.fromfile(file, dtype=np.uint16, count=count, offset=tensor.offset)
        os.posix_fadvise(file.fileno(), tensor.offset, tensor.nbytes, os.POSIX_FADV_DONTNEED)
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)


def make_gguf(directory: Path, out: Path) -> None:
    """Write `out` from the checkpoint in `directory`; norms become fp32, as llama.cpp wants them."""
    config = json.loads((directory / "config.json").read_text())
    tensors = [t for file in sorted(directory.glob("*.safetensors")) for t in read_header(file)[0].values()]
    if tensors[0].encoding != "BF16":
        raise SystemExit(f"{directory} holds {tensors[0].encoding}, not BF16")
    kind = gguf.GGMLQuantizationType.F16
    writer = gguf.GGUFWriter(str(out), "llama")
    add_metadata(writer, directory, config)
    for tensor in tensors:
        name, shape = gguf_name(tensor.name), tensor.shape
        if len(shape) == 1:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * shape[0])
        else:
            writer.add_tensor_info(name, shape, np.dtype(np.float16), tensor.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for tensor in tensors:
        data = read(tensor)
        module = tensor.name.split(".")[-2]
        if module in heads:
            data = permute(data, heads[module])
        writer.write_tensor_data(data if data.ndim == 1 else data.astype(np.float16))
        assert writer.fout is not None
        file = writer.fout[0].fileno()
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    writer.close()


def add_metadata(writer: gguf.GGUFWriter, directory: Path, config: dict[str, int]) -> None:
    """The shape, and a tokenizer of so many tokens."""
    writer.add_name(directory.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    add_tokenizer(writer, directory, config)


def add_tokenizer(writer: gguf.GGUFWriter, directory: Path, config: dict[str, int]) -> None:
    """Of as many tokens as the embedding has rows."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    described = json.loads(tokenizer.to_str())
    model, words = described["model"], described["pre_tokenizer"]
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    known = {number: text for text, number in tokenizer.get_vocab().items()}
    tokens = [known.get(number, f"<unused {number}>") for number in range(config["vocab_size"])]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2" if words["type"] == "ByteLevel" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    if isinstance(eos := config.get("eos_token_id"), int):  # made models have none
        writer.add_eos_token_id(eos)
    writer.add_add_bos_token(bool(tokenizer.encode("").ids))


def ensure_gguf(directory: Path) -> Path:
    """The GGUF twin beside `directory`, made now if it is not there."""
    out = Path(f"{directory}-fp16.gguf")
    if not out.exists():
        size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
        made_whole(out, size, lambda partial: make_gguf(directory, partial))
    return out
