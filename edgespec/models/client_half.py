"""Writes what a client drafts with: the half of a Mixture-of-Attentions network behind the memory, and of the
target the embedding, the head, and the last layers, if drafts go through these
(`runtimes.formats.moa_client`)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from edgespec.devices.files import replacing
from edgespec.errors import OptionError, StorageError
from edgespec.models.hub import resolve_model
from edgespec.offload.digest import file_digest
from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.moa_client import (
    MANIFEST,
    ClientConfig,
    ClientManifest,
    TailShape,
    check_told,
    client_shapes,
    last_layer,
)
from edgespec.runtimes.formats.moa_sizes import KIND, MoaSizes, memory_width, parameter_shapes
from edgespec.runtimes.torch.dense import DenseTensors
from edgespec.runtimes.torch.rope import inverse_frequencies
from edgespec.runtimes.torch.trained_files import describe_module

FILE = "client.safetensors"


def export_client(model: str | Path, adapters: str | Path, out: str | Path) -> int:
    """Write the client's half of the MoA drafter in `adapters`, trained for `model`, to `out`: how many
    bytes. The other half is the server's (its option client_adapters).

    Raises OptionError for one that goes through layers of the target which a client cannot have, ModelError,
    CorruptFileError and StorageError.
    """
    files = describe_model(resolve_model(str(model), None, False))
    module = describe_module(Path(adapters), KIND, MoaSizes, parameter_shapes, files)
    c, sizes = files.config, module.shape
    check_told(memory_width(c), sizes, Path(adapters))
    last = range(c.layers - sizes.target_layers, c.layers)
    if any(c.window(layer) is not None for layer in last):
        raise OptionError(
            f"{adapters} drafts through {sizes.target_layers} of the target's layers (target_layers), and in "
            f"these a {c.architecture} of this config has a sliding window, which a client's half has not; "
            "train one with target_layers=0"
        )
    shape = c.vocab_size, c.hidden_size, c.heads, c.kv_heads, c.head_dim, c.norm_eps
    tail = TailShape(c.intermediate_size, c.qkv_bias, c.o_bias, c.mlp_bias, c.qk_norm) if last else None
    config = ClientConfig(*shape, c.rope.interleaved, files.table.tied, tail)
    module.check()
    trained = load_file(module.path)
    tensors = {name: trained[name] for name in client_shapes(config, sizes) if name in trained}
    tensors["inverse"] = inverse_frequencies(c.rope, c.head_dim)
    shared = {"embedding": EMBEDDING} if config.tied else {"embedding": EMBEDDING, "head": HEAD}
    if last:
        shared["norm"] = FINAL_NORM
    for i, layer in enumerate(last):
        sources = [*c.matrix_shapes(layer), *c.vector_shapes(layer)]
        shared |= {f"{last_layer(i)}.{_short(source)}": source for source in sources}
    with DenseTensors(files, layers=len(last)) as dense:
        for name, source in shared.items():
            tensors[name] = torch.from_numpy(dense.tensor(source, halves=False)).to(files.dtype)
    stored = {name: _stored(name, tensor) for name, tensor in tensors.items()}
    network = file_digest(module.path)
    manifest = ClientManifest(1, "moa", files.path.name[:200], network, config, sizes, FILE)
    directory = Path(out)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / FILE) as temporary:
            save_file(stored, temporary)
        with replacing(directory / MANIFEST) as temporary:
            temporary.write_text(json.dumps(msgspec.to_builtins(manifest), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from None
    return sum(tensor.nbytes for tensor in stored.values())


def _short(source: str) -> str:
    """The name of a layer's tensor, as the network's own layers have it, from the target's canonical one."""
    part, kind = source.split(".")[-2:]
    part = {"input_layernorm": "input_norm", "post_attention_layernorm": "post_norm"}.get(part, part)
    return f"{part}_bias" if kind == "bias" else part


def _stored(name: str, tensor: Tensor) -> Tensor:
    """Rotary frequencies in full, the rest in bf16 unless it has more."""
    exact = name == "inverse" or tensor.dtype in (torch.float32, torch.float16)
    return tensor.detach().cpu().to(torch.float32 if exact else torch.bfloat16).contiguous()
