"""The model that is tuned: known by its headers, or by its configuration alone. No weights are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from edgespec.devices.files import read_bounded
from edgespec.errors import CorruptFileError, OptionError
from edgespec.models.headers import fetch_headers
from edgespec.models.hub import INDEX, WEIGHTS, HubModel, find_here, find_in_cache
from edgespec.offload.chunk_store import in_place, is_store
from edgespec.offload.chunks import Chunk, ChunkTable, Piece, StreamOrder, TensorSource, stored_bytes
from edgespec.offload.pack.layout import LOW_BIT, chunked, parts_of
from edgespec.offload.strict_json import parse_object
from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig, from_hf
from edgespec.runtimes.formats.checkpoint import read_checkpoint
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.gguf import read_gguf

CONFIG_BYTES = 10 * 10**6  # at most
_STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Subject:
    """A model by its headers.

    name: as the user calls it. files: of the precision that there is. order: to lay other precisions out by;
    None = it is packed already. here: its weights are on this machine. packed: this is how it would be if it
    were packed so.
    """

    name: str
    files: ModelFiles
    order: StreamOrder | None
    here: bool
    packed: bool = False

    @property
    def precision(self) -> str:
        """ "source" for the files as they are."""
        return self.files.table.precision

    def variant(self, precision: str) -> Subject:
        """As `pack` would write it. Raises OptionError for a model that is packed already."""
        if precision == self.precision:
            return self
        if self.order is None:
            raise OptionError(
                f"{self.name} is packed as {self.precision}; tune the model that it was made from"
            )
        table = packed_table(self.order, precision, self.name)
        return replace(self, files=replace(self.files, table=table), packed=True)


@contextmanager
def open_subject(name: str, offline: bool = False) -> Iterator[Subject]:
    """The model called `name`: a directory (packed or not, or with a config.json alone), a GGUF file, or a
    model on the hub, of which only headers are fetched; they are kept while the context lasts.

    Raises ModelError and what it is the base of.
    """
    found = find_here(name)
    path = found if isinstance(found, Path) else find_in_cache(found)
    if path is not None:
        yield _local(name, path)
        return
    assert isinstance(found, HubModel)
    with TemporaryDirectory(prefix="edgespec-headers-") as folder:
        try:
            yield replace(_local(name, fetch_headers(found, Path(folder), offline)), here=False)
        except CorruptFileError as error:  # whose message names a file that nobody has seen
            raise CorruptFileError(str(error).replace(folder, str(found))) from None


def _local(name: str, path: Path) -> Subject:
    if is_store(path):
        return Subject(name, describe_model(path), None, here=True)
    weights = [path / WEIGHTS, path / INDEX, *path.glob("*.bin")]
    if path.is_dir() and not any(file.exists() for file in weights):
        return _imagined(name, path)
    checkpoint = read_gguf(path) if path.is_file() else read_checkpoint(path)
    table = in_place(checkpoint.order, str(path))
    files = ModelFiles(path, checkpoint.config, table, checkpoint.digest, str(path))
    return Subject(name, files, checkpoint.order, here=True)


def _imagined(name: str, path: Path) -> Subject:
    """From config.json alone: the tensors as a checkpoint would have them, one behind the other."""
    raw = read_bounded(path / "config.json", CONFIG_BYTES)
    try:
        config = from_hf(parse_object(raw, str(path / "config.json")))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{path / 'config.json'} has a value of the wrong kind: {error!r}") from None
    order = imagine(config, path / WEIGHTS)
    return Subject(name, ModelFiles(path, config, in_place(order, name), "", name), order, here=False)


def imagine(config: ModelConfig, file: Path) -> StreamOrder:
    """What a checkpoint with this config would hold, in a file that need not exist."""
    encoding, element, place = _STORED[config.dtype], 4 if config.dtype == "float32" else 2, 0

    def tensor(name: str, shape: tuple[int, ...]) -> TensorSource:
        nonlocal place
        nbytes = element
        for n in shape:
            nbytes *= n
        place += nbytes
        return TensorSource(name, encoding, shape, file, place - nbytes, nbytes)

    table = (config.vocab_size, config.hidden_size)
    embedding = tensor(EMBEDDING, table)
    layers, small = [], []
    for layer in range(config.layers):
        layers.append(tuple(tensor(*item) for item in config.matrix_shapes(layer).items()))
        small += [tensor(*item) for item in config.vector_shapes(layer).items()]
    small.append(tensor(FINAL_NORM, (config.hidden_size,)))
    head = replace(embedding, name=HEAD) if config.tied_head else tensor(HEAD, table)
    return StreamOrder(tuple(layers), head, embedding, tuple(small))


def packed_table(order: StreamOrder, precision: str, source: str) -> ChunkTable:
    """The chunks that packing `order` at this precision would give, each at the beginning of a page."""
    encoding = LOW_BIT.get(precision) or ("BF16" if precision == "bf16" else None)
    file, chunks = Path(source), list[Chunk]()
    for layer, tensors in enumerate((*order.layers, (order.head,))):
        for parts in chunked([part for t in tensors for part in parts_of(t, encoding or t.encoding)]):
            pieces = tuple(
                Piece(p.tensor, p.encoding, tuple(p.shape), p.row, p.offset, p.nbytes)
                for part in parts
                for p in part.pieces()
            )
            chunks.append(Chunk(len(chunks), layer, file, 0, parts[-1].end, pieces))
    rows = parts_of(order.embedding, order.embedding.encoding if precision == "source" else "BF16")
    embedding = replace(order.embedding, encoding=rows[0].encoding, nbytes=sum(part.nbytes for part in rows))
    return ChunkTable(tuple(chunks), order.small, embedding, len(order.layers), source, precision)


def low_bit_bytes(chunk: Chunk, precision: str) -> int:
    """Bytes of a low-bit copy's rows that stand for a chunk: numbers, and a scale a row."""
    encoding = LOW_BIT[precision]
    return sum(stored_bytes(encoding, piece.shape) + 4 * piece.shape[0] for piece, _ in chunk.matrices())
