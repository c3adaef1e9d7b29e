"""Train the benchmarks' draft model: another shape than the demo model's, on the same conversations.

    python benchmarks/train_draft.py --tokenizer DEMO_MODEL --out models/demo-draft-run

A drafter must speak the target's tokens, so the tokenizer is the demo model's. Widths are those of the 0.5b
shape divided by powers of 4, so that `inflate.py` can enlarge it. Run again to resume; the finished model is
in OUT/model.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from common import REPO
from tokenizers import Tokenizer

from edgespec.demo_model.recipe import tokenizer as demo_tokenizer
from edgespec.demo_model.recipe import train as demo
from edgespec.training import llama


def draft_shape(tokenizer: Tokenizer) -> llama.LlamaConfig:
    """3 layers, a quarter of the 0.5b shape's width."""
    return replace(
        demo.model_config(tokenizer),
        hidden_size=224,
        intermediate_size=448,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=64,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokenizer", type=Path, default=REPO / "edgespec" / "demo_model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--decay", type=int, default=200, help="of these, the last in which the rate falls")
    parser.add_argument("--seed", type=int, default=7, help="not the demo's: other data, other start")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (args.out / name).exists():
            shutil.copy(args.tokenizer / name, args.out / name)
    model = demo.train(args.out, args.seed, args.steps, args.decay, every=60.0, shape=draft_shape)
    llama.save(model, args.out / "model")
    demo_tokenizer.save(Tokenizer.from_file(str(args.out / "tokenizer.json")), args.out / "model")


if __name__ == "__main__":
    main()
