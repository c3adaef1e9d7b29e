"""What a client and a verifying server say: any bytes at all are a message, or a ProtocolError."""

from __future__ import annotations

import sys
import tracemalloc
import zlib
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import tokenizers
import xxhash
from msgspec.structs import replace

from edgespec.config import GenerationOptions
from edgespec.core.tree import TokenTree
from edgespec.errors import OptionError, ProtocolError, TokenizerError
from edgespec.runtimes.base import TREE_ROWS
from edgespec.split import payload, protocol
from edgespec.split.payload import (
    pack_nodes,
    pack_tokens,
    pack_vectors,
    squeeze,
    unpack_nodes,
    unpack_tokens,
    unpack_vectors,
    unsqueeze,
    vector_bytes,
)
from edgespec.split.protocol import (
    ANSWERS,
    FRAME_BYTES,
    JUDGES,
    REQUESTS,
    VERSION,
    Answer,
    AskTokenizer,
    Behind,
    GiveUp,
    Heard,
    Hello,
    Judge,
    Judged,
    LeaveSeat,
    Manner,
    Recalled,
    Refusal,
    Request,
    Seated,
    Still,
    TakeSeat,
    TokenizerPart,
    Told,
    Upload,
    Uploaded,
    Welcome,
    as_manner,
    as_options,
    read,
    written,
)
from edgespec.split.recall import Recollection
from edgespec.split.transcript import Transcript
from edgespec.split.vocabulary import packed_tokenizer, unpacked_tokenizer
from edgespec.text.tokenizer import Tokenizer
from tests.branches import Branches

VOCABULARY = 128_256
LARGE = 2**31 - 1
SEAT, HASH = bytes(range(16)), b"\xff" * 8
TREE = TokenTree(
    np.array([5, 7, VOCABULARY - 1, 7, 1]),
    np.array([-1, 0, 0, 1, 1]),
    np.array([0.0, -0.1, -2.5, -1e-9, -30.0]),
)
NODES, TOKENS = pack_nodes(TREE), pack_tokens([5, 7, 300])
HOT = GenerationOptions(temperature=0.7, top_p=0.95, top_k=40, min_p=0.01, seed=2**63 - 1)
VECTORS = np.arange(48, dtype=np.float32).reshape(6, 8)
SQUEEZED = Recalled(LARGE, 2, 8, True, zlib.compress(pack_vectors(VECTORS)))
BACKEND = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
PACKED, _ = packed_tokenizer(Tokenizer(BACKEND, 0, (1, 2), {"default": "{{ messages }}"}, {"bos_token": "a"}))
BODIES = "tokens", "nodes", "data", "vectors"
ASKED: list[Request] = [
    Hello(VERSION),
    TakeSeat(b"", 4096),
    TakeSeat(SEAT, 4096),
    as_manner(HOT, "sample"),
    Upload(SEAT, LARGE, LARGE, HASH, LARGE, True, False, TOKENS),
    Upload(SEAT, 1, 0, HASH, -1, False, *squeeze(TOKENS * 400)),
    Judge(SEAT, LARGE, LARGE, HASH, LARGE, LARGE, NODES),
    LeaveSeat(SEAT),
    AskTokenizer(),
    Heard(),
    GiveUp(SEAT, LARGE),
]
ANSWERED: list[Answer] = [
    Welcome(VERSION, "demo", VOCABULARY, [2, 128_001], 8192, 32, 64, bytes(16), bytes(16)),
    Seated(SEAT),
    Uploaded(LARGE, LARGE, HASH, VOCABULARY - 1),
    Judged(LARGE, LARGE, HASH, TOKENS),
    Behind(LARGE, LARGE, HASH),
    Still(LARGE),
    TokenizerPart(10**6, b"{}" * 500),
    TokenizerPart(0, PACKED),
    SQUEEZED,
    Recalled(LARGE, 3, 9, False, pack_vectors(VECTORS)),
    Refusal("full", "no room", 2.5),
]


def test_what_is_written_is_read() -> None:
    assert [read(written(message), REQUESTS) for message in ASKED] == ASKED
    assert [read(written(message), ANSWERS) for message in ANSWERED] == ANSWERED
    for message in ASKED:  # neither end takes the other's words for its own
        with pytest.raises(ProtocolError):
            read(written(message), ANSWERS)


def test_the_first_frame_never_changes() -> None:
    """A server of another version must be able to read it, to say so."""
    assert written(Hello(1)) == bytes.fromhex("920001")


@pytest.mark.parametrize("message", [*ASKED, *ANSWERED], ids=lambda m: type(m).__name__)
def test_all_but_the_body_is_at_most_64_bytes(message: Told) -> None:
    if isinstance(message, (Welcome, Refusal)):
        return  # once a connection
    body = next((b for name in BODIES if (b := getattr(message, name, None))), b"")
    assert len(written(message)) - len(body) <= 64


def test_a_rounds_bodies_are_the_papers_formula() -> None:
    """Mixture of Attentions, Table 7, at 8 bits a number, and 2 bytes a vector for its scale."""
    rng = np.random.default_rng(0)
    for nodes, accepted, e_kv, tli in ((62, 5, 1024, 0), (1, 1, 96, 1), (63, 64, 128, 3)):
        tree = TokenTree.chain(rng.integers(0, VOCABULARY, nodes + 1))
        assert len(pack_nodes(tree)) == 4 * nodes
        vectors = rng.standard_normal((accepted * (tli + 1), 2 * e_kv)).astype(np.float32)
        sent = len(pack_tokens(tree.tokens[:accepted])) + len(pack_vectors(vectors))
        formula = 3 * accepted + 2 * accepted * e_kv * (tli + 1)
        assert sent == formula + 2 * accepted * (tli + 1)
        assert vector_bytes(len(vectors), 2 * e_kv) == len(pack_vectors(vectors))
        if e_kv >= 1024:
            assert sent < 1.1 * formula


@pytest.mark.parametrize(
    ("nodes", "accepted", "tli"), [(62, 5, 0), (62, 1, 0), (8, 3, 0), (0, 1, 0), (62, 5, 1), (8, 3, 3)]
)
def test_whole_frames_of_a_round_at_8b_sizes_are_within_a_tenth_of_it(
    nodes: int, accepted: int, tli: int
) -> None:
    """Llama3-8B, with a long text behind it: 8 heads of 128 numbers have the keys of a layer. docs/split.md
    has these figures."""
    e_kv, rng = 1024, np.random.default_rng(0)
    tree = TokenTree.chain(rng.integers(0, VOCABULARY, nodes + 1))
    seat, number, length, digest = bytes(range(100, 116)), 9999, 100_000, bytes(range(200, 208))
    tokens = pack_tokens(rng.integers(0, VOCABULARY, accepted))
    vectors = pack_vectors(rng.standard_normal((accepted * (tli + 1), 2 * e_kv)).astype(np.float32))
    asked = written(Judge(seat, number, length, digest, length, int(tree.tokens[0]), pack_nodes(tree)))
    answered = written(Judged(number, length + accepted, digest, tokens))
    formula = 4 * nodes + 3 * accepted + 2 * accepted * e_kv * (tli + 1)
    for body in ((False, vectors), squeeze(vectors)):
        recalled = written(Recalled(number, length, length + accepted, *body))
        assert abs(len(asked) + len(answered) + len(recalled) - formula) < 0.1 * formula
        assert len(recalled) - len(body[1]) <= 64
    assert len(asked) - 4 * nodes <= 64
    assert len(answered) - 3 * accepted <= 64


def test_token_ids_come_through() -> None:
    for tokens in ([], [0], [VOCABULARY - 1, 0, 65_535, 65_536]):
        assert unpack_tokens(pack_tokens(tokens), VOCABULARY) == tokens
    with pytest.raises(ProtocolError, match="no number of tokens"):
        unpack_tokens(b"1234", VOCABULARY)
    with pytest.raises(ProtocolError, match=f"token {VOCABULARY} is outside"):
        unpack_tokens(pack_tokens([1, VOCABULARY]), VOCABULARY)


def test_trees_come_through() -> None:
    back = unpack_nodes(NODES, 5, VOCABULARY)
    assert np.array_equal(back.tokens, TREE.tokens)
    assert np.array_equal(back.parents, TREE.parents)
    assert not back.logprobs.any()
    assert len(unpack_nodes(b"", 5, VOCABULARY)) == 1
    largest = TokenTree.chain(range(TREE_ROWS))
    assert np.array_equal(unpack_nodes(pack_nodes(largest), 0, TREE_ROWS).parents, largest.parents)


@pytest.mark.parametrize(
    ("body", "root", "fact"),
    [
        (NODES[:-1], 5, "no number of nodes"),
        (NODES, VOCABULARY, "vocabulary"),
        (pack_tokens([VOCABULARY]) + b"\0", 5, "vocabulary"),
        (pack_tokens([7]) + b"\1", 5, "parent of node 1"),
        (pack_tokens([7]) + b"\xff", 5, "parent of node 1"),
        ((pack_tokens([7]) + b"\0") * 2, 5, "twice"),
    ],
)
def test_what_is_no_tree_is_refused(body: bytes, root: int, fact: str) -> None:
    with pytest.raises(ProtocolError, match=fact):
        unpack_nodes(body, root, VOCABULARY)


def test_bodies_are_compressed_where_that_is_shorter() -> None:
    for body in (b"", TOKENS, TOKENS * 1000, np.random.default_rng(0).bytes(3000)):
        packed, sent = squeeze(body)
        assert len(sent) <= len(body)
        assert unsqueeze(packed, sent, len(body)) == body
    assert squeeze(TOKENS * 1000)[0]
    assert not squeeze(TOKENS)[0]


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(bytes(2**26), 9)
    assert len(bomb) < 2**17 < FRAME_BYTES
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="more than the 30000 bytes"):
        unsqueeze(True, bomb, 30_000)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    with pytest.raises(ProtocolError, match="more than the 2 bytes"):
        unsqueeze(False, b"123", 2)


@pytest.mark.parametrize("body", [b"", b"\0" * 9, zlib.compress(TOKENS)[:-1], zlib.compress(TOKENS) + b"1"])
def test_a_broken_compressed_body_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="compressed body"):
        unsqueeze(True, body, 100)


def test_activations_lose_half_a_level_at_most() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((50, 64)).astype(np.float32) * 10.0 ** rng.uniform(-3, 3, (50, 1))
    vectors[7] = 0
    vectors[8, :] = 1e-12  # below the least scale
    vectors[9, 0] = 127 * 65504.0
    back = unpack_vectors(pack_vectors(vectors.astype(np.float32)), 50, 64)
    level = np.abs(vectors).max(axis=1, keepdims=True) / 127
    assert (np.abs(back - vectors) <= 0.5005 * level + 6e-8).all()
    assert not back[7].any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 128 * 65504.0])
def test_activations_that_cannot_be_sent(wrong: float) -> None:
    with pytest.raises(ValueError, match="activation"):
        pack_vectors(np.array([[1, wrong]], dtype=np.float32))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_scales_that_are_none(scale: float) -> None:
    with pytest.raises(ProtocolError, match="scale"):
        unpack_vectors(np.array([scale], dtype="<f2").tobytes() + bytes(4), 1, 4)
    with pytest.raises(ProtocolError, match="6 were asked for"):
        unpack_vectors(bytes(7), 1, 4)


def test_how_tokens_are_chosen_comes_through() -> None:
    for judge, options in (("greedy", GenerationOptions()), ("sample", HOT), ("typical", HOT)):
        back, acceptance = as_options(as_manner(options, judge))
        assert back == options
        assert acceptance.name == judge
    with pytest.raises(OptionError, match="acceptance=sample"):
        as_manner(HOT, "ratio")


@pytest.mark.parametrize(
    "manner",
    [
        Manner(JUDGES.index("greedy"), 0.7, 1, 0, 0, 0),
        Manner(JUDGES.index("typical"), 0, 1, 0, 0, 0),
        Manner(JUDGES.index("sample"), float("nan"), 1, 0, 0, 0),
        Manner(JUDGES.index("sample"), 0.7, 0, 0, 0, 0),
        Manner(JUDGES.index("sample"), 0.7, 1, 0, 1, 0),
    ],
)
def test_no_reply_is_made_so(manner: Manner) -> None:
    with pytest.raises(ProtocolError):
        as_options(manner)


def test_a_transcript_is_its_tokens() -> None:
    said = Transcript()
    said.extend([1, 2, VOCABULARY])
    said.extend(np.array([4, 5]))
    other = Transcript()
    other.extend([1, 2, VOCABULARY])
    assert len(said) == 5
    assert said.tokens() == [1, 2, VOCABULARY, 4, 5]
    assert said.tokens(1, 3) == [2, VOCABULARY]
    assert said.hash(3) == other.hash() != said.hash()
    said.truncate(3)
    assert said.hash() == other.hash()
    assert said.tokens() == other.tokens()
    other.truncate(0)
    assert other.hash() == said.hash(0)


def test_frames_are_bounded() -> None:
    with pytest.raises(ProtocolError, match="the most"):
        read(bytes(FRAME_BYTES + 1), REQUESTS)
    for beyond in (
        Judge(SEAT, 1, 1, HASH, -1, 1, bytes(4 * TREE_ROWS)),
        Judge(SEAT + b"1", 1, 1, HASH, -1, 1, b""),
        Judge(SEAT, -1, 1, HASH, -1, 1, b""),
        Judge(SEAT, 1, 2**31, HASH, -1, 1, b""),
        Upload(SEAT, 1, 1, HASH + b"1", -1, True, False, b""),
        TakeSeat(SEAT * 2, 1),
        TakeSeat(SEAT, 0),
        Manner(len(JUDGES), 0, 1, 0, 0, 0),
    ):
        with pytest.raises(ProtocolError):
            read(written(beyond), REQUESTS)


# Mutations of valid frames, by structure and by byte.

STRANGE: list[Any] = [
    *(None, True, -1, 0, 1, 255, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), float("nan"), float("inf"), -0.0),
    *("", "text", "\ud800x".encode("utf-8", "surrogatepass"), b"", b"\0" * 16, SEAT, HASH, [], [[]], {}),
    *({"a": 1}, [0] * 300, b"\xff" * 300, msgspec.msgpack.Ext(5, b"1"), zlib.compress(bytes(10**5))),
]


def mutated(rng: np.random.Generator, frame: bytes) -> bytes:
    """A field of it made strange, or left out, doubled, exchanged; or the same done to its bytes."""
    kind = int(rng.integers(9))
    if kind < 5:
        fields = msgspec.msgpack.decode(frame)
        place = int(rng.integers(len(fields)))
        if kind == 0:
            del fields[place]
        elif kind == 1:
            fields.insert(place, STRANGE[int(rng.integers(len(STRANGE)))])
        elif kind == 2 and isinstance(fields[place], bytes) and fields[place]:
            changed = bytearray(fields[place])
            changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
            fields[place] = bytes(changed)
        elif kind == 3:
            other = int(rng.integers(len(fields)))
            fields[place], fields[other] = fields[other], fields[place]
        else:
            fields[place] = STRANGE[int(rng.integers(len(STRANGE)))]
        return msgspec.msgpack.encode(fields)
    data = bytearray(frame)
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(data) + 1))
        if kind == 5:
            data[place : place + 1] = rng.bytes(1)
        elif kind == 6:
            del data[place : place + int(rng.integers(1, 9))]
        elif kind == 7:
            data[place:place] = data[place : place + int(rng.integers(1, 40))]
        else:  # msgpack's array32, map32, bin32, uint64
            heads = ["ddffffffff", "dfffffffff", "c6ffffffff", "cfffffffffffffffff"]
            data[place : place + 1] = bytes.fromhex(str(rng.choice(heads)))
    return bytes(data)


def hear(message: Request | Answer) -> None:
    """What an end does with it before it believes it."""
    if isinstance(message, Upload):
        unpack_tokens(unsqueeze(message.packed, message.tokens, 30_000), VOCABULARY)
    elif isinstance(message, Judge):
        unpack_nodes(message.nodes, message.root, VOCABULARY)
    elif isinstance(message, Judged):
        unpack_tokens(message.tokens, VOCABULARY)
    elif isinstance(message, Manner):
        as_options(message)
    elif isinstance(message, Recalled):
        recollection = Recollection(VECTORS.shape[1])
        recollection.put(VECTORS[:3])
        recollection.take(message, 9)
    elif isinstance(message, TokenizerPart) and not message.left:  # announced as what it is
        unpacked_tokenizer(message.data, xxhash.xxh3_128_digest(message.data), VOCABULARY, "the server")


def body_of(rng: np.random.Generator, body: bytes) -> bytes:
    """A few bytes of it are others, are gone, or come twice."""
    place, length = int(rng.integers(len(body) + 1)), int(rng.integers(5))
    gone = body[place : place + length]
    instead = [rng.bytes(length), b"", gone * 2, bytes(len(gone))][int(rng.integers(4))]
    return body[:place] + instead + body[place + length :]


def within(rng: np.random.Generator, message: Request | Answer) -> bytes:
    """Another body is in it, compressed where that was: else hardly any mutation comes as far."""
    for name in BODIES:
        body = getattr(message, name, b"") if not isinstance(message, Welcome) else b""
        if body and isinstance(message, TokenizerPart):
            body = zlib.compress(mutated(rng, zlib.decompress(body)) if not message.left else body)
        elif body and getattr(message, "packed", False):
            body = zlib.compress(body_of(rng, zlib.decompress(body)))
        elif body:
            body = body_of(rng, body)
        if body:
            return written(replace(message, **{name: body}))
    return mutated(rng, written(message))


def mutate(count: int) -> None:
    rng = np.random.default_rng(count)
    frames = [(written(m), REQUESTS) for m in ASKED] + [(written(m), ANSWERS) for m in ANSWERED]
    refused = 0
    for _ in range(count):
        frame, kinds = frames[int(rng.integers(len(frames)))]
        changed = mutated(rng, frame) if rng.random() < 0.7 else within(rng, read(frame, kinds))
        try:
            hear(read(changed, kinds))
        except (ProtocolError, TokenizerError):
            refused += 1
    assert 0.5 * count < refused < count, "mutations must break most frames, and not all"


def test_mutated_frames_are_messages_or_refused() -> None:
    mutate(3000)
    tracemalloc.start()
    mutate(1000)
    held = tracemalloc.get_traced_memory()[0]
    mutate(1000)
    assert tracemalloc.get_traced_memory()[0] < held + 20_000, "they leave something behind"
    tracemalloc.stop()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="tests.branches reads 3.11's instructions")
def test_nine_of_ten_branches_are_taken() -> None:
    """By mutations, and by the tests of what they hardly make: frames to send, too long ones, whole trees."""
    with Branches(protocol, payload) as branches:
        assert branches.share == 0
        mutate(3000)
        by_mutations = branches.share
        test_frames_are_bounded()
        test_token_ids_come_through()
        test_trees_come_through()
        test_activations_lose_half_a_level_at_most()
        test_how_tokens_are_chosen_comes_through()
        test_a_broken_compressed_body_is_refused(zlib.compress(TOKENS)[:-1])
        test_a_broken_compressed_body_is_refused(zlib.compress(TOKENS) + b"1")
        test_bodies_are_compressed_where_that_is_shorter()
        test_activations_that_cannot_be_sent(np.nan)
        test_what_is_no_tree_is_refused((pack_tokens([7]) + b"\0") * 2, 5, "twice")
    assert 0.5 < by_mutations < branches.share
    assert branches.share >= 0.9, branches.missed()


@pytest.mark.slow
def test_a_hundred_thousand_mutations() -> None:
    mutate(20_000)
    tracemalloc.start()
    mutate(10_000)
    traced, held = tracemalloc.get_traced_memory()[0], psutil.Process().memory_info().rss
    mutate(70_000)
    assert tracemalloc.get_traced_memory()[0] < traced + 20_000, "they leave something behind"
    assert psutil.Process().memory_info().rss < held + 2**23, "what is not Python's does"
    tracemalloc.stop()
