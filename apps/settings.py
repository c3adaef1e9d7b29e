"""Where the values of options come from: flag > environment > profile > edgespec.toml > default."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from edgespec.config import STANDING
from edgespec.errors import OptionError
from edgespec.values import Options, did_you_mean, options_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETTINGS_BYTES = 10**6  # of an edgespec.toml, at most
T = TypeVar("T", bound=Options)


def resolve(
    kind: type[T],
    flags: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    profile: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> T:
    """Options from flags (None = not given); `STANDING` ones then from EDGESPEC_* variables, a profile's
    settings, edgespec.toml. Options `without` which the command does keep their defaults.

    Raises OptionError for a malformed value, by the name under which it was given, and for unknown keys in
    the file.
    """
    environment = os.environ if environment is None else environment
    file = file or Path("edgespec.toml")
    settings = read_settings(file)
    if not issubclass(kind, STANDING):
        environment, settings = {}, {}
    values: dict[str, Any] = {}
    names: dict[str, str] = {}  # of the options, as the user wrote them
    for name, field in options_of(kind).items():
        if name in without:
            continue
        if flags.get(name) is not None:
            values[name], names[name] = flags[name], field.flag
        elif field.variable in environment:
            values[name], names[name] = environment[field.variable], field.variable
        elif name in (profile or {}):
            values[name], names[name] = (profile or {})[name], f"profile: {name}"
        elif name in settings:
            values[name], names[name] = settings[name], f"{file}: {name}"
    try:
        return kind(**values)
    except OptionError as error:
        if error.option not in names:
            raise
        given = names[error.option]
        raise OptionError(error.message.replace(error.option, given, 1), error.option) from None


def read_settings(path: Path) -> dict[str, Any]:
    """The flat table of an edgespec.toml; {} when there is none. Raises OptionError."""
    if not path.exists():
        return {}
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS_BYTES + 1)
        if len(data) > SETTINGS_BYTES:
            raise OptionError(f"{path} is longer than {SETTINGS_BYTES} bytes; it is not a file of settings")
        table = tomllib.loads(data.decode())
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also a number of over 4300 digits
        raise OptionError(f"{path} is not valid TOML: {error}") from None
    known = {name for kind in STANDING for name in options_of(kind)}
    if unknown := sorted(set(table) - known):
        raise OptionError(f"{path}: unknown option {unknown[0]}; {did_you_mean(unknown[0], known)}")
    return table
