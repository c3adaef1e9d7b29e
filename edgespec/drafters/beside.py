"""A small model that drafts beside the target, in a process of its own, for a device or cores of its own.

    target   ─ verify ────────────────── │ look up │ verify ─────────────────── │ look up │ ...
    worker     prepare, prepare, prepare ─ commit ─  prepare, prepare, prepare ── commit ──  ...

See `worker`. Here is what stands in its place: a drafter that passes everything on. Nobody waits long (see
`patience`): the target goes on alone, with a tree of its root, and what the worker has missed by then it is
told when it has caught up. When it is dead, silent for too long, or says what it may not say, it drafts no
more. Whatever comes is only what the target verifies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.trace import Round
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, DraftingAhead, Root
from edgespec.drafters.channel import (
    Cancel,
    Close,
    Commit,
    Committed,
    Draft,
    Expect,
    GoAhead,
    Hear,
    Load,
    Nonsense,
    Open,
    Prefill,
    RootPath,
    Sent,
    Stop,
    Trees,
)
from edgespec.drafters.colleague import Colleague, Question
from edgespec.drafters.growth import MAX_PASSES
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.patience import WorkerPatience
from edgespec.drafters.process import Program, Worker, command
from edgespec.drafters.sent_trees import as_named, as_sent, trees_for
from edgespec.progress import LoadCallback
from edgespec.runtimes.base import TREE_ROWS, KVCache

# Seconds. A process that may run is rarely put off for longer, even where others want its cores; if it is,
# that costs a draft. One that stalls costs ten passes of a small model.
SILENCE = 0.05


class Beside:
    """An open draft model in a process of its own; see `drafters.resident.Resident`."""

    away = None  # see `drafters.resident.Outside`: what is lost does not come back

    def __init__(
        self,
        load: Load,
        nbytes: int,
        rows: int,
        progress: LoadCallback | None = None,
        program: Program | None = None,
        name: str = "model",
    ) -> None:
        """nbytes, rows, name: see `drafters.resident.Resident`. program: see `process.Worker`, and what it
        raises."""
        self.nbytes, self.rows, self.name = nbytes, rows, name
        self.worker = Worker(program or Program(command()))
        self._close = weakref.finalize(self, self.worker.close)
        self.worker.load(load, progress or (lambda *read: None))

    @property
    def outside(self) -> int:
        """See `drafters.resident.Outside`."""
        return self.worker.peak

    @property
    def placement(self) -> str:
        """See `drafters.resident.Outside`."""
        return self.worker.placement

    @property
    def gone(self) -> bool:
        """See `drafters.resident.Outside`."""
        return self.worker.lost is not None

    def listen(self, listener: Callable[[Round], None] | None) -> None:
        """See `drafters.resident.Outside`."""
        self.worker.listener = listener

    def drafter(self, cache: KVCache, vocabulary: int) -> BesideDrafter:
        return BesideDrafter(self.worker, cache.capacity, vocabulary)

    def close(self) -> None:
        self._close()


class BesideDrafter:
    """See `drafters.base.Drafter`. One conversation; it never has more than one question open."""

    resident = True
    width = ModelDrafter.width

    def __init__(self, worker: Colleague, capacity: int, vocabulary: int) -> None:
        self.capacity, self.vocabulary = capacity, vocabulary
        self.context = Context([])
        self._sit(worker)

    def _sit(self, worker: Colleague) -> None:
        """Begin a conversation with this worker."""
        self.worker, self.seat = worker, worker.new_seat()
        self._question: Question | None = None  # the latest
        self._lookup: Question | None = None  # what was prepared for the latest commit of this reply,
        self._drafted = False  # and whether it was asked for drafts since, or told to go ahead
        self._owed: tuple[int, list[int]] | None = None  # a root, and what was committed behind it since
        self._patience = WorkerPatience(worker)
        worker.tell(Open(self.seat, self.capacity, self.vocabulary))
        self._leave = weakref.finalize(self, worker.leave, self.seat, Close(self.seat))

    @property
    def lost(self) -> str | None:
        """See `drafters.base.Elsewhere`."""
        return None if self.worker.lost is None else f"the draft worker is lost: {self.worker.lost}"

    @property
    def damaged(self) -> bool:
        """See `drafters.base.Elsewhere`."""
        return self.worker.lost is not None and self.worker.damaged

    @property
    def passes(self) -> range:
        return range(1, MAX_PASSES + 1) if self.worker.lost is None else range(0)

    def prefill(self, context: Context) -> None:
        self.context, self._owed, self._lookup, self._drafted = context, None, None, False
        if self.caught_up:
            self._patience.begin()
        options = context.sampler.options
        tokens = [int(token) for token in context.tokens]
        chance = options.temperature, options.top_p, options.top_k, options.min_p
        self.worker.tell(Prefill(self.seat, tokens, context.keyed, context.noise.seed, *chance))

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        return _Round(self, roots, budget)

    def commit(self, root: int, outcome: Outcome) -> None:
        self.worker.pass_seconds = outcome.seconds
        self._owed = self._owed or (root, [])
        self._owed[1].extend(int(token) for token in outcome.tokens)
        if self.caught_up:
            self._patience.begin()
            self.pay()
        elif self._question is not None:
            self._patience.missed(self._question)

    def pay(self) -> None:
        """Tell what was committed and is not told yet, and ask whether something was prepared for it, where
        something may have been: nobody waits for an answer that is known."""
        if self._owed is not None:
            (root, tokens), some = self._owed, self._drafted or self.holds
            self._owed, self._drafted = None, False
            question = self.ask(Committed, lambda number: Commit(self.seat, number, int(root), tokens))
            self._lookup = question if some else None

    def ask(self, kind: type[Trees] | type[Committed], message: Callable[[int], Sent]) -> Question:
        self._question = self.worker.ask(kind, message)
        return self._question

    def prepared(self) -> bool:
        """See `drafters.base.Foreseeing`. Waits for the worker."""
        if self._lookup is None or self._lookup is not self._question:
            return False
        while self.waits():
            self.context.check()
        return self.holds and self._owed is None

    @property
    def holds(self) -> bool:
        """It has said that something was prepared for the latest commit that it was told of."""
        answer = None if self._lookup is None else self._lookup.answer
        return isinstance(answer, Committed) and answer.prepared

    def ahead(self, tree: TokenTree, budget: TreeBudget, fan_out: Sequence[int] = ()) -> DraftingAhead:
        """See `drafters.base.Foreseeing`; always best first."""
        return _Ahead(self, tree, budget)

    def rest(self) -> None:
        """See `drafters.base.Elsewhere`."""
        self.worker.tell(Cancel(self.seat))

    @property
    def caught_up(self) -> bool:
        """It has answered everything."""
        answered = self._question is None or self._question.answer is not None
        return answered and self.worker.lost is None

    def waits(self) -> bool:
        """Wait a tick for the latest answer; False = it is there, or comes too late for this cycle."""
        return self._question is not None and self._patience.waits(self._question, self._least)

    @property
    def _least(self) -> float:
        """Seconds that are waited at least, however short a pass is."""
        return SILENCE


class _Round:
    """See `drafters.base.Drafting`. A step is a tick of waiting."""

    def __init__(self, drafter: BesideDrafter, roots: Sequence[Root], budget: TreeBudget) -> None:
        self.drafter, self.roots, self.budget = drafter, roots, budget
        self.trees = [TokenTree.root(root.token) for root in roots]
        self._asked = False
        self._work = self._draft()

    def _draft(self) -> Generator[None, None, None]:
        drafter, budget = self.drafter, self.budget
        nodes, depth = min(budget.nodes, TREE_ROWS), max(budget.depth, 0)
        roots = [RootPath([int(token) for token in root.path], root.logprob) for root in self.roots]
        if nodes < 2 or not depth or not (budget.passes or drafter.holds):
            return  # it has no more than the roots to answer with
        while drafter.waits():
            yield
        if drafter.caught_up:
            drafter.pay()
        while drafter.waits():
            yield
        # What is drawn for `ratio` needs whole distributions, which are not sent.
        if not drafter.caught_up or drafter.context.drawn:
            return
        self._asked = drafter._drafted = True
        question = drafter.ask(
            Trees,
            lambda number: Draft(drafter.seat, number, roots, nodes, depth, budget.passes, budget.price),
        )
        while drafter.waits():
            yield
        if isinstance(question.answer, Trees):
            tokens = [root.token for root in self.roots]
            try:
                self.trees = trees_for(tokens, question.answer.trees, nodes, depth, drafter.vocabulary)
            except Nonsense as error:
                drafter.worker.lose(f"it answered nonsense ({error})")

    def step(self) -> bool:
        self.drafter.context.check()
        try:
            next(self._work)
        except StopIteration:
            return False
        return True

    def tree(self, root: int = 0) -> TokenTree:
        return self.trees[root]

    def stop(self) -> None:
        if self._asked:
            self.drafter.worker.tell(Stop(self.drafter.seat))

    def cancel(self) -> None:
        if self._asked:
            self.drafter.worker.tell(Cancel(self.drafter.seat))


class _Ahead:
    """See `drafters.base.Hearing`: in this process there is nothing to do."""

    passes = 0

    def __init__(self, drafter: BesideDrafter, tree: TokenTree, budget: TreeBudget) -> None:
        self.drafter = drafter
        self._told = drafter.caught_up
        if self._told:
            drafter._drafted = True
            drafter.worker.nodes[drafter.seat] = 0
            drafter.worker.seconds[drafter.seat] = 0.0
            nodes, depth = min(budget.nodes, TREE_ROWS), max(budget.depth, 0)
            drafter.worker.tell(GoAhead(drafter.seat, as_sent(tree), nodes, depth))

    @property
    def nodes(self) -> int:
        return self.drafter.worker.nodes[self.drafter.seat] if self._told else 0

    @property
    def seconds(self) -> float | None:
        return self.drafter.worker.seconds[self.drafter.seat] if self._told else 0.0

    def expect(self) -> None:
        if self._told:
            self.drafter.worker.tell(Expect(self.drafter.seat))

    def hear(self, said: Mapping[int, Mapping[int, float]], trust: float) -> None:
        if self._told:
            self.drafter.worker.seconds[self.drafter.seat] = 0.0
            self.drafter.worker.tell(Hear(self.drafter.seat, as_named(said)))

    def believed(self, node: int, token: int) -> float | None:
        """The worker trusts as it finds itself."""
        return None

    def rank(self, outcome: Outcome) -> int | None:
        """Nobody asks: see `drafters.choice.check_worker`."""
        return None

    def step(self) -> bool:
        return False

    def stop(self) -> None:
        if self._told:
            self.drafter.worker.tell(Stop(self.drafter.seat))

    def cancel(self) -> None:
        if self._told:
            self.drafter.worker.tell(Cancel(self.drafter.seat))
