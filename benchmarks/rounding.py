"""What does it cost that low-bit weights are multiplied by activations of 14 bits and a sign?

    edgespec pack edgespec/demo_model -o models/demo-int4 --precision int4
    python -m benchmarks.rounding models/demo-int4
    python -m benchmarks.rounding stories-int8 --text book.txt      # a base model continues a text

The packed model reads texts as trees' rows do, by the kernels that it has here and, function by function, by
fp32 products of the same numbers with the same bf16 activations. By default held-out stories of the demo
model; what counts is all that is behind the first token.

    perplexity    and that of fp32 products; their ratio less one, with a 95 % interval
    agreement     of positions, those at which the likeliest token is the same; and of those whose two
                  likeliest are further apart than bf16 tells
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.tables import Report
from edgespec.demo_model.recipe.draw import HELD_OUT, Draw
from edgespec.demo_model.recipe.stories import story
from edgespec.demo_model.recipe.tokenizer import encode
from edgespec.kernels.matmul import Together
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.draft import open_draft
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights, with_biases

ROWS = 32  # tokens of a pass


class InFp32:
    """Weights that multiply by fp32 products of the same numbers, function by function."""

    together = Together({})

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._dense = {
            name.removesuffix(".weight"): torch.cat(
                [
                    block.dense(0, block.rows, torch.float32)
                    for block in weights.resident_blocks(name.removesuffix(".weight")) or ()
                ]
            )
            for name in weights.blocks
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._weights, name)

    def linear(self, names: tuple[str, ...], x: Tensor, exact: bool, *rest: Any) -> list[Tensor]:
        outs = [(x.float() @ self._dense[name].T).to(x.dtype) for name in names]
        return with_biases(outs, names, self._weights.small)


def logits(target: TorchTarget[Any], texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Of each text, [tokens, V]: as a reply's rows get them."""
    found = []
    for text in texts:
        cache, parts = target.new_cache(len(text), ROWS), []
        for start in range(0, len(text), ROWS):
            tokens = text[start : start + ROWS]
            rows = Rows.append(cache, np.arange(-1, len(tokens) - 1))
            hidden = target.run(target.embed(tokens), rows, range(target.config.layers))
            parts.append(target.logits(hidden).float().clone())
            cache.commit(np.arange(len(tokens)))
        found.append(torch.cat(parts))
    return found


def loss(said: Tensor, text: Sequence[int]) -> Tensor:
    """Nats of each token behind the first."""
    return cross_entropy(said[:-1], torch.tensor(text[1:]), reduction="none")


def stories(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Held-out conversations about stories, as the demo model was trained to read them."""
    return [encode(tokenizer, story(Draw(f"rounding {i}", HELD_OUT)))[0] for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, help="instead of stories: a file, read in pieces")
    parser.add_argument("--tokens", type=int, default=512, help="of a piece")
    parser.add_argument("--count", type=int, default=40, help="of pieces or stories")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    if options.text is None:
        texts = stories(tokenizer, options.count)
    else:
        ids = tokenizer.encode(options.text.read_text(encoding="utf-8")).ids
        texts = [ids[i : i + options.tokens] for i in range(0, len(ids), options.tokens)][: options.count]
    ours = open_draft(describe_model(options.model), TREE_ROWS)
    dense: TorchTarget[Any] = TorchTarget(ours.config, InFp32(ours.weights), TREE_ROWS)
    said, exact = logits(ours, texts), logits(dense, texts)
    losses = [
        torch.cat([loss(each, text) for each, text in zip(found, texts, strict=True)])
        for found in (said, exact)
    ]
    difference = losses[0] - losses[1]
    mean, error = float(difference.mean()), float(difference.std()) / math.sqrt(len(difference))
    same = torch.cat([a.argmax(1) == b.argmax(1) for a, b in zip(said, exact, strict=True)])
    best, second = torch.cat([each.topk(2).values for each in exact]).T
    clear = best - second > 2.0**-7 * best.abs()
    report = Report(f"{options.model.name}, {len(difference)} tokens")
    report.add(
        {
            "perplexity": f"{math.exp(float(losses[0].mean())):.5f}",
            "of fp32 products": f"{math.exp(float(losses[1].mean())):.5f}",
            "ratio less one": f"{math.expm1(mean):+.4%} (± {1.96 * error:.4%})",
            "agreement": f"{float(same.double().mean()):.3%}",
            "where clear": f"{float(same[clear].double().mean()):.3%} of {int(clear.sum())}",
        }
    )
    report.finish(options.json)


if __name__ == "__main__":
    main()
