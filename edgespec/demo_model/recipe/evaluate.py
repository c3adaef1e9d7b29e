"""How well the demo model answers held-out questions: `python -m edgespec.demo_model.recipe.evaluate [DIR]`.

A reply counts when it is right to the letter (`grading`). Stories have no one right text: they are generated
and checked for what was asked. So are answers to `product_questions`, and what obeys a system prompt.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from edgespec.demo_model.recipe import abilities
from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import HELD_OUT, Draw, Exchange, Split
from edgespec.demo_model.recipe.grading import graded, reply
from edgespec.demo_model.recipe.product_asked import normalised
from edgespec.demo_model.recipe.product_exam import DRAWN
from edgespec.demo_model.recipe.product_questions import QUESTIONS
from edgespec.demo_model.recipe.stories import story
from edgespec.errors import EdgeSpecError
from edgespec.kernels.cpu import matmul_dtype
from edgespec.training import llama

SPLITS = {
    "seen": Split(),
    "arguments": Split(unseen_arguments=True),
    "phrasings": Split(unseen_phrasings=True),
    "both": HELD_OUT,
}


@dataclass
class Score:
    """Exchanges of one category: how many, how many right, how many different questions."""

    right: int = 0
    total: int = 0
    questions: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Miss:
    """A wrong reply: the question, what it should have been, and where the model left it."""

    category: str
    question: str
    reply: str
    position: int
    chosen: str


def grade(
    model: llama.Llama, tokenizer: Tokenizer, conversations: Sequence[list[Exchange]]
) -> tuple[dict[str, Score], list[Miss]]:
    """Exact match of each exchange whose reply is the only right one, by category."""
    scores: dict[str, Score] = defaultdict(Score)
    misses: list[Miss] = []
    for g in graded(model, tokenizer, conversations):
        e, score = g.exchange, scores[g.exchange.category]
        score.total += 1
        score.questions.add(e.user)
        score.right += g.wrong is None
        if g.wrong is not None:
            misses.append(Miss(e.category, e.user, e.reply, g.wrong, g.chosen))
    return dict(scores), misses


def grade_stories(model: llama.Llama, tokenizer: Tokenizer, count: int) -> Score:
    """Generated stories that end, have a story's length and hold each noun and name that was asked for."""
    score = Score()
    for i in range(count):
        exchange = story(Draw(f"story {i}", SPLITS["both"]))[0]
        told = reply(model, tokenizer, [(exchange.user, None)])
        asked = (
            [w.strip(".,?!") for w in exchange.user.split(" about ")[-1].split()]
            if " about " in exchange.user
            else []
        )
        wanted = [w for w in asked if w not in ("a", "an", "in", "named", "please")]
        score.total += 1
        score.questions.add(exchange.user)
        score.right += not told.endswith("...") and len(told.split()) > 50 and all(w in told for w in wanted)
    return score


def table(results: dict[str, dict[str, Score]]) -> str:
    """A Markdown table: categories by splits, exact match in percent and the number of questions."""
    names = sorted({category for scores in results.values() for category in scores})
    lines = ["| category | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for name in [*names, "all"]:
        cells = []
        for scores in results.values():
            chosen = list(scores.values()) if name == "all" else [scores[name]] if name in scores else []
            right, total = sum(s.right for s in chosen), sum(s.total for s in chosen)
            distinct = sum(len(s.questions) for s in chosen)
            cells.append(f"{100 * right / total:.1f} % of {total} ({distinct} different)" if total else "-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def describe_abilities(model: llama.Llama, tokenizer: Tokenizer, misses: int) -> str:
    """The product's questions, system prompts and right answers by turn, as Markdown."""
    wrong = abilities.product(model, tokenizer)
    for question, said in wrong[: 10 * misses]:
        print(json.dumps({"question": question, "answer": said}), file=sys.stderr)
    right = len(QUESTIONS) - len(wrong)
    turns = abilities.by_turn(model, tokenizer)
    lines = [
        f"\nnew user's questions about EdgeSpec: {100 * right / len(QUESTIONS):.1f} % of {len(QUESTIONS)}\n",
        "| turn | " + " | ".join(str(t) for t in range(1, len(turns) + 1)) + " |",
        "|---" * (len(turns) + 1) + "|",
        "| right | " + " | ".join(f"{100 * share:.1f} %" for share in turns) + " |",
        "\n| system prompt | obeyed | right to the letter |\n|---|---|---|",
    ]
    kinds = abilities.system_prompts(model, tokenizer)
    total = tuple(sum(score[k] for score in kinds.values()) for k in range(3))
    for kind, (obeyed, exact, count) in [*sorted(kinds.items()), ("all", total)]:
        lines.append(f"| {kind} | {100 * obeyed / count:.1f} % of {count} | {100 * exact / count:.1f} % |")
    return "\n".join(lines)


def describe_exam(model: llama.Llama, tokenizer: Tokenizer) -> str:
    """Right answers of the frozen exam: of all its questions, and of those that occur in no training data."""
    right = abilities.exam(model, tokenizer)
    unseen = [ok for text, ok in right.items() if normalised(text) not in DRAWN]
    shares = [
        f"{sum(some)} of {len(some)}, {100 * sum(some) / len(some):.1f} %"
        for some in (right.values(), unseen)
    ]
    return f"\nfrozen exam about EdgeSpec: {shares[0]}; of those in no training data: {shares[1]}"


def main() -> None:
    default = Path(__file__).parents[2] / "demo_model"
    parser = argparse.ArgumentParser(
        description="Held-out questions for the demo model: exact match by category."
    )
    parser.add_argument("model", type=Path, nargs="?", default=default, help="the model directory")
    parser.add_argument("--conversations", type=int, default=1500, help="per split")
    parser.add_argument("--splits", default="both,phrasings,arguments,seen", help=f"of {', '.join(SPLITS)}")
    parser.add_argument("--stories", type=int, default=20)
    parser.add_argument("--misses", type=int, default=0, help="wrong replies to show, per category")
    parser.add_argument("--float32", action="store_true", help="compute in fp32 instead of the stored bf16")
    options = parser.parse_args()
    torch.set_num_threads(2)
    try:
        model = llama.load(options.model, torch.float32 if options.float32 else matmul_dtype(torch.bfloat16))
    except EdgeSpecError as error:
        sys.exit(f"error: {error}")
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    results: dict[str, dict[str, Score]] = {}
    for split in options.splits.split(","):
        talks = [conversation(f"held-out {split} {i}", SPLITS[split]) for i in range(options.conversations)]
        results[split], misses = grade(model, tokenizer, talks)
        if split == "both" and options.stories:
            results[split]["stories (generated)"] = grade_stories(model, tokenizer, options.stories)
        shown: Counter[str] = Counter()
        for miss in misses:
            shown[miss.category] += 1
            if shown[miss.category] <= options.misses:
                print(json.dumps({"split": split, **vars(miss)}), file=sys.stderr)
    print(table(results))
    print(describe_abilities(model, tokenizer, options.misses))
    print(describe_exam(model, tokenizer))


if __name__ == "__main__":
    main()
