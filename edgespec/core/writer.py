"""A reply as it is written: tokens in, responses out, until a stop. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgespec.config import GenerationOptions
from edgespec.response import Response, Stats, Withdrawn
from edgespec.text.detokenize import Detokenizer
from edgespec.text.tokenizer import Tokenizer


class Writer:
    """Turns tokens into responses until the reply is over: EOS, a stop string, or the limit."""

    def __init__(
        self, tokenizer: Tokenizer, eos: frozenset[int], options: GenerationOptions, limit: int, stats: Stats
    ) -> None:
        """limit: the most tokens it may have."""
        self.tokenizer, self.stop = tokenizer, options.stop
        self.text = self._detokenizer()
        self.tokens: list[int] = []
        self.shown = 0  # characters
        self.eos = frozenset[int]() if options.ignore_eos else eos
        self.limit = limit
        self.stats = stats
        self.finished = False

    def _detokenizer(self) -> Detokenizer:
        return Detokenizer(self.tokenizer, self.stop, continues=True)

    def write(self, tokens: Sequence[int], drafted: int, verified: bool = True) -> Iterator[Response]:
        """One response a token, the first `drafted` of which came from the drafter."""
        for place, token in enumerate(tokens):
            self._count(token, verified)
            reason = None
            if token in self.eos:
                text, reason = self.text.finish(), "stop"
            else:
                text = self.text.add(token)
                if self.text.stopped:
                    reason = "stop"
                elif self.stats.reply_tokens == self.limit:
                    text, reason = text + self.text.finish(), "length"
            self.finished = reason is not None
            self.shown += len(text)
            yield Response(text, token, place < drafted, reason, stats=self.stats, verified=verified)
            if self.finished:
                return

    def _count(self, token: int, verified: bool) -> None:
        self.tokens.append(token)
        self.stats.reply_tokens += 1
        self.stats.unverified_tokens += not verified

    def _uncount(self, count: int) -> None:
        """The last tokens, which were not verified."""
        del self.tokens[len(self.tokens) - count :]
        self.stats.reply_tokens -= count
        self.stats.unverified_tokens -= count

    def hold(self, last: Response) -> None:
        """The step that was made last, unverified, is not to end the reply yet, nor to be shown."""
        self._uncount(1)
        self.shown -= len(last.text)
        self.finished = False

    def release(self, last: Response) -> Response:
        """It is, after all."""
        assert last.token is not None
        self._count(last.token, verified=False)
        self.finished = True
        return last

    def withdraw(self, count: int) -> Response:
        """The last `count` tokens, which were not verified, are no part of the reply any more."""
        self._uncount(count)
        self.text, shown = self._detokenizer(), self.shown
        self.shown = sum(len(self.text.add(token)) for token in self.tokens)
        return Response("", stats=self.stats, withdrawn=Withdrawn(shown - self.shown, count))

    def ended(self, reason: str) -> Response:
        """The last response; `reason` is none of the tokens'."""
        self.finished = True
        return Response(self.text.finish(), None, False, reason, stats=self.stats)
