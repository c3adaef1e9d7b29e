"""What does drafting while the target verifies give? Whole replies by schedule, in turn with plain decoding.

    python -m benchmarks.schedules --small edgespec/demo_model --target models/7b-inflated \\
        --draft models/0.5b-inflated --dials 8GB,4GB --arms "serial 4,serial 8,serial 12,serial,ssd"

An arm is a schedule with the product's own controller, or with so many steps of drafting in every cycle; a
directory behind either is what is drafted with in place of --adapters or --draft ("mirror 8 ss-0-7b"). Each
round has prompts of its own: the shortest held-out replies of at least `--least` tokens first, by what the
small model says. Plain decoding is timed by its first cycles. All arms' replies are compared with one another
and, as far as plain decoding was run, with its own, token for token.

With `--worker` the draft model, exported or not, has a process and a core of its own, and the target another
core: in all arms, serial among them. Each process says its first reply twice, and the second counts.

    python -m benchmarks.schedules ... --worker --nodes 9 --arms "serial 5,ssd 5,mirror 5"

With `--device SECONDS` that process is a stand-in for an accelerator (`stand_in.py`), which leaves the target
its cores, but for --worker: --draft is the draft model, not inflated, and a pass of it takes so long.

Where a shared disk changes its rate from minute to minute, arms can be compared at one that it always keeps
(--throttle, in the kernel).

Beside the measured speed stands what it should be, both from the same replies:

    Theorem 7   of SSD, with the measured hit rate, tokens after hits and misses, and seconds of drafting, a
                pass taking what the first arm's takes (so let that be a serial one)
    promised    tokens a cycle / the median pass of plain decoding: as if drafting and larger trees were free

`hidden` is what is no longer drafted before the pass, of what the first arm drafts there; `found`, passes of
drafting that what was prepared was worth. `a hit / its pass alone` is what a cycle costs whose tree was
prepared, beside a pass over as many nodes in whose waits nobody drafts; what is drafted on after a hit adds
to it. Such a pass has less to read: while somebody drafted before it, flash filled the ring. `its pass from
an empty ring` is the same beside passes that have all to read, where flash bounds them.

Of mirror with its own controller (which knows what passes take by themselves), Equation 10 is what cycles
should take by Mirror-SD's latency law, of what they took.

And of the arms that look outcomes up, by the same hits: how many there should be, if a lookup goes by the one
before and nothing else (SSD's Equation 1); what they should gain over the first arm (Corollary 9: at least
and at most, for drafts within a pass); and what should draft after a miss, the drafter or nobody (Theorem
17): for one conversation, and in how large a batch the drafter is no longer worth what the others wait.
"""

from __future__ import annotations

import os
import statistics
from itertools import product
from pathlib import Path

from benchmarks.arms import OWN, SMALL_MEMORY, low_bit, middle, open_worker, whole
from benchmarks.cgroup import THROTTLE_HELP, require_throttle, throttled
from benchmarks.common import Row, arguments, compile_checkout, in_turn, names, sizes
from benchmarks.held_out import prompts, stories
from benchmarks.laws import cycles_of, hidden, made, promised, rate, theorem_7, theory
from benchmarks.tables import RESULTS, Report, Store, ratio, spread
from edgespec.drafters.base import shared_prefix
from edgespec.values import format_bytes

LONGEST = 160  # tokens of a reply
PLAIN = 8  # cycles of plain decoding that are timed a round


class Replies:
    """Every arm's replies at every dial, kept in the results file as they are made."""

    def __init__(self) -> None:
        parser = arguments(__doc__, rounds=3)
        parser.add_argument("--small", type=Path, required=True, help="the target, not inflated")
        parser.add_argument("--target", type=Path, required=True, help="the same, inflated")
        parser.add_argument("--draft", type=Path, help="for drafter `model`: a draft model, inflated")
        parser.add_argument(
            "--adapters",
            type=Path,
            help="for others: what was trained, inflated; else a cascade's, for mirror's exit",
        )
        parser.add_argument("--drafters", type=names, default=["model"], help="model, substitute, ...")
        parser.add_argument("--dials", type=sizes, default=sizes("8GB,4GB"))
        parser.add_argument("--arms", type=names, default=names("serial 4,serial 8,serial,ssd"))
        parser.add_argument("--nodes", type=int, default=64, help="of a tree, with a fixed number of steps")
        parser.add_argument("--resident-layers", type=int, help="of the target; default: as planned")
        parser.add_argument("--worker", action="store_true", help="drafter `model` on a core of its own")
        parser.add_argument("--device", type=float, help="drafter `model` on one: seconds of a pass")
        parser.add_argument("--throttle", type=sizes, default=[None], help=THROTTLE_HELP)
        parser.add_argument("--prompts", type=int, default=3, help="replies a round and arm")
        parser.add_argument("--least", type=int, default=1, help="tokens of a reply; more are stories")
        self.args = args = parser.parse_args()
        cores = sorted(os.sched_getaffinity(0))
        self.beside: bool = args.worker or args.device is not None
        if self.beside and (args.drafters != ["model"] or args.draft is None or len(cores) < 2):
            parser.error("--worker and --device are for drafter `model`, and need two cores; give --draft")
        self.engine: Row = {"threads": 1, "cores": cores[:2]} if args.worker else {}
        if args.device is not None:
            self.engine["device"] = args.device
        if args.resident_layers is not None:
            self.engine["resident_layers"] = args.resident_layers
        if args.throttle != [None]:
            require_throttle(args.target)
        compile_checkout()
        self.store = Store(args.json or RESULTS / "schedules.json")
        self.known: list[Row] = self.store.need(f"plain replies/{args.least}", self._known)["known"]

    def _known(self) -> Row:
        """Held-out prompts, and what the small model says to them by itself."""
        args, count = self.args, self.args.prompts * self.args.rounds
        asked = stories(args.small, 20 * count) if args.least > 60 else prompts(args.small, 2 * count)
        with open_worker(args.small, SMALL_MEMORY, "none") as worker:
            said = [worker.run(text, LONGEST, OWN)["tokens"] for text in asked]
        pairs = sorted(zip(asked, said, strict=True), key=lambda pair: len(pair[1]))
        found = [{"prompt": p, "reply": r} for p, r in pairs if len(r) >= max(args.least, 4)]
        if len(found) < count:
            raise ValueError(
                f"{len(found)} of {len(asked)} replies have {args.least} tokens; {count} are needed"
            )
        return {"known": found[:count]}

    def measure(self, rate: int | None, dial: int, drafter: str) -> None:
        args, stem = self.args, self.stem(rate, dial, drafter)
        for turn in range(args.rounds):
            asked = self.known[turn :: args.rounds]
            with throttled(args.target, rate):
                self.store.get(f"{self.where(rate, dial)}/plain/{turn}", self.plain, dial, asked[0])
                for arm in in_turn(args.arms, turn):
                    self.store.get(f"{stem}/{arm}/{turn}", self.replies, dial, drafter, arm, asked)

    def where(self, rate: int | None, dial: int) -> str:
        return format_bytes(dial) + (f", disk {format_bytes(rate)}/s" if rate else "")

    def stem(self, rate: int | None, dial: int, drafter: str) -> str:
        place = ", on a core of its own" if self.args.worker else ""
        if self.args.device is not None:
            place += f", on a device that takes {1000 * self.args.device:.0f} ms"
        return f"{self.where(rate, dial)}/{drafter}{place}"

    def plain(self, dial: int, known: Row) -> Row:
        with open_worker(self.args.target, dial, "none", **self.engine) as worker:
            row = worker.run(known["prompt"], LONGEST, OWN, cycles=PLAIN + 2, ignore_eos=True)
        return {"cycles": whole(row), "peak_memory": row["peak_memory"], "tokens": row["tokens"]}

    def replies(self, dial: int, drafter: str, arm: str, asked: list[Row]) -> Row:
        schedule, *more = arm.split()
        steps = [int(word) for word in more if word.isdigit()]
        mode: Row = {"kind": "fixed", "steps": steps, "nodes": self.args.nodes} if steps else OWN
        options: Row = {"schedule": schedule}
        if drafter == "substitute":
            options |= low_bit(self.args.target)
        else:
            key, given = ("draft_model", "draft") if drafter == "model" else ("adapters", "adapters")
            named = [Path(word) for word in more if not word.isdigit()]
            options[key] = next(iter(named), getattr(self.args, given))
        if schedule == "mirror" and "draft_model" in options:
            options["adapters"] = self.args.adapters
        options |= {**self.engine, "draft_worker": 1} if self.beside else self.engine
        with open_worker(self.args.target, dial, drafter, **options) as worker:
            if self.beside:
                worker.run(asked[0]["prompt"], LONGEST, mode)
            replies = [worker.run(known["prompt"], LONGEST, mode) for known in asked]
        return {"replies": replies, "plan": worker.loaded["plan"]}

    def table(self, rate: int | None, dial: int, drafter: str) -> Report:
        args, stem = self.args, self.stem(rate, dial, drafter)
        rounds = range(args.rounds)
        plain = [self.store.rows.get(f"{self.where(rate, dial)}/plain/{turn}", {}) for turn in rounds]
        report = Report(f"{stem}: whole replies, {middle(plain):.2f} s a plain cycle")
        asked = {
            arm: [self.store.rows.get(f"{stem}/{arm}/{turn}", {}) for turn in rounds] for arm in args.arms
        }
        done = {arm: found for arm, found in asked.items() if all("replies" in row for row in found)}
        first = next(iter(done.values()), [])
        for arm, found in asked.items():
            if errors := [row["error"] for row in found if "error" in row]:
                report.failed(arm, errors[0])
            elif arm in done:
                same = same_text(found, first, plain)
                row = figures(found, first, plain) | theory(found, first)
                report.add({"schedule": arm, **row, "same text": same})
        said, own = sum(len(r["tokens"]) for row in first for r in row["replies"]), sum(map(told, plain))
        report.notes.append(
            f"Same text: token for token that of the first arm ({said} tokens), and of plain decoding as far "
            f"as it was run ({own} tokens). Theorem 7 and `promised`: tokens/s."
        )
        return report


def told(plain: Row) -> int:
    """Tokens of plain decoding's that were kept."""
    return len(plain.get("tokens", []))


def same_text(rounds: list[Row], first: list[Row], plain: list[Row]) -> str:
    """ "yes", or where an arm's replies first differ from the first arm's, or from plain decoding's, which a
    round was asked the first prompt of, and which goes on behind the end."""
    for turn, (row, other, alone) in enumerate(zip(rounds, first, plain, strict=True)):
        replies = [reply["tokens"] for reply in row["replies"]]
        others = [reply["tokens"] for reply in other["replies"]]
        for number, (ours, theirs) in enumerate(zip(replies, others, strict=True)):
            if ours != theirs:
                return f"round {turn + 1}, reply {number + 1}: other from token {parting(ours, theirs)} on"
        least = min(told(alone), len(replies[0]))
        if replies[0][:least] != alone.get("tokens", [])[:least]:
            place = parting(replies[0], alone["tokens"])
            return f"round {turn + 1}, reply 1: other than plain from token {place} on"
    return "yes"


def parting(one: list[int], other: list[int]) -> int:
    """The first place where they differ, from 1."""
    return shared_prefix(one, other) + 1


def figures(rounds: list[Row], first: list[Row], plain: list[Row]) -> Row:
    each = [reply for row in rounds for reply in row["replies"]]
    cycles = [cycle for reply in each for cycle in reply["cycles"]]
    rates = [rate(row["replies"]) for row in rounds]
    once = [1 / middle([row]) for row in plain]  # type: ignore[operator]
    laws = [theorem_7(*pair) for pair in zip(rounds, first, strict=True)]
    ideal = [promised(*pair) for pair in zip(rounds, plain, strict=True)]
    overlap = [reply["overlap"] for reply in each]
    hits, misses = (sum(row[key] for row in overlap) for key in ("cache_hits", "cache_misses"))
    found = [cycle["found"] for cycle in cycles if cycle["hit"] is not None]
    alone, read_all = hidden(cycles, first, plain)
    draft, late = (statistics.median(c["draft"] for c in some) for some in (cycles, cycles_of_all(first)))
    return {
        "tokens/s": spread(rates, 3),
        "× plain": ratio(rates, once),
        "Theorem 7": spread(laws, 3),
        "measured / Theorem 7": ratio(rates, laws),
        "promised": spread(ideal, 3),
        "measured / promised": ratio(rates, ideal),
        "tokens a cycle": f"{sum(made(r) for r in each) / len(cycles):.2f}",
        "cycle, s": f"{statistics.median(c['seconds'] for c in cycles):.2f}",
        "drafting": f"{statistics.median(c['draft'] / c['seconds'] for c in cycles):.0%}",
        "draft, s": f"{draft:.3g}",
        "pass, s": f"{statistics.median(c['verify'] for c in cycles):.3g}",
        "hidden": f"{1 - draft / late:.0%}" if late and found else "",
        "nodes": f"{statistics.mean(c['nodes'] for c in cycles):.0f}",
        "hits": f"{hits / (hits + misses):.0%}" if hits + misses else "",
        "found": f"{statistics.mean(found):.1f}" if found else "",
        "a hit / its pass alone": alone,
        "its pass from an empty ring": read_all,
        "prepared nodes": f"{sum(r['drafted_while_verifying'] for r in overlap) / len(cycles):.0f}",
        "tokens": sum(len(r["tokens"]) for r in each),
        "peak": format_bytes(max(r["peak_memory"] for r in each)),
    }


def cycles_of_all(rounds: list[Row]) -> list[Row]:
    return [cycle for row in rounds for cycle in cycles_of(row)]


def main() -> None:
    bench = Replies()
    cells = list(product(bench.args.throttle, bench.args.dials, bench.args.drafters))
    for cell in cells:
        bench.measure(*cell)
    for cell in cells:
        print(bench.table(*cell).markdown())


if __name__ == "__main__":
    main()
