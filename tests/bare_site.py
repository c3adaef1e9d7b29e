"""An environment with what one of the extras asks for, and nothing else: no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def bare_site(folder: Path, extra: str) -> Path:
    """A directory of links to this package and the extra's packages, with all that they ask for; of its own
    requirements this package gets none, as with `pip install --no-deps`."""
    folder.mkdir()
    for package in [distribution("edgespec"), *asked_for("edgespec", extra)]:
        tops = {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            place = Path(str(package.locate_file(top)))
            if place.exists() and not (folder / top).exists():
                (folder / top).symlink_to(place)
    return folder


def asked_for(name: str, extra: str) -> Iterator[Distribution]:
    """What a package's extra asks for, and what that does, each once."""
    found = dict[str, Distribution]()

    def follow(name: str, extra: str) -> None:
        for line in distribution(name).requires or ():
            asked = Requirement(line)
            plain = asked.marker is None or asked.marker.evaluate({"extra": ""})
            wanted = asked.marker is None or asked.marker.evaluate({"extra": extra})
            if not wanted or (name == "edgespec" and plain):
                continue
            if (key := canonicalize_name(asked.name)) not in found:
                found[key] = distribution(asked.name)
                for each in asked.extras or {""}:
                    follow(asked.name, each)

    follow(name, extra)
    yield from found.values()


def in_site(folder: Path, code: str) -> list[str]:
    """Arguments of an interpreter that runs `code` there."""
    return ["-S", "-c", f"import site; site.addsitedir({os.fspath(folder)!r})\n{code}"]


def bare_environ() -> dict[str, str]:
    """Without what would be imported from elsewhere."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
