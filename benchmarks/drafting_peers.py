"""Drafted decoding beside llama.cpp's: the same weights, prompt and memory cgroup, run in turn.

    python -m benchmarks.drafting_peers --target models/7b-inflated --draft models/0.5b-inflated \\
        --copy models/7b-inflated-int4

llama-cpp-python offers prompt lookup, and an interface for draft models (`peers/run_llama_cpp_drafted.py`);
both propose chains. Each run is a process of its own, from cold weights, in a cgroup limited to the dial. Its
F16 GGUFs are made beside the models (as many bytes again).
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.common import arguments, generate_command, sizes
from benchmarks.held_out import stories
from benchmarks.models.make_gguf import ensure_gguf
from benchmarks.peers import PEERS, run_rounds, versions
from benchmarks.tables import Report

NAMES = (
    "edgespec",
    "edgespec, substitute",
    "edgespec, model",
    "edgespec, ngram",
    "llama.cpp F16",
    "llama.cpp F16, prompt lookup",
    "llama.cpp F16, draft model",
)


class DraftedArms:
    """Command lines of every arm; see `peers.Arms`."""

    def __init__(
        self, target: Path, draft: Path | None, copy: Path | None, python: str, tokens: int, drafted: int
    ) -> None:
        self.target, self.draft, self.copy = target, draft, copy
        self.python, self.tokens, self.drafted = python, tokens, drafted
        self.ids = stories(target, 1)[0]
        tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
        self.text = tokenizer.decode(self.ids, skip_special_tokens=False)
        if tokenizer.encode(self.text, add_special_tokens=False).ids != self.ids:
            raise SystemExit("the prompt's text is not its tokens; choose another")

    def names(self, keep: list[str]) -> list[str]:
        """Arms that there are files for."""
        lacking = {"model": self.draft is None, "substitute": self.copy is None}
        there = [n for n in NAMES if not any(word in n and gone for word, gone in lacking.items())]
        return [n for n in there if n == "edgespec" or any(part in n for part in keep)]

    def command(self, name: str, dial: int) -> tuple[list[str], Path]:
        """(command line, what it reads)."""
        if name.startswith("edgespec"):
            drafter = name.partition(", ")[2] or "none"
            named = {"substitute": self.copy, "model": self.draft}.get(drafter)
            options = ("--draft-model", named) if named else ()
            command = generate_command(self.target, self.text, dial, self.tokens, drafter, *options)
            return command, self.target
        weights = ensure_gguf(self.target, fp16=True)
        plain = name == "llama.cpp F16"
        script = PEERS / ("run_llama_cpp.py" if plain else "run_llama_cpp_drafted.py")
        command = [self.python, script, weights, "--prompt-ids", ",".join(map(str, self.ids))]
        command += ["--tokens", self.tokens]
        if not plain:
            command += ["--draft-tokens", self.drafted]
        if "draft model" in name:
            assert self.draft is not None
            command += ["--draft-model", ensure_gguf(self.draft, fp16=True)]
        return [*map(str, command)], weights


def main() -> None:
    parser = arguments(__doc__, rounds=2)
    parser.add_argument("--peer-python", default="/opt/peers/bin/python")
    parser.add_argument("--target", type=Path, required=True, help="an inflated model")
    parser.add_argument("--draft", type=Path, help="an inflated draft model")
    parser.add_argument("--copy", type=Path, help="the target's packed low-bit copy")
    parser.add_argument("--dials", type=sizes, default=sizes("8GB"))
    parser.add_argument("--tokens", type=int, default=48, help="of each reply; rates leave the first out")
    parser.add_argument("--draft-tokens", type=int, default=8, help="that llama.cpp proposes a pass")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a run may take")
    parser.add_argument("--arms", help="parts of names to keep, separated by ';'")
    args = parser.parse_args()
    keep = [part.strip() for part in args.arms.split(";")] if args.arms else [""]
    arms = DraftedArms(args.target, args.draft, args.copy, args.peer_python, args.tokens, args.draft_tokens)
    names = arms.names(keep)
    for name in names:
        arms.command(name, 0)  # makes the files

    report = Report(
        f"Drafted decoding, {args.target.name}, {args.tokens} tokens of a story, {args.rounds} runs",
        ["dial", "runtime", "tokens/s", "plain EdgeSpec is ×", "GB a token", "peak", "limit", "remarks"],
    )
    report.raw["peer_versions"] = versions(args.peer_python)
    run_rounds(report, arms, names, args)
    report.finish(args.json)


if __name__ == "__main__":
    main()
