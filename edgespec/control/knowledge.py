"""What a controller has learned, kept for the next process. Needs no torch.

A controller that knows nothing begins with short drafts, and where the plan says little with a plain cycle:
up to a tenth of a reply of a hundred tokens. So what one process has measured, the next one begins with:
costs as if each had been measured in one cycle, acceptance as another conversation of the same process would
have it. One file for each model and way to run it, in the cache folder. It decides about speed alone, and is
no more trusted than any other file: what is not sound is as if it were not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from time import monotonic

from edgespec.config import EngineOptions
from edgespec.control.controller import Adaptive
from edgespec.core.schedule import Controller
from edgespec.devices.files import read_bounded, replacing
from edgespec.devices.rates import cache_folder, this_machine
from edgespec.errors import EdgeSpecError

VERSION = 1
LIMIT = 2**16  # bytes; a larger file is not ours (4 KB are usual)
FILES = 64  # at most; the ones that were written longest ago go
APART = 10.0  # seconds at least between two writings

ELSEWHERE = ("memory", "context", "offline")  # options that change nothing here but the dial, which is asked
DRAFTED_WITH = ("draft_model", "adapters")  # what may be made anew under the same name


class Knowledge:
    """Of one model, run in one way."""

    def __init__(self, about: str, clock: Callable[[], float] = monotonic) -> None:
        """`about`: whatever costs and acceptance depend on; this machine is added. `clock`: seconds."""
        self.about = f"{VERSION} {this_machine()} {about}"
        self.clock = clock
        self._again: float | None = None
        self._path: Path | None = None
        with suppress(RuntimeError):  # no home folder
            self._path = cache_folder() / "learned" / f"{sha256(self.about.encode()).hexdigest()[:32]}.json"

    @staticmethod
    def of(digest: str, options: EngineOptions, dial: int) -> Knowledge:
        """`digest`: of the model; `dial`: bytes, of which two digits count."""
        asked = {name: value for name, value in asdict(options).items() if name not in ELSEWHERE}
        made = {name: _made(Path(value)) for name in DRAFTED_WITH if (value := asked[name]) is not None}
        return Knowledge(f"{digest} {dial:.1e} {json.dumps(asked | made, sort_keys=True, default=str)}")

    def stop(self) -> None:
        """Keep nothing more: what is learned from now on is about several ways to run."""
        self._path = None

    def recall(self, controller: Adaptive) -> Adaptive:
        """It begins with what was kept; without anything sound, with what it would have begun with."""
        if self._path is not None:
            with suppress(
                EdgeSpecError, OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError
            ):
                kept = json.loads(read_bounded(self._path, LIMIT))
                if kept["about"] == self.about:
                    controller.recall(kept["learned"])
        return controller

    def keep(self, controller: Controller) -> None:
        """For the next process, at the first call and then every `APART` seconds at most; silently not, where
        the folder cannot be written.

        Drafts that do not pay are forgotten: whether they still do not, careful cycles will find out, and
        what is not tried never could.
        """
        if self._path is None or not isinstance(controller, Adaptive):
            return
        if self._again is not None and self.clock() < self._again:
            return
        self._again = self.clock() + APART
        with suppress(OSError):
            if not controller.pays:
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"about": self.about, "learned": controller.notes()})
            with replacing(self._path, private=True, shared=True) as temporary:
                temporary.write_text(text, encoding="utf-8")
            files = sorted(self._path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
            for file in files[:-FILES]:
                file.unlink(missing_ok=True)


def _made(path: Path) -> list[str]:
    """Which files these are, as of now: of a folder, or one; a model of the hub has its name alone."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(file.resolve(), file.stat()) for file in files[:FILES]]
    except OSError:
        return [str(path)]
    return [f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in found]
