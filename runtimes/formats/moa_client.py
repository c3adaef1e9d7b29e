"""The half of a MoA drafter that is on a client, with the target's embedding and head. Needs no torch.

    DIR/client.json           {"format": 1, "kind": "moa", "model", "network", "config", "sizes", "file"}
    DIR/client.safetensors    what comes behind the memory; embedding [V, d]; head [V, d], unless it is that;
                              inverse [e / 2], the rotary frequencies; the target's last layers, if drafts go
                              through them: the first one's tensors are last.0.input_norm, ...

`network` is XXH3-128 of the trained file whose other half the server has. Written by
`models.client_half.export_client`; hostile until checked, as `formats.trained` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edgespec.devices.files import read_bounded
from edgespec.errors import CorruptFileError, ModelError, OptionError, StorageError
from edgespec.offload.safetensors_header import read_header
from edgespec.offload.strict_json import is_file_name, parse_manifest
from edgespec.runtimes.formats.moa_sizes import MoaSizes

MANIFEST = "client.json"
LIMIT = 2**16  # bytes of a manifest
Count = Annotated[int, Meta(ge=1, le=2**24)]
Array = NDArray[np.float32]
MOST_TOLD = 2**16  # numbers that a server sends of a token: `split.protocol.Welcome`


class TailShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the target's last layers, which drafts go through. mlp: width; the rest: what they have."""

    mlp: Count
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool


class ClientConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the target, what drafting needs to know."""

    vocab_size: Annotated[int, Meta(ge=1, lt=2**24)]
    hidden_size: Annotated[int, Meta(ge=1, le=2**20)]
    heads: Annotated[int, Meta(ge=1, le=2**12)]
    kv_heads: Annotated[int, Meta(ge=1, le=2**12)]
    head_dim: Annotated[int, Meta(ge=2, le=2**12)]
    norm_eps: Annotated[float, Meta(gt=0, lt=1)]
    interleaved: bool
    tied: bool
    tail: TailShape | None = None

    @property
    def width(self) -> int:
        """Of a vector: keys and values of one layer."""
        return 2 * self.kv_heads * self.head_dim


class ClientManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal[1]
    kind: Literal["moa"]
    model: Annotated[str, Meta(max_length=200)]
    network: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    config: ClientConfig
    sizes: MoaSizes
    file: str

    @property
    def width(self) -> int:
        """Numbers that are sent of a token."""
        return told_width(self.config.width, self.sizes)


def told_width(width: int, sizes: MoaSizes) -> int:
    """Numbers that are sent of a token: a vector of memory, of `width` numbers, and one of each of the
    target's layers that drafts go through."""
    return width * (1 + sizes.target_layers)


def check_told(width: int, sizes: MoaSizes, adapters: Path) -> None:
    """Raises OptionError where that is more than can be sent."""
    if (told := told_width(width, sizes)) > MOST_TOLD:
        raise OptionError(
            f"{adapters} drafts through {sizes.target_layers} of the target's layers (target_layers): a "
            f"client would be sent {told} numbers of each token, and {MOST_TOLD} are the most; train one "
            "with fewer"
        )


def last_layer(index: int) -> str:
    """The name of one of the target's last layers."""
    return f"last.{index}"


def client_shapes(config: ClientConfig, sizes: MoaSizes) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor, by name."""
    c, d, e = config, config.hidden_size, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "projection": (d, c.width), "projection_bias": (d,), "norm": (d,), "inverse": (e // 2,),
        "embedding": (c.vocab_size, d),
    }  # fmt: skip
    if not c.tied:
        shapes["head"] = (c.vocab_size, d)
    for name, kv, mlp in zip(("over_tokens", "to_memory"), sizes.kv_heads[1:], sizes.mlp[1:], strict=True):
        shapes |= _layer_shapes(name, d, c.heads * e, kv * e, mlp)
    if (tail := c.tail) is not None:
        for name in map(last_layer, range(sizes.target_layers)):
            matrices = _layer_shapes(name, d, c.heads * e, c.kv_heads * e, tail.mlp)
            biased = ["q_proj", "k_proj", "v_proj"] * tail.qkv_bias + ["o_proj"] * tail.o_bias
            biased += ["gate_proj", "up_proj", "down_proj"] * tail.mlp_bias
            shapes |= matrices
            shapes |= {f"{name}.{matrix}_bias": matrices[f"{name}.{matrix}"][:1] for matrix in biased}
            shapes |= {f"{name}.{norm}": (e,) for norm in ["q_norm", "k_norm"] * tail.qk_norm}
    return shapes


def _layer_shapes(name: str, d: int, q: int, kv: int, mlp: int) -> dict[str, tuple[int, ...]]:
    own: dict[str, tuple[int, ...]] = {
        "input_norm": (d,), "q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, q),
        "post_norm": (d,), "gate_proj": (mlp, d), "up_proj": (mlp, d), "down_proj": (d, mlp),
    }  # fmt: skip
    return {f"{name}.{parameter}": shape for parameter, shape in own.items()}


def read_client(directory: Path) -> tuple[ClientManifest, Mapping[str, Array]]:
    """The manifest, and all tensors in fp32. Raises ModelError where there is none, CorruptFileError for
    anything unsound, StorageError."""
    path = directory / MANIFEST
    if not path.is_file():
        raise ModelError(
            f"{directory} has no {MANIFEST}: a client drafts with what `export_client` makes of "
            "trained adapters"
        )
    manifest = parse_manifest(read_bounded(path, LIMIT), path, ClientManifest)
    c, sizes = manifest.config, manifest.sizes
    through = sizes.target_layers
    if c.head_dim % 2 or min(*sizes.kv_heads, *sizes.mlp) < 1 or through < 0 or manifest.width > MOST_TOLD:
        raise CorruptFileError(f"{path}: no client has a network of these sizes")
    if (c.tail is None) != (not through):
        raise CorruptFileError(f"{path}: its drafts go through {through} layers, and it says otherwise")
    if c.heads % c.kv_heads or any(c.heads % kv for kv in sizes.kv_heads[1:]):
        raise CorruptFileError(f"{path}: its heads of keys do not divide the {c.heads} heads")
    return manifest, _read_tensors(directory, manifest.file, client_shapes(c, sizes))


def _read_tensors(directory: Path, name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    if not is_file_name(name):
        raise CorruptFileError(f"{directory / MANIFEST} names {name[:200]!r}, which is not a file beside it")
    path = directory / name
    tensors, _ = read_header(path)
    if tensors.keys() != shapes.keys():
        raise CorruptFileError(f"{path} holds {sorted(tensors)[:8]}, and a client needs {sorted(shapes)[:8]}")
    found = {}
    try:
        with path.open("rb") as file:
            for tensor_name, shape in shapes.items():
                tensor = tensors[tensor_name]
                if tensor.shape != shape or tensor.encoding not in ("F32", "BF16"):
                    raise CorruptFileError(
                        f"{path}: {tensor_name} is {tensor.encoding} {list(tensor.shape)}, and should be "
                        f"{list(shape)}"
                    )
                file.seek(tensor.offset)
                raw = file.read(tensor.nbytes)
                if len(raw) != tensor.nbytes:
                    raise CorruptFileError(f"{path} ends within {tensor_name}")
                found[tensor_name] = _floats(raw, tensor.encoding).reshape(shape)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    return found


def _floats(raw: bytes, encoding: str) -> Array:
    if encoding == "F32":
        return np.frombuffer(raw, "<f4")
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
