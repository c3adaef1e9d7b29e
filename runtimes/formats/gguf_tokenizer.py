"""The tokenizer inside a GGUF file, rebuilt with the `tokenizers` library. Needs no torch.

Two kinds: "gpt2" is byte-level BPE with its merges in the file and its pre-tokenizer named; "llama" is
SentencePiece BPE, where merges follow from the pieces' scores. Where llama.cpp and the Hugging Face original
are known to differ (Unicode normalisation), the original is followed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from edgespec.errors import TokenizerError, UnsupportedModelError
from edgespec.runtimes.formats.gguf_file import Value

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # llama.cpp's token types
TOKEN_LIMIT = 4096  # characters of one token
CUT_LIMIT = (
    2**26
)  # sum of the squares of the pieces' characters: the work of rebuilding merges; Gemma has 2**24
MERGES_PER_TOKEN = 8  # Llama 3 has 2.2
SPACE = "▁"

# Tokens that end a reply wherever they occur as control tokens: files often name only one of several.
_ENDS = frozenset({"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "</s>"})


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before merging: each pattern splits what the ones before it left whole."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a cut that is a token as it stands is not built from merges
    add_bos: bool = False  # unless the file says otherwise
    nfc: bool = False  # the original composes characters first


def _gpt4(digits: str) -> str:
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = PreTokenizer((_gpt4(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_gpt4(r"\p{N}"),), nfc=True)

# By tokenizer.ggml.pre; the patterns are those of the original tokenizer.json files.
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    # llama.cpp's stand-in for files that do not say: punctuation, words, then digits in threes
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "smaug-bpe": PreTokenizer((_gpt4(r"\p{N}{1,3}"),)),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": PreTokenizer(_QWEN2.patterns),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),  # Mistral Nemo
}


@dataclass(frozen=True)
class GGUFTokenizer:
    """A tokenizer and what else a GGUF file says of text.

    `tokenizer.encode(text)` puts the BOS token first when `add_bos`, as the Hugging Face original does;
    `add_special_tokens=False` leaves it out.
    """

    tokenizer: Tokenizer
    bos: int | None
    eos: tuple[int, ...]  # every token that ends a reply
    unknown: int | None
    add_bos: bool
    chat_template: str | None

    def files(self) -> dict[str, bytes]:
        """tokenizer.json and tokenizer_config.json, as Hugging Face directories have them."""
        settings: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self.add_bos,
        }
        eos = self.eos[0] if self.eos else None
        for key, token in (("bos_token", self.bos), ("eos_token", eos), ("unk_token", self.unknown)):
            if token is not None:
                settings[key] = self.tokenizer.id_to_token(token)
        if self.chat_template is not None:
            settings["chat_template"] = self.chat_template
        return {
            "tokenizer.json": self.tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=1).encode(),
        }


def read_tokenizer(metadata: Mapping[str, Value], rows: int | None = None) -> GGUFTokenizer:
    """The tokenizer that a GGUF file's metadata describes, for a model whose embedding has so many rows.

    Raises TokenizerError when a part of it is missing or absurd, or it has more tokens than the model,
    UnsupportedModelError for an unknown kind or pre-tokenizer.
    """
    model = _model(metadata)
    tokens, types = read_tokens(metadata)
    if rows is not None and len(tokens) > rows:
        raise TokenizerError(
            f"the GGUF file's tokenizer has {len(tokens)} tokens but its model only {rows} rows for them, so "
            "the file is not sound; download it again, or convert it again"
        )
    if model == "gpt2":
        tokenizer, add_bos = _byte_level(metadata, tokens)
    elif model == "llama":
        tokenizer, add_bos = _sentencepiece(metadata, tokens, types)
    else:
        raise UnsupportedModelError(
            f"the GGUF tokenizer model {model!r} is not supported; known are gpt2, llama"
        )
    _add_tokens(tokenizer, tokens, types)
    bos, eos = special_tokens(metadata)
    add_bos = _flag(metadata, "add_bos_token", add_bos) and bos is not None
    add_eos = _flag(metadata, "add_eos_token", False) and bool(eos)
    _post_process(tokenizer, tokens, bos if add_bos else None, eos[0] if add_eos else None, model == "gpt2")
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, (str, type(None))):
        raise TokenizerError("the GGUF file's tokenizer.chat_template is not text")
    unknown = _id(metadata, "unknown_token_id", len(tokens), 0 if model == "llama" else None)
    return GGUFTokenizer(tokenizer, bos, eos, unknown, add_bos, template)


def special_tokens(metadata: Mapping[str, Value]) -> tuple[int | None, tuple[int, ...]]:
    """The BOS token, and every token that ends a reply, the file's own EOS first."""
    tokens, types = read_tokens(metadata)
    sentencepiece = _model(metadata) == "llama"
    bos = _id(metadata, "bos_token_id", len(tokens), 1 if sentencepiece else None)
    named = [_id(metadata, "eos_token_id", len(tokens), 2 if sentencepiece else None)]
    named += [_id(metadata, key, len(tokens), None) for key in ("eot_token_id", "eom_token_id")]
    control = (i for i in np.flatnonzero(types == CONTROL) if tokens[i] in _ENDS)
    ends = dict.fromkeys(int(i) for i in (*named, *control) if i is not None)
    return bos, tuple(ends)


def _model(metadata: Mapping[str, Value]) -> str | None:
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, (str, type(None))):
        raise TokenizerError("the GGUF file's tokenizer.ggml.model is not text")
    return model


def read_tokens(metadata: Mapping[str, Value]) -> tuple[list[str], NDArray[np.int64]]:
    """Every token's text and type [n]. Raises TokenizerError."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens):
        raise TokenizerError(
            "the GGUF file has no tokenizer.ggml.tokens; convert it again with its tokenizer"
        )
    if (longest := max(map(len, tokens))) > TOKEN_LIMIT:
        raise TokenizerError(
            f"the GGUF file has a token of {longest} characters; at most {TOKEN_LIMIT} are accepted"
        )
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        raise TokenizerError(f"the GGUF file lists {len(tokens) - len(set(tokens))} tokens twice")
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return tokens, np.ones(len(tokens), np.int64)
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu" or len(types) != len(tokens):
        raise TokenizerError(
            f"the GGUF file's tokenizer.ggml.token_type does not type its {len(tokens)} tokens"
        )
    return tokens, types.astype(np.int64)


def _byte_level(metadata: Mapping[str, Value], tokens: list[str]) -> tuple[Tokenizer, bool]:
    name = metadata.get("tokenizer.ggml.pre")
    if name is None:
        logging.getLogger(__name__).warning(
            "the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre), so llama.cpp's default is "
            "used, which may cut text otherwise than the model learnt it; convert the model again"
        )
        name = "default"
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"the GGUF pre-tokenizer {name!r} is not supported; known are {', '.join(PRE_TOKENIZERS)}"
        )
    pre = PRE_TOKENIZERS[name]
    ids = {token: i for i, token in enumerate(tokens)}
    merges = _stored_merges(metadata, ids)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.add_bos


def _stored_merges(metadata: Mapping[str, Value], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    lines = metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, list):
        raise TokenizerError(
            "the GGUF file has no tokenizer.ggml.merges; convert it again with its tokenizer"
        )
    if len(lines) > (most := MERGES_PER_TOKEN * len(ids) + 1000):
        raise TokenizerError(f"the GGUF file has {len(lines)} merges; at most {most} are accepted")
    merges = []
    for line in lines:
        left, _, right = line.partition(" ") if isinstance(line, str) else ("", "", "")
        if left not in ids or right not in ids or left + right not in ids:
            raise TokenizerError(f"the GGUF file's merge {str(line)[:100]!r} is not of tokens that it has")
        merges.append((left, right))
    return merges


def _sentencepiece(
    metadata: Mapping[str, Value], tokens: list[str], types: NDArray[np.int64]
) -> tuple[Tokenizer, bool]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or scores.dtype.kind not in "fi" or len(scores) != len(tokens):
        raise TokenizerError(f"the GGUF file's tokenizer.ggml.scores does not score its {len(tokens)} tokens")
    if not np.isfinite(scores).all():
        raise TokenizerError("the GGUF file's tokenizer.ggml.scores has a score that is not finite")
    ids = {token: i for i, token in enumerate(tokens)}
    pieces = {tokens[i]: float(scores[i]) for i in np.flatnonzero(~np.isin(types, (UNKNOWN, CONTROL, BYTE)))}
    if (cuts := sum(len(piece) ** 2 for piece in pieces)) > CUT_LIMIT:
        raise TokenizerError(
            f"the GGUF file's pieces, {len(pieces)} of up to {max(map(len, pieces))} characters, can be cut "
            f"into {cuts} characters; at most {CUT_LIMIT} are accepted"
        )
    unknown = _id(metadata, "unknown_token_id", len(tokens), 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=merges_of_scores(pieces, ids),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = _flag(metadata, "add_space_prefix", True)
    marks = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer, True


def merges_of_scores(pieces: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges that build each piece from two others, best score first, then longest left part.

    SentencePiece joins the pair whose piece scores best; the order among equal scores is that of
    transformers' conversion, so that ids agree with the Hugging Face original's.
    """
    own = {piece: piece for piece in pieces}  # a cut that is kept is no text of its own
    merges = []
    for piece, score in pieces.items():
        cuts = ((own.get(piece[:at]), own.get(piece[at:])) for at in range(1, len(piece)))
        known = [(left, right) for left, right in cuts if left is not None and right is not None]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(score, *pair) for pair in known]
    merges.sort(key=lambda m: (m[0], len(m[1]), len(m[2])), reverse=True)
    return [(left, right) for _, left, right in merges]


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], types: Iterable[int]) -> None:
    """Control tokens, and those that the user defined, are found in text before it is cut."""
    added = []
    for token, kind in zip(tokens, types, strict=True):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            added.append(AddedToken(token, special=kind != USER_DEFINED, normalized=False))
    tokenizer.add_tokens(added)


def _post_process(
    tokenizer: Tokenizer, tokens: list[str], bos: int | None, eos: int | None, byte_level: bool
) -> None:
    """Put BOS before a text and EOS behind it."""
    steps: list[processors.PostProcessor] = [processors.ByteLevel(trim_offsets=False)] if byte_level else []
    if bos is not None or eos is not None:
        before = [] if bos is None else [tokens[bos]]
        after = [] if eos is None else [tokens[eos]]
        used = [(tokens[i], i) for i in (bos, eos) if i is not None]
        steps.append(processors.TemplateProcessing([*before, "$A", *after], None, used))
    if steps:
        tokenizer.post_processor = processors.Sequence(steps) if len(steps) > 1 else steps[0]


def _flag(metadata: Mapping[str, Value], key: str, default: bool) -> bool:
    value = metadata.get("tokenizer.ggml." + key, default)
    if not isinstance(value, bool):
        raise TokenizerError(
            f"the GGUF file's tokenizer.ggml.{key} is {str(value)[:100]}; expected true or false"
        )
    return value


def _id(metadata: Mapping[str, Value], key: str, tokens: int, default: int | None) -> int | None:
    value = metadata.get("tokenizer.ggml." + key)
    if value is None:
        return default if default is not None and default < tokens else None
    if type(value) is not int or not 0 <= value < tokens:
        raise TokenizerError(
            f"the GGUF file's tokenizer.ggml.{key} is {str(value)[:100]}, beside {tokens} tokens"
        )
    return value
