"""Tokenizer files from strangers: what they may make of a text is known before the library reads them."""

from __future__ import annotations

import base64
import functools
import json
import struct
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers import models

from edgespec.errors import ContextError, EdgeSpecError, ModelError, TokenizerError
from edgespec.runtimes.formats.gguf_tokenizer import read_tokenizer, special_tokens
from edgespec.text.tokenizer import LEAST_LONGEST, PIECE, Tokenizer
from edgespec.text.tokenizer_file import MAX_TEXT, check_tokenizer_file
from tests.test_tokenizer import byte_level, sentencepiece

TEXTS = ["Hi there", "été ﷺ ΐ ᾂ İ ß 你好 😀", " a  b ", "\n", "``x''"]


def described(**parts: Any) -> dict[str, Any]:
    """A small tokenizer.json with other steps."""
    backend = Backend(models.WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    table: dict[str, Any] = json.loads(backend.to_str())
    return table | parts


def growth(**parts: Any) -> int:
    return check_tokenizer_file(json.dumps(described(**parts)).encode(), Path("t.json"))


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def sequence(name: str, *steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", name: list(steps)}


def precompiled(text: bytes) -> dict[str, Any]:
    """Nothing is replaced, but by one of these texts it would be."""
    return mapped(charsmap([0] * 256, text))


def charsmap(units: Sequence[int], texts: bytes = b"bc\0") -> bytes:
    return struct.pack(f"<{1 + len(units)}I", 4 * len(units), *units) + texts


def mapped(charsmap: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


def one_character(place: int = 0, then: int = 512) -> list[int]:
    """The array of a map that has "a" alone, replaced by the text at `place`: "a" goes from 256, where the
    root leads, to `then`, where the place is."""
    units = [0] * 768
    a = 256 ^ ord("a")
    units[0], units[a], units[512] = 256 << 10, (a ^ then) << 10 | 1 << 8 | ord("a"), 1 << 31 | place
    return units


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "replace, six times": ({"normalizer": sequence("normalizers", *[replace("a", "a" * 30)] * 6)}, "as long"),
    "nothing replaced": ({"normalizer": sequence("normalizers", *[replace("", "a" * 10)] * 8)}, "as long"),
    "in decoders": ({"decoder": sequence("decoders", *[replace("a", "a" * 30)] * 6)}, "as long"),
    "nothing, in decoders": ({"decoder": sequence("decoders", *[replace("", "a" * 10)] * 8)}, "as long"),
    "one decoder": ({"decoder": replace("a", "a" * 30)}, "as long"),
    "prepend": ({"normalizer": {"type": "Prepend", "prepend": "a" * 3 * 10**7}}, "takes 300"),
    "prepend, twice": (
        {"normalizer": sequence("normalizers", *[{"type": "Prepend", "prepend": "ab" * 30}] * 2)},
        "as long",
    ),
    "unicode": (
        {"normalizer": sequence("normalizers", *[{"type": "NFKD"}, {"type": "Lowercase"}] * 2)},
        "as long",
    ),
    "map": ({"normalizer": precompiled(b"a" * 5000 + b"\0")}, "as long"),
    "bytes, often": (
        {"pre_tokenizer": sequence("pretokenizers", *[{"type": "ByteLevel", "add_prefix_space": True}] * 5)},
        "as long",
    ),
    "text, often": (
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2000,
                "pair": [],
                "special_tokens": {},
            }
        },
        "as long",
    ),
    "deep": (
        {"normalizer": functools.reduce(lambda a, _: sequence("normalizers", a), range(9), None)},
        "deep",
    ),
    "unknown": ({"normalizer": {"type": "Repeat"}}, "not one that can be used"),
    "no kind": ({"pre_tokenizer": {}}, "not one that can be used"),
    "wrong kind": ({"decoder": {"type": ["a"]}}, "not one that can be used"),
    "number": ({"normalizer": 7}, "not one that can be used"),
    "no pattern": ({"normalizer": {"type": "Replace", "content": "x"}}, "not one that can be used"),
    "base64": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "a"}},
        "not one that can be used",
    ),
    "added": ({"added_tokens": [{"id": 2, "content": "a" * 5_000_000}]}, "added tokens take"),
    "pieces": ({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a" * 500_000, 0.0]]}}, "characters"),
    "model": ({"model": {"type": 3}}, "not a tokenizer"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_before_they_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, message = HOSTILE[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(described(**parts)))
    monkeypatch.setattr(tokenizers, "Tokenizer", None)  # the library is not asked
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_directory(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    whole = json.dumps(described()).encode()
    kind = json.dumps(described()["model"]["type"]).encode()
    assert whole.count(kind) == 1
    (tmp_path / "tokenizer.json").write_bytes(whole.replace(kind, b'"\xff\xfe"'))
    with pytest.raises(TokenizerError, match="not a tokenizer that can be used"):
        Tokenizer.from_directory(tmp_path)


MAPS = {
    "nothing": b"",
    "too short": b"abc",
    "no table": charsmap([]),
    "a table that is cut": charsmap([0] * 256)[:500],
    "half a unit": struct.pack("<I", 1022) + bytes(1022) + b"bc\0",
    "a small table": charsmap([0]),
    "units of any kind": charsmap(struct.unpack("<256I", bytes(range(256)) * 4)),
    "a state outside": charsmap(one_character(then=768)),
    "a replacement outside": charsmap(one_character(4)),
    "half a character": charsmap(one_character(1), "é\0".encode()),
    "not UTF-8": charsmap(one_character(), b"\xff\0"),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_of_characters_that_lead_nowhere_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would panic, and print that, while it reads them or when it meets the character."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(described(normalizer=mapped(MAPS[name]))))
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    with pytest.raises(TokenizerError, match="its normalizer is not one that can be used"):
        Tokenizer.from_directory(tmp_path)


def test_a_sound_map_is_used() -> None:
    for place, replaced in ((0, "bc"), (1, "c"), (2, ""), (3, "")):
        step = mapped(charsmap(one_character(place)))
        assert growth(normalizer=step) == 2
        backend = Backend.from_str(json.dumps(described(normalizer=step)))
        assert backend.normalizer.normalize_str("a-a~b") == f"{replaced}-{replaced}~b"


def test_known_tokenizers_grow_little() -> None:
    assert check_tokenizer_file(sentencepiece().to_str().encode(), Path("t")) == 2
    assert check_tokenizer_file(byte_level().to_str().encode(), Path("t")) == 5
    xlnet = [replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"}]
    xlnet += [{"type": "Lowercase"}, precompiled(b"a\0" + b"b" * 18 + b"\0"), replace(" {2,}", " ")]
    assert growth(normalizer=sequence("normalizers", *xlnet)) == 18 * 3 * 18


STEPS: dict[str, list[dict[str, Any]]] = {
    "normalizer": [
        *({"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")),
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": False,
            "lowercase": True,
        },
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Prepend", "prepend": "▁▁▁"},
        {"type": "ByteLevel"},
        replace("a", "xyz"),
        replace("", "-"),
        {"type": "Replace", "pattern": {"Regex": "b*"}, "content": "+"},
        {"type": "Replace", "pattern": {"Regex": "."}, "content": "++"},
    ],
    "pre_tokenizer": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")),
        {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "Isolated", "invert": False},
    ],
}


@pytest.mark.parametrize("place", STEPS)
def test_no_step_grows_a_text_more_than_is_thought(place: str) -> None:
    """What the library makes of texts with the characters that Unicode expands most."""
    for step in STEPS[place]:
        backend = Backend.from_str(json.dumps(described(**{place: step})))
        most = growth(**{place: step})
        for text in [*TEXTS, *"".join(TEXTS)]:
            if place == "normalizer":
                made = len(backend.normalizer.normalize_str(text))
            else:
                made = sum(len(piece) for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text))
            assert made <= most * len(text), (step, text)


def test_a_text_that_may_grow_too_long_is_refused(tmp_path: Path) -> None:
    """Before the library makes anything of it."""
    grows = described(normalizer=replace("a", "b" * 900))
    (tmp_path / "tokenizer.json").write_text(json.dumps(grows))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.growth == 900
    assert tokenizer.encode("a") == [0]
    with pytest.raises(TokenizerError, match="900 times as long"):
        tokenizer.encode("a" * (MAX_TEXT // 900 + 1))


class Counting:
    """A backend that counts the characters it was given at once, at most, and in all."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.most, self.all = backend, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def encode_batch_fast(self, texts: list[str], **more: Any) -> Any:
        self.most, self.all = max(self.most, len(texts[0])), self.all + len(texts[0])
        return self.backend.encode_batch_fast(texts, **more)


def test_what_cannot_fit_the_context_is_refused_before_all_of_it_is_cut() -> None:
    """By its length before anything, and else piece by piece; and what does fit is not."""
    tokenizer = Tokenizer(sentencepiece())
    tokenizer.backend = counting = Counting(tokenizer.backend)
    tokenizer.room = 100
    with pytest.raises(ContextError, match=f"has {100 * LEAST_LONGEST + 1} characters, .* context is 100 "):
        tokenizer.encode("a" * (100 * LEAST_LONGEST + 1))
    assert counting.all == 0
    tokenizer.room = 4 * PIECE
    with pytest.raises(ContextError, match=f"of the text's {40 * PIECE} characters have .* {4 * PIECE} "):
        tokenizer.encode("o" * 40 * PIECE)
    assert counting.most == PIECE
    assert counting.all <= 10 * PIECE
    text = "the the " * PIECE
    assert len(tokenizer.encode(text)) <= 4 * PIECE < len(text)
    tokenizer.room = None
    assert len(tokenizer.encode("o" * 2 * PIECE)) == 2 * PIECE + 2


def test_no_token_stands_for_more_than_its_own_length() -> None:
    """So that no text is refused that would have fitted."""
    for backend in (byte_level(), sentencepiece()):
        tokenizer = Tokenizer(backend)
        for text in [*TEXTS, "the " * 50, " " * 99, "e\u0301" * 30]:
            assert len(text) <= tokenizer._longest * len(tokenizer.encode(text))


def test_other_threads_go_on_while_a_text_is_cut() -> None:
    """Which takes seconds for one that is long enough."""
    tokenizer, steps, over = Tokenizer(byte_level()), [0], threading.Event()

    def step() -> None:
        while not over.wait(0.0005):
            steps[0] += 1

    thread = threading.Thread(target=step)
    thread.start()
    began = steps[0]
    assert tokenizer.encode("0" * 2**19)
    went_on = steps[0] - began
    over.set()
    thread.join()
    assert went_on > 20, "once or twice is what a lock that is held allows"


def test_a_file_is_not_larger_than_its_model_can_need(tmp_path: Path) -> None:
    raw = json.dumps(described(added_tokens=[])).encode() + b" " * (2**22 + 20 * 512)
    with pytest.raises(TokenizerError, match="more than the model's 20 tokens"):
        check_tokenizer_file(raw, Path("t.json"), rows=20)
    assert check_tokenizer_file(raw, Path("t.json"), rows=10**5) == 1


@pytest.mark.parametrize("name", ["bos_token", "eos_token", "unk_token"])
def test_special_tokens_are_unicode(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(described()))
    for token in ("\ud800", {"content": "\udfff"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({name: token}))
        with pytest.raises(TokenizerError, match=f"{name}.*not valid Unicode"):
            Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "\ud800"}))
    with pytest.raises(ModelError, match="not valid Unicode"):
        Tokenizer.from_directory(tmp_path)


# GGUF.


def llama(pieces: list[str], **more: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *pieces]
    metadata = {"model": "llama", "tokens": tokens, "scores": np.zeros(len(tokens), np.float32), **more}
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def test_counts_are_compared_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "models", None)
    with pytest.raises(TokenizerError, match="203 tokens but its model only 100 rows"):
        read_tokenizer(llama(["a" * n for n in range(1, 201)]), rows=100)


@pytest.mark.parametrize(
    "pieces", [["a" * n for n in range(1, 2001)], [f"{n:04}" * 1024 for n in range(3000)]]
)
def test_pieces_that_can_be_cut_in_too_many_ways(pieces: list[str]) -> None:
    metadata = llama(pieces)
    tracemalloc.start()
    try:
        with pytest.raises(TokenizerError, match="can be cut into"):
            read_tokenizer(metadata, rows=len(pieces) + 3)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_merges_are_bounded_by_tokens() -> None:
    alphabet = ["a", "b", "ab"]
    metadata = {"model": "gpt2", "pre": "gpt-2", "tokens": alphabet, "merges": ["a b"] * 1100}
    with pytest.raises(TokenizerError, match="1100 merges"):
        read_tokenizer({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})


WRONG = [np.arange(3), np.zeros(0), [], ["a"], [["a"]], True, 1.5, -1, "x" * 10, np.array([1.0, np.nan])]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_values_of_any_type_give_a_typed_error(kind: str) -> None:
    """Each key of a sound file with each wrong value, alone."""
    sound = llama(["a", "b", "ab"], model=kind, merges=["a b"], pre="gpt-2", token_type=np.ones(6, np.int32))
    names = [
        "bos_token_id",
        "eos_token_id",
        "unknown_token_id",
        "eot_token_id",
        "add_bos_token",
        "add_space_prefix",
    ]
    refused = 0
    for key in [*sound, *(f"tokenizer.ggml.{name}" for name in names), "tokenizer.chat_template"]:
        for value in WRONG:
            for read in (read_tokenizer, special_tokens):
                try:
                    read({**sound, key: value})
                except EdgeSpecError:
                    refused += 1
    assert refused > 100
