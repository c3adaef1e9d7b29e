"""Which of a tree's tokens are kept, and the token the target itself adds. Needs no torch.

| name      | keeps a child when                                   | text                                    |
|-----------|------------------------------------------------------|-----------------------------------------|
| `greedy`  | it is the target's argmax                            | plain decoding's at temperature 0       |
| `sample`  | it is the token the target's own sampling draws here | plain decoding's with the same seed     |
| `ratio`   | a draw falls below p/q; else from the residual       | the target's distribution               |
| `typical` | p > min(epsilon, delta e^-H) (Medusa)                | **lossy**: likely, but not the target's |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.config import GenerationOptions
from edgespec.core.sampling import ACCEPT_DRAW, TARGET_DRAW, Distribution, IntArray, Noise, Sampler, argmax
from edgespec.core.tree import TokenTree
from edgespec.errors import OptionError

Logits = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one pass of the target made certain.

    path: accepted nodes from the root (always first) down: the rows whose keys and values are committed.
    tokens: the accepted drafted tokens, then the *bonus token*, which is the next tree's root.
    drafted: nodes that were judged, the root aside.
    seconds: that the pass took, by who ran it, without waiting for its turn.
    beside: rows that the pass had of other conversations, with or without blocks of `prompts` among them.
    """

    path: IntArray
    tokens: tuple[int, ...]
    drafted: int = 0
    seconds: float = 0.0
    beside: int = 0
    prompts: bool = False

    @property
    def accepted(self) -> int:
        """Drafted tokens kept."""
        return len(self.path) - 1

    @property
    def bonus(self) -> int:
        """The target's own token after the path."""
        return self.tokens[-1]


class Acceptance(Protocol):
    """Walks a verified tree. Reads only the rows of `logits` that lie on its way."""

    name: ClassVar[str]
    lossless: ClassVar[bool]  # the text has the target's distribution, whatever the drafter

    def walk(self, tree: TokenTree, logits: Logits, noise: Noise, position: int) -> Outcome:
        """Judge `tree` by the target's `logits` [n, V] (row i: what follows node i).

        `position` is the absolute position of the token that follows the root.
        """


class Greedy:
    """Follow the target's argmax (lowest id of equals)."""

    name: ClassVar[str] = "greedy"
    lossless: ClassVar[bool] = True

    def walk(self, tree: TokenTree, logits: Logits, noise: Noise, position: int) -> Outcome:
        return _follow(tree, lambda node, depth: argmax(logits[node]))


class Sampling:
    """Draw the target's token at each node with its position's noise and follow the child that equals it.

    The token drawn does not depend on the tree, so the text is plain sampling's, bit for bit.
    """

    name: ClassVar[str] = "sample"
    lossless: ClassVar[bool] = True

    def __init__(self, options: GenerationOptions) -> None:
        self._sampler = Sampler(options)

    def walk(self, tree: TokenTree, logits: Logits, noise: Noise, position: int) -> Outcome:
        return _follow(tree, lambda node, depth: self._sampler.pick(logits[node], noise, position + depth))


class Ratio:
    """Speculative sampling: keep a child drawn from q with probability min(1, p/q), else go on with the
    residual max(p - q, 0), normalised (Leviathan et al. 2023, arXiv 2211.17192, Algorithm 1; several children
    of a node one after the other, as in SpecInfer, 2024, arXiv 2305.09781).

    Lossless when the children of every node were drawn independently from `tree.drafts[node]`, and when
    whether a node has children does not depend on draws that the tree leaves out.
    """

    name: ClassVar[str] = "ratio"
    lossless: ClassVar[bool] = True

    def __init__(self, options: GenerationOptions) -> None:
        self._sampler = Sampler(options)

    def walk(self, tree: TokenTree, logits: Logits, noise: Noise, position: int) -> Outcome:
        """Raises ValueError when the tree does not carry the distributions it was drawn from."""
        node, path = 0, [0]
        while True:
            p = self._sampler.distribution(logits[node])
            children = tree.children(node)
            q = tree.drafts[node] if tree.drafts is not None else None
            for rank, child in enumerate(children.tolist()):
                if q is None:
                    raise ValueError(f"ratio acceptance needs what node {node}'s children were drawn from")
                token = int(tree.tokens[child])
                drafted = q.of(token)
                if drafted <= 0:
                    raise ValueError(f"token {token} of node {child} cannot come from its draft distribution")
                if noise.uniform(position, ACCEPT_DRAW + rank) * drafted < p.of(token):  # r < p / q
                    path.append(child)
                    break
                p = _residual(p, q)
            else:
                bonus = p.pick(noise.uniform(position, TARGET_DRAW))
                return _outcome(tree, path, bonus)
            node, position = path[-1], position + 1


class Typical:
    """Medusa's typical acceptance (arXiv 2401.10774): keep a token when p > min(epsilon, delta e^-H), H the
    entropy of p.

    p has passed temperature, top-k, top-p and min-p, so a token that these forbid is never kept. Of the
    longest kept paths the likelier one wins; the bonus token is sampled. Lossy: it prefers what is drafted.
    """

    name: ClassVar[str] = "typical"
    lossless: ClassVar[bool] = False

    def __init__(self, options: GenerationOptions, epsilon: float = 0.09, delta: float = 0.3) -> None:
        self._sampler = Sampler(options)
        self.epsilon, self.delta = epsilon, delta  # Medusa's: 0.09 and its square root

    def walk(self, tree: TokenTree, logits: Logits, noise: Noise, position: int) -> Outcome:
        best = (0, 0.0, 0)  # depth, log-probability of the path by the target, -node
        reached = {0: 0.0}
        for node in range(len(tree)):
            children = tree.children(node)
            if node not in reached or not len(children):
                continue
            p = self._sampler.distribution(logits[node])
            positive = p.probs[p.probs > 0]
            entropy = -float(positive @ np.log(positive))
            threshold = min(self.epsilon, self.delta * np.exp(-entropy))
            kept = p.at(tree.tokens[children]).tolist()
            for child, probability in zip(children.tolist(), kept, strict=True):
                if probability > threshold:
                    reached[child] = reached[node] + float(np.log(probability))
                    best = max(best, (int(tree.depths[child]), reached[child], -child))
        path = tree.path_to(-best[2]).tolist()
        bonus = self._sampler.pick(logits[path[-1]], noise, position + len(path) - 1)
        return _outcome(tree, path, bonus)


def make_acceptance(name: str | None, options: GenerationOptions) -> Acceptance:
    """The acceptance called `name`; None = `greedy` at temperature 0, else `sample`.

    Raises OptionError for an unknown name, and where the sampling options cannot be honoured: `greedy` draws
    nothing, so it needs temperature 0; `ratio` and `typical` judge by probabilities, so they need more. The
    filters (top-k, top-p, min-p) work with all of them.
    """
    greedy = options.temperature == 0
    if name is None:
        name = "greedy" if greedy else "sample"
    if name not in ACCEPTANCES:
        raise OptionError(f"acceptance {name!r} is unknown; choose from {', '.join(ACCEPTANCES)}")
    if name == "greedy":
        if not greedy:
            raise OptionError(
                f"greedy acceptance keeps only the likeliest token, so temperature {options.temperature} "
                "cannot be honoured; use acceptance=sample, or temperature=0"
            )
        return Greedy()
    if name == "sample":
        return Sampling(options)
    if greedy:
        raise OptionError(
            f"{name} acceptance weighs probabilities and temperature 0 has none; use acceptance=greedy, "
            "or a temperature above 0"
        )
    return Ratio(options) if name == "ratio" else Typical(options)


ACCEPTANCES = ("greedy", "sample", "ratio", "typical")


def _follow(tree: TokenTree, choose: Callable[[int, int], int]) -> Outcome:
    """Go down the tree along the tokens that `choose(node, depth)` names, up to one that is not drafted."""
    path = [0]
    while True:
        token = choose(path[-1], len(path) - 1)
        equal = [child for child in tree.children(path[-1]) if tree.tokens[child] == token]
        if not equal:
            return _outcome(tree, path, token)
        path.append(int(equal[0]))


def _outcome(tree: TokenTree, path: list[int], bonus: int) -> Outcome:
    accepted = [int(tree.tokens[node]) for node in path[1:]]
    return Outcome(np.array(path, dtype=np.int64), (*accepted, bonus), len(tree) - 1)


def _residual(p: Distribution, q: Distribution) -> Distribution:
    """max(p - q, 0), normalised: what p still has to give after a token drawn from q was refused."""
    excess = np.maximum(p.probs - q.at(p.ids), 0.0)
    total = excess.sum()
    # p = q leaves nothing, and refuses nothing but by rounding: then any choice of p is right.
    return Distribution(p.ids, excess / total) if total > 0 else p
