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
    followed = {(name, extra)}

    def follow(name: str, extra: str) -> Iterator[Distribution]:
        for line in distribution(name).requires or ():
            asked = Requirement(line)
            always = asked.marker is None or asked.marker.evaluate({"extra": ""})
            if not always and not (asked.marker and asked.marker.evaluate({"extra": extra})):
                continue
            if always and name == "edgespec":
                continue
            yield distribution(asked.name)
            for each in ("", *asked.extras):
                if (key := (canonicalize_name(asked.name), each)) not in followed:
                    followed.add(key)
                    yield from follow(asked.name, each)

    yield from follow(name, extra)


def in_site(folder: Path, code: str) -> list[str]:
    """Arguments of an interpreter that runs `code` there."""
    return ["-S", "-c", f"import site; site.addsitedir({os.fspath(folder)!r})\n{code}"]


def bare_environ() -> dict[str, str]:
    """Without what would be imported from elsewhere."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
