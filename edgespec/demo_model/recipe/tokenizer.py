"""The demo model's tokenizer: byte-level BPE learned from generated dialogues; a small chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import Exchange

BOS, END, USER, ASSISTANT, PAD = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"
SPECIAL = (BOS, END, USER, ASSISTANT, PAD)
BOS_ID, END_ID, USER_ID, ASSISTANT_ID, PAD_ID = range(len(SPECIAL))  # the trainer numbers them first
VOCABULARY = 1536
SAMPLE = 20_000  # conversations that the merges are learned from

# A system prompt is what stands before the first role.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% elif message['role'] == 'user' %}<|user|>{{ message['content'] }}<|end|>"
    "{% elif message['role'] == 'system' and message['content'] %}{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Words keep one leading space; a digit and the space before it stand alone, so that 7 is always one token.
_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"


def train(seed: int) -> Tokenizer:
    """The tokenizer learned from the training split; deterministic."""
    return learn(_texts(seed), VOCABULARY)


def learn(texts: Iterator[str], vocabulary: int) -> Tokenizer:
    """A tokenizer of so many tokens learned from these texts; deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def _texts(seed: int) -> Iterator[str]:
    for i in range(SAMPLE):
        for exchange in conversation(f"{seed} tokenizer {i}"):
            yield exchange.user
            yield exchange.reply


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json` with the chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def encode(
    tokenizer: Tokenizer, exchanges: Sequence[Exchange], system: str | None = None
) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation as the template renders it, and which of them the assistant writes."""
    texts = [t for e in exchanges for t in (e.user, e.reply)]
    ids = [BOS_ID]
    if system:
        ids += [*tokenizer.encode(system, add_special_tokens=False).ids, END_ID]
    written = [False] * len(ids)
    for i, piece in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        ids += [ASSISTANT_ID if i % 2 else USER_ID, *piece.ids, END_ID]
        written += [False] + [bool(i % 2)] * (len(piece.ids) + 1)
    return ids, written
