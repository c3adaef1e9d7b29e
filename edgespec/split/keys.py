"""Files of keys that servers ask for. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from edgespec.devices.files import read_bounded
from edgespec.errors import EdgeSpecError, OptionError

MOST_BYTES = 64 * 1024


def read_keys(path: Path, option: str = "api_key_file") -> list[str]:
    """The keys in a file, one a line; `option` names it. Raises OptionError when it cannot be read, or has
    none."""

    def wrong(what: str) -> OptionError:
        return OptionError(f"{option}{what}", option)

    try:
        text = read_bounded(path, MOST_BYTES).decode("utf-8")
    except EdgeSpecError as error:
        raise wrong(f": {error}") from None
    except UnicodeDecodeError:
        raise wrong(f" {path} is not UTF-8 text") from None
    keys = [line.strip() for line in text.splitlines()]
    if not (keys := [key for key in keys if key and not key.startswith("#")]):
        raise wrong(f" {path} has no key; write one a line")
    if bad := next((number for number, key in enumerate(keys, 1) if not key.isascii()), None):
        raise wrong(f" {path}: key {bad} is not ASCII, as headers are; write another")
    return keys
