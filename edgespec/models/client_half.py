"""Writes what a client drafts with: the half of a Mixture-of-Attentions network behind the memory, and the
target's embedding and head (`runtimes.formats.moa_client`)."""

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
from edgespec.runtimes.config import EMBEDDING, HEAD
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.moa_client import (
    MANIFEST,
    ClientConfig,
    ClientManifest,
    client_shapes,
)
from edgespec.runtimes.formats.moa_sizes import KIND, MoaSizes, parameter_shapes
from edgespec.runtimes.torch.dense import DenseTensors
from edgespec.runtimes.torch.rope import inverse_frequencies
from edgespec.runtimes.torch.trained_files import describe_module

FILE = "client.safetensors"


def export_client(model: str | Path, adapters: str | Path, out: str | Path) -> int:
    """Write the client's half of the MoA drafter in `adapters`, trained for `model`, to `out`: how many
    bytes. The other half is the server's (its option client_adapters).

    Raises OptionError for one that goes through the target's own layers, ModelError, CorruptFileError and
    StorageError.
    """
    files = describe_model(resolve_model(str(model), None, False))
    module = describe_module(Path(adapters), KIND, MoaSizes, parameter_shapes, files)
    c, sizes = files.config, module.shape
    if sizes.target_layers:
        raise OptionError(
            f"{adapters} drafts through {sizes.target_layers} of the target's layers (target_layers), which "
            "a client has not; train one with target_layers=0"
        )
    shape = c.vocab_size, c.hidden_size, c.heads, c.kv_heads, c.head_dim, c.norm_eps
    config = ClientConfig(*shape, c.rope.interleaved, files.table.tied)
    module.check()
    trained = load_file(module.path)
    tensors = {name: trained[name] for name in client_shapes(config, sizes) if name in trained}
    tensors["inverse"] = inverse_frequencies(c.rope, c.head_dim)
    shared = {"embedding": EMBEDDING} if config.tied else {"embedding": EMBEDDING, "head": HEAD}
    with DenseTensors(files, layers=False) as dense:
        for name, source in shared.items():
            tensors[name] = torch.from_numpy(dense.tensor(source)).to(files.dtype)
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


def _stored(name: str, tensor: Tensor) -> Tensor:
    """Rotary frequencies in full, the rest in bf16 unless it has more."""
    exact = name == "inverse" or tensor.dtype in (torch.float32, torch.float16)
    return tensor.detach().cpu().to(torch.float32 if exact else torch.bfloat16).contiguous()
