"""A question with what makes its answer right, and when two questions are the same."""

from __future__ import annotations

import re
from dataclasses import dataclass

NAMED = re.compile(r"(?<![\w/.-])(?:/|--)[a-z][a-z-]*")  # /undo, --memory


@dataclass(frozen=True)
class Asked:
    """Questions with one right answer: it matches every regex of `needs`, and names no command or flag but
    those that `needs` and `may` name."""

    topic: str
    needs: tuple[str, ...]
    questions: tuple[str, ...]
    may: str = ""

    def right(self, answer: str) -> bool:
        text = answer.lower()
        allowed = set(NAMED.findall(" ".join(self.needs) + " " + self.may))
        return all(re.search(need, text) for need in self.needs) and set(NAMED.findall(text)) <= allowed


_POLITE = re.compile(
    r"^(?:please|hey|hi|hello|okay|ok|so|now|well|and|but|tell me|quick question|can you|could you|say|then)"
    r"\s+"
)


def normalised(question: str) -> str:
    """A question without what does not tell it from another: case, punctuation, politeness around it."""
    words = " ".join(re.findall(r"[\w/-]+", question.lower().replace("'", "").replace("’", "")))
    while (shorter := _POLITE.sub("", words)) != words:
        words = shorter
    return re.sub(r"(?: (?:please|thanks|then|now))+$", "", words)
