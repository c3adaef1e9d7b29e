"""What a draft worker and its target say: any bytes at all are a message, or Nonsense."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from edgespec.core.tree import TokenTree
from edgespec.drafters.channel import (
    ANSWER_BYTES,
    ANSWERS,
    REQUEST_BYTES,
    REQUESTS,
    Answer,
    Beat,
    Cancel,
    Close,
    Commit,
    Committed,
    Draft,
    Expect,
    Failed,
    GoAhead,
    Hear,
    Load,
    Loading,
    Named,
    Nonsense,
    Open,
    Prefill,
    Ready,
    Request,
    RootPath,
    Sent,
    Stop,
    Tree,
    Trees,
    Worked,
    frame,
    read_frame,
)
from edgespec.drafters.sent_trees import as_heard, as_named, as_received, as_sent, trees_for

MUTATIONS = 10_000
VOCABULARY = 300
TREE = TokenTree(
    np.array([5, 7, 299, 7, 1]), np.array([-1, 0, 0, 1, 1]), np.array([0.0, -0.1, -2.5, -1e-9, -30.0])
)
STREAMED = replace(TREE, run=np.array([True, False, True, False, False]))  # node 1 has children by streams
ANSWERED: list[Answer] = [
    Loading(10**9),
    Ready(3 * 10**8),
    Beat(2, 0, 50, 0.25),
    Worked(2, True, 50, 10**6),
    Trees(7, [as_sent(TREE), as_sent(TokenTree.root(9))]),
    Trees(8, [as_sent(STREAMED), as_sent(TokenTree.root(9))]),
    Committed(8, True, 10**9),
    Failed("MemoryError", "no room"),
]
REQUESTED: list[Request] = [
    Load("/models/draft", 2),
    Open(1, 4096, VOCABULARY),
    Prefill(1, list(range(300)), True, 2**63 - 1, 0.7, 0.95, 40, 0.0),
    Draft(1, 9, [RootPath([5], 0.0), RootPath([5, 9], -0.5)], 64, 12, 4),
    GoAhead(1, as_sent(TREE), 64, 40),
    Expect(1),
    Hear(1, as_named({0: {7: -0.1, 299: -3.0}, 4: {}})),
    Stop(1),
    Cancel(1),
    Commit(1, 10, 5, [7, 1]),
    Close(1),
]


def heard(data: bytes, answers: bool = True) -> list[Sent]:
    pipe, found = io.BytesIO(data), list[Sent]()
    while True:
        message: Sent | None
        if answers:
            message = read_frame(pipe, ANSWERS, ANSWER_BYTES)
        else:
            message = read_frame(pipe, REQUESTS, REQUEST_BYTES)
        if message is None:
            return found
        found.append(message)


def test_what_is_sent_is_received() -> None:
    assert heard(b"".join(map(frame, ANSWERED))) == ANSWERED
    assert heard(b"".join(map(frame, REQUESTED)), answers=False) == REQUESTED
    back = as_received(as_sent(TREE), VOCABULARY)
    for name in ("tokens", "parents", "logprobs"):
        assert np.array_equal(getattr(back, name), getattr(TREE, name))
        assert getattr(back, name).dtype == getattr(TREE, name).dtype


def test_a_tree_says_which_nodes_were_run() -> None:
    back = as_received(as_sent(STREAMED), VOCABULARY)
    assert back.open.tolist() == STREAMED.open.tolist() == [False, True, False, True, True]
    assert as_received(as_sent(TREE), VOCABULARY).run is None
    for count in (0, 4, 6):
        wrong = as_sent(TREE)
        wrong.run = [True] * count
        with pytest.raises(Nonsense, match="columns differ in length"):
            as_received(wrong, VOCABULARY)


def test_what_an_exit_says_is_heard_as_it_was() -> None:
    said = {0: {7: -0.1, 299: -3.0}, 4: {}}
    assert as_heard(as_named(said), len(TREE), VOCABULARY) == said
    assert as_named({1: {5: 1e-9}})[0].logprobs == [0.0], "rounded above 1"
    for wrong in (
        Named(5, [7], [-0.1]),  # of five nodes
        Named(0, [VOCABULARY], [-0.1]),
        Named(0, [7, 8], [-0.1]),
        Named(0, [7], [float("-inf")]),
        Named(0, [7], [float("nan")]),
    ):
        with pytest.raises(Nonsense, match="tokens"):
            as_heard([wrong], len(TREE), VOCABULARY)
    rows = {node: dict.fromkeys(range(256), -0.5) for node in range(64)}
    assert heard(frame(Hear(1, as_named(rows))), answers=False)
    for beyond in ({0: dict.fromkeys(range(257), -0.5)}, {64: {1: -0.5}}):
        with pytest.raises(Nonsense):
            heard(frame(Hear(1, as_named(beyond))), answers=False)


def test_a_frame_says_only_so_much() -> None:
    """A prompt goes as token ids, a tree as ids and log-probabilities; both fit what is allowed."""
    assert len(frame(REQUESTED[2])) < 5 * 300 + 60
    largest = Tree([2**31 - 1] * 64, list(range(-1, 63)), [-0.123456789] * 64, [False] * 64)
    assert len(frame(Trees(2**31 - 1, [largest] * 64))) < ANSWER_BYTES
    assert len(frame(Prefill(1, [2**31 - 1] * 10**6, False, 0, 0.0, 1.0, 0, 0.0))) < REQUEST_BYTES


def mutated(rng: np.random.Generator, data: bytes) -> bytes:
    """Bytes changed, left out, doubled, cut off; numbers made large, negative or NaN."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(len(changed)))
        kind = rng.integers(7)
        if kind == 0:
            changed[place] = int(rng.integers(256))
        elif kind == 1:
            changed[place] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            del changed[place : place + int(rng.integers(1, 9))]
        elif kind == 3:
            changed[place:place] = changed[place : place + int(rng.integers(1, 40))]
        elif kind == 4:
            del changed[place:]
        elif kind == 5:
            changed[place:place] = rng.bytes(int(rng.integers(1, 9)))
        else:  # msgpack's uint64, int64, NaN, -infinity, array32, map32, str32
            heads = ["cfffffffffffffffff", "d3ffffffffffffff00", "cb7ff8000000000000", "cbfff0000000000000"]
            heads += ["ddffffffff", "dfffffffff", "dbffffffff"]
            changed[place : place + 1] = bytes.fromhex(str(rng.choice(heads)))
        if not changed:
            return bytes(changed)
    return bytes(changed)


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("framed", [True, False])
def test_any_bytes_are_messages_or_nonsense(answers: bool, framed: bool) -> None:
    """Mutated in the frame's own bytes, length and all, or inside frames that keep their lengths true."""
    rng = np.random.default_rng([answers, framed])
    messages: list[Sent] = [*ANSWERED] if answers else [*REQUESTED]
    understood = refused = trees = 0
    for _ in range(MUTATIONS // 2):
        chosen = [messages[int(i)] for i in rng.integers(len(messages), size=3 if framed else 1)]
        if framed:
            data = mutated(rng, b"".join(map(frame, chosen)))
        else:
            bodies = [mutated(rng, frame(message)[4:]) for message in chosen]
            data = b"".join(len(body).to_bytes(4, "little") + body for body in bodies)
        try:
            found = heard(data, answers)
        except Nonsense:
            refused += 1
            continue
        understood += 1
        for message in found:
            assert type(message) in {type(other) for other in messages}
            if isinstance(message, Trees):
                trees += check_trees(message)
    assert understood > MUTATIONS // 100
    assert refused > MUTATIONS // 8
    if answers:
        assert trees > 20


def check_trees(message: Trees) -> int:
    """Who asked for these two trees gets trees that can be verified, or nothing."""
    try:
        found = trees_for([5, 9], message.trees, 5, 2, VOCABULARY)
    except Nonsense:
        return 0
    for tree, root in zip(found, (5, 9), strict=True):
        tree.validate(VOCABULARY)
        assert tree.tokens[0] == root
        assert len(tree) <= 5
        assert tree.depths.max() <= 2
        assert np.isfinite(tree.scores).all()
        assert (tree.scores <= 0).all()
        assert len(tree.best(3)) <= 3
    return 1


def test_a_length_is_refused_before_anything_is_read() -> None:
    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 <= size <= ANSWER_BYTES
            return super().read(size)

    with pytest.raises(Nonsense, match=r"a message of 4294967295 bytes, where 262144 are the most"):
        read_frame(Pipe(b"\xff" * 100), ANSWERS, ANSWER_BYTES)
    assert read_frame(Pipe(b"\xff\x00"), ANSWERS, ANSWER_BYTES) is None
    assert read_frame(Pipe(frame(ANSWERED[3])[:-1]), ANSWERS, ANSWER_BYTES) is None
