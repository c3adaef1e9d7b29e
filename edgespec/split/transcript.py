"""A conversation's tokens, and the hash by which two ends know that they mean the same. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from edgespec.core.sampling import IntArray
from edgespec.split.protocol import HASH_BYTES

WORD = 4  # bytes of a token, little-endian, as it is hashed


class Transcript:
    """Grows at its end, and is cut there. Its hash is XXH3-64: it tells what was lost or mixed up, and
    protects from nobody who wishes ill (docs/split.md)."""

    def __init__(self) -> None:
        self._words = bytearray()

    def __len__(self) -> int:
        return len(self._words) // WORD

    def extend(self, tokens: Sequence[int] | IntArray) -> None:
        self._words += np.asarray(tokens, dtype="<u4").tobytes()

    def truncate(self, length: int) -> None:
        del self._words[WORD * length :]

    def plus(self, tokens: Sequence[int] | IntArray) -> Transcript:
        """Another, that goes on with these."""
        longer = Transcript()
        longer._words += self._words
        longer.extend(tokens)
        return longer

    def tokens(self, start: int = 0, stop: int | None = None) -> list[int]:
        stop = len(self) if stop is None else stop
        found: list[int] = np.frombuffer(bytes(self._words[WORD * start : WORD * stop]), "<u4").tolist()
        return found

    def hash(self, length: int | None = None) -> bytes:
        """Of the first `length` tokens (None: of all)."""
        words = memoryview(self._words)
        with words[: WORD * (len(self) if length is None else length)] as prefix:
            digest: bytes = xxhash.xxh3_64_digest(prefix)
        words.release()
        assert len(digest) == HASH_BYTES
        return digest
