"""What a server's answers must be for a client to believe them. Needs no torch."""

from __future__ import annotations

import numpy as np

from edgespec.core.acceptance import Outcome
from edgespec.core.tree import TokenTree
from edgespec.errors import ProtocolError
from edgespec.split.payload import unpack_tokens
from edgespec.split.protocol import Judged, Uploaded
from edgespec.split.transcript import Transcript


def token_behind(answer: Uploaded, text: Transcript, length: int, draws: bool, vocabulary: int) -> int:
    """What follows the first `length` tokens of this text, -1 where nobody asked. Raises ProtocolError."""
    if (answer.committed, answer.hash) != (length, text.hash(length)) or (answer.token >= 0) != draws:
        raise ProtocolError("the server has read another text than was sent")
    if answer.token >= vocabulary:
        raise ProtocolError(f"token {answer.token} is outside the model's vocabulary of {vocabulary}")
    return answer.token


def outcome_of(
    answer: Judged, tree: TokenTree, text: Transcript, follows: bool, vocabulary: int, seconds: float
) -> Outcome:
    """What became of a tree behind this text. follows: the acceptance keeps a child that is the target's own
    token. Raises ProtocolError for what no verification of this tree can give."""
    tokens, path = unpack_tokens(answer.tokens, vocabulary), [0]
    for token in tokens[:-1]:
        below = _child(tree, path[-1], token)
        if below is None:
            raise ProtocolError(f"the server has accepted token {token}, which was not drafted there")
        path.append(below)
    if follows and _child(tree, path[-1], tokens[-1]) is not None:
        raise ProtocolError(f"the server has refused token {tokens[-1]}, and says it itself")
    nodes = np.array(path, dtype=np.int64)
    longer = text.plus(tree.tokens[nodes])
    if (answer.committed, answer.hash) != (len(longer), longer.hash()):
        raise ProtocolError("the server has committed another text than it says")
    return Outcome(nodes, tuple(tokens), len(tree) - 1, seconds)


def _child(tree: TokenTree, node: int, token: int) -> int | None:
    """The child of a node that is this token."""
    below = tree.children(node)
    equal = below[tree.tokens[below] == token]
    return int(equal[0]) if len(equal) else None
