"""Trains the demo model: `python -m edgespec.demo_model.recipe.train --out DIR [--from MODEL --rate 0.01]`.

The schedule is warm-up, constant, linear decay, so the length need not be known when it starts: stop the run
at any time and start it again with `--steps` a little above where it stopped. A run resumes from its last
checkpoint bit for bit (same machine type, torch version, thread count and `--compile`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from edgespec.demo_model.recipe import tokenizer as demo_tokenizer
from edgespec.demo_model.recipe.batches import TOKENS, Batch, batch
from edgespec.demo_model.recipe.muon import Muon
from edgespec.errors import EdgeSpecError
from edgespec.kernels.cpu import matmul_dtype
from edgespec.training import llama
from edgespec.training.data import Numbered
from edgespec.training.trainer import Loss, Report, Settings, Trainer

WARMUP = 100  # steps
RATE = 0.02  # of learning, Muon's


def model_config(tokenizer: Tokenizer) -> llama.LlamaConfig:
    """The demo's shape. Widths are 1/16 and head counts 1/4 of a 7B Llama's, which makes inflation exact."""
    return llama.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=10,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        bos_token_id=demo_tokenizer.BOS_ID,
        eos_token_id=demo_tokenizer.END_ID,
    )


def loss_function(model: llama.Llama) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """(inputs, targets, weights, positions, mask) -> the weighted sum of the tokens' cross-entropy."""

    def loss(inputs: Tensor, targets: Tensor, weights: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        logits = model(inputs, positions, mask).float()
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return (each * weights.flatten()).sum()

    return loss


def train(
    out: Path,
    seed: int,
    steps: int,
    decay: int,
    every: float = 180.0,
    compiled: bool = False,
    stop_after: int | None = None,
    shape: Callable[[Tokenizer], llama.LlamaConfig] = model_config,
    first: Path | None = None,
    rate: float = RATE,
) -> llama.Llama:
    """Trains to `steps` (or to `stop_after`), checkpointing each `every` seconds; raises as `Trainer`.

    `shape` is the model's, given its tokenizer. `first`: a model whose weights and tokenizer this run begins
    with (raises CorruptFileError where it is none); the optimizer begins anew.
    """
    out.mkdir(parents=True, exist_ok=True)
    if (out / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    else:
        tokenizer = (
            Tokenizer.from_file(str(first / "tokenizer.json")) if first else demo_tokenizer.train(seed)
        )
        demo_tokenizer.save(tokenizer, out)
    torch.manual_seed(seed)
    begun = llama.load(first) if first else llama.Llama(shape(tokenizer))
    arithmetic = matmul_dtype(torch.bfloat16)  # torch's bf16 takes a hundred times fp32's time on AVX2 alone
    model = begun.to(arithmetic)
    loss_of = loss_function(model)
    if compiled:
        loss_of = torch.compile(loss_of, dynamic=False)

    def loss(_: nn.Module, b: Batch) -> Loss:
        total = loss_of(b.inputs, b.targets, b.weights, b.positions, b.mask(arithmetic))
        return Loss({"text": total}, float(b.weights.sum()), b.inputs.numel())

    def report(line: Report) -> None:
        if line.step % 20 == 0 or line.step == line.steps:
            print(
                f"step {line.step}/{line.steps}  loss {line.losses['text']:.4f}  "
                f"{line.tokens_per_second:.0f} tokens/s  ETA {line.seconds_left / 60:.0f} min",
                file=sys.stderr,
                flush=True,
            )

    trainer = Trainer(
        model,
        Numbered(lambda step: [batch(tokenizer, seed, step)]),
        loss,
        Settings(steps, rate, WARMUP, decay / steps),
        out,
        identity={"seed": seed},
        optimizer=Muon(dict(model.named_parameters())),
    )
    trainer.run(report, every, stop_after=stop_after)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train EdgeSpec's demo model, from scratch or on from a model."
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="checkpoints, log, and the finished model in OUT/model"
    )
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6000, help=f"steps of {TOKENS} tokens")
    parser.add_argument(
        "--decay", type=int, default=600, help="of these, the last in which the rate falls to zero"
    )
    parser.add_argument(
        "--rate", type=float, default=RATE, help="of learning; less where the weights are trained already"
    )
    parser.add_argument(
        "--from", dest="first", type=Path, help="a model directory to begin with, instead of chance"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--compile", action="store_true", help="fuse operations with torch.compile (needs a C++ compiler)"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        model = train(
            options.out,
            options.seed,
            options.steps,
            options.decay,
            compiled=options.compile,
            first=options.first,
            rate=options.rate,
        )
    except EdgeSpecError as error:
        sys.exit(f"error: {error}")
    llama.save(model, options.out / "model")
    demo_tokenizer.save(Tokenizer.from_file(str(options.out / "tokenizer.json")), options.out / "model")


if __name__ == "__main__":
    main()
