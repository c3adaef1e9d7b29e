"""Options: what a user may set, with the defaults the command line shows. Needs no torch.

Precedence is flag > environment (`EDGESPEC_*`) > `edgespec.toml` > automatic; `resolve` applies it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from edgespec.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}
PRECISIONS = ("source", "bf16", "int8", "int4")


def parse_bytes(text: str | int) -> int:
    """Bytes of "8GB", "512MB", "1.5 GiB" or a plain number; GB = 10^9. Raises OptionError."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in UNITS:
        raise OptionError(f"{text!r} is not a size; write for example 8GB, 512MB or 1.5GiB")
    return int(float(match[1]) * UNITS[match[2].upper()])


def format_bytes(n: float) -> str:
    """1234567 -> "1.23 MB"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if abs(n) >= size:
            return f"{n / size:.3g} {unit}" if abs(n) < 1000 * size else f"{n / size:,.0f} {unit}"
    return f"{n:.0f} B"


@dataclass(frozen=True)
class EngineOptions:
    """How a model is loaded. `None` means: decide by plan."""

    memory: int | None = None  # bytes the whole process may use; None = what the machine has free
    device: str = "auto"  # "auto", "cpu" or "cuda"
    device_memory: int | None = None  # bytes on the accelerator; only with a discrete one
    context: int | None = None  # positions a session may hold
    precision: str | None = None  # None = what the files hold
    resident_layers: int | None = None  # overrides the plan: pin exactly the first N layers
    drafter: str = "auto"  # "none", "auto", or "ngram", "model", "substitute", "cascade" joined by "+"
    draft_model: str | None = None  # a small model with the same tokenizer, or a low-bit packed copy
    adapters: str | None = None  # a directory that `edgespec train cascade` made
    schedule: str = "serial"
    tree_nodes: int = 64  # of the largest tree, its root included

    def __post_init__(self) -> None:
        if self.memory is not None and self.memory <= 0:
            raise OptionError(f"memory is {self.memory} bytes; it must be positive")
        if self.context is not None and self.context <= 0:
            raise OptionError(f"context is {self.context}; it must be at least 1")
        if self.precision is not None and self.precision not in PRECISIONS:
            raise OptionError(f"precision {self.precision!r} is unknown; choose from {', '.join(PRECISIONS)}")
        if self.resident_layers is not None and self.resident_layers < 0:
            raise OptionError(f"resident_layers is {self.resident_layers}; it cannot be negative")
        if self.tree_nodes < 1:
            raise OptionError(f"tree_nodes is {self.tree_nodes}; it must be at least 1 (plain decoding)")
        if self.tree_nodes == 1 and self.drafter not in ("auto", "none"):
            raise OptionError(
                f"trees of 1 node are plain decoding, with nothing to draft for {self.drafter}; use "
                "--tree-nodes 2 or more, or --drafter none"
            )


@dataclass(frozen=True)
class GenerationOptions:
    """How one reply is made. `temperature` 0 is greedy."""

    max_tokens: int | None = None  # None = until the model ends or the context is full
    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    min_p: float = 0.0  # 0 = off
    seed: int = 0
    stop: tuple[str, ...] = ()  # the reply ends before the first of these
    acceptance: str | None = None  # None = "greedy" at temperature 0, else "sample"

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise OptionError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if not 0 <= self.temperature <= 100:
            raise OptionError(f"temperature is {self.temperature}; it must be between 0 (greedy) and 100")
        if self.top_k < 0:
            raise OptionError(f"top_k is {self.top_k}; it must be 0 (off) or positive")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (off)")
        if not 0 <= self.min_p < 1:
            raise OptionError(f"min_p is {self.min_p}; it must be at least 0 (off) and below 1")
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"seed is {self.seed}; it must be between 0 and 2^63 - 1")
        if any(not s for s in self.stop):
            raise OptionError("a stop string is empty; it would end every reply at once")


T = TypeVar("T", EngineOptions, GenerationOptions)


def resolve(
    kind: type[T],
    flags: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> T:
    """Options from flags (None = not given), then EDGESPEC_* variables, then edgespec.toml.

    Raises OptionError for a malformed value, naming where it came from, and for unknown keys in the file.
    """
    environment = os.environ if environment is None else environment
    settings = read_settings(file or Path("edgespec.toml"))
    values: dict[str, Any] = {}
    for field in fields(kind):
        if flags.get(field.name) is not None:
            values[field.name] = flags[field.name]
        elif (variable := f"EDGESPEC_{field.name.upper()}") in environment:
            values[field.name] = _convert(field.name, environment[variable], variable)
        elif field.name in settings:
            values[field.name] = _convert(field.name, settings[field.name], str(file or "edgespec.toml"))
    return kind(**values)


def read_settings(path: Path) -> dict[str, Any]:
    """The flat table of an edgespec.toml; {} when there is none."""
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not valid TOML: {error}") from None
    known = {f.name for kind in (EngineOptions, GenerationOptions) for f in fields(kind)}
    if unknown := sorted(set(table) - known):
        raise OptionError(
            f"{path}: unknown option {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    return table


_FLOATS = {"temperature", "top_p", "min_p"}
_INTS = {"context", "resident_layers", "max_tokens", "top_k", "seed", "tree_nodes"}
_SIZES = {"memory", "device_memory"}


def _convert(name: str, value: Any, where: str) -> Any:
    try:
        if name in _SIZES:
            return parse_bytes(value)
        if name in _FLOATS:
            return float(value)
        if name in _INTS:
            return int(value)
        if name == "stop":
            return (value,) if isinstance(value, str) else tuple(map(str, value))
    except (TypeError, ValueError, OptionError) as error:
        raise OptionError(f"{where}: {name} = {value!r}: {error}") from None
    return str(value)
