"""A self-made byte-level BPE tokenizer whose vocabulary has exactly the size a shape asks for.

256 byte tokens and one merge do the work; the rest of the vocabulary are made-up words that no text is
encoded to, so that the ids a random model emits decode to something printable.
"""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ("<unk>", "<s>", "</s>")  # ids 0, 1, 2 as in Llama 2
MERGE = ("Ġ", "t")  # loaders refuse a BPE without merges


def byte_characters() -> list[str]:
    """The printable character that stands for each byte 0..255 in byte-level BPE (GPT-2's table)."""
    printable = {b for first, last in ("!~", "¡¬", "®ÿ") for b in range(ord(first), ord(last) + 1)}
    spare = iter(range(256, 512))
    return [chr(b if b in printable else next(spare)) for b in range(256)]


def vocabulary(size: int) -> list[str]:
    """[size] token texts by id."""
    tokens = [*SPECIAL, *byte_characters(), "".join(MERGE)]
    if size < len(tokens):
        raise SystemExit(f"a byte-level vocabulary needs at least {len(tokens)} tokens, not {size}")
    return tokens + [f"Ġt{i}" for i in range(len(tokens), size)]


def write_tokenizer(directory: Path, size: int, context: int) -> None:
    """tokenizer.json and tokenizer_config.json with `size` tokens."""
    tokens = vocabulary(size)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": [list(MERGE)],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": context,
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
