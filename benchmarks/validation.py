"""How far off is the tuner? Predicted beside measured, over settings that nothing was fitted on.

    EDGESPEC_BENCH_DIR=/work/models python -m benchmarks.validation --what memory,speed
    EDGESPEC_BENCH_DIR=/work/models python -m benchmarks.validation --what smallest

Every setting runs in a process of its own (`validation_process.py`), which knows the machine's rates as they
were taken at the start, and nothing else. Speed: replies as `tune --measure` has them, each predicted with
the raw rate of reads just before it (of a throttled disk, the rate that the kernel was told); with drafts the
first by what is believed of drafts, and as many to other prompts by what the first have shown (*by texts*:
how far two such lots of replies are apart by their texts alone, one standard deviation). Memory: the resident
set, the whole context in use, from a cold start.
Smallest: the dial from which on a cold start in a cgroup of that limit never meets it, by bisection.

Every measurement is kept in the results file; run it again to go on, or to print the tables.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import hypot, nan
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.arms import low_bit
from benchmarks.cgroup import THROTTLE_HELP, own_cache, require_throttle
from benchmarks.common import Row, arguments, compile_checkout, environment, generate_command, names, sizes
from benchmarks.measure import run
from benchmarks.models.shapes import models_dir
from benchmarks.page_cache import drop_caches, usual_read_ahead
from benchmarks.tables import RESULTS, Report, Store
from benchmarks.validation_process import BASE, TALK
from edgespec.config import EngineOptions
from edgespec.devices.rates import memory_rate
from edgespec.errors import BudgetError
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.needs import PROGRAM_CACHE
from edgespec.tuning.tune import open_tuner
from edgespec.values import format_bytes

NEAR, NEAR_OWNER, NEAR_TOTAL = 0.15, 0.05, 0.03  # the goals: speed, an owner's bytes, the process's bytes
OWNER = 8 * 10**6  # bytes; smaller owners are not told
TRIVIAL = 0.97  # of the dial: what one would say of the total without a plan
# The smallest dial that works is sought so far around the one that is predicted, halving that so often.
AROUND, HALVINGS = 0.06, 5
# With drafts, replies of 12 cycles where that takes no longer: tokens a cycle of such replies to requests for
# stories differ by 11 % (one standard deviation), those of 4 cycles by 18 %.
DRAFTED = 5, 12.0
WAYS = {"none": ("none", "serial"), "ngram": ("ngram", "serial"), "copy": ("substitute", "serial")}
WAYS |= {
    "copy ssd": ("substitute", "ssd"),
    "copy mirror": ("substitute", "mirror"),
    "model": ("model", "serial"),
    "cascade": ("cascade", "serial"),
}


@dataclass(frozen=True)
class Case:
    """A setting whose speed is measured. megabytes: the dial. replies: that are timed, with drafts twice, of
    so many seconds each."""

    model: str
    megabytes: int
    way: str = "none"
    replies: int = 3
    seconds: float = 1.5

    def __str__(self) -> str:
        return f"{self.model} {self.megabytes} MB {self.way}"

    @property
    def options(self) -> Row:
        drafter, schedule = WAYS[self.way]
        options: Row = {"memory": self.megabytes * 10**6, "drafter": drafter, "schedule": schedule}
        if drafter == "model":
            return options | {"draft_model": str(models_dir() / "0.5b-inflated")}
        if drafter == "cascade":
            return options | {"adapters": str(models_dir() / "7b-adapters")}
        if drafter == "substitute":
            options["draft_model"] = str(low_bit(models_dir() / self.model)["draft_model"])
        return options


SMALL = {"1b-bf16": 2000, "1b-bf16-q4_k_m.gguf": 900, "1b-bf16-q8_0.gguf": 1200, "0.5b-inflated": 900}
SLOW = [Case(*one) for one in SMALL.items()]  # on every disk, also a throttled one
SLOW += [Case("0.5b-inflated", 1000, way, *DRAFTED) for way in ("ngram", "copy ssd")]
FAST = [*SLOW, Case("1b-bf16", 1200), *(Case(name, 4000) for name in SMALL)]
FAST += [Case("0.5b-inflated", 1000, way, *DRAFTED) for way in ("copy", "copy mirror")]
FAST += [Case("7b-inflated", 8000, replies=2)]
FAST += [Case("7b-inflated", 8000, way, 5, 60.0) for way in ("model", "cascade")]
FAST += [Case("7b-inflated-int4", 2500, replies=2), Case("7b-inflated-int4", 6000, replies=2)]
HELD = {**{name: (dial, 4000) for name, dial in SMALL.items()}, "7b-inflated-int4": (2500, 6000)}
CONTEXTS = 512, 2048


def take_rates() -> Row:
    """What a process finds out at its first start: the file that has it."""
    with own_cache() as folder:
        memory_rate(fresh=True)
        program = "from edgespec.runtimes.torch.matmuls import matmuls; matmuls(fresh=True)"
        subprocess.run([sys.executable, "-c", program], env=environment(), check=True)
        once(models_dir() / "0.5b-inflated", "memory", {"memory": 4 * 10**9})  # what a process takes
        return {"rates": (folder / "rates.json").read_text()}


def once(model: Path, kind: str, options: Row, rate: int | None = None, **what: Any) -> Row:
    """What the process says, and what it cost. Raises RuntimeError."""
    command = [sys.executable, "-m", "benchmarks.validation_process", kind, str(model)]
    command += [json.dumps(options), json.dumps(what)]
    row = run(command, read_bps=rate, watch=[model], env=environment()).row()
    if row["failure"]:
        raise RuntimeError(row["failure"])
    return row


def planned(model: Path, options: Row) -> tuple[Plan, int]:
    """By the tuner, before anything is loaded: the plan, and the smallest dial that works."""
    with open_tuner(str(model), EngineOptions(**options)) as tuner:
        plan = tuner.search.settings(options["memory"], lossy=False)[0].plan
        try:
            tuner.search.settings(10**6, lossy=False)
        except BudgetError as error:
            return plan, error.smallest
    raise ValueError(f"{model} is said to run in 1 MB")


def speed(case: Case, rate: int | None, rates: str) -> Row:
    """On a disk that is throttled to so many bytes a second; None = as it is."""
    model = models_dir() / case.model
    with own_cache() as folder:
        (folder / "rates.json").write_text(rates)
        throttled = None if rate is None else rate / 1e9
        what: Row = {"replies": case.replies, "seconds": case.seconds, "throttled": throttled}
        return once(model, "speed", case.options, rate, **what)


def memory(name: str, dial: int, context: int, rates: str) -> Row:
    """Bytes, [predicted, measured]: by owner, and in all. The page cache of programs is left out: who reads
    them first is charged for it, and for what the disk reads ahead."""
    model, options = models_dir() / name, {"memory": dial, "context": context, "drafter": "none"}
    with own_cache() as folder:
        (folder / "rates.json").write_text(rates)
        plan, _ = planned(model, options)
        drop_caches([model], everything=True)
        row = once(model, "memory", options)
    said = plan.owners
    said[TALK] = sum(n for owner, n in said.items() if owner == "activations" or owner.startswith("KV"))
    told = {name: [said[name], found] for name, found in row["owners"].items() if said[name] >= OWNER}
    total = [plan.ledger.planned - PROGRAM_CACHE, row["resident"]]
    return {
        "owners": told,
        "total": total,
        "dial": dial,
        "peak": row["peak"],
        "fits": not plan.streamed_bytes,
    }


def smallest(name: str, rates: str) -> Row:
    """Bytes, predicted and found; None where it is outside of what was tried."""
    model = models_dir() / name
    with own_cache() as folder:
        (folder / "rates.json").write_text(rates)
        _, said = planned(model, {"memory": 10**10, "context": 512, "drafter": "none"})
        first, last = (int(said * (1 + way * AROUND)) for way in (-1, 1))
        low, high = first, last
        for _ in range(HALVINGS):
            dial = (low + high) // 2
            drop_caches([model], everything=True)
            words = 80 if name.startswith("1b") else 400  # of five tokens each, or of one
            command = generate_command(model, "word " * words, dial, 4, "none", "--context", 512)
            with usual_read_ahead(model):
                row = run(command, memory=dial, env=environment()).row()
            low, high = (dial, high) if row["failure"] or row["met"] else (low, dial)
    return {"predicted": said, "found": high if first < low and high < last else None}


def off(predicted: float, measured: float) -> float:
    return predicted / measured - 1


def within(what: str, errors: Sequence[float], near: float, goal: str) -> str:
    return reached(f"{what} within {near:.0%}", [abs(error) <= near for error in errors], goal)


def reached(what: str, each: Sequence[bool], goal: str) -> str:
    return f"{what}: {sum(each)} of {len(each)} (to be reached by {goal})."


def rates_of(rows: Sequence[Row]) -> tuple[float, float, float, float]:
    """Of replies together: tokens a second and seconds a cycle, each predicted and measured."""
    tokens, cycles, seconds = (sum(row[key] for row in rows) for key in ("tokens", "cycles", "seconds"))
    said = tokens / sum(row["tokens"] / row["predicted"][1] for row in rows)
    cycle = sum(row["predicted cycle"] * row["cycles"] for row in rows) / cycles
    return said, tokens / seconds, cycle, seconds / cycles


def scatter(rows: Sequence[Row]) -> float:
    """By how much the tokens a cycle of replies together would differ from such replies' own, as a share (one
    standard deviation): texts differ, whatever is predicted."""
    tokens, cycles = (np.array([row[key] for row in rows], dtype=float) for key in ("tokens", "cycles"))
    if len(rows) < 2:
        return nan
    rest = tokens - cycles * tokens.sum() / cycles.sum()
    return float(np.sqrt((rest**2).sum() * len(rows) / (len(rows) - 1)) / tokens.sum())


def speeds(done: Mapping[str, Row], report: Report) -> None:
    plain, cycles, after, covered = list[float](), list[float](), list[float](), list[bool]()
    for name, row in done.items():
        first, later = ([r for r in row["replies"] if r["after measuring"] == way] for way in (False, True))
        said, gave, cycle, took = rates_of(first)
        low, high = (median(r["predicted"][end] for r in first) for end in (0, 2))
        raw = [rate for r in first for rate in r["raw"] or []]
        cells: Row = {
            "setting": name,
            "raw GB/s": f"{median(raw):.2f}" if raw else "",
            "s a cycle": f"{cycle:.3f}",
        }
        cells |= {"took": f"{took:.3f}", "off": f"{off(cycle, took):+.1%}"}
        cells |= {"tokens/s": f"{said:.2f} ({low:.2f}–{high:.2f})", "gave": f"{gave:.2f}"}
        cells |= {"measured, then": "", "then gave": "", "then off": "", "by texts": ""}
        cycles.append(off(cycle, took))
        if later:
            covered.append(low <= gave <= high)
            said, gave, _, _ = rates_of(later)
            after.append(off(said, gave))
            cells |= {
                "measured, then": f"{said:.2f}",
                "then gave": f"{gave:.2f}",
                "then off": f"{after[-1]:+.1%}",
                "by texts": f"± {hypot(scatter(first), scatter(later)):.0%}",
            }
        else:
            plain.append(off(said, gave))
        report.add(cells)
    report.notes.extend(
        (
            within("Plain tokens/s", plain, NEAR, "90 %"),
            within("Seconds a cycle, before measuring", cycles, NEAR, "90 %"),
            reached("With drafts, before measuring: in the interval that was stated", covered, "75 %"),
            within("With drafts, after measuring, other prompts: tokens/s", after, NEAR, "all"),
        )
    )


def memories(done: Mapping[str, Row], report: Report) -> None:
    owners, totals, trivial = list[float](), list[float](), list[float]()
    for name, row in done.items():
        errors = {owner: off(*pair) for owner, pair in row["owners"].items()}
        owners += errors.values()
        totals.append(off(*row["total"]))
        trivial.append(off(TRIVIAL * row["dial"] - PROGRAM_CACHE, row["total"][1]))
        cells: Row = {"setting": name, "all fits": "yes" if row["fits"] else ""}
        cells |= dict(zip(("total", "resident set"), map(format_bytes, row["total"]), strict=True))
        cells |= {"off": f"{totals[-1]:+.1%}", f"{TRIVIAL} × dial": f"{trivial[-1]:+.1%}"}
        cells |= {"cgroup's peak": format_bytes(row["peak"])}
        told = {owner: f"{errors[owner]:+.1%}" if owner in errors else "" for owner in
                (BASE, "pinned weights", "ring", TALK)}  # fmt: skip
        report.add(cells | told)
    report.notes.extend(
        (
            within("Owners of 8 MB or more", owners, NEAR_OWNER, "all"),
            within("Totals", totals, NEAR_TOTAL, "all"),
            within(
                f"{TRIVIAL} × dial", trivial, NEAR_TOTAL, "nobody: it is what one would say without a plan"
            ),
        )
    )


def least(done: Mapping[str, Row], report: Report) -> None:
    errors = []
    for name, row in done.items():
        errors.append(off(row["predicted"], row["found"]) if row["found"] else float("inf"))
        found = format_bytes(row["found"]) if row["found"] else f"not within {AROUND:.0%}"
        report.add({"model": name, "smallest dial": format_bytes(row["predicted"]), "found": found,
                    "off": f"{errors[-1]:+.1%}"})  # fmt: skip
    report.notes.append(within("Smallest dials", errors, NEAR_TOTAL, "all"))


TABLES = {"memory": memories, "speed": speeds, "smallest": least}


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--what", type=names, default=["memory", "speed"], help=", ".join(TABLES))
    parser.add_argument("--throttle", type=sizes, default=sizes("0.5GB,1GB"), help=THROTTLE_HELP)
    parser.add_argument("--only", default="", help="settings whose name has this in it")
    args = parser.parse_args()
    if "speed" in args.what and args.throttle:
        require_throttle(models_dir())
    compile_checkout()
    file = args.json or RESULTS / "validation.json"
    store = Store(file)
    rates = store.get("rates", take_rates).get("rates") or sys.exit("the machine's rates could not be taken")
    jobs: dict[str, dict[str, Callable[[], Row]]] = {what: {} for what in TABLES}
    for name, dials in HELD.items():
        jobs["smallest"][name] = partial(smallest, name, rates)
        for dial, context in product(dials, CONTEXTS):
            how = name, dial * 10**6, context, rates
            jobs["memory"][f"{name} {dial} MB {context} positions"] = partial(memory, *how)
    for rate, cases in [(None, FAST), *((rate, SLOW) for rate in args.throttle)]:
        for case in cases:
            at = "" if rate is None else f", {rate / 1e9:g} GB/s"
            jobs["speed"][f"{case}{at}"] = partial(speed, case, rate, rates)
    for what in args.what:
        report = Report(f"What the tuner says, and what is: {what}", store.rows)
        done = {key: store.get(f"{what}/{key}", job) for key, job in jobs[what].items() if args.only in key}
        for key, row in done.items():
            if "error" in row:
                report.failed(key, row["error"])
        TABLES[what]({key: row for key, row in done.items() if "error" not in row}, report)
        report.finish(file.with_stem(f"{file.stem}-{what}"))


if __name__ == "__main__":
    main()
