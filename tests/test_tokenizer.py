"""Tokenizers and detokenizing token by token."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from edgespec.errors import ModelError, OptionError, TokenizerError
from edgespec.text.detokenize import Detokenizer
from edgespec.text.tokenizer import Tokenizer, load_tokenizer

STORIES = Path("/work/shared/models/stories260k")
TEXTS = [
    "Once upon a time, there was a little girl named Lily. She said: 'don't!'",
    "  leading and   inner   spaces \n\n\ttabs\n",
    "Grüße, naïve café — “quotes” … 100% £5",
    "你好，世界！ こんにちは 안녕하세요 שלום 🤖👩‍👩‍👧‍👦🇩🇪",
    "x",
    "",
    " ",
    "\n",
]
SPECIAL = ["<unk>", "<s>", "</s>"]


def byte_level(prefix_space: bool = False) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def sentencepiece(strip: bool = True) -> tokenizers.Tokenizer:
    """Llama 2's kind: a word mark for a space, one put in front, bytes for what is unknown."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghilmnorstuwy.,'!:OLS\n"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("l", "i"), ("▁", "▁"), ("i", "n")]
    vocab = {piece: i for i, piece in enumerate([*pieces, *("".join(merge) for merge in merges)])}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if strip else [])
    )
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return backend


def metaspace(scheme: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def words() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "girl": 2, "named": 3}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


KINDS = {
    "byte level": byte_level,
    "byte level with prefix": lambda: byte_level(True),
    "sentencepiece": sentencepiece,
    "sentencepiece without strip": lambda: sentencepiece(False),
    "metaspace always": lambda: metaspace("always"),
    "metaspace first": lambda: metaspace("first"),
    "metaspace never": lambda: metaspace("never"),
    "words": words,
}


def kind(name: str) -> Tokenizer:
    backend = KINDS[name]()
    if name != "words":
        # one token that is added but not special
        backend.add_tokens([AddedToken("<|tool ▁é|>", special=False, normalized=False)])
    return Tokenizer(backend, bos=1, eos=(2,))


def pieces(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    detokenizer = Detokenizer(tokenizer, stop)
    return [*(detokenizer.add(id) for id in ids), detokenizer.finish()]


@pytest.mark.parametrize("name", KINDS)
def test_pieces_of_text_are_the_text(name):
    tokenizer = kind(name)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)
        if name != "words" and "metaspace" not in name and "prefix" not in name and "without" not in name:
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", KINDS)
def test_pieces_of_any_tokens_are_their_text(name):
    tokenizer, rng = kind(name), random.Random(name)
    spread = [*range(tokenizer.vocab_size), 9999, *[tokenizer.vocab_size - 1] * 20, *[1] * 20]
    odd = [t for t in range(tokenizer.vocab_size) if (tokenizer.backend.id_to_token(t) or "")[:1] in "▁<Ġâ"]
    for _ in range(400):
        ids = rng.choices(rng.choice([spread, odd]), k=rng.randint(0, 30))
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids), ids


@pytest.mark.parametrize("name", ["byte level", "sentencepiece"])
def test_no_piece_holds_part_of_a_character(name):
    tokenizer = kind(name)
    text = "a🦊ñ犬猫 🇫🇷!"
    ids = tokenizer.encode(text, add_bos=False)
    assert len(ids) > len(text)  # so characters are spread over tokens
    found = pieces(tokenizer, ids)
    assert not any("\ufffd" in piece for piece in found)
    assert "".join(found) == text
    cut = pieces(tokenizer, ids[:2])  # "a" and the first byte of the fox
    assert "\ufffd" not in "".join(cut[:-1])
    assert cut[-1].endswith("\ufffd")


def test_valid_text_is_not_held_back():
    tokenizer = kind("byte level")
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.add(id) for id in tokenizer.encode("Grüße!")) == "Grüße!"
    assert detokenizer.finish() == ""


def test_a_reply_that_continues_keeps_its_space():
    for name in ("sentencepiece", "metaspace always"):
        tokenizer = kind(name)
        ids = tokenizer.encode("the girl", add_bos=False)
        begins, continues = Detokenizer(tokenizer), Detokenizer(tokenizer, continues=True)
        assert "".join([*map(begins.add, ids), begins.finish()]) == "the girl"
        assert "".join([*map(continues.add, ids), continues.finish()]) == " the girl"


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs the shared stories260k model")
def test_stories260k_equals_transformers():
    transformers = pytest.importorskip("transformers")
    oracle = transformers.AutoTokenizer.from_pretrained(STORIES)
    tokenizer = Tokenizer.from_directory(STORIES)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.vocab_size) == (1, (2,), 512)
    assert not tokenizer.has_chat_template
    rng = random.Random(0)
    for text in TEXTS:
        assert tokenizer.encode(text) == oracle(text).input_ids
        ids = tokenizer.encode(text, add_bos=False)
        assert ids == oracle(text, add_special_tokens=False).input_ids
        assert "".join(pieces(tokenizer, ids)) == oracle.decode(ids, skip_special_tokens=True)
    for _ in range(200):
        ids = rng.choices(range(600), k=20)
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


# --- stop strings ------------------------------------------------------------------------------------------


def reference(text: str, stops: tuple[str, ...]) -> str:
    """The text up to the stop that is complete first; the longest of those that end together."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@pytest.mark.parametrize(
    "stops", [("ab",), ("aab", "b"), ("abab", "ba", "bb"), ("aaa",), ("abcabd", "cab"), ("c", "bc", "abc")]
)
def test_stop_strings_do_not_depend_on_token_boundaries(stops):
    tokenizer, rng = kind("byte level"), random.Random(str(stops))
    letters = {letter: tokenizer.backend.token_to_id(letter) for letter in "abcd"}
    for _ in range(300):
        text = "".join(rng.choices("aaabbcd", k=rng.randint(0, 14)))
        one = pieces(tokenizer, [letters[letter] for letter in text], stops)
        assert "".join(one) == reference(text, stops)
        some = Detokenizer(tokenizer, stops)
        some._token = lambda id, text=text: text  # the whole text as one token
        assert some.add(letters["a"]) + some.finish() == reference(text, stops)
        assert some.stopped == (reference(text, stops) != text)


def test_only_a_possible_stop_is_held_back():
    tokenizer = kind("byte level")
    detokenizer = Detokenizer(tokenizer, stop=("\nUser:", "xyz"))
    shown, ids = "", tokenizer.encode("Hello\nUs there")
    for count, id in enumerate(ids, start=1):
        shown += detokenizer.add(id)
        held = tokenizer.decode(ids[:count])[len(shown) :]
        assert "\nUser:".startswith(held)
        assert not detokenizer.stopped
    assert shown == "Hello\nUs there"
    rest = [detokenizer.add(id) for id in tokenizer.encode("!\nUser")]
    assert "".join(rest) == "!"  # "\nUser" may be the stop string
    assert detokenizer.add(tokenizer.encode(":")[0]) == ""
    assert detokenizer.stopped
    assert detokenizer.add(tokenizer.encode("x")[0]) == ""
    assert detokenizer.finish() == ""


def test_what_was_held_back_comes_at_the_end():
    tokenizer = kind("byte level")
    detokenizer = Detokenizer(tokenizer, stop=("\nUser:",))
    shown = "".join(detokenizer.add(id) for id in tokenizer.encode("So\nUser"))
    assert shown == "So"
    assert detokenizer.finish() == "\nUser"


# --- loading -----------------------------------------------------------------------------------------------


def write(directory: Path, backend: tokenizers.Tokenizer, config: dict | None = None) -> Path:
    backend.save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@dataclass
class Config:
    vocab_size: int


@dataclass
class Files:
    """As load_tokenizer uses it."""

    config: Config


def test_special_tokens_come_from_the_config_files(tmp_path):
    config = {
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": "</s>",
        "chat_template": "{{ bos_token }}x",
    }
    tokenizer = Tokenizer.from_directory(write(tmp_path, sentencepiece(), config))
    assert (tokenizer.bos, tokenizer.eos) == (1, (2,))
    assert tokenizer.has_chat_template
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<s>x"
    assert tokenizer.apply_chat([{"role": "user", "content": "hi"}]).count(1) == 1  # no second BOS
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.from_directory(tmp_path).eos == ()
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert Tokenizer.from_directory(tmp_path).eos == (2,)


def test_bos_is_the_post_processors_choice(tmp_path):
    transformers = pytest.importorskip("transformers")
    for processor in (True, False):
        for setting in (True, False, None):
            backend = sentencepiece()
            if not processor:
                backend = byte_level()
            config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
            write(tmp_path, backend, config if setting is None else {**config, "add_bos_token": setting})
            ours = Tokenizer.from_directory(tmp_path)
            assert (
                ours.encode("the girl")
                == transformers.AutoTokenizer.from_pretrained(tmp_path)("the girl").input_ids
            )
            assert (ours.encode("a")[0] == 1) == processor
            assert ours.encode("a", add_bos=False)[0] != 1


def test_a_model_without_a_template_gets_bos_from_the_tokenizer():
    tokenizer = Tokenizer(sentencepiece(), bos=1, eos=(2,))
    ids = tokenizer.apply_chat([{"role": "user", "content": "the"}])
    assert ids[0] == 1
    assert tokenizer.decode(ids) == "User: the\nAssistant:"


def test_continuing_text_gets_no_space_in_front():
    tokenizer = kind("sentencepiece")
    whole = tokenizer.encode("the girl\nin the", add_bos=False)
    parts = tokenizer.encode("the girl", add_bos=False) + tokenizer.encode("\nin the", continues=True)
    assert parts == whole
    assert tokenizer.decode(parts) == "the girl\nin the"
    byte = kind("byte level")
    assert byte.encode(" girl", continues=True) == byte.encode(" girl", add_bos=False)


def test_saved_truncation_and_padding_do_not_apply(tmp_path):
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    tokenizer = Tokenizer.from_directory(write(tmp_path, backend))
    ids = tokenizer.encode("Once upon a time, there was a little girl")
    assert tokenizer.decode(ids) == "Once upon a time, there was a little girl"


def test_loading_checks_the_model(tmp_path):
    write(tmp_path, byte_level())
    size = Tokenizer.from_directory(tmp_path).vocab_size
    assert load_tokenizer(Files(Config(size)), tmp_path).vocab_size == size
    assert load_tokenizer(Files(Config(size + 64)), tmp_path).vocab_size == size  # a padded vocabulary
    with pytest.raises(TokenizerError, match=f"{size} tokens but the model only {size - 1} rows"):
        load_tokenizer(Files(Config(size - 1)), tmp_path)


def test_missing_files_say_what_to_do(tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json; copy it"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(TokenizerError, match="save_pretrained"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": "BPE"}}', b"[" * 100_000]
)
def test_malformed_tokenizer_files(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match="not a tokenizer"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_malformed_config_files(tmp_path, content):
    write(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        Tokenizer.from_directory(tmp_path)


def test_huge_files_are_not_read(tmp_path):
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(2**33)
    with pytest.raises(TokenizerError, match="8589934592 bytes"):
        Tokenizer.from_directory(tmp_path)


def test_unsupported_decoders_are_refused_at_once():
    for decoder in (decoders.CTC(), decoders.Sequence([decoders.Strip(" ", 0, 2)])):
        backend = byte_level()
        backend.decoder = decoder
        with pytest.raises(TokenizerError, match="decoder"):
            Tokenizer(backend)


def test_texts_that_cannot_be_encoded():
    tokenizer = kind("byte level")
    with pytest.raises(OptionError, match="UTF-8"):
        tokenizer.encode("broken \udcff")
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, "<unk>"))  # names an unknown token it lacks
    with pytest.raises(TokenizerError, match="cannot encode"):
        Tokenizer(backend).encode("zebra")
    table = json.loads(sentencepiece().to_str())
    table["post_processor"]["special_tokens"] = {}  # makes the library panic
    with pytest.raises(TokenizerError, match="cannot encode"):
        Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(table))).encode("zebra")


def test_a_template_beyond_all_size():
    with pytest.raises(ModelError, match="characters"):
        Tokenizer(byte_level(), templates={"default": "x" * 10**6})


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs the shared stories260k model")
def test_gguf_tokenizer_of_a_file(tmp_path):
    gguf = pytest.importorskip("gguf")
    vocabulary = json.loads((STORIES / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    kinds = [2, 3, 3, *(6 if t.startswith("<0x") else 1 for t in tokens[3:])]
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ bos_token }}[{{ messages[0].content }}]")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = load_tokenizer(Files(Config(512)), tmp_path / "m.gguf")
    assert tokenizer.bos == 1
    assert tokenizer.eos[0] == 2
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<s>[hi]"
    text = "Once upon a time"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    with pytest.raises(TokenizerError, match="512 tokens"):
        load_tokenizer(Files(Config(100)), tmp_path / "m.gguf")
