"""A draft model and a verifier without torch, and conversations with them. As a script: what they said."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # whoever imports it fails

from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Logits, make_acceptance
from edgespec.core.batch import Part, PrefillBlock, attempt
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import OptionError
from edgespec.runtimes.rows import kept_parents
from edgespec.schedules.serial import Serial

VOCABULARY = 12


class TableRuntime:
    """See `runtimes.base.DraftRuntime`. What follows depends on the last two tokens."""

    def __init__(self, rows: int = 96, capacity: int = 400, parts: int = 3, noise: float = 0.0) -> None:
        rng = np.random.default_rng(0)
        table = rng.standard_normal((VOCABULARY, VOCABULARY, VOCABULARY)) * 2
        self.table = (table + noise * rng.standard_normal(table.shape)).astype(np.float32)
        self.rows, self.capacity, self.parts = rows, capacity, parts
        self.text: list[int] = []
        self.slots: list[tuple[int, int]] = []  # parent, token
        self.ran = 0  # rows

    @property
    def length(self) -> int:
        return len(self.text)

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        assert not self.slots
        for done, token in enumerate(tokens, 1):
            self.text.append(token)
            yield done

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> TablePass:
        first = len(self.slots)
        if first + len(tokens) > self.rows:
            raise OptionError(f"{first + len(tokens)} rows; there is room for {self.rows}")
        assert all(-1 <= parent < slot for slot, parent in enumerate(parents, first))
        self.slots += zip(parents, tokens, strict=True)
        self.ran += len(tokens)
        return TablePass(self, range(first, len(self.slots)))

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        parents = kept_parents(np.array([parent for parent, _ in self.slots], dtype=np.int64), path, keep)
        self.text += [self.slots[slot][1] for slot in path]
        self.slots = [(int(parent), self.slots[slot][1]) for parent, slot in zip(parents, keep, strict=True)]

    def truncate(self, length: int) -> None:
        assert length <= self.length
        del self.text[length:]
        self.slots.clear()

    def after(self, slot: int) -> NDArray[np.float32]:
        parent, token = self.slots[slot]
        return self.table[self.slots[parent][1] if parent >= 0 else self.text[-1], token]


class TablePass:
    """See `runtimes.base.DraftPass`."""

    def __init__(self, runtime: TableRuntime, slots: range) -> None:
        self.runtime, self.left = runtime, runtime.parts
        self.result = np.stack([runtime.after(slot) for slot in slots])

    def advance(self) -> bool:
        self.left -= 1
        return self.left == 0

    @property
    def logits(self) -> NDArray[np.float32]:
        assert self.left == 0
        return self.result


class TableSeat:
    """See `runtimes.base.Seat`: the text, and nothing else."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.text: list[int] = []

    @property
    def length(self) -> int:
        return len(self.text)

    def truncate(self, length: int) -> None:
        del self.text[length:]


class TableVerifier:
    """See `core.verify.Verifier`. What follows depends on the last two tokens."""

    together = 1

    def __init__(self) -> None:
        self.table = TableRuntime().table
        self.turn = threading.Lock()
        self.seats: list[int] = []  # of each call

    def inside(self) -> bool:
        return False

    def new_seat(self, context: int, slots: int | None = None) -> TableSeat:
        return TableSeat(context)

    def compute(self, parts: Sequence[Part]) -> Sequence[Part]:
        self.seats.append(len(parts))
        for part in parts:
            part.error = attempt(self.one, part)
        return parts

    def one(self, part: Part) -> None:
        seat = part.cache
        if part.observer is not None:
            part.observer.on_chunk()
        if isinstance(part, PrefillBlock):
            seat.text += part.tokens
            part.logits = self.table[seat.text[-2], seat.text[-1]]
            return
        tree = part.tree
        before = [seat.text[-1] if parent < 0 else tree.tokens[parent] for parent in tree.parents]
        logits = self.table[before, tree.tokens]
        part.outcome = part.acceptance.walk(tree, logits, part.noise, seat.length + 1)
        seat.text += tree.tokens[part.outcome.path].tolist()


TABLE = TableRuntime().table  # the target
PROMPT = [3, 1, 4, 1, 5]
GREEDY, HOT = GenerationOptions(), GenerationOptions(temperature=0.8, seed=3)


def reply(
    schedule: Serial,
    verify: Callable[[TokenTree, Logits], float],
    options: GenerationOptions = GREEDY,
    acceptance: str | None = None,
    count: int = 50,
    prompt: Sequence[int] = PROMPT,
) -> tuple[list[int], list[Cycle]]:
    """The target's text behind the prompt, with this schedule's drafts. `verify` is what happens while a tree
    is verified, whose logits it gets, [n, V]; it says how many seconds that took."""
    judge, noise = make_acceptance(acceptance, options), Noise(options.seed)
    text, cycles = list(prompt), list[Cycle]()
    drawn, keyed = judge.name == "ratio", judge.name == "sample"
    schedule.begin(Context(prompt, Sampler(options), noise, drawn, keyed), count)
    text.append(Sampler(options).pick(TABLE[text[-2], text[-1]], noise, len(text)))
    while len(text) < len(prompt) + count:
        tree = schedule.next_tree(text[-1])
        tree.validate(VOCABULARY)
        before = [text[-2] if parent < 0 else tree.tokens[parent] for parent in tree.parents]
        logits = TABLE[before, tree.tokens]
        seconds = verify(tree, logits)
        outcome = judge.walk(tree, logits, noise, len(text))
        cycles.append(schedule.settle(replace(outcome, seconds=seconds)))
        text += outcome.tokens
    return text[len(prompt) : len(prompt) + count], cycles


def plain(options: GenerationOptions = GREEDY, count: int = 50, prompt: Sequence[int] = PROMPT) -> list[int]:
    """What the target says by itself, one token after the other."""
    text, sampler, noise = list(prompt), Sampler(options), Noise(options.seed)
    while len(text) < len(prompt) + count:
        text.append(sampler.pick(TABLE[text[-2], text[-1]], noise, len(text)))
    return text[len(prompt) :]


def with_drafts(noise: float, cycles: int = 30) -> tuple[bool, int]:
    """Whether a greedy reply with drafts is the target's own, and how many of its first cycles' were
    accepted."""
    drafter = ModelDrafter(TableRuntime(noise=noise), VOCABULARY)
    schedule = Serial(drafter, Fixed(TreeBudget(16, 4, 4)), 64)
    text, done = reply(schedule, lambda tree, logits: 0.0, count=5 * cycles)
    return text == plain(count=5 * cycles), sum(cycle.outcome.accepted for cycle in done[:cycles])


if __name__ == "__main__":
    same, accepted = with_drafts(noise=0.5)
    print(json.dumps({"same": same, "accepted": accepted}))
