"""Plain decoding beside other runtimes: the same weights, prompt and memory cgroup, run in turn.

    python -m benchmarks.peers --peer-python /opt/peers/bin/python

The peers' virtual environment needs llama-cpp-python, accelerate, transformers, airllm and torch. Each run is
a process of its own, from cold weights, in a cgroup limited to the dial; a run that fails shows its error.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.cgroup import CgroupUnavailable
from benchmarks.common import PROMPT, Row, arguments, environment, generate_command, interleave, sizes
from benchmarks.measure import run
from benchmarks.models.make_model import ensure_model
from benchmarks.models.tokenizer import vocabulary
from benchmarks.page_cache import drop_caches
from benchmarks.tables import Report, median_ratio, spread, tail
from edgespec.values import format_bytes

PEERS = Path(__file__).parent / "peers"


def prompt_ids() -> str:
    """PROMPT as ids of the made tokenizer, BOS first. Its one merge joins a space and a "t"."""
    ids = {text: i for i, text in enumerate(vocabulary(512))}
    text = PROMPT.replace(" ", "Ġ")
    pieces = text.replace("Ġt", "\0")
    return ",".join(map(str, [ids["<s>"], *(ids["Ġt" if c == "\0" else c] for c in pieces)]))


class Commands(Protocol):
    """Whatever knows the command lines of arms."""

    def command(self, name: str, dial: int) -> tuple[list[str], Path]:
        """(command line, what it reads) of one arm."""


class Arms:
    """Command lines of every runtime on one model."""

    def __init__(self, model: Path, python: str, tokens: int) -> None:
        self.model, self.python, self.tokens = model, python, tokens
        self.gguf = Path(f"{model}-fp16.gguf")  # llama.cpp is faster with F16 than with BF16
        self.q4 = Path(f"{model}-q4_k_m.gguf")
        self.split = model.with_name(f"{model.name}-airllm")

    def peer(self, script: str, weights: Path, *options: str | Path | int) -> list[str]:
        command = [
            self.python,
            PEERS / script,
            weights,
            "--prompt-ids",
            prompt_ids(),
            "--tokens",
            self.tokens,
        ]
        return [*map(str, command), *map(str, options)]

    def command(self, name: str, dial: int) -> tuple[list[str], Path]:
        """(command line, what it reads) of one arm."""
        if name == "edgespec":
            return generate_command(self.model, PROMPT, dial, self.tokens), self.model
        script, weights, *options = {
            "llama.cpp F16, mmap in place": ("run_llama_cpp.py", self.gguf),
            "llama.cpp F16, defaults": ("run_llama_cpp.py", self.gguf, "--repack"),
            "accelerate, disk_offload": ("run_accelerate.py", self.model),
            "accelerate, max_memory": ("run_accelerate.py", self.model, "--memory", dial),
            "AirLLM": ("run_airllm.py", self.model, "--split-to", self.split),
            "llama.cpp Q4_K_M, defaults": ("run_llama_cpp.py", self.q4, "--repack"),
            "llama.cpp Q4_K_M, mmap in place": ("run_llama_cpp.py", self.q4),
        }[name]
        return self.peer(script, weights, *options), self.split if name == "AirLLM" else weights

    def prepare(self, names: list[str]) -> None:
        """Make the files that the arms read, each once."""
        if any(name.startswith("llama.cpp") for name in names) and not self.gguf.exists():
            from benchmarks.models.make_gguf import ensure_gguf

            ensure_gguf(self.model, fp16=True)
        if any("Q4" in name for name in names) and not self.q4.exists():
            self.once([self.python, str(PEERS / "quantize_llama_cpp.py"), str(self.gguf), str(self.q4)])
        if "AirLLM" in names and not self.split.exists():
            size = sum(file.stat().st_size for file in self.model.glob("*.safetensors"))
            if shutil.disk_usage(self.model.parent).free < 1.1 * size:
                print(f"AirLLM needs {format_bytes(size)} of disk for its own copy of the model: left out")
                names.remove("AirLLM")
                return
            command = self.peer("run_airllm.py", self.model, "--split-to", self.split)
            command[command.index("--tokens") + 1] = "0"
            self.once(command)

    @staticmethod
    def once(command: list[str]) -> None:
        print(f"once: {' '.join(command)}", file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")


NAMES = [
    "edgespec",
    "llama.cpp F16, mmap in place",
    "llama.cpp F16, defaults",
    "accelerate, disk_offload",
    "accelerate, max_memory",
    "AirLLM",
    "llama.cpp Q4_K_M, defaults",
    "llama.cpp Q4_K_M, mmap in place",
]


def versions(python: str) -> dict[str, str]:
    """Of the peers' packages, as their own environment has them."""
    names = ["llama_cpp_python", "accelerate", "transformers", "airllm", "torch"]
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} lacks a peer: {tail(done.stderr)}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def measured(arms: Commands, name: str, dial: int, timeout: float) -> Row:
    """One run from cold weights in a cgroup of `dial` bytes."""
    command, weights = arms.command(name, dial)
    drop_caches([weights])
    env = environment() if name.startswith("edgespec") else {**environment(), "PYTHONPATH": ""}
    usage = run(command, memory=dial, watch=[weights], env=env, timeout=timeout)
    return usage.row()


def run_rounds(report: Report, arms: Commands, names: list[str], args: argparse.Namespace) -> None:
    """All arms at every dial, in turn."""
    for dial in args.dials:
        turns: dict[str, Callable[[], Row]] = {
            name: partial(measured, arms, name, dial, args.timeout) for name in names
        }
        try:
            results = interleave(turns, args.rounds)
        except CgroupUnavailable as error:
            raise SystemExit(f"skipped: {error}") from None
        add_rows(report, dial, results)
        report.raw[str(dial)] = results


def add_rows(report: Report, dial: int, results: dict[str, list[Row]]) -> None:
    """One row an arm: its speed, and how many times faster EdgeSpec is."""
    ours = [row["stats"]["tokens_per_second"] if not row["failure"] else 0.0 for row in results["edgespec"]]
    reference = results["edgespec"][0].get("tokens")
    for name, rows in results.items():
        failures = [row["failure"] for row in rows if row["failure"]]
        met = "met" if any(row["met"] for row in rows) else "never met"
        if failures:
            report.add(format_bytes(dial), name, "–", "–", "–", "–", met, tail(failures[0]))
            continue
        speeds = [row["stats"]["tokens_per_second"] for row in rows]
        same = "" if "Q4" in name or rows[0]["tokens"] == reference else "its tokens differ"
        report.add(
            format_bytes(dial),
            name,
            spread(speeds, 3),
            f"{median_ratio(ours, speeds):.2f}",
            f"{statistics.median(row['stats']['bytes_per_token'] for row in rows) / 1e9:.2f}",
            format_bytes(max(row["peak"] for row in rows)),
            met,
            same,
        )


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--peer-python", default="/opt/peers/bin/python")
    parser.add_argument("--model", type=Path, help="default: the 7b shape")
    parser.add_argument("--dials", type=sizes, default=sizes("2GB,4GB,8GB"))
    parser.add_argument("--tokens", type=int, default=5, help="of each reply; rates leave the first out")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a run may take")
    parser.add_argument("--arms", help="comma-free parts of names to keep, separated by ';'")
    args = parser.parse_args()
    model = args.model or ensure_model("7b")
    keep = [part.strip() for part in args.arms.split(";")] if args.arms else [""]
    names = [name for name in NAMES if name == "edgespec" or any(part in name for part in keep)]

    arms = Arms(model, args.peer_python, args.tokens)
    arms.prepare(names)
    report = Report(
        f"Plain decoding, {model.name}, median (range) of {args.rounds} runs, each in a cgroup of the dial",
        ["dial", "runtime", "tokens/s", "EdgeSpec is ×", "GB read a token", "peak", "limit", "remarks"],
    )
    report.raw["peer_versions"] = peers = versions(args.peer_python)
    report.notes.append("Peers: " + ", ".join(f"{name} {version}" for name, version in peers.items()) + ".")
    run_rounds(report, arms, names, args)
    report.finish(args.json)


if __name__ == "__main__":
    main()
