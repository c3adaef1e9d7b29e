"""Is drafting worth it? Speed of every drafter over plain streaming at the same dial, and when it fails.

    python -m benchmarks.drafting --small DEMO --draft-small DRAFT --target models/7b-inflated \\
        --draft models/0.5b-inflated --dials 8GB,4GB

The target is the small model inflated (`inflate.py`), so a cycle costs a big model's and is accepted like the
small one's: speed = tokens per cycle (small model, held-out prompts) / seconds a cycle (big model), checked
against whole replies of the big model. Every measurement is kept in the results file as it is made; run again
to go on, or to print the tables. Parts:

    tokens       tokens per cycle of each arm at each number of drafting steps, on the small models
    cycles       seconds a cycle, arms in turn with plain decoding at the same dial
    curve        speed against set acceptance (`set_acceptance.py`), measured and modelled
    replies      whole replies: as predicted? and with the product's own controller
    nodes        a pass over 64 nodes against one over 1
    adversarial  --drafter auto on text that cannot be guessed, streamed and resident
"""

from __future__ import annotations

import argparse
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import arguments, compile_checkout, edgespec_command, environment, format_bytes, sizes
from benchmarks.drafting_parts import Bench
from benchmarks.drafting_tables import print_tables
from benchmarks.models.shapes import models_dir
from benchmarks.store import Store

PARTS = ("tokens", "cycles", "curve", "replies", "nodes", "adversarial")


@dataclass(frozen=True)
class Arm:
    """One way to draft: options for the big model, and for the small one."""

    name: str
    drafter: str
    big: tuple[str, ...] = ()
    small: tuple[str, ...] = ()


def arms(args: argparse.Namespace) -> list[Arm]:
    """All that are asked for; low-bit copies are packed now where they are missing."""
    found = []
    for precision in ("int4", "int8"):
        name = f"substitute {precision}"
        if name in args.arms:
            big, small = (packed(model, precision) for model in (args.target, args.small))
            # On the small model every layer is drafted with its copy; the big one pins some as they are.
            resident = ("--resident-layers", "0")
            found.append(
                Arm(
                    name,
                    "substitute",
                    ("--draft-model", str(big)),
                    ("--draft-model", str(small), *resident),
                )
            )
    if "model" in args.arms:
        found.append(
            Arm(
                "model", "model", ("--draft-model", str(args.draft)), ("--draft-model", str(args.draft_small))
            )
        )
    if "ngram" in args.arms:
        found.append(Arm("ngram", "ngram"))
    return found


def packed(model: Path, precision: str) -> Path:
    """The model's low-bit copy, among the benchmark models."""
    out = models_dir() / f"{model.name}-{precision}"
    if not out.exists():
        command = edgespec_command("pack", model, "-o", out, "--precision", precision)
        done = subprocess.run(command, env=environment(), check=False)
        if done.returncode:
            raise SystemExit(f"packing {model} as {precision} failed")
    return out


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--small", type=Path, required=True, help="the target, not inflated")
    parser.add_argument("--target", type=Path, required=True, help="the same, inflated")
    parser.add_argument("--draft-small", type=Path, help="for arm `model`: the draft model, not inflated")
    parser.add_argument("--draft", type=Path, help="the same, inflated")
    parser.add_argument("--resident-target", type=Path, help="part adversarial: a model that fits the dial")
    parser.add_argument("--resident-draft", type=Path, help="and a draft model for it")
    parser.add_argument("--dials", type=sizes, default=sizes("8GB,4GB"))
    parser.add_argument(
        "--arms",
        type=lambda text: text.split(","),
        default=["substitute int4", "substitute int8", "model", "ngram"],
        help="comma-separated: substitute int4, substitute int8, model, ngram",
    )
    parser.add_argument(
        "--parts", type=lambda text: text.split(","), default=list(PARTS), help="comma-separated; see above"
    )
    parser.add_argument("--cycles", type=int, default=12, help="timed cycles a round and arm")
    parser.add_argument("--prompts", type=int, default=48, help="held-out prompts of part `tokens`")
    parser.add_argument("--replies", type=int, default=3, help="whole replies an arm")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        raise SystemExit(f"unknown part {', '.join(unknown)}; known are {', '.join(PARTS)}")
    if "model" in args.arms and (args.draft is None or args.draft_small is None):
        raise SystemExit("arm model needs --draft and --draft-small; or leave it out of --arms")
    compile_checkout()

    file = args.json or Path(__file__).parent / "results" / "drafting.json"
    bench = Bench(Store(file), args, arms(args))
    for dial in args.dials:
        for part in args.parts:
            print(f"-- {part}, {format_bytes(dial)}", flush=True)
            getattr(bench, part)(dial)
    print_tables(bench)


if __name__ == "__main__":
    main()
