"""What a chat template may use up: steps, bytes and nesting, counted and not timed.

A template fails, or passes, the same on every machine. Each operation is charged *before* it is done, by what
it will go through and what it will make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

STEPS = 250_000  # of about a microsecond: a hostile template fails within half a second
BYTES = 24 * 2**20  # of everything a rendering makes, however short it is kept
DEPTH = 60  # of lists in lists
NESTING = 200  # of a template's nodes, through macros; Jinja's own compiler gives up at 200 parentheses
BITS = 4096  # of an integer
_SCAN = 8  # 2^8 characters gone through, or copied, are a step
_LEAF = 32  # bytes counted for a number, a key, a list's bracket

CONTAINERS: Any = (list, tuple, dict, type({}.keys()), type({}.values()), type({}.items()))


class LimitError(Exception):
    """The template uses too much. (Not a TemplateError: nothing inside a template handles it.)"""


def text_bytes(text: str) -> int:
    """An upper bound of a text's memory."""
    return len(text) if text.isascii() else 4 * len(text)


class Budget:
    """What one rendering may still use; `size`, (bytes of text, nodes) of its input, adds room for that."""

    def __init__(self, size: tuple[int, int] = (0, 0)) -> None:
        self.steps = STEPS + size[0] + 1000 * size[1]
        self.bytes = BYTES + 32 * size[0] + 1000 * size[1]
        self.depth = 0

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise LimitError("it works too long")

    def scan(self, nbytes: int) -> None:
        """Going through so many bytes."""
        self.spend(nbytes >> _SCAN)

    def need(self, nbytes: int) -> None:
        """Refuse what might make so many bytes, without a charge."""
        if nbytes > self.bytes:
            raise LimitError("it makes too much text or too many values")

    def make(self, nbytes: int) -> None:
        """So many bytes are about to be made, or just were."""
        self.need(nbytes)
        self.bytes -= nbytes
        self.scan(nbytes)

    def made(self, value: Any) -> Any:
        """Charge a value that was just made; what it holds has been charged."""
        if isinstance(value, str):
            self.make(text_bytes(value))
        elif isinstance(value, int) and value.bit_length() > BITS:
            raise LimitError(f"it computes with numbers of over {BITS} bits")
        else:
            self.make(_LEAF + (16 * len(value) if isinstance(value, CONTAINERS) else 0))
        return value

    def join(self, parts: Sequence[str], between: str = "") -> str:
        """Texts as one."""
        width = 1 if between.isascii() and all(part.isascii() for part in parts) else 4
        self.spend(len(parts) >> 4)
        self.make(width * (sum(map(len, parts)) + len(between) * len(parts)))
        return between.join(parts)

    def read(self, value: Any) -> int:
        """Charge for going through all of a value, as if it had no shared parts; its bytes when written.

        A namespace hides what it holds here, and in whatever reads values: nothing looks into one.
        """
        total = 0
        waiting: list[Iterator[Any]] = [iter((value,))]
        while waiting:
            for item in waiting[-1]:
                if isinstance(item, str):
                    total += text_bytes(item) + _LEAF
                    self.spend(1 + (len(item) >> _SCAN))
                elif isinstance(item, CONTAINERS):
                    if len(waiting) > DEPTH:
                        raise LimitError(f"it nests values more than {DEPTH} deep")
                    total += _LEAF
                    self.spend(1)
                    waiting.append(chain(item, item.values()) if isinstance(item, dict) else iter(item))
                    break
                else:
                    total += _LEAF + (item.bit_length() // 3 if isinstance(item, int) else 0)
                    self.spend(1)
            else:
                waiting.pop()
        return total

    def enter(self) -> None:
        """One node further in; `depth` goes down when it is left."""
        self.steps -= 1
        if self.steps < 0:
            raise LimitError("it works too long")
        self.depth += 1
        if self.depth > NESTING:
            raise LimitError(f"it nests or recurses more than {NESTING} deep")
