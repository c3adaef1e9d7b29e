"""Train what the benchmarks enlarge, or draft for; run again to resume.

    python -m benchmarks.models.train draft --out models/demo-draft-run
    python -m benchmarks.models.train books TEXT_DIRECTORY --out models/books-run

`draft`: a draft model for the demo model: another shape, other data order and start, but the same tokenizer,
because a drafter must speak the target's tokens. Widths are those of the 0.5b shape divided by powers of 4,
so that `inflate.py` can enlarge it.

`books`: the demo model's shape, on books split whole: the held-out ones are neither trained on nor in the
tokenizer. A few books are soon learned by heart, so OUT/model is what was best on them, of an evaluation each
100 steps. The held-out text is in OUT/held-out.txt, the other in OUT/text.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from edgespec.demo_model.recipe import tokenizer as demo_tokenizer
from edgespec.demo_model.recipe import train as demo
from edgespec.kernels.cpu import matmul_dtype
from edgespec.training import llama
from edgespec.training.data import Numbered
from edgespec.training.log import LOG, read_log
from edgespec.training.trainer import Loss, Report, Settings, Trainer

DEMO = Path(demo.__file__).parents[1]
HELD_OUT = ("alice.txt", "wizard-of-oz.txt")  # books
SEED = {"draft": 7, "books": 11}  # not the demo's: other data, other start
DECAY = 200  # of a draft model's steps, the last in which the rate falls
RATE = 2e-3  # of the books
LENGTH = 256  # tokens of a sequence, BOS included
ROWS = 16  # sequences of a step
VOCABULARY = 2048


def train_draft(args: argparse.Namespace) -> None:
    torch.set_num_threads(2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (args.out / name).exists():
            shutil.copy(DEMO / name, args.out / name)
    model = demo.train(args.out, SEED["draft"], args.steps, DECAY, every=60.0, shape=draft_shape)
    llama.save(model, args.out / "model")
    demo_tokenizer.save(Tokenizer.from_file(str(args.out / "tokenizer.json")), args.out / "model")


def draft_shape(tokenizer: Tokenizer) -> llama.LlamaConfig:
    """3 layers, a quarter of the 0.5b shape's width."""
    base = demo.model_config(tokenizer)
    base = replace(base, hidden_size=224, intermediate_size=448, num_hidden_layers=3)
    return replace(base, num_attention_heads=4, head_dim=64)


def train_books(args: argparse.Namespace) -> None:
    books = {file.name: file.read_text(encoding="utf-8") for file in sorted(args.text.glob("*.txt"))}
    if missing := set(HELD_OUT) - books.keys():
        raise SystemExit(f"{args.text} has no {', '.join(sorted(missing))}")
    kept = {name: text for name, text in books.items() if name not in HELD_OUT}
    (args.out / "held-out.txt").write_text("\n".join(books[name] for name in HELD_OUT), encoding="utf-8")
    shutil.rmtree(args.out / "text", ignore_errors=True)
    (args.out / "text").mkdir()
    for name, text in kept.items():
        (args.out / "text" / name).write_text(text, encoding="utf-8")
    if not (args.out / "tokenizer.json").exists():
        demo_tokenizer.save(demo_tokenizer.learn(iter(kept.values()), VOCABULARY), args.out)
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))

    def encoded(names: Iterable[str]) -> Tensor:
        pieces = (tokenizer.encode(books[name], add_special_tokens=False).ids for name in names)
        return torch.tensor([i for ids in pieces for i in ids])

    train_on, held_out = encoded(kept), encoded(HELD_OUT)
    print(f"{len(train_on)} tokens to train on, {len(held_out)} held out", file=sys.stderr)
    seed = SEED["books"]
    torch.manual_seed(seed)
    model = llama.Llama(demo.model_config(tokenizer))

    def draw(step: int) -> list[Tensor]:
        """A step: random stretches of the text, the same for the same seed and step."""
        chance = torch.Generator().manual_seed(seed * 2**32 + step)
        return [windows(train_on, torch.randint(len(train_on) - LENGTH, (ROWS,), generator=chance))]

    def loss(called: nn.Module, rows: Tensor) -> Loss:
        count = rows[:, 1:].numel()
        return Loss({"text": losses(called, rows)}, count, count)

    def evaluate(found: nn.Module) -> dict[str, float]:
        starts = torch.arange(0, len(held_out) - LENGTH, LENGTH)
        parts = [windows(held_out, starts[i : i + ROWS]) for i in range(0, len(starts), ROWS)]
        mean = math.fsum(float(losses(found, part)) for part in parts) / (len(starts) * LENGTH)
        if mean < best_so_far(args.out / LOG):
            llama.save(model, args.out / "model")
            demo_tokenizer.save(tokenizer, args.out / "model")
        return {"loss": mean}

    identity = {"seed": seed, "held out": sorted(HELD_OUT)}
    settings = Settings(args.steps, RATE, weight_decay=0.1)
    trainer = Trainer(model, Numbered(draw), loss, settings, args.out, evaluate=evaluate, identity=identity)
    trainer.run(show, evaluate_every=100)


def windows(tokens: Tensor, starts: Tensor) -> Tensor:
    """[n, LENGTH + 1]: BOS, then the text from each start on."""
    rows = tokens[starts[:, None] + torch.arange(LENGTH)]
    return F.pad(rows, (1, 0), value=demo_tokenizer.BOS_ID)


def losses(model: nn.Module, rows: Tensor) -> Tensor:
    """Sum of the tokens' cross-entropies."""
    arithmetic = matmul_dtype(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=arithmetic == torch.bfloat16):
        logits = model(rows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")


def best_so_far(log: Path) -> float:
    """The lowest held-out loss logged, infinity at first."""
    lines = read_log(log) if log.is_file() else []
    return min((line["held_out"]["loss"] for line in lines if line.get("held_out")), default=math.inf)


def show(line: Report) -> None:
    if line.held_out is not None or line.step % 20 == 0:
        held = "" if line.held_out is None else f"  held out {line.held_out['loss']:.3f}"
        mean = line.losses.get("text", float("nan"))
        print(f"step {line.step}/{line.steps}  loss {mean:.3f}{held}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    what = parser.add_subparsers(required=True)
    draft = what.add_parser("draft", help="the draft model")
    draft.set_defaults(train=train_draft)
    draft.add_argument("--steps", type=int, default=800)
    books = what.add_parser("books", help="the second target")
    books.set_defaults(train=train_books)
    books.add_argument("text", type=Path, help="a directory of .txt files, one a book")
    books.add_argument("--steps", type=int, default=1500, help=f"of {ROWS * LENGTH} tokens")
    for each in (draft, books):
        each.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.train(args)


if __name__ == "__main__":
    main()
