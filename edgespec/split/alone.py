"""What a drafter says by itself, while no server can be asked. Needs no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafter, Root
from edgespec.errors import ModelError
from edgespec.response import Response

AT_ONCE = 4  # tokens between two looks at whether the server is back
MOMENT = 1.0  # seconds


class Deputy:
    """Whoever goes on in the server's place.

    said: tokens of the reply that there were before; `verified`: what it says is what the server would say;
    `held`: the response that would end the reply, if it is to be verified first.
    """

    verified = False

    def __init__(self, said: int) -> None:
        self.said = said
        self.since, self.waited = time.monotonic(), 0.0  # waited: seconds, since it has had nothing to say
        self.held: Response | None = None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.since

    def wait(self, work: Callable[[], None]) -> None:
        """Nothing to say. What takes longer than a moment is a machine that sleeps: it waits for nobody."""
        began = time.monotonic()
        work()
        self.waited += min(time.monotonic() - began, MOMENT)

    def say(self) -> list[int]:
        """The next tokens; [] = it has nothing to say."""
        raise NotImplementedError

    def end(self) -> None:
        """It is not needed any more."""


class Alone(Deputy):
    """The drafter: the likeliest path of one small tree after the other."""

    def __init__(self, drafter: Drafter | None, context: Context, said: int, most: int) -> None:
        """drafter: follows the conversation, of which it has most already; None = nobody can say anything.
        context: of all that was said, the last token with it. most: tokens to say."""
        super().__init__(said)
        self.drafter, self.left = drafter, most
        self._root = int(context.tokens[-1])
        if drafter is not None:
            before = Context(context.tokens[:-1], context.sampler, context.noise, check=context.check)
            try:
                drafter.prefill(before)
            except ModelError:  # NaN: what it says is worth nothing
                self.drafter = None

    def say(self) -> list[int]:
        depth = min(AT_ONCE, self.left)
        if self.drafter is None or depth < 1:
            return []
        drafting = self.drafter.start([Root((self._root,))], TreeBudget(2 * depth, depth, depth))
        try:
            while drafting.step():
                pass
            tree = drafting.tree()
        except ModelError:
            self.drafter = None
            return []
        finally:
            drafting.stop()
        path = likeliest(tree)
        tokens: list[int] = tree.tokens[path[1:]].tolist()
        if tokens:
            self.drafter.commit(self._root, Outcome(np.array(path[:-1], dtype=np.int64), tuple(tokens)))
            self._root, self.left = tokens[-1], self.left - len(tokens)
        return tokens


def likeliest(tree: TokenTree) -> Sequence[int]:
    """Nodes from the root on, each the likeliest child of the one before."""
    path = [0]
    while len(below := tree.children(path[-1])):
        path.append(int(below[np.argmax(tree.logprobs[below])]))
    return path
