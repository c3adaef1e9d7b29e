"""What a run has shown, beside what was expected of it; and how that is kept. Needs no torch.

One small file for each model, precision and machine in the user's cache folder, as `devices.rates` has its
figures: written whole or not at all, bounded, and never trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.devices.files import read_bounded, replacing
from edgespec.devices.matmuls import MULTIPLIED
from edgespec.devices.probe import cpu_count, cpu_name
from edgespec.devices.rates import READS, cache_folder, is_fresh
from edgespec.errors import EdgeSpecError
from edgespec.offload.plan.costs import (
    ARRIVING_SECONDS,
    BESIDE_ROWS,
    LAYER_SECONDS,
    PASS_SECONDS,
    STREAMED_SECONDS,
)

FORMAT = 1
RUNS = 64  # of a model; the latest are kept
FILE_BYTES = 2**18  # 64 runs take 50 KB
MODELS = 64  # files; those written last are kept
LAWS = READS, MULTIPLIED, PASS_SECONDS, LAYER_SECONDS, STREAMED_SECONDS, ARRIVING_SECONDS, BESIDE_ROWS
MOST_TEXT = 1000  # characters of a name


@dataclass(frozen=True)
class Trial:
    """One reply, or some, under one setting.

    drafter, files, schedule: as in a `Setting` (`Candidate.named`); plain decoding is "none" under "serial".
    cycles, tokens, seconds: of decoding. predicted: tokens a second that were expected; low, high: between
        which 80 % should lie, 0 = that was not told.
    flash, compute, step, prompt: seconds of a pass's reading and computing, of a step of drafting and of a
        prompt, over what the cost model says without any fit.
    chance: that the likeliest child is right, by what `judged` cycles accepted.
    spread: the power by which outcomes were missed, of so many `lookups` (`acceptance.expected_hits`).
    rest: speed over what the laws say, with all of the above, of what ran.
    reads: bytes that a pass read from flash.
    tree, steps: of every cycle's budget; 0 = the controller's own, cycle by cycle.
    passes, rows: a cycle's, on average: of drafting that the target waited for, and of the target's pass.
    pace: seconds a cycle over what so many passes and rows should have taken without any fit.
    A None: the run has not shown that. when: seconds, as of time.time.
    """

    dial: int
    drafter: str
    files: str
    schedule: str
    cycles: int
    tokens: int
    seconds: float
    predicted: float
    when: float
    flash: float | None = None
    compute: float | None = None
    step: float | None = None
    prompt: float | None = None
    chance: float | None = None
    judged: int = 0
    spread: float | None = None
    lookups: int = 0
    rest: float | None = None
    reads: int = 0
    tree: int = 0
    steps: int = 0
    passes: float = 0.0
    rows: float = 1.0
    pace: float | None = None
    low: float = 0.0
    high: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def ratio(self) -> float:
        """Of the speed to what was expected."""
        return self.speed / self.predicted


_COUNTS = {"dial": 10**15, "cycles": 10**9, "tokens": 10**9, "judged": 10**9, "lookups": 10**9}  # at most
_COUNTS |= {"reads": 10**15, "tree": 10**6, "steps": 10**6}
_POSITIVE = ("cycles", "tokens")
_TEXTS = ("drafter", "files", "schedule")
_NUMBERS = {"seconds": (1e-9, 1e9), "predicted": (1e-9, 1e9), "when": (0.0, 1e12)}
_NUMBERS |= {"passes": (0.0, 1e6), "rows": (1.0, 1e6), "low": (0.0, 1e9), "high": (0.0, 1e9)}
_FACTORS = {"flash": (1e-2, 1e2), "compute": (1e-2, 1e2), "step": (1e-2, 1e2), "prompt": (1e-2, 1e2)}
_FACTORS |= {"chance": (0.0, 1.0), "spread": (0.0, 10.0), "rest": (1e-2, 1e2), "pace": (1e-2, 1e2)}
_NAMES = {field.name for field in fields(Trial)}


def sound(value: Any) -> Trial | None:
    """The run that a JSON value stands for; None for anything that no run could have shown."""
    if not isinstance(value, dict) or set(value) != _NAMES:
        return None
    counts = all(
        type(value[name]) is int and (name in _POSITIVE) <= value[name] <= most
        for name, most in _COUNTS.items()
    )
    texts = all(isinstance(value[name], str) and len(value[name]) <= MOST_TEXT for name in _TEXTS)
    numbers = all(_within(value[name], *ends) for name, ends in _NUMBERS.items())
    factors = all(value[name] is None or _within(value[name], *ends) for name, ends in _FACTORS.items())
    return Trial(**value) if counts and texts and numbers and factors else None


def _within(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high  # also refuses NaN


def bounded(run: Trial) -> Trial:
    """With every factor within what is kept: a pause of the machine makes any of them absurd, and the others
    are shown all the same."""
    shown = ((name, getattr(run, name), *ends) for name, ends in _FACTORS.items())
    return replace(
        run, **{name: min(max(value, low), high) for name, value, low, high in shown if value is not None}
    )


def recall_runs(digest: str, precision: str) -> tuple[list[Trial], list[str]]:
    """The runs of a model on this machine that are fresh, oldest first; and what to warn of: a file that is
    not ours, which is ignored."""
    try:
        path = _file(digest, precision)
        if not path.exists():
            return [], []
        table = json.loads(read_bounded(path, FILE_BYTES))
    except (EdgeSpecError, OSError, RuntimeError, ValueError, RecursionError):  # RuntimeError: no home folder
        return [], ["what earlier runs have shown cannot be read, and is ignored"]
    listed = table.get("runs") if isinstance(table, dict) and table.get("format") == FORMAT else None
    if not isinstance(listed, list) or len(listed) > RUNS or None in (found := [*map(sound, listed)]):
        return [], [f"{path} is damaged, and ignored: what earlier runs have shown is unknown"]
    return [run for run in found if run is not None and is_fresh(run.when)], []


def keep_run(digest: str, precision: str, run: Trial) -> None:
    """Add a run to those of its model; silently not, where the folder cannot be written, or without a digest
    to know the model by."""
    value = {name: _finite(item) for name, item in asdict(run).items()}
    if not digest or sound(value) is None:
        return
    known, _ = recall_runs(digest, precision)
    kept = [*(asdict(one) for one in known[-(RUNS - 1) :]), value]
    with contextlib.suppress(OSError, RuntimeError):
        path = _file(digest, precision)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, private=True, shared=True) as temporary:
            temporary.write_text(json.dumps({"format": FORMAT, "runs": kept}, indent=1), encoding="utf-8")
        _leave_out(path)


def _finite(item: Any) -> Any:
    return None if isinstance(item, float) and not math.isfinite(item) else item


def _file(digest: str, precision: str) -> Path:
    """Another processor, number of cores or version begins anew, and what factors are on, measured
    in another way; home folders can be shared by machines."""
    import platform

    parts = (digest, precision, platform.node(), cpu_name(), str(cpu_count()), __version__, *map(str, LAWS))
    parts += (*sorted(_NAMES),)
    name = hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:32]
    return cache_folder() / "runs" / f"{name}.json"


def _leave_out(path: Path) -> None:
    """The files of models that were not run for longest, beyond MODELS."""
    files = [file for file in path.parent.glob("*.json") if len(file.stem) == 32 and file != path]
    files.sort(key=lambda file: file.stat().st_mtime)
    for file in files[: max(0, len(files) + 1 - MODELS)]:
        file.unlink()


def runs_of(runs: Sequence[Trial], drafter: str, files: str, schedule: str | None = None) -> list[Trial]:
    """Those of a drafter with these files, and of a schedule, if one is named."""
    same = [run for run in runs if (run.drafter, run.files) == (drafter, files)]
    return [run for run in same if schedule in (None, run.schedule)]
