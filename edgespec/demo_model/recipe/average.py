"""The mean of two models of one run: `python -m edgespec.demo_model.recipe.average A B --out DIR`.

Runs that go on from one another with another mixture of data lie close together; what each forgot the mean
has mostly kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from edgespec.demo_model.recipe import tokenizer as demo_tokenizer
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.training import llama


def average(first: Path, second: Path, share: float) -> llama.Llama:
    """(1 - share) of the first model's weights and `share` of the second's, in fp32, stored as bf16."""
    if not 0 <= share <= 1:
        raise OptionError(f"share={share} is not between 0 and 1")
    one, other = llama.load(first, torch.float32), llama.load(second, torch.float32)
    if one.config != other.config:
        raise OptionError(f"{first} and {second} have other shapes: no average is a model")
    theirs = dict(other.named_parameters())
    with torch.no_grad():
        for name, weight in one.named_parameters():
            weight.copy_((1 - share) * weight + share * theirs[name])
    return one.to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description="Average the weights of two models.")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--share", type=float, default=0.5, help="of the second")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        model = average(options.first, options.second, options.share)
    except EdgeSpecError as error:
        sys.exit(f"error: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    llama.save(model, options.out)
    demo_tokenizer.save(Tokenizer.from_file(str(options.first / "tokenizer.json")), options.out)


if __name__ == "__main__":
    main()
