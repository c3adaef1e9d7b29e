"""Packed training batches, a function of (seed, step) alone, so that a resumed run sees the same data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import Exchange
from edgespec.demo_model.recipe.system import DIRECTED, directed
from edgespec.demo_model.recipe.tokenizer import PAD_ID, encode

TOKENS = 4096  # per step, about
SHORT, LONG = 192, 512  # row lengths; every LONG_EVERY-th step has conversations of many turns
LONG_EVERY = 5
MISSES = 40  # a batch is full when so many conversations found no place; generating is cheap
USER_WEIGHT = 0.1  # of the loss on what the user writes; the assistant's tokens count 1,
BEGINNING, BEGINNING_WEIGHT = 3, 4.0  # but the first of a reply, which decide what it is about, more


@dataclass(frozen=True)
class Batch:
    """Rows of several conversations that do not see each other."""

    inputs: Tensor  # [B, T]
    targets: Tensor  # [B, T]
    weights: Tensor  # [B, T], fp32
    positions: Tensor  # [B, T], from 0 in each conversation
    documents: Tensor  # [B, T], index of the conversation within its row

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Additive attention mask [B, 1, T, T]: causal, and only within one conversation."""
        t = self.inputs.shape[1]
        same = self.documents[:, :, None] == self.documents[:, None, :]
        seen = same & torch.ones(t, t, dtype=torch.bool).tril()
        return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))[:, None]


def batch(tokenizer: Tokenizer, seed: int, step: int) -> Batch:
    """The batch of `step`."""
    long = step % LONG_EVERY == LONG_EVERY - 1
    length = LONG if long else SHORT
    rows: list[list[tuple[list[int], list[bool]]]] = [[] for _ in range(TOKENS // length)]
    room = [length] * len(rows)
    misses = index = 0
    while misses < MISSES:  # first fit
        turns = 4 + (step + index) % 24 if long and misses < MISSES // 2 else None
        ids, written = encode(tokenizer, *talk(f"{seed} {step} {index}", index, turns))
        ids, written = ids[: length + 1], written[: length + 1]
        index += 1
        row = next((r for r, space in enumerate(room) if space >= len(ids) - 1), None)
        if row is None:
            misses += 1
        else:
            rows[row].append((ids, written))
            room[row] -= len(ids) - 1
    return _pack(rows, length)


def talk(seed: str, index: int, turns: int | None = None) -> tuple[list[Exchange], str | None]:
    """The conversation numbered `index`, and its system prompt."""
    if index % DIRECTED:
        return conversation(seed, turns=turns), None
    prompt, exchanges = directed(seed, turns=turns)
    return exchanges, prompt.text


def _pack(rows: list[list[tuple[list[int], list[bool]]]], length: int) -> Batch:
    shape = (len(rows), length)
    inputs, targets = torch.full(shape, PAD_ID), torch.full(shape, PAD_ID)
    weights, positions = torch.zeros(shape), torch.zeros(shape, dtype=torch.long)
    documents = torch.full(shape, -1)
    for r, row in enumerate(rows):
        at = 0
        for k, (ids, written) in enumerate(row):
            n = len(ids) - 1
            inputs[r, at : at + n] = torch.tensor(ids[:-1])
            targets[r, at : at + n] = torch.tensor(ids[1:])
            weights[r, at : at + n] = torch.tensor(_weights(written)[1:])
            positions[r, at : at + n] = torch.arange(n)
            documents[r, at : at + n] = k
            at += n
    return Batch(inputs, targets, weights, positions, documents)


def _weights(written: list[bool]) -> list[float]:
    out, run = [], 0
    for by_assistant in written:
        run = run + 1 if by_assistant else 0
        out.append(USER_WEIGHT if not run else BEGINNING_WEIGHT if run <= BEGINNING else 1.0)
    return out
