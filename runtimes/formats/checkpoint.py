"""A local Hugging Face directory: its config and where each tensor's bytes lie. Needs no torch.

Files are hostile until checked: sizes are bounded, byte ranges lie in their files, names stay inside the
directory. No weights are read, except a few pages for the digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from edgespec.devices.files import read_bounded
from edgespec.errors import CorruptFileError, ModelError, StorageError, UnsupportedModelError
from edgespec.offload.chunks import PAGE, StreamOrder, TensorSource
from edgespec.offload.safetensors_header import read_header
from edgespec.offload.strict_json import is_file_name, parse_object, read_object
from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig, from_hf

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
COMPANIONS = (  # files that a packed copy needs beside it
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_CONFIG_LIMIT = 10 * 10**6  # bytes
_INDEX_LIMIT = 25 * 10**6
_COMPANION_LIMIT = 200 * 10**6
_SAMPLES = 64  # pages of weights that the digest sees
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Checkpoint:
    """A model's config and tensors (by canonical name), not yet read.

    `digest` (hex) changes with the config, the tensors' names, shapes and places, and, through a sample of
    pages, with their values.
    """

    config: ModelConfig
    tensors: dict[str, TensorSource]
    directory: Path
    digest: str

    @property
    def order(self) -> StreamOrder:
        """The tensors as a pass needs them. Raises like `stream_order`."""
        return stream_order(self.config, self.tensors)

    def companions(self) -> dict[str, bytes]:
        """Tokenizer and config files by name, for a packed copy. Raises StorageError, CorruptFileError."""
        return companions_in(self.directory)


def companions_in(directory: Path) -> dict[str, bytes]:
    """Tokenizer and config files in a model's directory, by name. Raises StorageError, CorruptFileError."""
    paths = [directory / name for name in COMPANIONS]
    return {path.name: read_bounded(path, _COMPANION_LIMIT) for path in paths if path.is_file()}


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a local directory.

    Raises ModelError (no config or no weights there, a missing shard or tensor), CorruptFileError (a
    truncated or unsound file), UnsupportedModelError (architecture, dtype, pickled weights), StorageError.
    """
    path = Path(path)
    if not path.is_dir():
        raise ModelError(f"{path} is not a directory; give a model directory, a GGUF file or a hub id")
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} has no config.json, so it is not a Hugging Face model directory")
    config_raw = read_bounded(path / "config.json", _CONFIG_LIMIT)
    generation_path = path / "generation_config.json"
    generation = read_object(generation_path, _CONFIG_LIMIT) if generation_path.is_file() else None
    try:
        config = from_hf(parse_object(config_raw, str(path / "config.json")), generation)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{path / 'config.json'} has a value of the wrong kind: {error!r}") from None
    stored, headers = _stored_tensors(path)
    tensors = {
        _canonical(name, stored): replace(t, name=_canonical(name, stored)) for name, t in stored.items()
    }
    config = replace(config, dtype=_one_dtype(stream_order(config, tensors)))
    return Checkpoint(config, tensors, path, sample_digest(config_raw, headers, list(stored.values())))


def stream_order(config: ModelConfig, tensors: Mapping[str, TensorSource]) -> StreamOrder:
    """The tensors that `config` needs, in the order of their use.

    Raises ModelError for a tensor that is missing and CorruptFileError for one of another shape. A tied
    model's own lm_head, which some files have, is not used.
    """

    def take(name: str, shape: tuple[int, ...]) -> TensorSource:
        tensor = tensors.get(name)
        if tensor is None:
            hint = (
                " (or set tie_word_embeddings in config.json if it shares the embedding)"
                if name == HEAD
                else ""
            )
            raise ModelError(f"tensor {name} {list(shape)} is missing; fetch the whole model again{hint}")
        if tensor.shape != shape:
            raise CorruptFileError(
                f"{tensor.file}: tensor {name} has shape {list(tensor.shape)}, "
                f"config.json asks for {list(shape)}"
            )
        return tensor

    layers, small = [], []
    for layer in range(config.layers):
        layers.append(tuple(take(*item) for item in config.matrix_shapes(layer).items()))
        small += [take(*item) for item in config.vector_shapes(layer).items()]
    small.append(take(FINAL_NORM, (config.hidden_size,)))
    table = (config.vocab_size, config.hidden_size)
    embedding = take(EMBEDDING, table)
    head = replace(embedding, name=HEAD) if config.tied_head else take(HEAD, table)
    return StreamOrder(tuple(layers), head, embedding, tuple(small))


def _stored_tensors(path: Path) -> tuple[dict[str, TensorSource], list[bytes]]:
    """All tensors by their stored names, and the headers' bytes."""
    if (path / WEIGHTS).is_file():
        tensors, header = read_header(path / WEIGHTS)
        return tensors, [header]
    if not (path / INDEX).is_file():
        if any(path.glob("*.bin")) or any(path.glob("*.pt")):
            raise UnsupportedModelError(
                f"{path} has only pickled weights (.bin), which can run code when they are read; convert "
                "them where you trust them: transformers' AutoModelForCausalLM.from_pretrained(...)"
                ".save_pretrained(..., safe_serialization=True)"
            )
        raise ModelError(f"{path} has neither {WEIGHTS} nor {INDEX}; fetch the model again")
    places = read_object(path / INDEX, _INDEX_LIMIT).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CorruptFileError(f"{path / INDEX} has no weight_map; fetch it again")
    for name, shard in places.items():
        if not isinstance(shard, str) or not is_file_name(shard):
            raise CorruptFileError(
                f"{path / INDEX} places tensor {name[:200]!r} in {str(shard)[:200]!r}, which is not a "
                "file name inside the model's directory"
            )
    shards = {shard: read_header(path / shard) for shard in sorted(set(places.values()))}
    tensors = {}
    for name, shard in places.items():
        if name not in shards[shard][0]:
            raise CorruptFileError(
                f"{path / INDEX} places tensor {name[:200]!r} in {shard}, which does not have it; "
                "fetch both again"
            )
        tensors[name] = shards[shard][0][name]
    return tensors, [header for _, header in shards.values()]


def _canonical(name: str, stored: Mapping[str, TensorSource]) -> str:
    """Checkpoints of the bare decoder lack the leading "model."."""
    bare = EMBEDDING not in stored and EMBEDDING.removeprefix("model.") in stored
    return f"model.{name}" if bare and name.startswith(("layers.", "embed_tokens.", "norm.")) else name


def _one_dtype(order: StreamOrder) -> str:
    """The dtype that all needed tensors share, as a torch name."""
    first = order.embedding
    for tensor in (first, order.head, *order.small, *(t for layer in order.layers for t in layer)):
        if tensor.encoding not in _DTYPES:
            raise UnsupportedModelError(
                f"{tensor.file}: tensor {tensor.name} is stored as {tensor.encoding}; "
                "supported are F32, F16 and BF16"
            )
        if tensor.encoding != first.encoding:
            raise UnsupportedModelError(
                f"{tensor.file}: tensor {tensor.name} is stored as {tensor.encoding} and {first.name} as "
                f"{first.encoding}; save the checkpoint in one dtype"
            )
    return _DTYPES[first.encoding]


def sample_digest(config: bytes, headers: list[bytes], tensors: list[TensorSource]) -> str:
    """xxh3 of config, headers (hence file sizes), and pages spread evenly over the weights."""
    digest = xxhash.xxh3_128(config)
    for header in headers:
        digest.update(len(header).to_bytes(8, "little") + header)
    ordered = sorted((t for t in tensors if t.nbytes), key=lambda t: (t.file.name, t.offset))
    total = sum(t.nbytes for t in ordered)
    wanted = [i * total // _SAMPLES for i in range(_SAMPLES)]
    place = 0
    for tensor in ordered:
        while wanted and wanted[0] < place + tensor.nbytes:
            digest.update(_page(tensor, wanted.pop(0) - place))
        place += tensor.nbytes
    return digest.hexdigest()


def _page(tensor: TensorSource, start: int) -> bytes:
    try:
        with open(tensor.file, "rb", buffering=0) as file:
            file.seek(tensor.offset + start)
            return file.read(min(PAGE, tensor.nbytes - start))
    except OSError as error:
        raise StorageError(f"{tensor.file} cannot be read: {error.strerror}") from None
