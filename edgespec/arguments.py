"""What callers of the Python API give, checked before anything is done. Needs no torch."""

from __future__ import annotations

from typing import Any, TypeVar

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import OptionError

T = TypeVar("T", EngineOptions, GenerationOptions)


def given_options(options: T | None, kind: type[T]) -> T:
    """The options, or the defaults. Raises OptionError for anything else, a dictionary too."""
    if options is None:
        return kind()
    if not isinstance(options, kind):
        raise OptionError(
            f"options is of type {_type(options)}; give {kind.__name__}(), or its fields as keywords"
        )
    return options


def check_engine(engine: Any) -> None:
    """Raises OptionError for what is no engine: a model's path, say."""
    if not hasattr(engine, "new_session"):
        raise OptionError(f"engine is of type {_type(engine)}; give what edgespec.load() returns for a model")


def check_progress(progress: Any) -> None:
    """Raises OptionError."""
    if progress is not None and not callable(progress):
        raise OptionError(
            f"progress is of type {_type(progress)}; give a function of one argument, a Progress, or None"
        )


def check_text(name: str, text: Any) -> None:
    """Raises OptionError."""
    if not isinstance(text, str):
        raise OptionError(f"the {name} is of type {_type(text)}; give a text")


def _type(value: Any) -> str:
    return type(value).__name__
