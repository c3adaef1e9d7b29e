"""What was said in a chat, as messages for people and templates, and as tokens for the session."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from edgespec.config import GenerationOptions
from edgespec.errors import ContextError, OptionError
from edgespec.response import Response

if TYPE_CHECKING:
    from edgespec.text.tokenizer import Tokenizer


@dataclass
class Message:
    role: str  # "system", "user" or "assistant"
    content: str
    stopped: bool = False  # this reply ended before the model ended it
    private: bool = False  # neither it nor what follows may leave this machine


@dataclass
class Conversation:
    """Messages, oldest first, and a system prompt before them; the chat template makes the prompt of them."""

    tokenizer: Tokenizer
    messages: list[Message] = field(default_factory=list)
    forgotten: int = 0  # of them, the oldest behind the system prompt: prompts leave them out
    # The last prompt and reply, as text and as the very tokens that the session has computed; and, for it and
    # for each reply before it, how much of both there was behind that reply (characters, tokens).
    _said: str = ""
    _tokens: list[int] = field(default_factory=list)
    _marks: list[tuple[int, int]] = field(default_factory=list)

    def options(self, options: GenerationOptions) -> GenerationOptions:
        """How to reply: without a chat template of its own, a model does not end its turn by itself."""
        return replace(options, stop=(*options.stop, *self.tokenizer.template.stop))

    @property
    def system(self) -> str | None:
        first = self.messages[0] if self.messages else None
        return first.content if first and first.role == "system" else None

    def set_system(self, text: str | None) -> None:
        """Replace the system prompt; None removes it.

        Raises OptionError when the model's template would leave it out, ModelError when it refuses one.
        """
        if text:
            asked = Message("user", "?")
            if self._render([Message("system", text), asked]) == self._render([asked]):
                raise OptionError(
                    "the chat template of this model leaves the system prompt out: it would change nothing; "
                    "say it in the first message instead"
                )
        if self.system is not None:
            del self.messages[0]
        if text:
            self.messages.insert(0, Message("system", text))

    def clear(self) -> None:
        """Forget everything but the system prompt."""
        self.messages = [m for m in self.messages if m.role == "system"]
        self.forgotten = 0

    def copy(self) -> Conversation:
        """As it is now; what is said later changes one of the two only."""
        return replace(self, messages=[*self.messages], _marks=[*self._marks])

    def ask(self, text: str, private: bool = False) -> None:
        self.messages.append(Message("user", text, private=private))

    @property
    def private(self) -> bool:
        """Something in it may not leave this machine."""
        return any(message.private for message in self.messages)

    def safe(self, prompt: Sequence[int]) -> int:
        """How many of the first tokens of this `prompt` depend on nothing that is private: those that it
        would have with any other private messages, too. None where one of these is forgotten: what was
        said after it may follow from it."""
        start = int(self.system is not None)
        if any(m.private for m in self.messages[start : start + self.forgotten]):
            return 0
        safe = len(prompt)
        for other in ("a", "b"):
            there = self.copy()
            there.messages = [replace(m, content=other) if m.private else m for m in self.messages]
            first = next(place for place, m in enumerate(there.messages) if m.private)
            del there.messages[first + 1 :]
            pairs = zip(prompt[:safe], there.prompt(), strict=False)
            safe = next((place for place, (a, b) in enumerate(pairs) if a != b), safe)
        return safe

    def take_back(self) -> str | None:
        """Remove the last question, and the reply to it if there is one; returns the question."""
        while self.messages and self.messages[-1].role != "system":
            message = self.messages.pop()
            if self.forgotten >= len(self.messages) - (self.system is not None):
                self.forgotten = 0  # nothing else is left
            if message.role == "user":
                return message.content
        return None

    @property
    def kept(self) -> list[Message]:
        """What prompts are made of."""
        first = self.system is not None
        return [*self.messages[:first], *self.messages[first + self.forgotten :]]

    def forget(self, most: int, goal: int) -> int:
        """Where the prompt has more than `most` tokens, leave out the oldest turns from now on: until it has
        `goal`, or if it never has, `most`, or all but the last. Returns how many turns."""
        if self._fits(most, self.forgotten):
            return 0
        behind = self.messages[self.system is not None :]
        turns = [i for i, m in enumerate(behind) if m.role == "user" and i > self.forgotten]
        for tokens in (goal, most):
            fewest = bisect_left(turns, True, key=partial(self._fits, tokens))
            if fewest < len(turns):
                break
        left_out = turns[: fewest + 1]
        self.forgotten = left_out[-1] if left_out else self.forgotten
        return len(left_out)

    def _fits(self, tokens: int, forgotten: int) -> bool:
        try:
            return len(replace(self, forgotten=forgotten).prompt()) <= tokens
        except ContextError:  # a text that is much too long
            return False

    def prompt(self) -> list[int]:
        """The tokens to reply to.

        What the session has computed is kept token for token, although the tokenizer might cut the same text
        otherwise: a reply's tokens are the model's choice. So nothing is computed twice.
        """
        text = self._render(self.kept)
        for characters, tokens in reversed(self._marks):
            if text.startswith(self._said[:characters]):
                rest = self.tokenizer.encode(text[characters:], add_bos=False, continues=True)
                return self._tokens[:tokens] + rest
        return self.tokenizer.encode(text, add_bos=not self.tokenizer.has_chat_template)

    def answer(self, reply: Response, prompt: Sequence[int], eos: Collection[int]) -> None:
        """Keep the whole `reply` (all its text and tokens) to `prompt`."""
        ended = bool(reply.tokens) and reply.tokens[-1] in eos
        said = self._render(self.kept) + reply.text
        tokens = [*prompt, *(reply.tokens[:-1] if ended else reply.tokens)]
        self._marks = [
            (n, t) for n, t in self._marks if said[:n] == self._said[:n] and tokens[:t] == self._tokens[:t]
        ]
        if reply.finish_reason != "stop" or ended:  # ended by a stop string, there are tokens past the text
            self._marks.append((len(said), len(tokens)))
        self._said, self._tokens = said, tokens
        self.messages.append(Message("assistant", reply.text, reply.finish_reason in (None, "cancelled")))

    def _render(self, messages: Iterable[Message]) -> str:
        return self.tokenizer.render_chat([{"role": m.role, "content": m.content} for m in messages])
