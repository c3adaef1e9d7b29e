"""What a chat needs: the product known, system prompts obeyed, late turns as good as early ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tokenizers import Tokenizer

from edgespec.demo_model.recipe.dialogue import PARTS
from edgespec.demo_model.recipe.draw import HELD_OUT, Draw, Exchange, Split
from edgespec.demo_model.recipe.grading import Graded, graded, reply
from edgespec.demo_model.recipe.product import answer
from edgespec.demo_model.recipe.product_asked import Asked
from edgespec.demo_model.recipe.product_exam import EXAM
from edgespec.demo_model.recipe.product_questions import QUESTIONS
from edgespec.demo_model.recipe.system import SystemPrompt, directed
from edgespec.training import llama

TURNS = 10

Wrong = tuple[str, str]  # a question, and what the model answers


def product(
    model: llama.Llama, tokenizer: Tokenizer, questions: Sequence[tuple[str, Asked]] = QUESTIONS
) -> list[Wrong]:
    """Which of a new user's questions it answers wrong, each asked first in a chat."""
    talks = [[Exchange(text, answer(asked.topic), "EdgeSpec")] for text, asked in questions]
    wrong = []
    for g in graded(model, tokenizer, talks):
        if g.wrong is not None:  # another answer than the one it was taught may be right, too
            text, asked = questions[g.talk]
            said = reply(model, tokenizer, [(text, None)], limit=80)
            if not asked.right(said):
                wrong.append((text, said))
    return wrong


def exam(model: llama.Llama, tokenizer: Tokenizer, asked: Sequence[Asked] = EXAM) -> dict[str, bool]:
    """Question of the frozen exam -> whether its checker takes the answer, each asked first in a chat."""
    return {
        text: one.right(reply(model, tokenizer, [(text, None)])) for one in asked for text in one.questions
    }


def by_turn(model: llama.Llama, tokenizer: Tokenizer, count: int = 200, turns: int = TURNS) -> list[float]:
    """Share of right answers at each turn [turns].

    A square of `count` held-out questions that need no context: each is asked once at every turn, after the
    right answers to others, so that turns differ in nothing but what came before.
    """
    asked = _alone(count)
    talks = [[asked[(i + t) % count] for t in range(turns)] for i in range(count)]
    right = [0] * turns
    for g in graded(model, tokenizer, talks):
        right[g.turn] += g.wrong is None
    return [r / count for r in right]


def _alone(count: int) -> list[Exchange]:
    """Held-out questions that stand alone, half of them about EdgeSpec."""
    out: list[Exchange] = []
    for i in range(10 * count):
        d = Draw(f"turns {i}", HELD_OUT)
        part = d.pick([part for part, _ in PARTS])
        first = part(d)[0]
        if i % 2:
            text, asked = d.pick(QUESTIONS)
            first = Exchange(text, answer(asked.topic), "EdgeSpec")
        if first.exact and len(out) < count and first.user not in {e.user for e in out}:
            out.append(first)
    return out


def system_prompts(
    model: llama.Llama, tokenizer: Tokenizer, count: int = 400, split: Split = HELD_OUT
) -> dict[str, tuple[int, int, int]]:
    """Kind of system prompt -> (replies that obey it, replies right to the letter, replies).

    Counted are replies that the prompt changes; for `plain` prompts, which change none, all.
    """
    pairs = [directed(f"held-out system {i}", split) for i in range(count)]
    talks, prompts = [t for _, t in pairs], [p for p, _ in pairs]
    scores: dict[str, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for g in graded(model, tokenizer, talks, [p.text for p in prompts]):
        chosen = prompts[g.talk]
        if g.exchange.category == "system prompts" or chosen.kind == "plain":
            obeyed, right, total = scores[chosen.kind]
            right += g.wrong is None
            obeyed += g.wrong is None or _obeys(model, tokenizer, chosen, talks[g.talk], g)
            scores[chosen.kind] = obeyed, right, total + 1
    return dict(scores)


def _obeys(
    model: llama.Llama, tokenizer: Tokenizer, prompt: SystemPrompt, talk: list[Exchange], g: Graded
) -> bool:
    if prompt.facts:
        return False  # its answer is the only one
    turns: list[tuple[str, str | None]] = [(e.user, e.reply) for e in talk[: g.turn]]
    said = reply(model, tokenizer, [*turns, (g.exchange.user, None)], limit=160, system=prompt.text)
    return prompt.kept(said)
