"""Bodies of frames: token ids, drafted nodes, the target's activations. Needs no torch.

Mixture of Attentions, Table 7, counts a round's bytes: 4 M from the client (M nodes), and from the server 3 A
for A tokens and 2 A E_kv (TLI + 1) for the activations that its drafter attends to, at 8 bits a number (E_kv:
the size of a token's keys in a layer). Here it is exactly that, and 2 bytes a vector for its scale.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import IntArray
from edgespec.core.tree import TokenTree
from edgespec.errors import ProtocolError

TOKEN_BYTES = 3  # little-endian
NODE_BYTES = 4  # a token, and its parent's number
SCALE_BYTES = 2  # float16
LEVELS = 127  # of an activation on either side of 0


def pack_tokens(tokens: Sequence[int] | IntArray) -> bytes:
    """[n] ids below 2^24 -> 3 n bytes."""
    wide = np.asarray(tokens, dtype="<u4")
    assert wide.size == 0 or int(wide.max()) < 2**24, "no model has so many tokens"
    return wide.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


def unpack_tokens(body: bytes, vocabulary: int) -> list[int]:
    """The inverse of `pack_tokens`. Raises ProtocolError for what is beyond the vocabulary."""
    if len(body) % TOKEN_BYTES:
        raise ProtocolError(f"{len(body)} bytes are no number of tokens of {TOKEN_BYTES}")
    rows = np.frombuffer(body, dtype=np.uint8).reshape(-1, TOKEN_BYTES)
    found: list[int] = _tokens(rows, vocabulary).tolist()
    return found


def pack_nodes(tree: TokenTree) -> bytes:
    """What is drafted: 4 bytes a node, the root left out."""
    body = np.zeros((len(tree) - 1, NODE_BYTES), dtype=np.uint8)
    tokens = np.ascontiguousarray(tree.tokens[1:].astype("<u4"))
    body[:, :TOKEN_BYTES] = tokens.view(np.uint8).reshape(-1, 4)[:, :TOKEN_BYTES]
    body[:, TOKEN_BYTES] = tree.parents[1:]
    return body.tobytes()


def unpack_nodes(body: bytes, root: int, vocabulary: int) -> TokenTree:
    """The tree of `pack_nodes`, behind this root; all nodes equally likely. Raises ProtocolError for what is
    no tree of such tokens, and for a token twice behind one node."""
    if len(body) % NODE_BYTES:
        raise ProtocolError(f"{len(body)} bytes are no number of nodes of {NODE_BYTES}")
    nodes = np.frombuffer(body, dtype=np.uint8).reshape(-1, NODE_BYTES)
    tokens = np.concatenate([[root], _tokens(nodes[:, :TOKEN_BYTES], vocabulary)])
    parents = np.concatenate([[-1], nodes[:, TOKEN_BYTES].astype(np.int64)])
    tree = TokenTree(tokens, parents, np.zeros(len(tokens)))
    try:
        tree.validate(vocabulary)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    if len(set(zip(parents.tolist(), tokens.tolist(), strict=True))) < len(tree):
        raise ProtocolError("a tree has a token twice behind one node")
    return tree


def _tokens(rows: NDArray[np.uint8], vocabulary: int) -> IntArray:
    """[n, 3] bytes -> [n]."""
    tokens: IntArray = rows.astype(np.int64) @ np.array([1, 2**8, 2**16])
    if tokens.size and (highest := int(tokens.max())) >= vocabulary:
        raise ProtocolError(f"token {highest} is outside the model's vocabulary of {vocabulary}")
    return tokens


def squeeze(body: bytes) -> tuple[bool, bytes]:
    """Compressed (True) where that is shorter."""
    shorter = zlib.compress(body, 6)
    return (True, shorter) if len(shorter) < len(body) else (False, body)


def unsqueeze(packed: bool, body: bytes, most: int) -> bytes:
    """The inverse, of `most` bytes: no more is ever made. Raises ProtocolError."""
    assert most >= 0  # to zlib, no bound at all
    if packed:
        work = zlib.decompressobj()
        try:
            body = work.decompress(body, most + 1)
        except zlib.error as error:
            raise ProtocolError(f"a compressed body is broken: {error}") from None
        if len(body) <= most and (not work.eof or work.unused_data):
            raise ProtocolError("a compressed body is cut off, or something follows it")
    if len(body) > most:
        raise ProtocolError(f"a body has more than the {most} bytes that were asked for")
    return body


def pack_vectors(vectors: NDArray[np.float32]) -> bytes:
    """[n, width] activations at 8 bits: n scales, then the numbers, each its vector's scale times -127...127.

    Raises ValueError for what is not finite, or beyond float16's range times 127.
    """
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    if not (largest <= LEVELS * float(np.finfo(np.float16).max)).all():  # False for NaN
        raise ValueError("an activation is not finite, or too large to be sent")
    # Upwards, or the largest number would not fit.
    scales = (largest / LEVELS).astype(np.float16)
    short = scales.astype(np.float64) * LEVELS < largest
    np.nextafter(scales, np.float16(np.inf), out=scales, where=short)
    wide = scales.astype(np.float64)[:, None]
    levels = np.divide(vectors, wide, out=np.zeros(vectors.shape), where=wide > 0)
    body: bytes = scales.astype("<f2").tobytes() + np.rint(levels).astype(np.int8).tobytes()
    return body


def unpack_vectors(body: bytes, count: int, width: int) -> NDArray[np.float32]:
    """The inverse: [count, width]. Raises ProtocolError when there are not so many, and for scales that are
    no numbers."""
    if len(body) != (expected := vector_bytes(count, width)):
        raise ProtocolError(f"{len(body)} bytes of activations, where {expected} were asked for")
    scales = np.frombuffer(body, dtype="<f2", count=count).astype(np.float32)
    if not (np.isfinite(scales) & (scales >= 0)).all():
        raise ProtocolError("an activation's scale is no number, or below 0")
    levels = np.frombuffer(body, dtype=np.int8, offset=SCALE_BYTES * count).reshape(count, width)
    return levels.astype(np.float32) * scales[:, None]


def vector_bytes(count: int, width: int) -> int:
    """Of so many vectors' body: Table 7's 2 A E_kv (TLI + 1), with count = A (TLI + 1) and width = 2 E_kv,
    and their scales."""
    return count * (width + SCALE_BYTES)
