"""What an unfinished pack has on the disk for certain, so that the same command goes on from there.

A text file: the key of what is being packed, then one checksum for each finished unit, in order. A line is
added only after the unit's bytes are on the disk. A kill can leave half a line; it does not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from edgespec.devices.files import sync_path

JOURNAL = "journal.txt"
_LINE = re.compile(r"[0-9a-f]{16}")


def journal_key(directory: Path) -> str | None:
    """What the journal there is for ("" when not even that was written); None when there is no journal."""
    path = directory / JOURNAL
    return _lines(path)[0] if path.is_file() else None


class Journal:
    """`digests` are the checksums of the finished units. Raises OSError."""

    def __init__(self, directory: Path, key: str) -> None:
        """Go on with the journal there when it has this key, else begin one."""
        self.path = directory / JOURNAL
        self.digests: list[int] = []
        if journal_key(directory) == key:
            for line in _lines(self.path)[1:]:
                if not _LINE.fullmatch(line):
                    break
                self.digests.append(int(line, 16))
            os.truncate(self.path, len(key) + 1 + 17 * len(self.digests))
        else:
            self.path.write_text(key + "\n", encoding="ascii")
        sync_path(self.path)
        sync_path(directory)

    def keep(self, units: int) -> None:
        """Forget all but the first `units` units: their bytes are not there after all."""
        os.truncate(self.path, self.path.stat().st_size - 17 * (len(self.digests) - units))
        del self.digests[units:]

    def append(self, digests: Sequence[int]) -> None:
        """These units are on the disk; when this returns, so is that fact."""
        with open(self.path, "a", encoding="ascii") as file:
            file.write("".join(f"{digest:016x}\n" for digest in digests))
        sync_path(self.path)
        self.digests += digests


def _lines(path: Path) -> list[str]:
    """Whole lines, the key first."""
    return path.read_text(encoding="ascii", errors="replace").split("\n")[:-1] or [""]
