"""Many replies at once, to held-out prompts: tokens a second by batch, with each drafter and without.

    python -m benchmarks.batches --batch 1,4,16,64 --drafters ngram
    python -m benchmarks.batches --drafters eagle-0,specformer-0 --nodes 4,6,8 --stories --tokens 48

That many replies in the same passes, all of one length (`edgespec bench --batch` has prompts that are no
text, and what a drafter gives depends on text). Who has ended a reply begins with the next prompt, beside the
others, and it is timed until there is none left to begin with: replies with drafts take different numbers of
passes, and the last ones would be alone. All prompts are in that time, and a part of the replies begun last:
the fewer prompts there are for a place, the more that is to the drafters' disadvantage.

A drafter is the name of a kind, or a directory of something trained for the model (else a draft model);
`none` goes first, and all must say what it says. With `--nodes` every tree has so many beside its root,
whatever that costs, else the product's controller decides.

    tokens a cycle, kappa   as `edgespec bench` has them (`apps/bench_drafts.py`), of all replies
    pass                    milliseconds of one of the whole batch, without the prompts' (mean)
    over none               tokens/s over those of the same batch without drafts, round by round
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import perf_counter

import edgespec
from benchmarks.cgroup import require_throttle, throttled
from benchmarks.common import (
    Row,
    add_placement,
    arguments,
    compile_checkout,
    interleave,
    names,
    numbers,
    placement,
)
from benchmarks.held_out import prompts, stories, text_prompts
from benchmarks.tables import Report, ratio
from edgespec.apps.bench_drafts import Drafts
from edgespec.apps.bench_replies import Counted, Several, fixed_length
from edgespec.apps.common import demo_model
from edgespec.apps.terminal import Terminal
from edgespec.core.batcher import Batcher
from edgespec.core.trace import Cycle
from edgespec.errors import OptionError
from edgespec.runtimes.formats.trained import trained_kind
from edgespec.runtimes.torch.matmuls import matmuls
from edgespec.session import Session
from edgespec.values import format_bytes

DEPTH = 5  # of trees of a fixed size, at most
PLAIN = "none"


class Arm:
    """An engine, and as many conversations as it makes replies at once. Raises OptionError where the drafter
    drafts for no such batch."""

    def __init__(
        self, args: argparse.Namespace, terminal: Terminal, batch: int, drafter: str, nodes: int | None
    ) -> None:
        options = placement(args, batch)
        if (directory := Path(drafter)).is_dir():
            kind = trained_kind(directory)
            options |= {"adapters": directory} if kind else {"draft_model": directory}
            drafter = kind or "model"
        if nodes is not None:
            options["tree_nodes"] = nodes + 1
        self.tokens, self.drafts, self.passes = args.tokens, Drafts(), list[float]()
        self.full = True  # no place is empty yet
        self.engine = edgespec.load(args.model, drafter=drafter, schedule="serial", **options)
        steps = None if nodes is None else min(nodes, DEPTH)
        self.several = Several(self.engine, steps, terminal, args.positions, self.hear)

    def hear(self, cycle: Cycle) -> None:
        self.drafts.add(cycle)
        if self.full and not cycle.outcome.prompts:
            self.passes.append(cycle.verify_seconds)

    def answer(self, asked: Sequence[list[int]]) -> Row:
        """All prompts, as many at once as there are conversations."""
        self.drafts, self.passes, self.full = Drafts(), [], True
        batcher = Batcher[Counted](self.engine.verifier)
        waiting, begun = deque(asked), list[Counted]()
        said = list[list[int]]()  # of what is verified in any case

        def begin(session: Session) -> None:
            prompt = waiting.popleft()
            session.keep(0)
            begun.append(Counted(session, session.new_reply(prompt, fixed_length(self.tokens))))
            batcher.join(begun[-1])

        began, rate = perf_counter(), 0.0
        for session in self.several.sessions:
            begin(session)
        while len(batcher):
            for member, error in batcher.step():
                if error is not None:
                    raise error
                member.session.end(member.reply)
                said.append(member.session.tokens[: len(member.reply.prompt) + self.tokens - 1])
                if waiting:
                    begin(member.session)
                elif self.full:
                    self.full = False
                    rate = sum(each.said for each in begun) / (perf_counter() - began)
        row = {"said": sorted(said), "tokens/s": rate, "pass": fmean(self.passes)}
        return row | {"tokens a cycle": self.drafts.a + 1, "kappa": self.drafts.kappa or 0.0}


def add(report: Report, args: argparse.Namespace, terminal: Terminal, batch: int) -> None:
    """The rows of one batch."""
    count = max(args.prompts, 4 * batch)
    if args.text:
        asked = text_prompts(args.model, args.text, count)
    else:
        asked = (stories if args.stories else prompts)(args.model, count)
    arms: dict[tuple[str, int | None], Arm] = {}
    with ExitStack() as opened:
        for drafter in [PLAIN, *args.drafters]:
            try:
                for nodes in [None] if drafter == PLAIN else args.nodes:
                    arm = arms[Path(drafter).name, nodes] = Arm(args, terminal, batch, drafter, nodes)
                    opened.enter_context(arm.engine)
                    arm.answer(asked[: 2 * batch])  # what is measured at the first use
            except OptionError as error:
                report.failed(f"batch {batch}, {drafter}", error.message)
        ways: dict[str, Callable[[], Row]] = {
            f"{name}/{nodes}": partial(arm.answer, asked) for (name, nodes), arm in arms.items()
        }
        found = dict(zip(arms, interleave(ways, args.rounds).values(), strict=True))
        plan = arms[PLAIN, None].engine.plan
    costs = plan.costs()
    if args.throttle:
        costs = replace(costs, io=plan.bytes_per_pass / args.throttle)
    read = format_bytes(plan.bytes_per_pass)
    report.notes.append(f"batch {batch}: rho is {costs.redundancy or 0:.1f} rows; a pass reads {read}")
    plain = found[PLAIN, None]
    for (name, nodes), rows in found.items():
        if any(row["said"] != plain[0]["said"] for row in rows):
            raise SystemExit(f"batch {batch}: {name} says something else than without drafts")
        speeds = [row["tokens/s"] for row in rows]
        report.raw[f"{batch}/{name}/{nodes}"] = speeds
        report.add({
            "batch": batch,
            "drafter": name,
            "nodes": "" if nodes is None else nodes,
            "pass": f"{1e3 * fmean(row['pass'] for row in rows):.3g}",
            "tokens/s": f"{median(speeds):.4g}",
            **{column: f"{rows[0][column]:.2f}" for column in ("tokens a cycle", "kappa")},
            "over none": ratio(speeds, [row["tokens/s"] for row in plain]),
        })  # fmt: skip


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, default=demo_model())
    parser.add_argument("--drafters", type=names, default=["ngram"], help="kinds, and directories")
    parser.add_argument("--batch", type=numbers, default=[1, 4, 16, 64])
    parser.add_argument("--nodes", type=numbers, default=[None], help="of a tree, beside its root")
    parser.add_argument(
        "--prompts", type=int, default=16, help="and four times as many as the batch, at least"
    )
    parser.add_argument("--stories", action="store_true", help="requests for stories")
    parser.add_argument("--text", type=Path, help="replies that go on with passages of a file, instead")
    parser.add_argument("--tokens", type=int, default=48)
    add_placement(parser, positions=256)
    args = parser.parse_args()
    compile_checkout()
    if args.throttle:
        require_throttle(args.model)
    report = Report(f"Replies of {args.tokens} tokens to held-out prompts, by batch and drafter")
    with throttled(args.model, args.throttle), Terminal() as terminal:
        matmuls()  # else rho would be supposed
        for batch in args.batch:
            add(report, args, terminal, batch)
    report.finish(args.json)


if __name__ == "__main__":
    main()
