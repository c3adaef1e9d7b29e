"""Trains the demo model from scratch: `python -m edgespec.training.demo.train --out DIR`.

The schedule is warm-up, constant, linear decay, so the length need not be known when it starts: stop the run
at any time and start it again with `--steps` a little above where it stopped. A run resumes from its last
checkpoint bit for bit (same machine type, torch version, thread count and `--compile`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from edgespec.errors import CorruptFileError, EdgeSpecError, OptionError, TrainingError
from edgespec.training import llama
from edgespec.training.demo import tokenizer as demo_tokenizer
from edgespec.training.demo.batches import TOKENS, batch
from edgespec.training.demo.muon import Optimizer

WARMUP = 100  # steps
CHECKPOINT = "checkpoint.safetensors"


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


def rate_factor(step: int, steps: int, decay: int) -> float:
    """Warm-up, constant, then linear to zero over the last `decay` of `steps`."""
    return min(1.0, (step + 1) / WARMUP, (steps - step) / max(1, decay))


def loss_function(model: llama.Llama) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """(inputs, targets, weights, positions, mask) -> the weighted mean of the tokens' cross-entropy."""

    def loss(inputs: Tensor, targets: Tensor, weights: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        logits = model(inputs, positions, mask).float()
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return (each * weights.flatten()).sum() / weights.sum()

    return loss


def save_checkpoint(directory: Path, optimizer: Optimizer, step: int, seconds: float, seed: int) -> None:
    """Written aside and renamed: a kill leaves the last good one."""
    temporary = directory / (CHECKPOINT + ".tmp")
    save_file(
        optimizer.state(), temporary, metadata={"step": str(step), "seconds": str(seconds), "seed": str(seed)}
    )
    os.replace(temporary, directory / CHECKPOINT)


def load_checkpoint(directory: Path, optimizer: Optimizer, seed: int) -> tuple[int, float]:
    """(steps done, seconds spent); (0, 0.0) without a checkpoint."""
    path = directory / CHECKPOINT
    if not path.exists():
        return 0, 0.0
    try:
        with safe_open(path, "pt") as file:
            meta = file.metadata() or {}
        made, step, seconds = int(meta["seed"]), int(meta["step"]), float(meta["seconds"])
        if made == seed:
            optimizer.load(load_file(path))
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CorruptFileError(f"{path} is damaged ({error}); remove it to start again") from None
    if made != seed:
        raise OptionError(f"{path} has seed {made}, not {seed}; pass --seed {made} or another --out")
    return step, seconds


def rewind_log(path: Path, step: int) -> None:
    """Drops the lines from `step` on, which a killed run wrote after its last checkpoint."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:step]), encoding="utf-8")


def train(
    out: Path,
    seed: int,
    steps: int,
    decay: int,
    every: float = 180.0,
    compiled: bool = False,
    stop_after: int = 0,
    shape: Callable[[Tokenizer], llama.LlamaConfig] = model_config,
) -> llama.Llama:
    """Trains to `steps` (or `stop_after` steps, for tests), checkpointing each `every` seconds.

    `shape` is the model's, given its tokenizer.

    Raises EdgeSpecError when the loss is not finite; the last checkpoint stays.
    """
    out.mkdir(parents=True, exist_ok=True)
    if (out / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    else:
        tokenizer = demo_tokenizer.train(seed)
        demo_tokenizer.save(tokenizer, out)
    torch.manual_seed(seed)
    model = llama.Llama(shape(tokenizer)).to(torch.bfloat16)
    optimizer = Optimizer(dict(model.named_parameters()))
    start, spent = load_checkpoint(out, optimizer, seed)
    rewind_log(out / "loss.jsonl", start)
    loss_of = loss_function(model)
    if compiled:
        loss_of = torch.compile(loss_of, dynamic=False)
    began = saved = reported = time.perf_counter()
    mean, last = 0.0, stop_after or steps
    for step in range(start, last):
        b = batch(tokenizer, seed, step)
        loss = loss_of(b.inputs, b.targets, b.weights, b.positions, b.mask(torch.bfloat16))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss of step {step} is {value}; the last good checkpoint is in {out}: "
                "start again from it with smaller rates"
            )
        torch.autograd.backward(loss)
        factor = rate_factor(step, steps, decay)
        norm = optimizer.step(factor, step)
        mean = value if step == start else 0.98 * mean + 0.02 * value
        with (out / "loss.jsonl").open("a", encoding="utf-8") as log:
            log.write(
                json.dumps({"step": step, "loss": round(value, 5), "norm": round(norm, 4), "rate": factor})
                + "\n"
            )
        now = time.perf_counter()
        if now - reported > 10 or step + 1 == last:
            per_step = (now - began) / (step + 1 - start)
            print(
                f"step {step + 1}/{steps}  loss {mean:.4f}  {TOKENS / per_step:.0f} tokens/s  "
                f"ETA {(last - step - 1) * per_step / 60:.0f} min",
                file=sys.stderr,
                flush=True,
            )
            reported = now
        if now - saved > every or step + 1 == last:
            save_checkpoint(out, optimizer, step + 1, spent + now - began, seed)
            saved = now
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Train EdgeSpec's demo model from scratch.")
    parser.add_argument(
        "--out", type=Path, required=True, help="checkpoints, log, and the finished model in OUT/model"
    )
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6000, help=f"steps of {TOKENS} tokens")
    parser.add_argument(
        "--decay", type=int, default=600, help="of these, the last in which the rate falls to zero"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--compile", action="store_true", help="fuse operations with torch.compile (needs a C++ compiler)"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        model = train(options.out, options.seed, options.steps, options.decay, compiled=options.compile)
    except EdgeSpecError as error:
        sys.exit(f"error: {error}")
    llama.save(model, options.out / "model")
    demo_tokenizer.save(Tokenizer.from_file(str(options.out / "tokenizer.json")), options.out / "model")


if __name__ == "__main__":
    main()
