"""What every benchmark shares: command lines of the checkout under test, and arms in turn."""

from __future__ import annotations

import argparse
import compileall
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from edgespec.runtimes.formats.needs import context_of
from edgespec.values import parse_bytes

REPO = Path(__file__).resolve().parents[1]
PROMPT = "Once upon a time there was a small machine that wanted to read a large book."

Row = dict[str, Any]
T = TypeVar("T")


def edgespec_command(*args: str | Path | int) -> list[str]:
    """The command line of this checkout's `edgespec`."""
    return [sys.executable, "-c", "from edgespec.apps.start import main; main()", *map(str, args)]


def generate_command(
    model: Path, prompt: str, dial: int, tokens: int, drafter: str, *more: str | Path | int
) -> list[str]:
    """One reply by this checkout, its tokens and stats as the last line of JSON."""
    options = ["-p", prompt, "--memory", dial, "--drafter", drafter, "--max-tokens", tokens, "--json", *more]
    return edgespec_command("generate", model, *options)


def environment() -> dict[str, str]:
    """Environment of measured processes: this checkout, offline, no settings left over from the caller (where
    things are remembered is none)."""
    settings = {k for k in os.environ if k.startswith(("EDGESPEC_", "OMP_", "MKL_"))} - {"EDGESPEC_CACHE"}
    kept = {k: v for k, v in os.environ.items() if k not in settings}
    return {**kept, "PYTHONPATH": str(REPO), "HF_HUB_OFFLINE": "1"}


def pack(model: Path, out: Path, *options: str) -> Path:
    """`edgespec pack` to `out`, unless it is there. Raises SystemExit when it fails."""
    command = edgespec_command("pack", model, "-o", out, *options)
    if not out.exists() and subprocess.call(command, env=environment()):
        raise SystemExit(f"packing {model} to {out} failed")
    return out


@contextmanager
def served(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of `edgespec serve`, begun by such a command, and its URL; loaded, and ended behind."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stderr is not None
        said = list[str]()
        for line in process.stderr:
            said.append(line)
            if "serving at " in line:
                break
        else:
            raise SystemExit("the server did not start:\n" + "".join(said))
        yield process, line.split("serving at ")[1].split("/v1")[0]
    finally:
        process.terminate()
        process.communicate()


def compile_checkout() -> None:
    """Write the byte code that a first run would write, so that no measured run does."""
    for package in ("edgespec", "runtimes", "offload", "kernels", "devices", "apps"):
        compileall.compile_dir(REPO / package, quiet=2)


def interleave(arms: Mapping[str, Callable[[], Row]], rounds: int) -> dict[str, list[Row]]:
    """Run every arm once a round, starting each round with the next arm. Progress goes to stderr."""
    results: dict[str, list[Row]] = {name: [] for name in arms}
    for i in range(rounds):
        for name in in_turn(list(arms), i):
            began = time.perf_counter()
            results[name].append(arms[name]())
            seconds = time.perf_counter() - began
            print(f"round {i + 1}/{rounds}  {name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return results


def in_turn(arms: Sequence[T], turn: int) -> list[T]:
    """The arms in a round's order."""
    first = turn % len(arms)
    return [*arms[first:], *arms[:first]]


def sizes(text: str) -> list[int]:
    """ "2GB,4GB" -> bytes."""
    return [parse_bytes(part) for part in text.split(",")]


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def names(text: str) -> list[str]:
    return text.split(",")


def paths(text: str) -> list[Path]:
    return [Path(name) for name in text.split(",")]


def arguments(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """A parser with what every script takes. SIGTERM ends a script as Ctrl-C does, tidily."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"interleaved rounds (default {rounds})")
    parser.add_argument("--json", type=Path, help="results file (default benchmarks/results/<script>.json)")
    return parser


def add_placement(parser: argparse.ArgumentParser, positions: int) -> None:
    """What `placement` goes by, and --throttle."""
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--positions", type=int, default=positions, help="of a conversation")
    parser.add_argument("--resident-layers", type=int, help="stream all but so many; default: by the plan")
    parser.add_argument("--throttle", type=parse_bytes, help="read rate of an emulated slower disk; root")


def placement(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """An engine's options, for so many conversations at once."""
    found = {"memory": args.memory, "context": context_of(batch, args.positions), "batch": batch}
    return found if args.resident_layers is None else found | {"resident_layers": args.resident_layers}
