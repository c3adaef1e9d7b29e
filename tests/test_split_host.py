"""The server's end of a split: what clients' frames do, in order or not, by one client or several."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash

import edgespec
from edgespec.config import GenerationOptions
from edgespec.core.tree import TokenTree
from edgespec.engine import Engine
from edgespec.errors import ProtocolError, StorageError, TokenizerError
from edgespec.split import guests
from edgespec.split.payload import pack_tokens, unpack_tokens
from edgespec.split.protocol import (
    VERSION,
    AskTokenizer,
    Behind,
    GiveUp,
    Hello,
    Judge,
    Judged,
    LeaveSeat,
    Manner,
    Refusal,
    Seated,
    Still,
    TakeSeat,
    TokenizerPart,
    Told,
    Upload,
    Uploaded,
    Welcome,
    as_manner,
    written,
)
from edgespec.split.vocabulary import unpacked_tokenizer
from tests.split_ends import GREEDILY, Caller, Served
from tests.test_session import prompt_of, write_model
from tests.test_split_protocol import mutated

CONTEXT = 150
REPLY = GenerationOptions(max_tokens=25, ignore_eos=True)
HOT = GenerationOptions(max_tokens=25, ignore_eos=True, temperature=0.9, top_p=0.95, seed=7)
PROMPT = prompt_of(20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("split") / "m", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="2GB", context=600, drafter="none") as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: Engine) -> dict[str, list[int]]:
    told = {"greedy": REPLY, "sample": HOT}
    return {name: edgespec.generate(engine, PROMPT, options).tokens for name, options in told.items()}


@pytest.fixture
def served(engine: Engine) -> Iterator[Served]:
    served = Served(engine)
    yield served
    served.host.close()
    served.run()
    assert engine.room_for(600), "somebody's memory was not given back"


def refused(answer: object) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.why


def begun(
    served: Served, manner: Manner = GREEDILY, prompt: Sequence[int] = PROMPT, context: int = CONTEXT
) -> tuple[Caller, int]:
    """A client whose prompt is read, and the first token."""
    caller = Caller(served)
    caller.sit(context, manner=manner)
    answer = caller.say(caller.upload(prompt))
    assert isinstance(answer, Uploaded)
    caller.text.extend(prompt)
    assert (answer.committed, answer.hash) == (len(prompt), caller.text.hash())
    return caller, answer.token


def take(caller: Caller, tree: TokenTree, answer: object) -> list[int]:
    """The tokens of an answer, which are committed but for the last."""
    assert isinstance(answer, Judged), answer
    tokens = unpack_tokens(answer.tokens, 160)
    caller.text.extend([int(tree.tokens[0]), *tokens[:-1]])
    assert (answer.committed, answer.hash) == (len(caller.text), caller.text.hash())
    return tokens


def guessed(rng: np.random.Generator, said: list[int], truth: list[int]) -> TokenTree:
    """Drafts that are right for a while, and branches that are wrong."""
    right = truth[len(said) : len(said) + int(rng.integers(0, 5))]
    tokens, parents = [said[-1], *right], [*range(-1, len(right))]
    for _ in range(int(rng.integers(0, 4))):
        parent, token = int(rng.integers(len(tokens))), int(rng.integers(160))
        if (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
    return TokenTree(np.array(tokens), np.array(parents), np.zeros(len(tokens)))


@pytest.mark.parametrize("name", ["greedy", "sample"])
def test_a_client_hears_what_the_server_alone_would_say(
    served: Served, expected: dict[str, list[int]], name: str
) -> None:
    rng, truth = np.random.default_rng(1), expected[name]
    caller, first = begun(served, as_manner(HOT if name == "sample" else REPLY, name))
    said, rounds = [first], 0
    while len(said) < len(truth):
        tree = guessed(rng, said, truth)
        said += take(caller, tree, caller.say(caller.judge(tree)))
        rounds += 1
    assert said[: len(truth)] == truth
    assert rounds < len(truth) / 1.5, "drafts that are right save rounds"


def test_many_clients_share_passes(served: Served, expected: dict[str, list[int]]) -> None:
    callers = [begun(served) for _ in range(3)]
    said, truth = [[first] for _, first in callers], expected["greedy"]
    before = served.passes
    for _ in range(5):
        trees = [TokenTree.chain(s[-1:] + truth[len(s) : len(s) + 2]) for s in said]
        for (caller, _), tree in zip(callers, trees, strict=True):
            caller.say(caller.judge(tree), runs=False)
        served.run()
        for (caller, _), tree, words in zip(callers, trees, said, strict=True):
            words += take(caller, tree, caller.heard[-1])
    assert all(words == truth[: len(words)] for words in said)
    assert served.passes == before + 5


def test_hello_tells_what_is_served(served: Served, engine: Engine) -> None:
    caller = Caller(served)
    (welcome,) = caller.heard
    assert isinstance(welcome, Welcome)
    assert (welcome.model, welcome.vocabulary, welcome.context, welcome.nodes) == ("m", 160, 600, 64)
    caller.say(AskTokenizer())
    parts = [part for part in caller.heard if isinstance(part, TokenizerPart)]
    assert parts[-1].left == 0
    packed = b"".join(part.data for part in parts)
    for wrong, origin in ((packed[:-1], "announced"), (b"no zlib", "announced")):
        with pytest.raises(ProtocolError, match=origin):
            unpacked_tokenizer(wrong, welcome.tokenizer, 160, "the server")
    for body in (b"\xc1", b"\x95\xc4\x02{}\xc0\x90\x80\x80"):
        wrong = zlib.compress(body)
        with pytest.raises((ProtocolError, TokenizerError), match="the server"):
            unpacked_tokenizer(wrong, xxhash.xxh3_128_digest(wrong), 160, "the server")
    tokenizer = unpacked_tokenizer(packed, welcome.tokenizer, 160, "the server")
    assert tokenizer.encode("some words") == engine.tokenizer.encode("some words")
    assert refused(caller.say(AskTokenizer())) == "nonsense"
    assert refused(Caller(served, greets=False).say(Hello(VERSION + 1))) == "version"
    assert refused(Caller(served, greets=False).say(TakeSeat(b"", 10))) == "nonsense"


def test_what_takes_no_pass_waits_for_none(served: Served) -> None:
    """And a client whose question does wait for one hears so."""
    caller = Caller(served, greets=False)
    caller.say(Hello(VERSION), AskTokenizer(), TakeSeat(b"", 100), runs=False)
    assert [type(message) for message in caller.heard] == [Welcome, TokenizerPart]
    caller.line.beat()
    assert caller.heard[-1] == Still(0)
    served.run()
    assert isinstance(caller.heard[-1], Seated)
    heard = len(caller.heard)
    caller.line.beat()
    assert len(caller.heard) == heard, "nothing is owed"


def test_a_lost_answer_is_said_again(served: Served) -> None:
    caller, first = begun(served)
    tree = TokenTree.root(first)
    request = caller.judge(tree)
    answer, passes = caller.say(request), served.passes
    assert caller.say(request) == answer
    caller.line.lost()
    again = Caller(served)
    assert again.sit(CONTEXT, caller.seat) == Seated(caller.seat)
    assert again.say(request) == answer
    assert served.passes == passes, "nothing is computed twice"
    take(caller, tree, answer)


def test_an_answer_goes_to_the_connection_that_asked_last(served: Served) -> None:
    caller, first = begun(served)
    request = caller.judge(TokenTree.root(first))
    caller.say(request, runs=False)
    served.mail.popleft()()  # it is under way
    again = Caller(served, greets=False)
    again.say(Hello(VERSION), TakeSeat(caller.seat, CONTEXT), request, runs=False)
    served.run()
    assert isinstance(again.heard[-1], Judged)
    assert [type(m) for m in caller.heard] == [Refusal]
    assert refused(caller.heard[-1]) == "taken"


@pytest.mark.parametrize("change", ["stale", "other", "seat"])
def test_rounds_out_of_order_are_refused(served: Served, change: str) -> None:
    caller, first = begun(served)
    old = caller.judge(TokenTree.root(first))
    caller.say(old)
    if change == "stale":
        caller.say(caller.judge(TokenTree.root(first)))
        wrong = old
    elif change == "other":
        caller.round -= 1
        wrong = caller.judge(TokenTree.chain([first, 5]))
    else:
        caller.seat = bytes(16)
        wrong = caller.judge(TokenTree.root(first))
    assert refused(caller.say(wrong)) == "nonsense"
    assert caller.closed


def test_a_round_is_given_up_for_the_next(served: Served, expected: dict[str, list[int]]) -> None:
    caller, first = begun(served)
    caller.say(caller.judge(TokenTree.root(first)), runs=False)
    served.mail.popleft()()
    tree = TokenTree.chain(expected["greedy"][:3])
    answer = caller.say(caller.judge(tree))
    assert [first, *take(caller, tree, answer)] == expected["greedy"][:4]
    assert len(caller.heard) == 1


LONG = prompt_of(6) * 20  # read in three passes


def reading(served: Served, monkeypatch: pytest.MonkeyPatch) -> Caller:
    """A client whose long prompt has been read a third."""
    monkeypatch.setattr("edgespec.core.batch.PREFILL_ROWS", len(LONG) // 3)
    caller = Caller(served)
    caller.sit(CONTEXT)
    caller.say(caller.upload(LONG), runs=False)
    served.step()
    served.passes = 0
    return caller


def test_what_nobody_waits_for_is_not_computed(
    served: Served, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = reading(served, monkeypatch)
    assert caller.say(GiveUp(caller.seat, caller.round)) is None
    assert served.passes == 1, "the one under way"
    caller.line.beat()
    assert not caller.heard, "it does not wait"
    assert caller.say(GiveUp(caller.seat, caller.round)) is None, "it is over"
    answer = caller.say(caller.upload(LONG))
    assert isinstance(answer, Uploaded)
    assert answer.token == edgespec.generate(engine, LONG, REPLY).tokens[0]
    assert not caller.closed


def test_a_queued_round_can_be_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = reading(served, monkeypatch)
    caller.say(caller.upload(LONG), runs=False)
    assert caller.say(GiveUp(caller.seat, caller.round)) is None
    assert served.passes == 1
    assert isinstance(caller.say(caller.upload(LONG)), Uploaded)


def test_who_is_gone_is_not_computed_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = reading(served, monkeypatch)
    caller.line.lost()
    served.step()
    served.host.sweep()
    assert served.passes == 1, "a client that connects again finds its answer"
    served.now += guests.GONE_SECONDS + 1
    served.host.sweep()
    served.run()
    assert served.passes == 2
    again = Caller(served)
    again.sit(CONTEXT, caller.seat)
    assert again.seat == caller.seat
    again.round = caller.round
    again.text.extend(LONG[: len(LONG) // 3])
    served.passes = 0
    assert isinstance(again.say(again.upload(LONG[len(LONG) // 3 :])), Uploaded), "what was read is there"
    assert served.passes == 2


def test_what_is_not_here_is_said(served: Served, expected: dict[str, list[int]]) -> None:
    caller, first = begun(served)
    true, length = caller.text.tokens(), len(caller.text)
    caller.text.extend([first])  # which was never uploaded
    answer = caller.say(caller.judge(TokenTree.root(expected["greedy"][1])))
    assert isinstance(answer, Behind)
    caller.text.truncate(length)
    assert (answer.committed, answer.hash) == (length, caller.text.hash())
    caller.text.truncate(5)
    caller.text.extend([1, *true[6:]])  # another text of the same length
    answer = caller.say(caller.judge(TokenTree.root(first)))
    assert isinstance(answer, Behind)
    caller.text.truncate(5)  # a prefix that both share is enough
    answer = caller.say(caller.upload(true[5:], draws=False))
    assert isinstance(answer, Uploaded)
    assert (answer.committed, answer.token) == (length, -1)
    caller.text.extend(true[5:])
    tree = TokenTree.chain(expected["greedy"][:2])
    assert take(caller, tree, caller.say(caller.judge(tree))) == expected["greedy"][1:3]


def test_long_prompts_are_cut_and_beaten_for(served: Served) -> None:
    caller = Caller(served)
    caller.sit(CONTEXT)
    request = caller.upload(PROMPT)
    caller.line.beat()
    caller.say(request, runs=False)
    caller.line.beat()
    assert caller.heard == [Still(1)]
    served.run()
    caller.line.beat()
    assert [type(m) for m in caller.heard] == [Still, Uploaded]


def test_requests_that_do_not_fit_are_refused(served: Served) -> None:
    for number in range(6):
        caller, first = begun(served)
        known = len(caller.text), caller.text.hash()
        request: Judge | Upload = caller.judge(TokenTree.root(first))
        if number == 0:
            request = caller.upload([1] * (CONTEXT - len(PROMPT) + 1))
        elif number == 1:
            request = caller.upload([])
        elif number == 2:
            request = caller.upload([160])
        elif number == 3:
            caller.say(caller.upload([1] * (CONTEXT - len(PROMPT) - 1)))
            caller.text.extend([1] * (CONTEXT - len(PROMPT) - 1))
            request = caller.judge(TokenTree.chain([first, 1]))
        elif number == 4:
            request = Judge(caller.seat, 9, *known, -1, 160, b"")
        else:
            request = Judge(caller.seat, 9, *known, -1, first, pack_tokens([1]) + b"\x07")
        assert refused(caller.say(request)) == "nonsense", number
        served.now += 1000
        served.host.sweep()


def test_how_to_choose_must_be_said(served: Served) -> None:
    caller = Caller(served)
    assert refused(caller.say(GREEDILY)) == "nonsense", "there is no session yet"
    for number in range(2):
        caller = Caller(served)
        answer = caller.say(TakeSeat(b"", CONTEXT))
        assert isinstance(answer, Seated)
        caller.seat = answer.seat
        request = caller.judge(TokenTree.root(1)) if number else caller.upload(PROMPT)
        assert refused(caller.say(request)) == "nonsense"
    caller, _ = begun(served)
    assert refused(caller.say(Manner(0, 0.5, 1, 0, 0, 0))) == "nonsense", "greedy takes no temperature"


def test_a_full_server_refuses_and_takes_from_who_rests(served: Served) -> None:
    callers = [begun(served)[0] for _ in range(2)]
    late = Caller(served)
    answer = late.sit(CONTEXT + 100)
    assert refused(answer) == "full"
    assert isinstance(answer, Refusal)
    assert "2 hold some of the 600" in answer.words
    assert answer.seconds > 0
    assert late.closed
    callers[1].line.lost()
    served.run()
    late = Caller(served)
    assert isinstance(late.sit(CONTEXT + 100), Seated), "a client that is gone gives way"
    assert len(served.host.guests) == 3, "whoever was refused may come back"
    served.now += guests.SPARE_SECONDS
    other = Caller(served)
    assert isinstance(other.sit(CONTEXT + 100), Seated), "and so does one that rests"
    # The one that has rested for longest finds the server behind, and there is room for it or not.
    request = callers[0].judge(TokenTree.root(1))
    assert isinstance(callers[0].say(request), Behind | Refusal)


def test_a_round_that_found_no_room_can_be_asked_again(served: Served) -> None:
    caller, _ = begun(served)
    served.now += guests.SPARE_SECONDS
    other = Caller(served)
    assert isinstance(other.sit(600), Seated), "all the memory that there is"
    assert isinstance(caller.say(caller.judge(TokenTree.root(1))), Behind)
    caller.text.truncate(0)
    request = caller.upload(PROMPT)
    assert refused(caller.say(request)) == "full"
    for _ in range(2):  # as long as there is none
        again = Caller(served)
        assert refused(again.sit(CONTEXT, caller.seat)) == "full"
    other.say(LeaveSeat(other.seat))
    again = Caller(served)
    again.sit(CONTEXT, caller.seat)
    assert again.seat == caller.seat
    assert isinstance(again.say(request), Uploaded), "it hears that the server is at work, for ever"
    assert not again.line.owes


def test_a_growing_conversation_that_found_no_room_can_grow_later(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", max_position_embeddings=2048)
    with edgespec.load(path, memory="2GB", context=600, drafter="ngram", batch=2) as engine:
        assert engine.may_grow
        served = Served(engine)
        caller, first = begun(served, prompt=prompt_of(guests.STEP - 6), context=530)
        others = [Caller(served) for _ in range(5)]
        others = [other for other in others if isinstance(other.sit(530), Seated)]
        request = caller.judge(TokenTree.chain([first, *range(1, 10)]))
        assert refused(caller.say(request)) == "full"
        for other in others:
            other.say(LeaveSeat(other.seat))
        again = Caller(served)
        again.sit(530, caller.seat)
        assert isinstance(again.say(request), Judged)
        served.host.close()
        served.run()


def test_a_queued_round_that_finds_no_room_is_refused_to_who_is_there_now(tmp_path: Path) -> None:
    """A round is given up for one that needs more memory, and the connection lost before the first ends."""
    path = write_model(tmp_path / "m", max_position_embeddings=2048)
    with edgespec.load(path, memory="2GB", context=600, drafter="ngram", batch=2) as engine:
        served = Served(engine)
        caller, first = begun(served, prompt=prompt_of(guests.STEP - 6), context=530)

        def hear(*messages: tuple[Caller, Told]) -> None:
            for who, message in messages:
                who.line.hear(written(message))
            while served.mail:
                served.mail.popleft()()

        hear((caller, caller.judge(TokenTree.root(first))))  # in the next pass, which has not begun
        others = [Caller(served, greets=False) for _ in range(5)]
        hear(
            *[(other, Hello(VERSION)) for other in others], *[(other, TakeSeat(b"", 530)) for other in others]
        )
        grown = caller.judge(TokenTree.chain([first, *range(1, 10)]))
        hear((caller, grown))
        caller.line.lost()
        again = Caller(served, greets=False)
        hear((again, Hello(VERSION)), (again, TakeSeat(caller.seat, 530)), (again, grown))
        assert again.line.owes
        served.run()
        assert refused(again.heard[-1]) == "full"
        assert again.closed
        for other in others:
            if isinstance(other.heard[-1], Seated):
                other.say(LeaveSeat(other.heard[-1].seat))
        last = Caller(served)
        last.sit(530, caller.seat)
        assert last.seat == caller.seat, "it has lost its conversation"
        assert isinstance(last.say(grown), Judged), "what was read is there, and the round can be asked again"
        served.host.close()
        served.run()


def test_no_conversation_is_larger_than_what_is_offered(served: Served, engine: Engine) -> None:
    most = engine.plan.context
    assert refused(Caller(served).sit(most + 1)) == "nonsense"
    assert refused(Caller(served).sit(2**30)) == "nonsense"
    assert isinstance(Caller(served).sit(most), Seated)


def test_idle_memory_goes_back_and_a_session_is_taken_up_again(
    served: Served, engine: Engine, expected: dict[str, list[int]]
) -> None:
    caller, first = begun(served)
    caller.line.lost()
    served.run()
    served.now += guests.IDLE_SECONDS - 1
    served.host.sweep()
    assert not engine.room_for(600)
    served.now += 1
    served.host.sweep()
    assert engine.room_for(600)
    assert not served.host.guests
    again = Caller(served)
    answer = again.sit(CONTEXT, caller.seat)
    assert isinstance(answer, Seated)
    assert answer.seat != caller.seat, "an id that a server does not know is nobody's"
    again.text.extend(PROMPT)
    answer = again.say(again.judge(TokenTree.root(first)))
    assert isinstance(answer, Behind)
    assert answer.committed == 0


def test_a_connected_client_that_was_idle_goes_on(served: Served, expected: dict[str, list[int]]) -> None:
    caller, first = begun(served)
    served.now += guests.IDLE_SECONDS
    served.host.sweep()
    answer = caller.say(caller.judge(TokenTree.root(first)))
    assert isinstance(answer, Behind)
    assert answer.committed == 0
    caller.text.truncate(0)
    assert isinstance(caller.say(caller.upload(PROMPT, draws=False)), Uploaded)
    caller.text.extend(PROMPT)
    tree = TokenTree.chain(expected["greedy"][:3])
    assert take(caller, tree, caller.say(caller.judge(tree))) == expected["greedy"][1:4]


def test_who_leaves_frees_memory(served: Served, engine: Engine) -> None:
    caller, first = begun(served)
    caller.say(LeaveSeat(caller.seat))
    assert engine.room_for(600)
    caller, first = begun(served)
    caller.say(caller.judge(TokenTree.root(first)), LeaveSeat(caller.seat))
    assert engine.room_for(600)
    caller, first = begun(served)
    assert caller.say(LeaveSeat(bytes(16))) is None, "it names nobody's session"
    assert not engine.room_for(600)


def test_a_server_that_closes_says_so(served: Served) -> None:
    idle, _ = begun(served)
    caller, first = begun(served)
    caller.say(caller.judge(TokenTree.root(first)), runs=False)
    served.mail.popleft()()
    served.host.close()
    served.run()
    assert refused(caller.heard[-1]) == "closing"
    assert refused(idle.say(idle.judge(TokenTree.root(first)))) == "closing"
    assert refused(Caller(served).heard[-1]) == "closing"


def test_a_pass_that_fails_may_be_asked_for_again(
    served: Served, monkeypatch: pytest.MonkeyPatch, expected: dict[str, list[int]]
) -> None:
    caller, first = begun(served)
    tree = TokenTree.root(first)
    request = caller.judge(tree)

    def fail(*arguments: object) -> None:
        raise StorageError("/home/somebody/secret could not be read")

    with monkeypatch.context() as patch:
        patch.setattr("edgespec.core.batch.Verification.judge", fail)
        answer = caller.say(request)
    assert refused(answer) == "failed"
    assert isinstance(answer, Refusal)
    assert "secret" not in answer.words
    again = Caller(served)
    again.sit(CONTEXT, caller.seat)
    answer = again.say(request)
    assert take(caller, tree, answer) == expected["greedy"][1:2]


def test_floods_are_refused(served: Served) -> None:
    caller, first = begun(served)
    served_before = len(served.mail)
    caller.say(*[caller.judge(TokenTree.root(first)) for _ in range(200)], runs=False)
    assert refused(caller.heard[-1]) == "nonsense"
    assert len(caller.heard) == 1
    assert len(served.mail) < served_before + 250
    served.run()


def test_conversations_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "MOST", 2)
    callers = [Caller(served) for _ in range(3)]
    assert [type(c.sit(20)) for c in callers] == [Seated, Seated, Refusal]
    callers[0].line.lost()
    served.run()
    assert isinstance(Caller(served).sit(20), Seated)


def storm(served: Served, count: int, truth: list[int]) -> None:
    """Frames of a live session, some of them mutated: the session goes on, or its connection ends."""
    rng = np.random.default_rng(count)
    caller, first = begun(served)
    said, broken, whole = [first], 0, 0
    for _ in range(count):
        if caller.closed or len(said) > 15:
            caller.line.lost()
            served.run()
            caller, first = begun(served)
            said = [first]
        tree = guessed(rng, said, truth)
        frame = written(caller.judge(tree))
        if rng.random() < 0.6:
            caller.heard.clear()
            caller.line.hear(mutated(rng, frame))
            served.run()
            broken += caller.closed
            if not caller.closed:  # it may have been a request of its own
                caller.round += 2**10
                assert caller.round < 2**31
            continue
        answer = caller.say(caller.judge(tree))
        if isinstance(answer, Behind):  # a mutation has made the server forget something
            length = answer.committed
            rest = caller.text.tokens(length)
            caller.text.truncate(length)
            assert caller.text.hash() == answer.hash
            assert isinstance(caller.say(caller.upload(rest, draws=False)), Uploaded)
            caller.text.extend(rest)
            continue
        if caller.closed:
            continue
        said += take(caller, tree, answer)
        whole += 1
        assert said == truth[: len(said)]
    assert broken
    assert whole > count / 10


def test_mutated_frames_in_live_sessions_change_nobodys_text(
    served: Served, expected: dict[str, list[int]]
) -> None:
    storm(served, 400, expected["greedy"])


@pytest.mark.slow
def test_ten_thousand_mutations_in_live_sessions(served: Served, expected: dict[str, list[int]]) -> None:
    storm(served, 17_000, expected["greedy"])
