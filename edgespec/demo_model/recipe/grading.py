"""What a model would answer greedily: conversations checked in one pass, and single replies written out.

A reply is right when every token of it, `<|end|>` included, is the model's most probable next token after the
question and the conversation before it (as it should have gone). That is what greedy decoding would have
produced, so the figure is exact match, found with one pass over many conversations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from edgespec.demo_model.recipe.draw import Exchange
from edgespec.demo_model.recipe.tokenizer import (
    ASSISTANT,
    ASSISTANT_ID,
    BOS,
    END,
    END_ID,
    PAD_ID,
    USER,
    encode,
)
from edgespec.training import llama

BATCH = 32  # conversations a pass


@dataclass(frozen=True)
class Graded:
    """One exchange of a conversation, both counted from 0. `wrong`: the first token of the reply that greedy
    decoding would not have written, None when there is none; `chosen`: what it writes instead."""

    talk: int
    turn: int
    exchange: Exchange
    wrong: int | None
    chosen: str


@torch.no_grad()
def graded(
    model: llama.Llama,
    tokenizer: Tokenizer,
    conversations: Sequence[list[Exchange]],
    systems: Sequence[str | None] | None = None,
) -> list[Graded]:
    """Every exchange whose reply is the only right one; `systems`: the conversations' system prompts."""
    prompts = systems or [None] * len(conversations)
    encoded = [encode(tokenizer, c, s)[0] for c, s in zip(conversations, prompts, strict=True)]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    out = []
    for at in range(0, len(order), BATCH):
        group = order[at : at + BATCH]
        tokens = torch.full((len(group), len(encoded[group[-1]])), PAD_ID)  # padding: no causal row sees it
        for row, talk in enumerate(group):
            tokens[row, : len(encoded[talk])] = torch.tensor(encoded[talk])
        best = model(tokens).argmax(-1)
        for row, talk in enumerate(group):
            ids = encoded[talk]
            starts = [i for i, t in enumerate(ids) if t == ASSISTANT_ID]
            for turn, (start, exchange) in enumerate(zip(starts, conversations[talk], strict=True)):
                stop = ids.index(END_ID, start)
                wrong = (best[row, start:stop] != tokens[row, start + 1 : stop + 1]).nonzero()
                p = int(wrong[0]) if len(wrong) else None
                chosen = [] if p is None else [int(best[row, start + p])]
                if exchange.exact:
                    text = tokenizer.decode(chosen, skip_special_tokens=False)
                    out.append(Graded(talk, turn, exchange, p, text))
    return sorted(out, key=lambda g: (g.talk, g.turn))


@torch.no_grad()
def reply(
    model: llama.Llama,
    tokenizer: Tokenizer,
    turns: Iterable[tuple[str, str | None]],
    limit: int = 256,
    system: str | None = None,
) -> str:
    """The greedy reply to the last of `turns` (question, reply), whose reply is None.

    Plain and slow, without a KV cache: the trainer's own check. Use `edgespec chat` to talk to the model.
    """
    text = BOS + (system + END if system else "")
    for question, answer in turns:
        text += USER + question + END + ASSISTANT + ("" if answer is None else answer + END)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    begin = len(ids)
    while len(ids) - begin < limit:
        ids.append(int(model.lm_head(model.hidden(torch.tensor([ids]))[:, -1]).argmax()))
        if ids[-1] == END_ID:
            return tokenizer.decode(ids[begin:-1])
    return tokenizer.decode(ids[begin:]) + " ..."
