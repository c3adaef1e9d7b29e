"""A GGUF file as llama.cpp will read it: what it needs in memory, and which tokens it has. Needs no torch.

llama.cpp sees no file whose header has not been read here first, with a bound on every length
(`formats.gguf_file`). Of which architecture a model is, is llama.cpp's own affair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgespec.errors import CorruptFileError, ModelError, TokenizerError
from edgespec.runtimes.formats.gguf_metadata import Metadata, read_gguf_parts
from edgespec.runtimes.formats.gguf_tokenizer import UNUSED, read_tokens

STEP_ROWS = 64  # of one call: milliseconds
SEQUENCES = 256  # that llama.cpp can tell apart: one for each slot, and one for what is committed
SLOTS = SEQUENCES - 1
CELLS = 256  # llama.cpp's cache has a multiple of
LAYERS = 10_000  # at most


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

    def context_bytes(self, context: int) -> int:
        """Bytes of a conversation of `context` positions."""
        cells = self.cells(context)
        logits = (SEQUENCES + STEP_ROWS) * self.vocabulary  # llama.cpp has room for one of each sequence
        mask = STEP_ROWS * cells
        return cells * self.position_bytes + 4 * (logits + mask + 8 * STEP_ROWS * self.width)


def read_gguf_draft(path: Path) -> GGUFDraft:
    """Reads the headers of a GGUF file, or of all parts of a split one.

    Raises ModelError where it is none, CorruptFileError for anything unsound, UnsupportedModelError for a
    version, or a tensor type that is not known, TokenizerError, StorageError.
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
    usual = max(1, hidden // max(int(heads.max()), 1))
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
