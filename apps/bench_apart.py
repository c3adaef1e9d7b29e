"""A setting of `edgespec bench` in a process of its own, which holds nothing of another one's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Thread
from typing import Any

from edgespec.apps import options
from edgespec.apps.bench_runs import Arm, Run, Test, measure
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions
from edgespec.errors import DeviceError, EdgeSpecError


def measure_apart(model: str, setting: Arm, repetitions: int, cold: bool, trace: Path | None) -> None:
    """`measure` in a fresh process, which holds nothing of another setting. Raises EdgeSpecError for what
    failed there, with a message for the command line."""
    from edgespec.drafters.process import command  # numpy: not for --help

    job = {
        "model": model,
        "options": asdict(setting.options),
        "steps": setting.steps,
        "tests": [(test.kind, test.length, test.depth) for test in setting.tests],
        "repetitions": repetitions,
        "cold": cold,
        "trace": None if trace is None else str(trace),
    }
    program = command("edgespec.apps.bench_apart:main")
    with Popen(program, stdin=PIPE, stdout=PIPE, text=True, encoding="utf-8") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()  # and stays open: the process ends with this one
            line = process.stdout.readline()
        finally:
            process.kill()
    if not line:
        raise DeviceError(f"its process ended without a result ({_how_it_ended(process.returncode)})")
    answer = json.loads(line)
    if "error" in answer:
        raise EdgeSpecError(answer["error"])
    for test, runs in zip(setting.tests, answer["runs"], strict=True):
        test.runs += [Run(**run) for run in runs]
    peak = max(answer["found"]["peak_memory"], setting.found.get("peak_memory", 0))
    setting.found = answer["found"] | {"peak_memory": peak}


def _how_it_ended(code: int) -> str:
    return f"signal {-code}: out of memory?" if code < 0 else f"exit code {code}"


def main() -> None:
    """The other process: one job as a line of JSON in, its answer as one out. It ends when nobody listens."""
    answers, sys.stdout = sys.stdout, sys.stderr
    job = json.loads(sys.stdin.readline())
    Thread(target=_end_with_parent, daemon=True).start()
    setting = Arm(EngineOptions(**job["options"]), job["steps"], [Test(*test) for test in job["tests"]])
    trace = None if job["trace"] is None else Path(job["trace"])
    try:
        if job["cold"]:
            drop_pages(job["model"], setting.options)
        with Terminal() as terminal:
            measure(job["model"], setting, job["repetitions"], job["cold"], trace, terminal)
        answer: dict[str, Any] = {
            "found": setting.found,
            "runs": [[asdict(run) for run in test.runs] for test in setting.tests],
        }
    except EdgeSpecError as error:
        answer = {"error": options.message_of(error)}
    except KeyboardInterrupt:
        return
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def drop_pages(model: str, wanted: EngineOptions) -> None:
    """Have the next reads of the model's and its drafters' files come from the disk. Raises ModelError."""
    from edgespec.devices.disk import forget
    from edgespec.models.hub import resolve_model

    named = [resolve_model(model, None, wanted.offline)]
    if wanted.draft_model is not None:
        named.append(resolve_model(wanted.draft_model, None, wanted.offline))
    named += [Path(wanted.adapters)] if wanted.adapters is not None else []
    for file in (file for path in named for file in _files(path)):
        with file.open("rb") as opened:
            forget(opened.fileno(), 0, file.stat().st_size)


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else iter([path])
