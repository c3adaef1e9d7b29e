"""What multiplies weights of each encoding on this machine, where several could.

By features alone until `compiled.choose` is told what was measured here (`kernels.trials`), once a process
and encoding: a text must not change while it is made. What gives the same bits competes freely; what has an
order of sums of its own (`Choice.order`) is remembered for good (`runtimes.torch.choices`).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ARM = platform.machine().lower() in ("aarch64", "arm64")
X86 = ("portable C", "AVX2", "AVX2 with VNNI", "AVX-512 VNNI", "AVX-512 BF16", "AMX")
LEVELS = ("portable C", "NEON dot products", "NEON with i8mm") if ARM else X86  # as native/choice.c counts
# NEON is chosen, and choosable, where AVX2 would be, with i8mm where AVX2 with VNNI.
AVX2, AVX_VNNI, AVX512, AVX512_BF16, AMX = range(1, len(X86))
TORCH = -1  # in place of one of them
NAMES = {"I8": "int8", "U8": "int4"}  # in words; others are called as files call them
PLAIN = ("F16", "BF16")
# In native/formats.h's order.
LOW_BIT = ("I8", "U8", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q4_1", "Q5_0", "Q5_1", "Q3_K")
RARE = frozenset(("Q4_1", "Q5_0", "Q5_1", "Q3_K"))  # multiplied by AVX2 (VNNI), if an x86 CPU has more, too
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 64)  # the most of each class of rows, but for the last; as many are tried
FEWS = (32, 256)  # rows of a prompt that may be multiplied as a tree's


@dataclass(frozen=True)
class Choice:
    """For weights of one encoding. Raises ValueError for one that nobody could have made.

    ways: by `ROWS`, 2 * instructions (an index of `LEVELS`), and 1 more where each row of weights is used as
        it is decoded; else a tile is decoded for all rows.
    order: instructions for a prompt's rows, and of bf16 by bf16 for all rows; or TORCH.
    few: a prompt's rows up to here are multiplied as a tree's.
    tried: what multiplied, and microseconds for each number of rows it was tried with.
    """

    ways: tuple[int, ...]
    order: int
    few: int
    tried: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.ways) != len(ROWS) or not all(0 <= way < 2 * len(LEVELS) for way in self.ways):
            raise ValueError(f"{self.ways} are not the ways of {len(ROWS)} classes of rows")
        if not TORCH <= self.order < len(LEVELS) or self.few not in FEWS:
            raise ValueError(f"an order of {self.order} from {self.few} rows on does not exist")

    def describe(self, encoding: str) -> str:
        """In words, without figures."""
        parts, first = [], 1
        for i, way in enumerate(self.ways):
            if i + 1 < len(ROWS) and self.ways[i + 1] == way:
                continue
            last = f"-{ROWS[i]}" if i + 1 < len(ROWS) else " and more"
            parts.append(f"{first}{last if ROWS[i] > first else ''} rows {way_words(way)}")
            first = ROWS[i] + 1
        if encoding == "BF16" and not AVX2 <= self.order <= AVX512:
            other = f", prompts in another order from {self.few + 1} rows on" if self.order != TORCH else ""
            return order_words(self.order) + other
        if encoding == "BF16":
            return ", ".join(parts)
        prompts = f"prompts {order_words(self.order)}, from {self.few + 1} rows on"
        return ", ".join([*parts, prompts])


CHOSEN: dict[str, Choice] = {}  # by encoding; `compiled.choose` fills it


def way_words(way: int) -> str:
    """A way's name."""
    return LEVELS[way // 2] + (" from registers" if way % 2 else "")


def order_words(order: int) -> str:
    """An order's name."""
    return "torch" if order == TORCH else LEVELS[order]


def as_json(choice: Choice) -> dict[str, Any]:
    """What `of_json` reads."""
    tried = {name: list(times) for name, times in choice.tried.items()}
    return {"ways": list(choice.ways), "order": choice.order, "few": choice.few, "tried": tried}


def of_json(value: Any, best: int) -> Choice | None:
    """The choice that a JSON value stands for, of instructions up to `best`; None for anything else."""
    if not isinstance(value, dict) or set(value) != {"ways", "order", "few", "tried"}:
        return None
    ways, order, few, tried = (value[name] for name in ("ways", "order", "few", "tried"))
    if not isinstance(ways, list) or any(type(number) is not int for number in (*ways, order, few)):
        return None
    if order > best or any(way // 2 > best for way in ways) or not _times(tried):
        return None
    try:
        return Choice(tuple(ways), order, few, {name: tuple(row) for name, row in tried.items()})
    except ValueError:
        return None


def _times(tried: Any) -> bool:
    """Whether these are times of a few things."""
    if not isinstance(tried, dict) or len(tried) > 4 * len(LEVELS) or any(len(name) > 80 for name in tried):
        return False
    rows = [*tried.values()]
    if not all(isinstance(row, list) and 0 < len(row) <= len(ROWS) for row in rows):
        return False
    return all(type(time) in (int, float) and 0 <= time <= 1e9 for row in rows for time in row)
