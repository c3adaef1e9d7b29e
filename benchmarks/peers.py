"""How fast are other runtimes on the same weights, plain and with drafts? In turn, in the same memory cgroup.

    python -m benchmarks.peers --peer-python /opt/peers/bin/python
    python -m benchmarks.peers --model models/7b-inflated --story --draft models/0.5b-inflated \\
        --copy models/7b-inflated-int4 --arms "edgespec;llama.cpp F16" --dials 8GB --tokens 24

The peers' virtual environment needs llama-cpp-python, accelerate, transformers, airllm, neurostream and
torch. Each run is a process of its own, from cold weights, in a cgroup limited to the dial; a run that fails
shows its error. GGUFs are made beside the models (as many bytes again). llama-cpp-python offers prompt
lookup, and an interface for draft models; both propose chains, as transformers' assisted generation does.
neurostream's own quantised kernels are for GPUs, so it is asked for F16 only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.cgroup import THROTTLE_HELP, remembering, require_throttle
from benchmarks.common import PROMPT, Row, arguments, environment, generate_command, interleave, names, sizes
from benchmarks.held_out import stories
from benchmarks.measure import failure, limit_met, run
from benchmarks.models.make_model import ensure_model
from benchmarks.page_cache import drop_caches
from benchmarks.tables import Report, ratio, spread
from edgespec.values import format_bytes

PEERS = Path(__file__).parent / "peers"
GGUF = ("F16", "Q4_K_M", "Q4_0", "Q8_0")  # EdgeSpec runs the checkpoint where llama.cpp runs its F16 twin
INT4 = "edgespec int4"  # packed by EdgeSpec; beside llama.cpp's Q4_K_M
PACKAGES = ("llama-cpp-python", "accelerate", "transformers", "airllm", "neurostream", "torch")

Command = list[str | Path | int]


class Peers:
    """The arms, by name."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.model = args, args.model or ensure_model("7b")
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        if args.story:
            self.ids = stories(self.model, 1)[0]
            self.text = tokenizer.decode(self.ids, skip_special_tokens=False)
            if tokenizer.encode(self.text, add_special_tokens=False).ids != self.ids:
                raise SystemExit("the prompt's text is not its tokens; choose another")
        else:
            self.ids, self.text = tokenizer.encode(PROMPT).ids, PROMPT
        self.split = self.model.with_name(f"{self.model.name}-airllm")
        self.names = [name for name in self.known() if any(part in name for part in args.arms.split(";"))]

    def known(self) -> list[str]:
        """All that there are files for."""
        found = []
        for kind in self.args.gguf:
            found += [f"edgespec {kind}", f"llama.cpp {kind}, mmap in place", f"llama.cpp {kind}, defaults"]
        if self.args.story:
            found += ["edgespec F16, ngram", "llama.cpp F16, prompt lookup", "transformers, prompt lookup"]
        if self.args.draft:
            found += ["edgespec F16, model", "llama.cpp F16, draft model", "transformers, draft model"]
        if "F16" in self.args.gguf:
            found += ["edgespec F16, GGUF"]
        if self.args.copy:
            found += [INT4, "edgespec F16, substitute"]
            found += [f"{INT4}, model"] if self.args.draft else []
        streaming = ["neurostream F16"] if "F16" in self.args.gguf else []
        return [*found, *streaming, "accelerate, disk_offload", "accelerate, max_memory", "AirLLM"]

    def weights(self, name: str) -> Path:
        """What an arm reads; made now if it is not there."""
        if name == "AirLLM":
            return self.split
        if name.startswith(INT4):
            return Path(self.args.copy)
        kind = kind_of(name)
        if kind == "F16" and not name.startswith(("llama.cpp", "neurostream")) and "GGUF" not in name:
            return Path(self.model)
        return self.gguf(self.model, kind)

    def gguf(self, model: Path, kind: str) -> Path:
        """llama.cpp is faster with F16 than with BF16; other types are its own quantisation of that."""
        from benchmarks.models.make_gguf import ensure_gguf

        out = Path(f"{model}-{kind.lower()}.gguf")
        if kind == "F16" or not out.exists():
            twin = ensure_gguf(model)
            if kind == "F16":
                return twin
            once([self.args.peer_python, PEERS / "quantize_llama_cpp.py", twin, out, kind])
        return out

    def command(self, name: str, dial: int) -> Command:
        weights, (runtime, _, way) = self.weights(name), name.partition(", ")
        if runtime.startswith("edgespec"):
            named = {"substitute": self.args.copy, "model": self.args.draft}.get(way)
            more = ("--draft-model", named) if named else ()
            drafter = "none" if way in ("", "GGUF") else way
            return [*generate_command(weights, self.text, dial, self.args.tokens, drafter, *more)]
        program, *options = {
            "llama.cpp, mmap in place": ["llama_cpp"],
            "llama.cpp, defaults": ["llama_cpp", "--repack"],
            "llama.cpp, prompt lookup": ["llama_cpp_drafted"],
            "llama.cpp, draft model": ["llama_cpp_drafted", "--draft-model"],
            "accelerate, disk_offload": ["accelerate"],
            "accelerate, max_memory": ["accelerate", "--memory", str(dial)],
            "transformers, prompt lookup": ["accelerate", "--prompt-lookup"],
            "transformers, draft model": ["accelerate", "--draft-model", str(self.args.draft)],
            "neurostream": ["neurostream", "--memory", str(dial)],
            "AirLLM": ["airllm", "--split-to", str(self.split)],
        }[", ".join(filter(None, (runtime.split()[0], way)))]
        if program == "llama_cpp_drafted" and options:
            options.append(str(self.gguf(self.args.draft, "F16")))
        prompt = ",".join(map(str, self.ids))
        asked: Command = ["--prompt-ids", prompt, "--tokens", self.args.tokens]
        return [self.args.peer_python, PEERS / f"run_{program}.py", weights, *asked, *options]

    def prepare(self) -> None:
        """Make the files that the arms read, each once."""
        if "AirLLM" in self.names and not self.split.exists():
            size = sum(file.stat().st_size for file in self.model.glob("*.safetensors"))
            if shutil.disk_usage(self.model.parent).free < 1.1 * size:
                print(f"AirLLM needs {format_bytes(size)} of disk for its own copy of the model: left out")
                self.names.remove("AirLLM")
            else:
                once([*self.command("AirLLM", 0), "--tokens", 0])  # the last one counts: only split
        for name in self.names:
            self.command(name, 0)

    def measured(self, name: str, dial: int, read_bps: int | None) -> Row:
        """One run from cold weights in a cgroup of `dial` bytes, on a disk of so many bytes a second."""
        weights, command = self.weights(name), [*map(str, self.command(name, dial))]
        drop_caches([weights])
        with remembering(read_bps):
            env = environment() if name.startswith("edgespec") else {**environment(), "PYTHONPATH": ""}
            timeout = self.args.timeout
            row = run(command, dial, read_bps, [weights], env, timeout).row()
        if not row["failure"] and len(row["tokens"]) < self.args.tokens:
            row["failure"] = f"ended after {len(row['tokens'])} of {self.args.tokens} tokens; try --story"
        return row


def kind_of(name: str) -> str:
    """The type of an arm's weights."""
    return next((kind for kind in GGUF if kind in name.split(",")[0].split()), "F16")


def once(command: Command) -> str:
    """What a command prints."""
    print(f"once: {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def versions(python: str) -> dict[str, str]:
    """Of the peers' packages, as their own environment has them."""
    listing = "{d.name.replace('_', '-'): d.version for d in m.distributions()}"
    code = f"import importlib.metadata as m, json; print(json.dumps({listing}))"
    found: dict[str, str] = json.loads(once([python, "-c", code]))
    return {name: found[name] for name in PACKAGES if name in found}


def add_rows(report: Report, where: Row, results: dict[str, list[Row]]) -> None:
    """One row an arm: its speed, how many times faster plain EdgeSpec is with the same weights, and how many
    times faster an EdgeSpec arm is than llama.cpp with the file that it is to be held against."""
    for name, rows in results.items():
        row = {**where, "runtime": name}
        row |= dict.fromkeys(("tokens/s", "EdgeSpec is ×", "× llama.cpp", "GB read a token", "peak"), "–")
        row |= {"limit": limit_met(rows), "remarks": failure(rows)}
        if not row["remarks"]:
            read = statistics.median(run["stats"]["bytes_per_token"] for run in rows)
            row["tokens/s"] = spread(speeds(rows), 3)
            row["GB read a token"] = f"{read / 1e9:.2f}"
            row["peak"] = format_bytes(max(run["peak"] for run in rows))
            low_bit = name.startswith(INT4)
            ours = [] if low_bit else results.get(f"edgespec {kind_of(name)}", [])
            if ours and not failure(ours):
                row["EdgeSpec is ×"] = ratio(speeds(ours), speeds(rows))
                row["remarks"] = "" if rows[0]["tokens"] == ours[0]["tokens"] else "its tokens differ"
            peer = results.get(f"llama.cpp {'Q4_K_M' if low_bit else kind_of(name)}, mmap in place", [])
            if name.startswith("edgespec") and peer and not failure(peer):
                row["× llama.cpp"] = ratio(speeds(rows), speeds(peer))
        report.add(row)


def speeds(rows: list[Row]) -> list[float]:
    return [row["stats"]["tokens_per_second"] for row in rows]


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--peer-python", default="/opt/peers/bin/python")
    parser.add_argument("--model", type=Path, help="default: the 7b shape")
    parser.add_argument("--gguf", type=names, default=["F16", "Q4_K_M"], help=f"of {GGUF}")
    parser.add_argument("--draft", type=Path, help="a draft model, inflated as the model is")
    parser.add_argument("--copy", type=Path, help="the model's packed low-bit copy")
    parser.add_argument("--story", action="store_true", help="prompt: a held-out story of the demo model's")
    parser.add_argument("--dials", type=sizes, default=sizes("2GB,4GB,8GB"))
    parser.add_argument("--tokens", type=int, default=5, help="of each reply; rates leave the first out")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a run may take")
    parser.add_argument("--throttle", type=sizes, help=THROTTLE_HELP)
    parser.add_argument("--arms", default="", help="parts of names to keep, separated by ';'")
    args = parser.parse_args()
    peers = Peers(args)
    report = Report(
        f"Replies of {args.tokens} tokens, {peers.model.name}, median (range) of {args.rounds} runs"
    )
    report.raw["peer_versions"] = found = versions(args.peer_python)
    report.notes.append("Peers: " + ", ".join(f"{name} {version}" for name, version in found.items()) + ".")
    report.notes.append("EdgeSpec is ×: plain, with the same weights; in brackets its 95 % interval.")
    if args.throttle:
        require_throttle(peers.model)
    peers.prepare()
    for rate, dial in product(args.throttle or [None], args.dials):
        arms = {name: partial(peers.measured, name, dial, rate) for name in peers.names}
        results = interleave(arms, args.rounds)
        where = {"dial": format_bytes(dial)} | ({"disk": f"{format_bytes(rate)}/s"} if rate else {})
        add_rows(report, where, results)
        report.raw[", ".join(map(str, filter(None, (dial, rate))))] = results
    report.finish(args.json)


if __name__ == "__main__":
    main()
