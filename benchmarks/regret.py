"""Is what `edgespec tune` recommends as fast as the best there is? A search of all settings, then rounds.

    EDGESPEC_BENCH_DIR=/work/models python -m benchmarks.regret

Searched: every way of drafting and schedule (an engine each), and in it every size of tree and number of
steps, cycle by cycle the same, over the same two replies. Then, in turn and over other replies: the five
fastest, and what is recommended without and with `--measure`, both with the tree and the steps that the tuner
expects to be best and with the product's own controller. Regret: how much faster the best of the five is than
what was recommended, over the same replies.

Every measurement is kept in the results file; run it again to go on, or to print the tables.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import nan
from pathlib import Path

from benchmarks.arms import OWN, low_bit, open_worker
from benchmarks.cgroup import own_cache
from benchmarks.common import Row, arguments, compile_checkout, environment, in_turn, numbers
from benchmarks.held_out import stories
from benchmarks.models.shapes import models_dir
from benchmarks.tables import RESULTS, Report, Store, ratio, spread
from benchmarks.validation import take_rates
from benchmarks.worker import Worker
from edgespec.config import EngineOptions
from edgespec.tuning.predict import Setting
from edgespec.tuning.tune import tune_model
from edgespec.values import parse_bytes

BEST = 5
SEARCHED, TOKENS = 2, 40  # replies of a setting in the search, and tokens of a reply
ENGINES = [("ngram", ""), *product(("substitute", "ngram+substitute"), ("int4", "int8"))]
SCHEDULES = "serial", "ssd"
SECONDS = 90.0  # of `--measure`


@dataclass(frozen=True)
class Arm:
    """copy: the precision of a low-bit copy. steps: None = the product's own controller."""

    drafter: str
    schedule: str
    copy: str = ""
    nodes: int = 64
    steps: int | None = 0

    def __str__(self) -> str:
        if self.drafter == "none":
            return "plain"
        how = "own controller" if self.steps is None else f"{self.nodes} nodes, {self.steps} steps"
        return f"{self.drafter} {self.copy} {self.schedule}, {how}".replace("  ", " ")

    @property
    def mode(self) -> Row:
        own = self.steps is None or self.drafter == "none"
        return OWN if own else {"kind": "fixed", "steps": [self.steps], "nodes": self.nodes}


class Search:
    def __init__(self) -> None:
        parser = arguments(__doc__, rounds=7)
        parser.add_argument("--model", type=Path, default=models_dir() / "0.5b-inflated")
        parser.add_argument("--memory", type=parse_bytes, default=parse_bytes("1GB"))
        parser.add_argument("--nodes", type=numbers, default=[8, 16, 64], help="of a tree")
        parser.add_argument("--steps", type=numbers, default=[3, 6, 12], help="of drafting")
        self.args = args = parser.parse_args()
        compile_checkout()
        self.store = Store(args.json or RESULTS / "regret.json")
        self.asked = stories(args.model, SEARCHED + args.rounds + 4)

    def options(self, copy: str) -> Row:
        return {name: str(path) for name, path in low_bit(self.args.model, copy).items()} if copy else {}

    def open(self, arm: Arm) -> Worker:
        schedule = {} if arm.drafter == "none" else {"schedule": arm.schedule}
        return open_worker(
            self.args.model, self.args.memory, arm.drafter, **schedule, **self.options(arm.copy)
        )

    def all(self) -> list[Arm]:
        """Every setting: plain decoding; n-grams, which have no steps; copies."""
        grid = [*product(self.args.nodes, self.args.steps)]
        found = [Arm("none", "serial")]
        for (drafter, copy), schedule in product(ENGINES, SCHEDULES):
            sizes = grid if copy else [(nodes, 0) for nodes in self.args.nodes]
            found += [Arm(drafter, schedule, copy, nodes, steps) for nodes, steps in sizes]
        return found

    def searched(self, arms: Sequence[Arm]) -> Row:
        """Tokens a second by setting, of those of one engine."""
        found: Row = {}
        with self.open(arms[0]) as worker:
            for prompt, arm in product(self.asked[:SEARCHED], arms):
                found.setdefault(str(arm), []).append(timed(worker, prompt, arm))
        return {"speeds": {name: speed(rows) for name, rows in found.items()}}

    def recommended(self) -> Row:
        """By the tuner: without a run, and after some; of all the copies, each named in turn."""
        found: Row = {}
        with own_cache() as folder:
            (folder / "rates.json").write_text(self.store.get("rates", take_rates)["rates"])
            for way, copy in product(("tune", "tune --measure"), ("int4", "int8")):
                options = {"context": 1024, **self.options(copy)}
                if way != "tune":
                    code = f"measure_model({str(self.args.model)!r}, EngineOptions(**{options!r}), "
                    code += f"[{self.args.memory}], {self.asked[-4:]!r}, seconds={SECONDS / 2})"
                    imports = "from edgespec.config import EngineOptions\n"
                    imports += "from edgespec.tuning.measure import measure_model\n"
                    subprocess.run([sys.executable, "-c", imports + code], env=environment(), check=True)
                tuned = tune_model(str(self.args.model), EngineOptions(**options), [self.args.memory])
                best = tuned.recommended
                if way not in found or best.speed.middle > found[way]["expected"]:
                    found[way] = {"arm": asdict(arm_of(best, copy)), "expected": best.speed.middle}
        return found

    def round(self, turn: int, arms: Sequence[Arm]) -> Row:
        """All arms' replies to one prompt; engines stay open, as the controllers learn."""
        prompt, found = self.asked[SEARCHED + turn], {}
        for arm in in_turn(arms, turn):
            found[str(arm)] = timed(self.workers[arm], prompt, arm)
        return found

    def finals(self, arms: Sequence[Arm]) -> list[Row]:
        keys = [f"round {turn}/{' | '.join(map(str, arms))}" for turn in range(self.args.rounds)]
        with ExitStack() as stack:
            if not all(key in self.store.rows for key in keys):
                self.workers = {arm: stack.enter_context(self.open(arm)) for arm in arms}
                for arm, worker in self.workers.items():
                    timed(worker, self.asked[0], arm)  # a first reply is about how processes begin
            return [self.store.get(key, self.round, turn, arms) for turn, key in enumerate(keys)]


def arm_of(setting: Setting, copy: str) -> Arm:
    named = copy if "substitute" in setting.drafter else ""
    layers = setting.costs.step > 0  # n-grams have no steps
    return Arm(setting.drafter, setting.schedule, named, setting.tree_nodes, setting.steps if layers else 0)


def timed(worker: Worker, prompt: list[int], arm: Arm) -> Row:
    """Tokens and seconds, without the prompt's and the last cycle."""
    cycles = worker.run(prompt, TOKENS, arm.mode)["cycles"][:-1]
    return {key: sum(cycle[key] for cycle in cycles) for key in ("tokens", "seconds")}


def speed(rows: Sequence[Row]) -> float:
    return sum(row["tokens"] for row in rows) / sum(row["seconds"] for row in rows)


def main() -> None:
    search = Search()
    args, store = search.args, search.store
    engines: dict[tuple[str, str, str], list[Arm]] = {}
    for arm in search.all():
        engines.setdefault((arm.drafter, arm.schedule, arm.copy), []).append(arm)
    speeds: dict[str, float] = {}
    report = Report(f"Regret: {args.model.name} at {args.memory / 1e9:g} GB", store.rows)
    for arms in engines.values():
        row = store.get("search/" + " | ".join(map(str, arms)), search.searched, arms)
        if "error" in row:
            report.failed(str(arms[0]), row["error"])
        speeds |= row.get("speeds", {})
    told = store.need("recommended", search.recommended)
    named = {str(arm): arm for arm in search.all()}
    best = [named[name] for name in sorted(speeds, key=lambda name: -speeds[name])[:BEST]]
    said = {way: Arm(**row["arm"]) for way, row in told.items()}
    said |= {f"{way}, own controller": replace(arm, steps=None) for way, arm in said.items()}
    rounds = search.finals([*dict.fromkeys([*best, *said.values()])])
    if errors := [row["error"] for row in rounds if "error" in row]:
        raise SystemExit(errors[0])
    found = {arm: [row[str(arm)] for row in rounds] for arm in [*best, *said.values()]}
    first = max(best, key=lambda arm: speed(found[arm]))
    for arm, rows in found.items():
        own = [speed([row]) for row in rows]
        report.add({
            "setting": arm, "tokens/s": spread(own), "in the search": f"{speeds.get(str(arm), nan):.2f}",
            "recommended by": "; ".join(way for way, other in said.items() if other == arm),
            "the best, × this": ratio([speed([row]) for row in found[first]], own),
        })  # fmt: skip
    report.notes.append(
        f"{len(speeds)} settings were searched; the best in these rounds: {first}. The last column is 1 + "
        "regret, the median of the rounds with its 95 % interval."
    )
    report.finish(store.table)


if __name__ == "__main__":
    main()
