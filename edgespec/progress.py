"""Reports of long work, from whoever does it to whoever shows it. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` `unit`s of one stage.

    Stages: "download" (bytes), "probe" (measuring the machine; 0 of 1), "load" (bytes), "prefill" (tokens),
    "layers" (of the running pass), "compile" (functions: minutes), "measure" (settings that
    are tried), "pack" and "verify" (bytes).
    """

    stage: str
    done: int
    total: int
    unit: str


ProgressCallback = Callable[[Progress], None]


class LoadCallback(Protocol):
    """Whoever reads weights calls it."""

    def __call__(self, nbytes: int, compiling: tuple[int, int] | None = None, /) -> None:
        """So many bytes more were read. compiling: what begins now, and may take minutes without a word, is a
        function of so many: its number, and how many there are."""
