"""Train the benchmarks' second target: the demo model's shape, on books.

    python benchmarks/train_text.py TEXT_DIRECTORY --out models/books-run

Books are split whole: the held-out ones are neither trained on nor in the tokenizer. A few books are soon
learned by heart, so OUT/model is what was best on them, of an evaluation each 100 steps. Run again to resume.
The held-out text is in OUT/held-out.txt, the other in OUT/text.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common  # noqa: F401 (puts this checkout on the path)
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from edgespec.demo_model.recipe import tokenizer as demo_tokenizer
from edgespec.demo_model.recipe import train as demo
from edgespec.training import llama
from edgespec.training.data import Numbered
from edgespec.training.trainer import LOG, Loss, Report, Settings, Trainer, read_log

LENGTH = 256  # tokens of a sequence, BOS included
ROWS = 16  # sequences of a step
VOCABULARY = 2048


def draw(tokens: Tensor, seed: int, step: int) -> list[Tensor]:
    """A step: random stretches of the text, the same for the same seed and step."""
    chance = torch.Generator().manual_seed(seed * 2**32 + step)
    starts = torch.randint(len(tokens) - LENGTH, (ROWS,), generator=chance)
    return [windows(tokens, starts)]


def windows(tokens: Tensor, starts: Tensor) -> Tensor:
    """[n, LENGTH + 1]: BOS, then the text from each start on."""
    rows = tokens[starts[:, None] + torch.arange(LENGTH)]
    return F.pad(rows, (1, 0), value=demo_tokenizer.BOS_ID)


def losses(model: nn.Module, rows: Tensor) -> Tensor:
    """Sum of the tokens' cross-entropies."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(rows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")


def evaluations(log: Path) -> list[dict[str, Any]]:
    return [line for line in read_log(log) if line.get("held_out")] if log.is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, help="a directory of .txt files, one a book")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--held-out", default="alice.txt,wizard-of-oz.txt", help="names of books")
    parser.add_argument("--steps", type=int, default=1500, help=f"of {ROWS * LENGTH} tokens")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    books = {file.name: file.read_text(encoding="utf-8") for file in sorted(args.text.glob("*.txt"))}
    apart = args.held_out.split(",")
    if missing := set(apart) - books.keys():
        raise SystemExit(f"{args.text} has no {', '.join(sorted(missing))}")
    kept = [text for name, text in books.items() if name not in apart]
    (args.out / "held-out.txt").write_text("\n".join(books[name] for name in apart), encoding="utf-8")
    shutil.rmtree(args.out / "text", ignore_errors=True)
    (args.out / "text").mkdir()
    for name, text in books.items():
        if name not in apart:
            (args.out / "text" / name).write_text(text, encoding="utf-8")
    if not (args.out / "tokenizer.json").exists():
        demo_tokenizer.save(demo_tokenizer.learn(iter(kept), VOCABULARY), args.out)
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))

    def encoded(texts: Sequence[str]) -> Tensor:
        return torch.tensor(
            [i for text in texts for i in tokenizer.encode(text, add_special_tokens=False).ids]
        )

    train_on, held_out = encoded(kept), encoded([books[name] for name in apart])
    print(f"{len(train_on)} tokens to train on, {len(held_out)} held out", file=sys.stderr)
    torch.manual_seed(args.seed)
    model = llama.Llama(demo.model_config(tokenizer))

    def loss(called: nn.Module, rows: Tensor) -> Loss:
        count = rows[:, 1:].numel()
        return Loss({"text": losses(called, rows)}, count, count)

    def evaluate(found: nn.Module) -> dict[str, float]:
        starts = torch.arange(0, len(held_out) - LENGTH, LENGTH)
        total = sum(float(losses(found, windows(held_out, part))) for part in starts.split(ROWS))
        mean = total / (len(starts) * LENGTH)
        if mean < min([line["held_out"]["loss"] for line in evaluations(args.out / LOG)], default=math.inf):
            llama.save(model, args.out / "model")
            demo_tokenizer.save(tokenizer, args.out / "model")
        return {"loss": mean}

    def report(line: Report) -> None:
        if line.held_out is not None or line.step % 20 == 0:
            held = "" if line.held_out is None else f"  held out {line.held_out['loss']:.3f}"
            mean = line.losses.get("text", float("nan"))
            print(f"step {line.step}/{line.steps}  loss {mean:.3f}{held}", file=sys.stderr, flush=True)

    settings = Settings(args.steps, args.rate, weight_decay=0.1)
    trainer = Trainer(
        model,
        Numbered(lambda step: draw(train_on, args.seed, step)),
        loss,
        settings,
        args.out,
        evaluate=evaluate,
        identity={"seed": args.seed, "held out": sorted(apart)},
    )
    trainer.run(report, evaluate_every=100)


if __name__ == "__main__":
    main()
