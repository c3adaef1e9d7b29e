"""What a client that drafts takes on a machine without torch: seconds until it can be used, and memory.

    python -m benchmarks.client --python VENV/bin/python --adapters MOA --draft-model EXPORTED

VENV has numpy and the packages of the extra `client` (the script refuses one with torch); the client's code
is this checkout's. A start is a new process: from before it is made (Python's own start counts) until the
server has given it a conversation, then a reply. `command` is all of `edgespec generate` with one token.
Server and client share the machine, over loopback; arms are interleaved, and the first round, which fills the
page cache, does not count.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import (
    Row,
    arguments,
    compile_checkout,
    edgespec_command,
    environment,
    interleave,
    served,
)
from benchmarks.split import prompts_of
from benchmarks.tables import Report, spread
from edgespec.apps.common import demo_model
from edgespec.models.client_half import export_client

CONTEXT = 400  # positions of the conversation; the server has some beside it for trees

CLIENT = """
import json, os, sys, time
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import edgespec
from edgespec.devices.probe import peak_memory as peak
born, url, context, prompt, tokens, options = json.loads(sys.argv[1])
with edgespec.connect(url, **options) as engine, engine.new_session(context) as session:
    ready, at_start = time.time() - born, peak()
    how = edgespec.GenerationOptions(max_tokens=tokens, ignore_eos=True)
    replies = session.generate(prompt, how)
    next(replies)
    first = time.time() - born
    said = [step.token for step in replies]
assert "torch" not in sys.modules and len(said) >= tokens - 1
print(json.dumps({"ready": ready, "first": first, "started": at_start, "replied": peak()}))
"""
CHECK = "import importlib.util as u; print(u.find_spec('torch') is None)"


def started(python: Path, url: str, prompt: list[int], tokens: int, options: dict[str, Any]) -> Row:
    given = json.dumps([time.time(), url, CONTEXT, prompt, tokens, options])
    row: Row = json.loads(said_by([str(python), "-c", CLIENT, given]))
    return row


def commanded(python: Path, url: str, options: dict[str, Any]) -> Row:
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    command = edgespec_command("generate", "--server", url, "-p", "Hello", "--max-tokens", 1, *flags)
    began = time.perf_counter()
    said_by([str(python), *command[1:]])
    return {"command": time.perf_counter() - began}


def said_by(command: list[str]) -> str:
    run = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    if run.returncode:
        raise SystemExit(f"{command[0]} failed:\n{run.stderr[-2000:]}")
    return run.stdout


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("model", nargs="?", default=str(demo_model()))
    parser.add_argument("--python", type=Path, required=True, help="of an environment without torch")
    parser.add_argument("--adapters", help="of a trained MoA drafter")
    parser.add_argument("--draft-model", help="an exported one")
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    if said_by([str(given.python), "-c", CHECK]).strip() != "True":
        raise SystemExit(f"{given.python} has torch")
    compile_checkout()
    report = Report("A client without torch: medians (least-most), a reply of some tokens behind its start")
    [prompt] = prompts_of(given.model, 1)
    arms: dict[str, dict[str, Any]] = {"none": {"drafter": "none"}, "ngram": {"drafter": "ngram"}}
    flags = ["--memory", "2GB", "--context", "512"]
    with tempfile.TemporaryDirectory() as folder:
        if given.adapters is not None:
            half = f"{folder}/client"
            export_client(given.model, given.adapters, half)
            arms["moa"] = {"drafter": "moa", "adapters": half}
            flags += ["--client-adapters", given.adapters]
        if given.draft_model is not None:
            arms["model"] = {"drafter": "model", "draft_model": given.draft_model}
        with served(edgespec_command("serve", given.model, "--port", 0, *flags)) as (_, url):
            found = interleave(
                {
                    name: lambda how=how: {  # type: ignore[misc]
                        **started(given.python, url, prompt, given.tokens, how),
                        **commanded(given.python, url, how),
                    }
                    for name, how in arms.items()
                },
                given.rounds + 1,
            )
    for name, (_, *rows) in found.items():
        cells = {"drafts": name}
        for column in ("ready", "first", "command"):
            cells[f"{column}, s"] = spread([row[column] for row in rows])
        for column in ("started", "replied"):
            cells[f"MB, {column}"] = f"{statistics.median(row[column] for row in rows) / 1e6:.0f}"
        report.add(cells)
    report.raw["rows"] = found
    report.finish(given.json)


if __name__ == "__main__":
    main()
