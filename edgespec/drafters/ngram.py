"""Drafts copied from the conversation itself: what followed the last time these tokens were said.

The index is LZ77's: for every n-gram of a few lengths, the place where it last ended, and for every place
the one before. Adding a token is O(1), so is taking it back, and memory is `POSITION_BYTES` a token. The
likelihood of a copied token depends on how long a suffix matches, and is *measured*: before each committed
token is added, the index says what it would have predicted. That is done when it is next asked for a draft
that may pay, which a search through the bare text shows: so next to nothing is spent where drafts do not pay.
Needs no torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count

import numpy as np

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root, committed, shared_prefix

ORDERS = (4, 2, 1)  # lengths of indexed n-grams, longest first
LOOKED_AT = 64  # occurrences compared a draft, the latest of each order first
BRANCHES = 24  # occurrences copied from, the longest matches first
LONGEST = 24  # a match is not measured beyond this length
FAINT = 0.003  # paths less likely than this are not followed
POSITION_BYTES = 400  # that a token takes in the index, about
SHORT = 64  # tokens of a prompt that are put into the index, at some 4 us each, when a draft may pay
PRIOR = 4.0  # strength, in observations, of what is believed before measuring


class NGram:
    """See `drafters.base.Drafter`. Several continuations become branches; its trees are free."""

    resident = False
    passes = range(1)

    def __init__(self) -> None:
        self._hits = [0] * (LONGEST + 1)  # by length of the longest match: predictions that came true,
        self._trials = [0] * (LONGEST + 1)  # of so many
        self._silent = False
        self._clear()

    def _clear(self) -> None:
        self.tokens: list[int] = []
        # By order: hash of an n-gram -> place of its last token; place -> the n-gram's place before, or -1.
        self._last: list[dict[int, int]] = [{} for _ in ORDERS]
        self._before: list[list[int]] = [[] for _ in ORDERS]
        self._late: list[int] = []  # committed since, and in no index yet,
        self._asked = 0  # the first of them as a prompt, which teaches nothing
        self._bytes = bytearray()  # of the first of all these tokens, 4 each: what `_may_pay` looks through
        self._whole = True  # no update of the index was interrupted

    def prefill(self, context: Context) -> None:
        self._silent = context.drawn  # copies were not drawn from any distribution
        if not self._whole:
            self._clear()
        there = len(self.tokens) + len(self._late)
        shared = shared_prefix(self.tokens, context.tokens)
        if shared == len(self.tokens):
            shared += shared_prefix(self._late, context.tokens[shared:])
        if shared < there - shared:  # so much is quicker made anew
            self._clear()
            shared = 0
        self.catch_up()
        self._whole = False
        while len(self.tokens) > shared:
            self._pop()
        fresh = [int(token) for token in context.tokens[shared:]]
        if len(fresh) <= SHORT:
            self._late, self._asked = fresh, len(fresh)
        else:
            for token in fresh:
                self._push(token)
        self._whole = True

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> NGramDrafting:
        return NGramDrafting(self, roots, budget)

    def commit(self, root: int, outcome: Outcome) -> None:
        self._late += committed(root, outcome)

    def catch_up(self) -> None:
        """Learn from what was committed since the last draft."""
        self._whole = False
        late, self._late = self._late, []
        asked, self._asked = self._asked, 0
        for place, token in enumerate(late):
            if place >= asked:
                self._observe(token)
            self._push(token)
        self._whole = True

    def confidence(self, length: int) -> float:
        """Measured probability that the token after a match of `length` tokens is copied rightly."""
        length = min(length, LONGEST)
        believed = length / (length + 2)
        return (self._hits[length] + PRIOR * believed) / (self._trials[length] + PRIOR)

    def draft(self, path: Sequence[int], budget: TreeBudget) -> TokenTree:
        """The tree behind the committed tokens and `path`, whose last token is the root. To find that it
        would not pay takes a tenth of making it."""
        depth = 0 if self._silent else min(budget.depth, budget.nodes - 1)
        if depth <= 0 or not self._may_pay(path, depth, budget):
            return TokenTree.root(path[-1])
        self.catch_up()
        text = self.tokens + list(path)
        longest = self._longest(text)
        if longest is None or not self._pays(longest[1], depth, budget):
            return TokenTree.root(path[-1])
        matches = self._matches(text)[:BRANCHES]
        tokens, parents, chances = self._grow(text, matches, depth, budget)
        return TokenTree(np.array(tokens), np.array(parents), np.log(chances))

    def _grow(
        self, text: list[int], matches: list[tuple[int, int]], depth: int, budget: TreeBudget
    ) -> tuple[list[int], list[int], list[float]]:
        """Of the likeliest nodes, best first: tokens, parents, and chances given the parent."""
        # Past the end of the text a copy goes on with itself, as in LZ77.
        copied = [(place + 1, len(text) - place - 1) for place, _ in matches]  # from where, its period
        weights = [2.0**length for _, length in matches]  # half for every token that one is shorter
        tokens, parents, chances = [text[-1]], [-1], [1.0]
        # -its chance, number, parent, step, token, chance given the parent, matches that agree with its path
        frontier: list[tuple[float, int, int, int, int, float, list[int]]] = []
        node, step, likely, here = 0, 0, 1.0, list(range(len(matches)))
        number, faint = count(), max(FAINT, budget.least)
        while len(tokens) < budget.nodes:
            if step < depth:
                said: dict[int, list[int]] = {}
                for m in here:
                    start, period = copied[m]
                    said.setdefault(text[start + step % period], []).append(m)
                sure = self.confidence(matches[here[0]][1] + step) / sum(weights[m] for m in here)
                for token, agree in said.items():
                    chance = sure * sum(weights[m] for m in agree)
                    if likely * chance >= faint:
                        entry = -likely * chance, next(number), node, step, token, chance, agree
                        heappush(frontier, entry)
            if not frontier:
                break
            likely, _, parent, step, token, chance, here = heappop(frontier)
            node, step, likely = len(tokens), step + 1, -likely
            tokens.append(token)
            parents.append(parent)
            chances.append(chance)
        return tokens, parents, chances

    def _may_pay(self, path: Sequence[int], depth: int, budget: TreeBudget) -> bool:
        """By how long a match can be at most, as the text without an index shows: its last n-gram of an order
        is there once more, or a match is shorter. Two or three searches of 1 us in short texts, where the
        index takes some 6 us for each token that was committed since it was last asked."""
        known, indexed = len(self._bytes) // 4, len(self.tokens)
        fresh = self.tokens[known:] + self._late[max(known - indexed, 0) :]
        self._bytes += array("i", fresh).tobytes()
        longest, end = LONGEST, len(self._bytes)
        self._bytes += array("i", path).tobytes()
        for order in ORDERS:
            if _occurs(self._bytes, order):
                break
            longest = order - 1
        del self._bytes[end:]
        return longest == LONGEST or any(self._pays(n, depth, budget) for n in range(1, longest + 1))

    def _pays(self, length: int, depth: int, budget: TreeBudget) -> bool:
        """Copies of up to `depth` tokens behind a match of `length` may give what the budget asks for."""
        chance, promised = 1.0, 0.0
        for step in range(depth):
            if promised >= budget.worth:
                break
            chance *= self.confidence(length + step)
            if chance <= budget.least:
                break
            promised += chance - budget.least
        return promised >= budget.worth

    def _matches(self, text: list[int]) -> list[tuple[int, int]]:
        """(place of the last token, length) of earlier occurrences of `text`'s end; longest, then latest."""
        found: dict[int, int] = {}
        for order, last, before in zip(ORDERS, self._last, self._before, strict=True):
            place = last.get(hash(tuple(text[-order:])), -1)
            while place >= 0 and len(found) < LOOKED_AT:
                if place < len(text) - 1 and place not in found and (length := _match_length(text, place)):
                    found[place] = length
                place = before[place]
        return sorted(found.items(), key=lambda item: (-item[1], -item[0]))

    def _longest(self, text: list[int]) -> tuple[int, int] | None:
        """The first of `_matches`, which takes a fraction of finding them all."""
        for order, last, before in zip(ORDERS, self._last, self._before, strict=True):
            best, longest = -1, 0
            place = last.get(hash(tuple(text[-order:])), -1)
            for _ in range(LOOKED_AT):
                if place < 0 or longest == LONGEST:
                    break
                if place < len(text) - 1 and (length := _match_length(text, place)) > longest:
                    best, longest = place, length
                place = before[place]
            if longest:  # shorter n-grams end where longer ones do, and elsewhere after less
                return best, longest
        return None

    def _observe(self, token: int) -> None:
        """Learn from what the best match predicts for the next token, drafted or not."""
        if self.tokens and (match := self._longest(self.tokens)) is not None:
            place, length = match
            self._trials[length] += 1
            self._hits[length] += self.tokens[place + 1] == token

    def _push(self, token: int) -> None:
        place = len(self.tokens)
        for order, last, before in zip(ORDERS, self._last, self._before, strict=True):
            gram = hash((*self.tokens[max(0, place + 1 - order) :], token))
            before.append(last.get(gram, -1))
            last[gram] = place
        self.tokens.append(token)

    def _pop(self) -> None:
        for order, last, before in zip(ORDERS, self._last, self._before, strict=True):
            gram = hash(tuple(self.tokens[-order:]))
            earlier = before.pop()
            if earlier < 0:
                del last[gram]
            else:
                last[gram] = earlier
        self.tokens.pop()
        del self._bytes[4 * len(self.tokens) :]


class NGramDrafting:
    """See `drafters.base.Drafting`: a step drafts for one root."""

    def __init__(self, drafter: NGram, roots: Sequence[Root], budget: TreeBudget) -> None:
        self.drafter, self.roots, self.budget = drafter, roots, budget
        self.trees: list[TokenTree] = []

    def step(self) -> bool:
        if len(self.trees) == len(self.roots):
            return False
        self.trees.append(self.drafter.draft(self.roots[len(self.trees)].path, self.budget))
        return True

    def tree(self, root: int = 0) -> TokenTree:
        return self.trees[root] if root < len(self.trees) else TokenTree.root(self.roots[root].token)

    def stop(self) -> None:
        pass

    def cancel(self) -> None:
        pass


def _match_length(text: list[int], place: int) -> int:
    """How many tokens up to `place` equal the last ones of the text."""
    length, end = 0, len(text) - 1
    while length < LONGEST and place >= length and text[place - length] == text[end - length]:
        length += 1
    return length


def _occurs(text: bytearray, order: int) -> bool:
    """The last `order` tokens of a text, of 4 bytes each, are there before, too."""
    wanted, end = text[-4 * order :], len(text) - 4
    while (place := text.rfind(wanted, 0, end)) % 4 and place > 0:  # between two tokens
        end = place + len(wanted) - 1
    return place >= 0
