"""How well the demo model answers held-out questions: `python -m edgespec.demo_model.recipe.evaluate [DIR]`.

A reply counts when every token of it, `<|end|>` included, is the model's most probable next token after the
question and the conversation before it (as it should have gone). That is what greedy decoding would have
produced, so the figure is exact match, found with one pass over many conversations. Stories have no one right
text: they are generated and checked for what was asked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import HELD_OUT, Draw, Exchange, Split
from edgespec.demo_model.recipe.stories import story
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
from edgespec.errors import EdgeSpecError
from edgespec.training import llama

SPLITS = {
    "seen": Split(),
    "arguments": Split(unseen_arguments=True),
    "phrasings": Split(unseen_phrasings=True),
    "both": HELD_OUT,
}
BATCH = 32  # conversations a pass


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


@torch.no_grad()
def grade(
    model: llama.Llama, tokenizer: Tokenizer, conversations: Sequence[list[Exchange]]
) -> tuple[dict[str, Score], list[Miss]]:
    """Exact match of each exchange whose reply is the only right one, by category."""
    scores: dict[str, Score] = defaultdict(Score)
    misses: list[Miss] = []
    encoded = sorted(((encode(tokenizer, c)[0], c) for c in conversations), key=lambda pair: len(pair[0]))
    for at in range(0, len(encoded), BATCH):
        group = encoded[at : at + BATCH]
        tokens = torch.full(
            (len(group), len(group[-1][0])), PAD_ID
        )  # padding comes last: causal rows never see it
        for row, (ids, _) in enumerate(group):
            tokens[row, : len(ids)] = torch.tensor(ids)
        best = model(tokens).argmax(-1)
        for row, (ids, exchanges) in enumerate(group):
            starts = [i for i, t in enumerate(ids) if t == ASSISTANT_ID]
            for start, exchange in zip(starts, exchanges, strict=True):
                if not exchange.exact:
                    continue
                stop = ids.index(END_ID, start)
                score = scores[exchange.category]
                score.total += 1
                score.questions.add(exchange.user)
                wrong = (best[row, start:stop] != tokens[row, start + 1 : stop + 1]).nonzero()
                if len(wrong) == 0:
                    score.right += 1
                else:
                    p = int(wrong[0])
                    chosen = tokenizer.decode([int(best[row, start + p])], skip_special_tokens=False)
                    misses.append(Miss(exchange.category, exchange.user, exchange.reply, p, chosen))
    return dict(scores), misses


@torch.no_grad()
def reply(
    model: llama.Llama, tokenizer: Tokenizer, turns: Iterable[tuple[str, str | None]], limit: int = 256
) -> str:
    """The greedy reply to the last of `turns` (question, reply), whose reply is None.

    Plain and slow, without a KV cache: the trainer's own check. Use `edgespec chat` to talk to the model.
    """
    text = BOS
    for question, answer in turns:
        text += USER + question + END + ASSISTANT + ("" if answer is None else answer + END)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    begin = len(ids)
    while len(ids) - begin < limit:
        ids.append(int(model.lm_head(model.hidden(torch.tensor([ids]))[:, -1]).argmax()))
        if ids[-1] == END_ID:
            return tokenizer.decode(ids[begin:-1])
    return tokenizer.decode(ids[begin:]) + " ..."


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
        model = llama.load(options.model, torch.float32 if options.float32 else torch.bfloat16)
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


if __name__ == "__main__":
    main()
