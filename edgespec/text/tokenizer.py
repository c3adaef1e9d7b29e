"""Text to tokens and back, as the model's own files say. Needs no torch."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from edgespec.devices.files import read_bounded
from edgespec.errors import ContextError, OptionError, TokenizerError
from edgespec.text.chat_template import ChatTemplate, Message, read_templates
from edgespec.text.decoding import decoder_steps
from edgespec.text.tokenizer_file import MAX_BYTES, OWN_GROWTH, check_length, check_tokenizer_file

if TYPE_CHECKING:
    from edgespec.runtimes.formats.describe import ModelFiles

MAX_CONFIG_BYTES = 16 * 2**20
# Characters that a token is taken to stand for, where all are shorter: normalizers shrink some.
LEAST_LONGEST = 16
PIECE = 2**15  # characters that are cut into tokens at once to see whether a long text can fit; some MB
WORDS_KEPT = 1000  # with their tokens, by the library; by default 10,000, which is 4 MB of ordinary words
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """One model's tokenizer and chat template.

    bos: the token that begins a text, if the model has one. Whether `encode` puts it there is up to the
        tokenizer's post-processor, as in transformers.
    eos: the tokens that the tokenizer's files say end a reply; generation_config.json may name more.
    special: ids that have no text of their own.
    room: tokens of the context that texts are encoded for; None = there is none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        bos: int | None = None,
        eos: Sequence[int] = (),
        templates: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
        growth: int = OWN_GROWTH,
    ) -> None:
        """`names`: special tokens that chat templates write by name; bos_token and eos_token are added.
        `growth`: see `tokenizer_file`.

        Raises TokenizerError for a decoder that cannot be run token by token, ModelError for a chat template
        beyond all size.
        """
        backend.no_truncation()  # a saved limit would cut prompts silently
        backend.no_padding()
        if resize := getattr(backend.model, "_resize_cache", None):
            resize(WORDS_KEPT)
        self.backend = backend
        self.growth = growth
        self.room: int | None = None
        self.bos = bos
        self.eos = tuple(eos)
        added = backend.get_added_tokens_decoder()
        self.special = frozenset(id for id, token in added.items() if token.special)
        self._highest = max(added, default=-1)
        decoder = backend.decoder
        self.decoder: dict[str, Any] | None = decoder and json.loads(decoder.__getstate__())
        decoder_steps(self.decoder)  # refuse now what Detokenizer would refuse in the middle of a reply
        own = {"bos_token": bos, "eos_token": self.eos[0] if eos else None}
        given = {name: backend.id_to_token(id) or "" for name, id in own.items() if id is not None}
        self.template = ChatTemplate(templates or {}, {**given, **(names or {})})

    @staticmethod
    def from_directory(directory: Path, rows: int | None = None) -> Tokenizer:
        """The tokenizer of a Hugging Face model directory, whose embedding has so many rows.

        Raises TokenizerError when tokenizer.json is missing, malformed, larger than the model's tokenizer can
        be, or made to multiply text.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise _missing(directory)
        _check_size(path, MAX_BYTES)
        raw = read_bounded(path, MAX_BYTES)
        backend, growth = read_backend(raw, path, rows)
        config = _read_json(directory / "tokenizer_config.json")
        others = _read_json(directory / "special_tokens_map.json")
        names = {name: text for name in _NAMES if (text := _text(name, config.get(name, others.get(name))))}
        bos = backend.token_to_id(names.get("bos_token", ""))
        eos = backend.token_to_id(names.get("eos_token", ""))
        templates = read_templates(directory, config)
        return Tokenizer(backend, bos, () if eos is None else (eos,), templates, names, growth)

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return max(self.backend.get_vocab_size(), self._highest + 1)

    def check(self, rows: int) -> None:
        """Raises TokenizerError when the model, with `rows` embedding rows, has no row for some token.

        A model with more rows than the tokenizer has tokens is fine: vocabularies are padded.
        """
        if self.vocab_size > rows:
            raise TokenizerError(
                f"the tokenizer has {self.vocab_size} tokens but the model only {rows} rows for them, so "
                "they do not belong together; use the tokenizer files that came with the model"
            )

    def encode(self, text: str, add_bos: bool = True, continues: bool = False) -> list[int]:
        """Token ids.

        add_bos: the text begins a prompt, so it gets what the post-processor puts around one. False for what
            a chat template has made, which writes its own BOS.
        continues: the text goes on after other tokens, so tokenizers that put a space before a text's first
            word don't.

        Raises OptionError for text that is not valid Unicode, ContextError for one so long that it cannot fit
        the `room`, TokenizerError when the tokenizer fails or might make far too much of it.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise OptionError("the text holds bytes that are not UTF-8; convert it first") from None
        self._check_room(text)
        check_length(len(text), self.growth)
        if continues:
            # As transformers does it: nothing is put between a newline and what follows.
            newline, ids = self._encode("\n", False), self._encode("\n" + text, False)
            return ids[len(newline) :] if ids[: len(newline)] == newline else self._encode(text, False)
        return self._encode(text, add_bos)

    def _encode(self, text: str, add_special: bool) -> list[int]:
        with _failing("the tokenizer cannot encode this text"):
            # `encode` would hold the interpreter's lock and find out where each token began.
            (found,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special)
            ids: list[int] = found.ids
        return ids

    def _check_room(self, text: str) -> None:
        """Raises ContextError for a text that cannot fit, before memory is spent on all of it: some hundred
        bytes a character, and as many a token."""
        room = self.room
        if room is None or len(text) <= room:
            return
        advice = f"but the context is {room} tokens; shorten it, or set a larger context="
        if len(text) > room * self._longest:
            raise ContextError(
                f"the text has {len(text)} characters, and a token {self._longest} at most, {advice}"
            )
        if len(text) <= PIECE:
            return
        tokens = 0
        for start in range(0, len(text), PIECE):
            tokens += len(self._encode(text[start : start + PIECE], False))
            if tokens > 2 * room:  # where a text is cut, there may be some tokens more
                read = min(start + PIECE, len(text))
                raise ContextError(
                    f"the first {read} of the text's {len(text)} characters have {tokens} tokens, {advice}"
                )

    @functools.cached_property
    def _longest(self) -> int:
        """Characters of the longest token (bytes, where tokens are of bytes)."""
        tokens = map(self.backend.id_to_token, range(self.vocab_size))
        return max(LEAST_LONGEST, *(len(token) for token in tokens if token))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token ids; ids that the tokenizer does not know have none.

        tokenizer_config.json's clean_up_tokenization_spaces is not applied: it eats spaces that were said.
        """
        with _failing("the tokenizer cannot decode these tokens"):
            text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    @property
    def has_chat_template(self) -> bool:
        """The model came with a chat template: it was trained to chat."""
        return self.template.is_chat

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text; see ChatTemplate.render."""
        return self.template.render(messages, add_generation_prompt, tools, **variables)

    def apply_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """The prompt's tokens. Raises as `render_chat` and `encode`."""
        text = self.render_chat(messages, add_generation_prompt, tools, **variables)
        return self.encode(text, add_bos=not self.has_chat_template)


def read_backend(raw: bytes, path: Path, rows: int | None) -> tuple[tokenizers.Tokenizer, int]:
    """What a tokenizer.json describes, and its growth; see `Tokenizer.from_directory`."""
    growth = check_tokenizer_file(raw, path, rows)
    with _failing(f"{path} is not a tokenizer that can be used; download it again"):
        return tokenizers.Tokenizer.from_buffer(raw), growth


def load_tokenizer(files: ModelFiles, path: Path) -> Tokenizer:
    """The tokenizer of a model directory, packed or not, or of a GGUF file, checked against the model.

    Raises TokenizerError when it is missing, malformed, or has more tokens than the model.
    """
    rows = files.config.vocab_size
    tokenizer = _from_gguf(path, rows) if path.is_file() else Tokenizer.from_directory(path, rows)
    tokenizer.check(rows)
    return tokenizer


def _from_gguf(path: Path, rows: int) -> Tokenizer:
    from edgespec.runtimes.formats.gguf_file import read_gguf_file
    from edgespec.runtimes.formats.gguf_tokenizer import read_tokenizer

    found = read_tokenizer(read_gguf_file(path).metadata, rows)
    templates = {} if found.chat_template is None else {"default": found.chat_template}
    unknown = None if found.unknown is None else found.tokenizer.id_to_token(found.unknown)
    names = {} if unknown is None else {"unk_token": unknown}
    return Tokenizer(found.tokenizer, found.bos, found.eos, templates, names)


@contextmanager
def _failing(fact: str) -> Iterator[None]:
    """Turn what the library raises, panics included (which are no Exception), into a TokenizerError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise TokenizerError(f"{fact} ({error})") from None


def _missing(directory: Path) -> TokenizerError:
    if (directory / "tokenizer.model").is_file() or (directory / "vocab.json").is_file():
        return TokenizerError(
            f"{directory} has its tokenizer in an old form only; write tokenizer.json beside it with\n"
            f"  python -c \"from transformers import AutoTokenizer as T; p = '{directory}'; "
            'T.from_pretrained(p).save_pretrained(p)"'
        )
    return TokenizerError(
        f"{directory} has no tokenizer.json; copy it, and tokenizer_config.json, from the model's origin"
    )


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; {} when there is no file."""
    if not path.is_file():
        return {}
    _check_size(path, MAX_CONFIG_BYTES)
    try:
        table = json.loads(read_bounded(path, MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(table, dict):
        raise TokenizerError(f"{path} is not a JSON object")
    return table


def _check_size(path: Path, limit: int) -> None:
    if (size := path.stat().st_size) > limit:
        raise TokenizerError(f"{path} has {size} bytes; at most {limit} are read")


def _text(name: str, token: Any) -> str | None:
    """A special token, written as a text or as an object with its content."""
    if isinstance(token, Mapping):
        token = token.get("content")
    if not isinstance(token, str):
        return None
    try:
        token.encode()
    except UnicodeEncodeError:
        raise TokenizerError(f"the tokenizer's {name} {token[:80]!r} is not valid Unicode") from None
    return token
