"""The measurements of `drafting.py`. Each method makes what the store lacks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import Row, format_bytes
from benchmarks.draft_worker import DraftWorker, open_worker, recorded, timed
from benchmarks.held_out import noise, prompts, stories
from benchmarks.speed_model import Costs, best_steps, medians
from benchmarks.store import Store

if TYPE_CHECKING:
    from benchmarks.drafting import Arm

STEPS = (1, 2, 3, 4, 6, 8, 12, 16)  # of drafting
LOOK = (2, 4, 8, 16)  # lengths of chains through whose costs lines are drawn
PROBABILITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97)
SMALL_MEMORY = 2 * 10**9  # dial of the small models, which need a tenth
STORIES = 8  # long replies for timing
LONGEST = 160  # tokens of a reply
SET_CYCLES = 200  # of the small model, for tokens per cycle at set acceptance
HOT = 8.0  # a temperature at which nobody can guess the next token


class Bench:
    """All parts. Keys in the store begin with the dial where it matters."""

    def __init__(self, store: Store, args: argparse.Namespace, arms: Sequence[Arm]) -> None:
        self.store, self.args, self.arms = store, args, arms

    @cached_property
    def plain_replies(self) -> Row:
        """What the small model says: to the held-out prompts, and to requests for stories."""

        def measure() -> Row:
            asked = {
                "prompts": prompts(self.args.small, self.args.prompts),
                "stories": stories(self.args.small, STORIES),
            }
            return recorded(self.args.small, SMALL_MEMORY, asked, LONGEST)

        return self.store.get("plain replies", measure)

    # tokens per cycle

    def tokens(self, dial: int) -> None:
        """On the small models; the dial does not matter."""
        for arm in self.arms:
            for steps in (0,) if arm.drafter == "ngram" else STEPS:
                self.store.get(f"tokens/{arm.name}/{steps}", partial(self._tokens, arm, steps))

    def _tokens(self, arm: Arm, steps: int) -> Row:
        cycles: list[Row] = []
        replies: list[tuple[int, int, bool]] = []
        asked = self.plain_replies["prompts"]
        with open_worker(self.args.small, SMALL_MEMORY, arm.drafter, *arm.small) as worker:
            for known in asked:
                row = worker.run(known["prompt"], LONGEST, {"kind": "fixed", "steps": [steps]})
                cycles += row["cycles"]
                replies.append((len(row["tokens"]), len(row["cycles"]), row["tokens"] == known["reply"]))
        tokens = sum(c["tokens"] for c in cycles)
        nodes = sum(c["nodes"] for c in cycles) / max(len(cycles), 1)
        return {"tau": tokens / len(cycles), "nodes": nodes, "cycles": len(cycles), "replies": replies}

    def tau(self, arm: Arm) -> dict[int, float]:
        """Tokens per cycle by number of steps, as far as measured."""
        found = {n: self.store.rows.get(f"tokens/{arm.name}/{n}", {}) for n in (0, *STEPS)}
        return {n: row["tau"] for n, row in found.items() if "tau" in row}

    # seconds a cycle

    def long_replies(self, worker: DraftWorker, count: int, mode: Row, first: int = 0) -> Row:
        """Replies until `count` cycles are timed; each has luck of its own."""
        cycles: list[Row] = []
        peak = 0
        asked = self.plain_replies["stories"]
        for turn in range(first, first + 8 * len(asked)):
            known = asked[turn % len(asked)]
            own = {"reply": known["reply"]} if mode["kind"] == "set" else {}
            left = count - len(cycles) + 2
            try:
                row = worker.run(
                    known["prompt"], len(known["reply"]), {**mode, **own}, cycles=left, seed=turn
                )
            except RuntimeError as error:  # a near tie fell otherwise than on the small model: the next one
                if "was recorded" not in str(error):
                    raise
                continue
            cycles += timed(row)
            peak = max(peak, row["peak_memory"])
            if len(cycles) >= count:
                return {"cycles": cycles, "peak_memory": peak, "plan": worker.loaded["plan"]}
        raise RuntimeError(f"only {len(cycles)} cycles in {8 * len(asked)} replies")

    def timed(self, dial: int, drafter: str, options: Sequence[str], mode: Row, first: int = 0) -> Row:
        """Cycles of every number of steps that the mode has, in turn."""
        _ = self.plain_replies  # made before this engine holds memory
        count = self.args.cycles * (len(mode["steps"]) if mode["kind"] == "set" else 1)
        with open_worker(self.args.target, dial, drafter, *options) as worker:
            return self.long_replies(worker, count, mode, first)

    def plain(self, dial: int, turn: int, pinned: bool = True) -> Row:
        name = f"{format_bytes(dial)}/{'plain' if pinned else 'plain, nothing pinned'}/{turn}"
        options = () if pinned else ("--resident-layers", "0")
        return self.store.get(name, partial(self.timed, dial, "none", options, {"kind": "own"}, turn))

    def chosen(self, dial: int, arm: Arm) -> int | None:
        """The number of steps that promises most, from a first look at all of them; None = not legal."""
        if arm.drafter == "ngram":
            return 0
        look = self.store.get(
            f"{format_bytes(dial)}/costs/{arm.name}",
            partial(self.timed, dial, arm.drafter, arm.big, {"kind": "fixed", "steps": list(STEPS[1:])}),
        )
        if "error" in look:
            return None
        cost = medians(look["cycles"], "steps", "seconds")
        tau = self.tau(arm)
        best = max((n for n in cost if n in tau), key=lambda n: tau[n] / cost[n], default=8)
        kept = self.store.get(f"{format_bytes(dial)}/chosen/{arm.name}", lambda: {"steps": best})
        return int(kept["steps"])

    def cycles(self, dial: int) -> None:
        for turn in range(self.args.rounds):
            for arm in self.arms:
                steps = self.chosen(dial, arm)
                if steps is not None:
                    mode = {"kind": "fixed", "steps": [steps]}
                    key = f"{format_bytes(dial)}/cycles/{arm.name}/{turn}"
                    self.store.get(key, partial(self.timed, dial, arm.drafter, arm.big, mode, turn))
                self.plain(dial, turn)
            self.plain(dial, turn, pinned=False)

    # speed against set acceptance

    def costs(self, dial: int, arm: Arm) -> Costs | None:
        """Of chains, from a first look."""
        mode = {"kind": "set", "p": 0.9, "steps": list(LOOK)}
        key = f"{format_bytes(dial)}/chain costs/{arm.name}"
        look = self.store.get(key, partial(self.timed, dial, arm.drafter, arm.big, mode))
        return None if "error" in look else Costs.fit(look["cycles"])

    def curve(self, dial: int) -> None:
        """Seconds a cycle do not depend on what is right, so one process runs chains of all lengths in turn,
        those through which the model's lines are drawn among them; plain cycles before and after it."""
        for arm in self.arms:
            costs = None if arm.drafter == "ngram" else self.costs(dial, arm)
            if costs is None:
                continue
            chains = {p: best_steps(costs, p) for p in PROBABILITIES}
            for p, steps in chains.items():
                self.store.get(f"set tokens/{arm.name}/{p}/{steps}", partial(self._set_tokens, arm, p, steps))
            mode = {"kind": "set", "p": 0.9, "steps": sorted({*LOOK, *chains.values()})}
            stem, none = f"{format_bytes(dial)}/curve", {"kind": "own"}
            for turn in range(self.args.rounds):
                plain = partial(self.timed, dial, "none", (), none, turn)
                self.store.get(f"{stem}/plain before {arm.name}/{turn}", plain)
                chained = partial(self.timed, dial, arm.drafter, arm.big, mode, turn)
                self.store.get(f"{stem}/{arm.name}/{turn}", chained)
                self.store.get(f"{stem}/plain after {arm.name}/{turn}", plain)

    def _set_tokens(self, arm: Arm, p: float, steps: int) -> Row:
        """Tokens per cycle at set acceptance, by whole stories of the small model."""
        mode = {"kind": "set", "p": p, "steps": [steps]}
        with open_worker(self.args.small, SMALL_MEMORY, arm.drafter, *arm.small) as worker:
            row = self.long_replies(worker, SET_CYCLES, mode)
        return {
            "tau": sum(c["tokens"] for c in row["cycles"]) / len(row["cycles"]),
            "cycles": len(row["cycles"]),
        }

    # whole replies

    def replies(self, dial: int) -> None:
        """The shortest held-out replies of at least 24 tokens, with the chosen steps and as users get it."""
        known = [r for r in self.plain_replies["prompts"] if len(r["reply"]) >= 24]
        known = sorted(known, key=lambda r: len(r["reply"]))[: self.args.replies]
        for arm in self.arms:
            steps = self.chosen(dial, arm)
            if steps is None:
                continue
            small = f"replies small/{arm.name}/{steps}"
            mode = {"kind": "fixed", "steps": [steps]}
            job = partial(self._replies, known, mode)
            self.store.get(small, partial(job, self.args.small, SMALL_MEMORY, arm.drafter, arm.small))
            key = f"{format_bytes(dial)}/replies/{arm.name}"
            self.store.get(key, partial(job, self.args.target, dial, arm.drafter, arm.big))
            own = partial(self._replies, known, {"kind": "own"}, self.args.target, dial, "auto")
            self.store.get(f"{format_bytes(dial)}/replies auto/{arm.name}", partial(own, arm.big))

    def _replies(
        self, known: list[Row], mode: Row, model: Path, dial: int, drafter: str, options: Sequence[str]
    ) -> Row:
        rows = []
        with open_worker(model, dial, drafter, *options) as worker:
            for each in known:
                row = worker.run(each["prompt"], LONGEST, mode)
                rows.append({**row, "same": row["tokens"] == each["reply"]})
        return {"replies": rows, "plan": worker.loaded["plan"]}

    # bounds

    def nodes(self, dial: int) -> None:
        for turn in range(self.args.rounds):
            key = f"{format_bytes(dial)}/nodes/{turn}"
            mode = {"kind": "wrong", "nodes": [1, 64]}
            self.store.get(key, partial(self.timed, dial, "none", (), mode, turn))

    def adversarial(self, dial: int) -> None:
        """Text at a temperature that makes every token a surprise, after prompts of random tokens."""
        streamed = [(arm.name, arm.big) for arm in self.arms if arm.drafter != "ngram"]
        streamed.append(("ngram", ()))
        resident: list[tuple[str, tuple[str, ...]]] = [("ngram", ())]
        if self.args.resident_draft:
            resident.append(("model", ("--draft-model", str(self.args.resident_draft))))
        places: list[tuple[str, Path, list[tuple[str, tuple[str, ...]]], int]] = []
        if self.args.resident_target:
            places.append(("resident", self.args.resident_target, resident, 40 * self.args.cycles))
        places.append(("streamed", self.args.target, streamed, 20 * self.args.cycles))
        for where, model, ways, count in places:
            for turn in range(self.args.rounds):
                stem = f"{format_bytes(dial)}/adversarial/{where}"
                job = partial(self._surprise, model, dial, count, turn)
                self.store.get(f"{stem}/plain/{turn}", partial(job, "none", ()))
                for name, options in ways:
                    self.store.get(f"{stem}/{name}/{turn}", partial(job, "auto", options))

    def _surprise(
        self, model: Path, dial: int, count: int, seed: int, drafter: str, options: Sequence[str]
    ) -> Row:
        """A reply that ends early is followed by another, in a conversation of its own."""
        seconds, tokens = 0.0, 0
        with open_worker(model, dial, drafter, *options) as worker:
            for turn, prompt in enumerate(noise(model, 200)):
                job = {"temperature": HOT, "seed": 1000 * seed + turn}
                # The first token and the first and the last cycle are not timed.
                row = worker.run(prompt, min(count + 3, 900), {"kind": "own"}, **job)
                for cycle in timed(row):
                    seconds += cycle["seconds"]
                    tokens += cycle["tokens"]
                if tokens >= count:
                    break
        return {"seconds": seconds, "tokens": tokens, "rate": tokens / seconds}
