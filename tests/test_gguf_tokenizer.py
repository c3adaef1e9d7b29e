"""Tokenizers rebuilt from GGUF metadata give the ids of the tokenizers that they were made from."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from edgespec.errors import ModelError, TokenizerError, UnsupportedModelError
from edgespec.runtimes.formats.gguf_file import read_gguf_file
from edgespec.runtimes.formats.gguf_tokenizer import (
    TOKEN_LIMIT,
    GGUFTokenizer,
    merges_of_scores,
    read_tokenizer,
)
from tests.models import add_value

SHARED = Path("/work/shared")
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and it's 12345 times they'll've DON'T been: 3.14159!",
    "def f(x):\n    return x ** 2  # spaces\n\n\n\tif x >= 10_000: print('tab')\r\n",
    "Ünïcödé naïve café ﬁ Å Ångström résumé — “quotes” … ¿Qué? ¡Sí!",
    "Русский текст, ещё немного; Ελληνικά κείμενα; עברית; العربية 123",
    "日本語のテキスト、中文文本。한국어 텍스트 ภาษาไทย हिन्दी १२३",
    "😀👩‍👩‍👧‍👦🇩🇪 emoji ½ ² ٣ Ⅷ and controls \x00\x07\u200b\ufeff\u00a0 end",
    "HTTPServer camelCase XMLHttpRequest McDonald's ABCdefGHI snake_case /path/to/file.txt\n/\n",
]
TEXTS = [
    *CORPUS,
    "",
    " ",
    "   ",
    "\n",
    " \n \n  x",
    "a",
    " a  b   c    ",
    "e\u0301 o\u0308 \u1e69 \uac01 \u1100\u1161",  # decomposed, for NFC
    "I'LL we'Re 'S 's",
    "1 12 123 1234 12345 1234567",
    "<|im_start|>user\nhi <tool>x</tool><|im_end|>\n",
    "<|im_start|> <|im_end|><tool>",
    "\ud7ff\U0010ffff",
]


def random_texts(seed: int, n: int = 150) -> list[str]:
    """Pieces of the corpus and random characters, shuffled together."""
    rng = np.random.default_rng(seed)
    characters = "".join(CORPUS)
    texts = []
    for _ in range(n):
        picks = [characters[i : i + rng.integers(1, 6)] for i in rng.integers(0, len(characters), 8)]
        wild = [chr(c) for c in rng.integers(0, 0x3000, 4)]
        mixed = picks + wild + [" ", "\n", "  "]
        texts.append("".join(mixed[i] for i in rng.permutation(len(mixed))))
    return texts


def from_file(path: Path, metadata: dict[str, Any]) -> GGUFTokenizer:
    """Through a real file: written by the gguf package, read by ours."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add_value(writer, "tokenizer." + key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return read_tokenizer(read_gguf_file(path).metadata)


# --- byte-level BPE --------------------------------------------------------------------------------------

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_by(pattern: str) -> Any:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), plain])


def gpt2_bytes() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


# name: (pre-tokenizer as the original tokenizer.json has it, normalizer, ignore_merges, BOS by default)
ORIGINALS: dict[str, tuple[Any, Any, bool, bool]] = {
    "gpt-2": (gpt2_bytes(), None, False, False),
    "llama-bpe": (split_by(LLAMA3), None, True, True),
    "smaug-bpe": (split_by(LLAMA3), None, False, False),
    "qwen2": (split_by(QWEN2), normalizers.NFC(), False, False),
    "deepseek-r1-qwen": (split_by(QWEN2), None, False, False),
    "tekken": (split_by(TEKKEN), None, True, True),
    "smollm": (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_bytes()]),
        None,
        False,
        False,
    ),
}


def train_original(name: str) -> tuple[Tokenizer, dict[str, Any]]:
    """A small tokenizer as Hugging Face has it, and the metadata a converter would write for it."""
    pre, normalizer, ignore_merges, _ = ORIGINALS[name]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre
    if normalizer is not None:
        trained.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(CORPUS * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    # Without its last merges some tokens can only be had whole, which ignore_merges allows.
    vocab, merges = model["vocab"], [tuple(m) for m in model["merges"]][:-30]
    size = len(vocab)
    original = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    original.pre_tokenizer = pre
    if normalizer is not None:
        original.normalizer = normalizer
    original.decoder = decoders.ByteLevel()
    control = ["<|im_start|>", "<|im_end|>"]
    original.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    original.add_tokens([AddedToken("<tool>", normalized=False)])
    ids = original.get_vocab()
    tokens = sorted(ids, key=lambda t: ids[t])
    metadata = {
        "ggml.model": "gpt2",
        "ggml.pre": name,
        "ggml.tokens": tokens,
        "ggml.token_type": [1] * size + [3, 3, 4],
        "ggml.merges": [" ".join(m) for m in merges],
        "ggml.bos_token_id": size,
        "ggml.eos_token_id": size + 1,
        "ggml.add_bos_token": False,
    }
    return original, metadata


@pytest.mark.parametrize("name", ORIGINALS)
def test_byte_level_ids_equal_the_originals(tmp_path: Path, name: str) -> None:
    original, metadata = train_original(name)
    ours = from_file(tmp_path / "t.gguf", metadata)
    assert ours.tokenizer.get_vocab() == original.get_vocab()
    for text in TEXTS + random_texts(seed=1):
        ids = original.encode(text).ids
        assert ours.tokenizer.encode(text).ids == ids, text
        for skip in (False, True):
            theirs = original.decode(ids, skip_special_tokens=skip)
            assert ours.tokenizer.decode(ids, skip_special_tokens=skip) == theirs


def test_the_pre_tokenizers_differ() -> None:
    """On this corpus no two of them give the same ids, so that the test above can tell them apart."""
    _, metadata = train_original("gpt-2")
    seen = {}
    for name in ORIGINALS:
        ours = read_tokenizer(
            {f"tokenizer.{k}": _stored(v) for k, v in {**metadata, "ggml.pre": name}.items()}
        )
        ids = [ours.tokenizer.encode(text).ids for text in TEXTS]
        same = [other for other, theirs in seen.items() if theirs == ids]
        assert not same, (name, same)
        seen[name] = ids


def _stored(value: Any) -> Any:
    """As our parser gives it."""
    return np.array(value) if isinstance(value, list) and not isinstance(value[0], str) else value


@pytest.mark.parametrize("name", ["llama-bpe", "gpt-2"])
def test_bos_and_eos_by_default_and_by_flag(tmp_path: Path, name: str) -> None:
    _, metadata = train_original(name)
    bos, eos = metadata["ggml.bos_token_id"], metadata["ggml.eos_token_id"]
    del metadata["ggml.add_bos_token"]
    ours = from_file(tmp_path / "a.gguf", metadata)
    assert ours.add_bos == (name == "llama-bpe")
    assert (ours.tokenizer.encode("fox").ids[0] == bos) == ours.add_bos
    both = from_file(tmp_path / "b.gguf", metadata | {"ggml.add_bos_token": True, "ggml.add_eos_token": True})
    plain = both.tokenizer.encode("fox", add_special_tokens=False).ids
    assert both.tokenizer.encode("fox").ids == [bos, *plain, eos]
    del metadata["ggml.bos_token_id"]
    nothing = from_file(tmp_path / "c.gguf", metadata | {"ggml.add_bos_token": True})
    assert nothing.bos is None
    assert not nothing.add_bos  # there is nothing to add


def test_no_pre_tokenizer_warns_and_cuts_digits_in_threes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, metadata = train_original("gpt-2")
    del metadata["ggml.pre"]
    with caplog.at_level(logging.WARNING):
        ours = from_file(tmp_path / "t.gguf", metadata)
    assert "does not name its pre-tokenizer" in caplog.text
    pre = ours.tokenizer.pre_tokenizer
    assert pre is not None
    cuts = [piece for piece, _ in pre.pre_tokenize_str("word's 12345(x)")]
    assert cuts == ["word", "'", "s", "Ġ", "123", "45", "(", "x", ")"]


def test_tokens_that_end_a_reply(tmp_path: Path) -> None:
    _, metadata = train_original("qwen2")
    eos = metadata["ggml.eos_token_id"]
    assert from_file(tmp_path / "a.gguf", metadata).eos == (eos,)
    metadata["ggml.eos_token_id"] = 5
    assert from_file(tmp_path / "b.gguf", metadata).eos == (5, eos)  # <|im_end|> ends replies wherever it is
    metadata["ggml.token_type"][eos] = 1
    assert from_file(tmp_path / "c.gguf", metadata).eos == (5,)  # unless it is plain text


def test_files_make_the_same_tokenizer(tmp_path: Path) -> None:
    original, metadata = train_original("qwen2")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    files = from_file(tmp_path / "t.gguf", metadata | {"chat_template": template}).files()
    again = Tokenizer.from_str(files["tokenizer.json"].decode())
    for text in TEXTS:
        assert again.encode(text).ids == original.encode(text).ids
    settings = json.loads(files["tokenizer_config.json"])
    assert settings["chat_template"] == template
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert settings["add_bos_token"] is False


# --- SentencePiece ---------------------------------------------------------------------------------------


def llama_metadata(pieces: list[tuple[str, float, int]]) -> dict[str, Any]:
    return {
        "ggml.model": "llama",
        "ggml.tokens": [p for p, _, _ in pieces],
        "ggml.scores": [s for _, s, _ in pieces],
        "ggml.token_type": [t for _, _, t in pieces],
    }


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    spm = pytest.importorskip("sentencepiece", reason="the sentencepiece package is the oracle here")
    root = tmp_path_factory.mktemp("spm")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 4),
        model_prefix=str(root / "m"),
        vocab_size=700,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.98,
        user_defined_symbols=["<tool>"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        minloglevel=3,
    )
    return spm.SentencePieceProcessor(model_file=str(root / "m.model"))


def test_ids_equal_sentencepieces(tmp_path: Path, sentencepiece_model: Any) -> None:
    model = sentencepiece_model
    pieces = []
    for i in range(len(model)):
        kind = 2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1
        kind = 4 if model.id_to_piece(i) == "<tool>" else kind
        pieces.append((model.id_to_piece(i), model.get_score(i), kind))
    assert any(kind == 6 for _, _, kind in pieces)
    ours = from_file(tmp_path / "t.gguf", llama_metadata(pieces))
    assert (ours.bos, ours.eos, ours.unknown, ours.add_bos) == (1, (2,), 0, True)
    for text in [*TEXTS, *random_texts(seed=2)]:
        if "<tool>" in text or "\x00" in text:  # text is cut there first; sentencepiece stops at NUL
            continue
        ids = model.encode(text)
        assert ours.tokenizer.encode(text).ids == [1, *ids], text
        assert ours.tokenizer.decode(ids) == text
    tool = model.piece_to_id("<tool>")
    assert ours.tokenizer.encode("a<tool>b").ids == [1, *model.encode("a"), tool, *model.encode("b")]


def test_no_space_prefix(tmp_path: Path, sentencepiece_model: Any) -> None:
    model = sentencepiece_model
    pieces = [
        (model.id_to_piece(i), model.get_score(i), 6 if model.is_byte(i) else 3 if i < 3 else 1)
        for i in range(len(model))
    ]
    metadata = llama_metadata(pieces)
    with_prefix = from_file(tmp_path / "a.gguf", metadata).tokenizer
    without = from_file(tmp_path / "b.gguf", metadata | {"ggml.add_space_prefix": False}).tokenizer
    assert with_prefix.encode("the fox").ids == without.encode(" the fox").ids
    ids = without.encode("the fox").ids
    assert ids != with_prefix.encode("the fox").ids
    assert without.decode(ids) == "the fox"
    assert without.decode(without.encode(" the").ids) == " the"


def test_merges_equal_transformers() -> None:
    from transformers.tokenization_utils_base import generate_merges

    rng = np.random.default_rng(0)
    pieces: dict[str, float] = {}
    for length in (1, 2, 3, 4, 5):
        for _ in range(60):
            piece = "".join(rng.choice(list("abcd"), length))
            pieces.setdefault(piece, float(-rng.integers(0, 40)))  # ties, too
    ids = {piece: i for i, piece in enumerate(pieces)}
    assert merges_of_scores(pieces, ids) == generate_merges(ids, pieces)


def test_stories260k(tmp_path: Path) -> None:
    source = SHARED / "models/stories260k/tokenizer.json"
    if not source.is_file():
        pytest.skip("needs /work/shared")
    original = Tokenizer.from_file(str(source))
    vocab = original.get_vocab()
    tokens = sorted(vocab, key=lambda t: vocab[t])
    pieces = [(t, 0.0 if i < 259 else 259.0 - i, 6 if i < 259 else 1) for i, t in enumerate(tokens)]
    pieces[:3] = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    ours = from_file(tmp_path / "t.gguf", llama_metadata(pieces)).tokenizer
    lines = (SHARED / "data/text/alice.txt").read_text(encoding="utf-8").splitlines()
    for text in [*lines[::3], *TEXTS]:
        encoded = original.encode(text)
        assert ours.encode(text).ids == encoded.ids, text
        assert ours.decode(encoded.ids) == original.decode(encoded.ids)


# --- bad input -------------------------------------------------------------------------------------------

SMALL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"],
}
SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
    "tokenizer.ggml.scores": np.zeros(4, np.float32),
}
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], type[ModelError], str]] = {
    "no model": (SMALL, {"model": None}, UnsupportedModelError, "model None"),
    "unigram": (
        SMALL,
        {"model": "t5"},
        UnsupportedModelError,
        "'t5' is not supported; known are gpt2, llama",
    ),
    "unknown pre": (SMALL, {"pre": "gpt-5"}, UnsupportedModelError, "'gpt-5' is not supported; known are"),
    "no tokens": (SMALL, {"tokens": None}, TokenizerError, "no tokenizer.ggml.tokens"),
    "tokens as numbers": (SMALL, {"tokens": np.arange(3)}, TokenizerError, "no tokenizer.ggml.tokens"),
    "token twice": (SMALL, {"tokens": ["a", "b", "a", "ab"]}, TokenizerError, "lists 1 tokens twice"),
    "long token": (SMALL, {"tokens": ["a" * (TOKEN_LIMIT + 1)]}, TokenizerError, "4097 characters"),
    "types": (SMALL, {"token_type": np.ones(2, np.int32)}, TokenizerError, "does not type its 3 tokens"),
    "no merges": (SMALL, {"merges": None}, TokenizerError, "no tokenizer.ggml.merges"),
    "foreign merge": (SMALL, {"merges": ["a c"]}, TokenizerError, "'a c' is not of tokens"),
    "half a merge": (SMALL, {"merges": ["ab"]}, TokenizerError, "'ab' is not of tokens"),
    "bos outside": (SMALL, {"bos_token_id": 3}, TokenizerError, "bos_token_id is 3, beside 3 tokens"),
    "eos as text": (SMALL, {"eos_token_id": "</s>"}, TokenizerError, "eos_token_id is </s>"),
    "flag as number": (SMALL, {"add_bos_token": 1}, TokenizerError, "expected true or false"),
    "scores": (SPM, {"scores": np.zeros(3, np.float32)}, TokenizerError, "does not score its 4 tokens"),
    "no scores": (SPM, {"scores": None}, TokenizerError, "does not score"),
    "endless score": (SPM, {"scores": np.full(4, np.inf, np.float32)}, TokenizerError, "not finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tokenizers_are_named(case: str) -> None:
    base, changes, error, message = BAD[case]
    metadata = base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    read_tokenizer(base)
    with pytest.raises(error, match=message):
        read_tokenizer({key: value for key, value in metadata.items() if value is not None})


def test_empty_tokens_get_a_name() -> None:
    ours = read_tokenizer(SMALL | {"tokenizer.ggml.tokens": ["a", "b", "ab", ""]})
    assert ours.tokenizer.id_to_token(3) == "[EMPTY_3]"


def test_template_must_be_text() -> None:
    with pytest.raises(TokenizerError, match="chat_template is not text"):
        read_tokenizer(SMALL | {"tokenizer.chat_template": 3})
