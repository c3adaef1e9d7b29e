"""A GGUF file as llama.cpp will read it: what it needs in memory, and which tokens it has. Needs no torch.

llama.cpp sees no file whose header has not been read here first, with a bound on every length
(`formats.gguf_file`). Of which architecture a model is, is llama.cpp's own affair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgespec.errors import CorruptFileError, ModelError, TokenizerError, UnsupportedModelError
from edgespec.runtimes.formats.gguf_metadata import Metadata, read_gguf_parts
from edgespec.runtimes.formats.gguf_tokenizer import UNUSED, read_tokens

STEP_ROWS = 64  # of one call: milliseconds
SEQUENCES = 256  # that llama.cpp can tell apart: one for each slot, and one for what is committed
SLOTS = SEQUENCES - 1
CELLS = 256  # llama.cpp's cache has a multiple of
LAYERS = 512  # of any model, for llama.cpp: more end its process, and so does an eps below 0
CONTEXT_BYTES = 6 * 10**6  # of a conversation, whatever the model: graphs and lists (measured, 0.3.36: 5 MB)


@dataclass(frozen=True)
class GGUFDraft:
    """A model in a GGUF file, checked.

    weights: bytes of all tensors. position_bytes: of a position's keys and values, of two bytes a number.
    vocabulary: tokens that it has logits for. width: the most numbers of a row of a matrix. ids: of tokens;
    fillers: those of them that stand for none, which the model has for the sake of its shape.
    """

    path: Path
    weights: int
    position_bytes: int
    vocabulary: int
    width: int
    max_context: int
    ids: dict[str, int] = field(repr=False)
    fillers: frozenset[str] = field(repr=False)

    def cells(self, context: int) -> int:
        """Positions of a conversation's cache, for `context` of them and all slots."""
        return -(-(min(context, self.max_context) + SLOTS) // CELLS) * CELLS

    @property
    def cell_bytes(self) -> int:
        """Bytes of a position of the cache: keys, values, and its column of the mask."""
        return self.position_bytes + 4 * STEP_ROWS

    def beside_bytes(self, rows: int) -> int:
        """Bytes of a conversation beside its cache, whose largest pass is of so many rows."""
        # llama.cpp's output has room for one of each sequence; its graph, for a call's; a pass, for its own;
        # to look for what is not finite takes a byte for each of a call's.
        logits = SEQUENCES + STEP_ROWS + rows + STEP_ROWS // 4
        return 4 * (logits * self.vocabulary + 8 * STEP_ROWS * self.width) + CONTEXT_BYTES

    def context_bytes(self, context: int, rows: int) -> int:
        """Bytes of a conversation of `context` positions, whose largest pass is of so many rows."""
        return self.cells(context) * self.cell_bytes + self.beside_bytes(rows)

    def further_bytes(self, rows: int) -> int:
        """Bytes that a further conversation takes beside those of its positions, at most."""
        return (SLOTS + CELLS) * self.cell_bytes + self.beside_bytes(rows)


def read_gguf_draft(path: Path) -> GGUFDraft:
    """Reads the headers of a GGUF file, or of all parts of a split one.

    Raises ModelError where it is none, CorruptFileError for anything unsound, UnsupportedModelError for a
    version, or a tensor type that is not known, or a model that attends to what comes later, TokenizerError,
    StorageError.
    """
    if path.is_dir():
        raise ModelError(f"{path} is a directory, and llama_cpp runs GGUF files; name a .gguf file")
    parts, tensors = read_gguf_parts(path, foreign=True)
    name = Metadata(parts[0]).text("general.architecture")
    meta = Metadata(parts[0], name[:200] + ".")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{path} has no token_embd.weight; fetch the model again")
    layers, hidden = meta.whole("block_count", limit=LAYERS), meta.whole("embedding_length")
    heads = meta.each("attention.head_count", layers)
    kv_heads = meta.each("attention.head_count_kv", layers, heads)
    usual = max(1, hidden // max(int(heads[0]), 1))  # llama.cpp goes by the first layer's
    for key in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"):
        meta.number(f"attention.{key}", default=0.0, least=0.0, limit=1.0)
    if not meta.true("attention.causal", default=True):
        raise UnsupportedModelError(
            f"{path} attends to what comes later, so it cannot draft; use another draft model"
        )
    size = sum(
        meta.whole(f"attention.{part}_length", default=usual, limit=2**16) for part in ("key", "value")
    )
    if embedding.shape[1] != hidden:
        raise CorruptFileError(
            f"{path}: token_embd.weight has rows of {embedding.shape[1]}, beside an "
            f"embedding_length of {hidden}"
        )
    tokens, types = read_tokens(parts[0].metadata)
    if len(tokens) > embedding.shape[0]:
        raise TokenizerError(
            f"{path} has {len(tokens)} tokens but only {embedding.shape[0]} rows for them; fetch the "
            "model again"
        )
    return GGUFDraft(
        path,
        weights=sum(tensor.nbytes for tensor in tensors.values()),
        position_bytes=2 * int(kv_heads.sum(dtype=np.int64)) * size,
        vocabulary=embedding.shape[0],
        width=max(tensor.shape[-1] for tensor in tensors.values()),
        max_context=meta.whole("context_length", limit=2**31),
        ids={token: i for i, token in enumerate(tokens)},
        fillers=frozenset(tokens[i] for i in np.flatnonzero(types == UNUSED)),
    )
