"""SentencePiece's map of characters, from strangers: a double array of UTF-8 prefixes, and replacements.

The `tokenizers` library follows the array wherever it leads, and panics where that is nowhere. Here every
place that some text can lead to is visited first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 2048  # states whose 255 successors are looked at together

Units = NDArray[np.int64]


def longest_replacement(charsmap: bytes) -> int:
    """Bytes that one character may become. Raises ValueError for a map that is not sound.

    charsmap: the array's size in bytes (uint32, little-endian), its units (uint32), and the replacements,
    UTF-8, each ended by a zero byte.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if not 0 < size <= len(charsmap) - 4 or size % 4:
        raise ValueError(f"its map of {len(charsmap)} bytes has no table of {size}")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    texts = charsmap[4 + size :]
    texts.decode()
    ends = _ends(units)
    if len(ends) and ends.max() > len(texts):
        raise ValueError(f"its map has a replacement at {ends.max()} of {len(texts)} bytes")
    following = np.frombuffer(texts + b"\0", np.uint8)[ends]
    if ((following & 0xC0) == 0x80).any():
        raise ValueError("its map has a replacement that begins within a character")
    return max(1, *map(len, texts.split(b"\0")))


def _ends(units: Units) -> Units:
    """Where replacements begin, of all prefixes in the array."""
    seen = np.zeros(len(units), bool)
    states = _offset(units[:1])
    labels = np.arange(1, 256)  # the library stops at a zero byte
    found = []
    while len(states):
        if int(states.max()) | 255 >= len(units):
            raise ValueError(f"its map leads to unit {int(states.max()) | 255} of {len(units)}")
        seen[states] = True
        reached = []
        for first in range(0, len(states), _AT_ONCE):
            places = states[first : first + _AT_ONCE, None] ^ labels  # [n, 255]
            places = places[(units[places] & 0x800000FF) == labels]
            after = places ^ _offset(units[places])
            reached.append(after)
            found.append(after[(units[places] >> 8 & 1) == 1])
        states = np.unique(np.concatenate(reached))
        states = states[(states >= len(units)) | ~seen[np.minimum(states, len(units) - 1)]]
    ends: Units = units[np.concatenate([np.empty(0, np.int64), *found])] & 0x7FFFFFFF
    return ends


def _offset(units: Units) -> Units:
    """By what a unit's place is XORed to go on."""
    return units >> 10 << ((units & 1 << 9) >> 6)
