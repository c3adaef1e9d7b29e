"""A self-made byte-level BPE tokenizer whose vocabulary has exactly the size a shape asks for.

256 byte tokens and one merge do the work; the rest of the vocabulary are made-up words that no text is
encoded to, so that the ids a random model emits decode to something printable.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

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
    ids = {text: i for i, text in enumerate(vocabulary(size))}
    tokenizer = Tokenizer(models.BPE(ids, [MERGE]))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", ids["<s>"])])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": context,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
