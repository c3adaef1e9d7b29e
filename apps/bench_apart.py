"""A setting of `edgespec bench` in a process of its own, which holds nothing of another one's."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Thread
from typing import Any

from edgespec.apps import options
from edgespec.apps.bench_runs import Arm, Run, Test, measure
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions
from edgespec.devices.disk import drop_pages
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
            drop_pages(_files(job["model"], setting.options))
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


def _files(model: str, wanted: EngineOptions) -> list[Path]:
    """Of the model and its drafters. Raises ModelError."""
    from edgespec.models.hub import resolve_model

    models = filter(None, (model, wanted.draft_model))
    named = [resolve_model(name, None, wanted.offline) for name in models]
    return named + ([Path(wanted.adapters)] if wanted.adapters is not None else [])
