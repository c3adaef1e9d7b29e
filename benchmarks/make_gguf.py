"""Write the GGUF twin of a made checkpoint: the same numbers, for llama.cpp.

    python benchmarks/make_gguf.py models/7b-bf16
    python benchmarks/make_gguf.py models/7b-bf16 --fp16

Streams; needs the `gguf` package. bf16 numbers are fp16 numbers too, down to 6e-5; smaller ones are rounded.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizer import MERGE, SPECIAL, vocabulary

Bits = NDArray[np.uint16]

KINDS = {"BF16": gguf.GGMLQuantizationType.BF16, "F16": gguf.GGMLQuantizationType.F16}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight."""
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        layer, rest = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{NAMES[rest]}.weight"
    return NAMES[stem] + ".weight"


def permute(weight: Bits, heads: int) -> Bits:
    """Q and K rows of each head from halves (Hugging Face's RoPE) to interleaved pairs (llama.cpp's)."""
    rows, columns = weight.shape
    halves: Bits = weight.reshape(heads, 2, rows // heads // 2, columns)
    pairs: Bits = halves.swapaxes(1, 2).reshape(rows, columns)
    return pairs


class Checkpoint:
    """Raw bits of each tensor of a safetensors directory, one at a time."""

    def __init__(self, directory: Path) -> None:
        self.places: dict[str, tuple[Path, int, str, tuple[int, ...]]] = {}
        for file in sorted(directory.glob("*.safetensors")):
            with file.open("rb") as f:
                size = int.from_bytes(f.read(8), "little")
                header = json.loads(f.read(size))
            for name, entry in header.items():
                if name != "__metadata__":
                    begin = 8 + size + entry["data_offsets"][0]
                    self.places[name] = (file, begin, entry["dtype"], tuple(entry["shape"]))

    def read(self, name: str) -> Bits:
        file, offset, _, shape = self.places[name]
        with file.open("rb") as f:
            data = np.fromfile(f, dtype=np.uint16, count=int(np.prod(shape)), offset=offset)
            os.posix_fadvise(f.fileno(), offset, data.nbytes, os.POSIX_FADV_DONTNEED)
        return data.reshape(shape)


def make_gguf(directory: Path, out: Path, fp16: bool = False) -> None:
    """Write `out` from the checkpoint in `directory`; norms become fp32, as llama.cpp wants them."""
    config = json.loads((directory / "config.json").read_text())
    weights = Checkpoint(directory)
    stored = next(dtype for _, _, dtype, _ in weights.places.values())
    kind = KINDS["F16" if fp16 else stored]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_name(directory.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    file_type = gguf.LlamaFileType.MOSTLY_BF16 if kind.name == "BF16" else gguf.LlamaFileType.MOSTLY_F16
    writer.add_file_type(file_type)
    tokens = vocabulary(config["vocab_size"])
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if i < len(SPECIAL) else normal for i in range(len(tokens))])
    writer.add_token_merges([" ".join(MERGE)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    for name, (_, _, _, shape) in weights.places.items():
        if len(shape) == 1:
            writer.add_tensor_info(gguf_name(name), shape, np.dtype(np.float32), 4 * shape[0])
        else:
            nbytes = 2 * shape[0] * shape[1]
            writer.add_tensor_info(gguf_name(name), shape, np.dtype(np.float16), nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, (_, _, _, shape) in weights.places.items():
        data = weights.read(name)
        if len(shape) == 1:
            fp32 = data.view(np.float16).astype(np.float32) if stored == "F16" else widen(data)
            writer.write_tensor_data(fp32)
            continue
        if name.endswith("q_proj.weight"):
            data = permute(data, heads)
        elif name.endswith("k_proj.weight"):
            data = permute(data, kv_heads)
        if kind.name == "F16" and stored == "BF16":
            data = widen(data).astype(np.float16).view(np.uint16)
        writer.write_tensor_data(data)
        assert writer.fout is not None
        file = writer.fout[0].fileno()
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    writer.close()


def widen(bits: Bits) -> NDArray[np.float32]:
    """bf16 bits -> fp32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def ensure_gguf(directory: Path, fp16: bool = False) -> Path:
    """The GGUF twin beside `directory`, made now if it is not there."""
    out = Path(f"{directory}-fp16.gguf" if fp16 else f"{directory}.gguf")
    if not out.exists():
        partial = out.with_name(out.name + ".partial")
        began = time.perf_counter()
        make_gguf(directory, partial, fp16)
        partial.rename(out)
        size, seconds = out.stat().st_size, time.perf_counter() - began
        print(f"{out}: {size / 1e9:.2f} GB in {seconds:.0f} s ({size / seconds / 1e9:.2f} GB/s)", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, help="a directory that make_model.py wrote")
    parser.add_argument("--fp16", action="store_true", help="fp16 numbers, whatever the checkpoint has")
    args = parser.parse_args()
    print(ensure_gguf(args.model, args.fp16))


if __name__ == "__main__":
    main()
