"""A connection to a server that drafts, from its greeting until it is lost. Needs no torch."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from time import monotonic

from edgespec.drafters.channel import ANSWER_BYTES, Answer, Nonsense, decoded, encoded
from edgespec.drafters.colleague import Colleague
from edgespec.drafters.remote.wire import DRAFT_VERSION, REPLIED, Apply, Declined, Hired, NoRoom
from edgespec.errors import LinkError, ProtocolError, RefusedError, TokenizerError
from edgespec.split.link import OPEN_SECONDS, Dial, Transport

HEARS = 1.0  # seconds, after which who hears looks whether the connection is still wanted


def hired(dial: Dial, url: str, vocabulary: str) -> tuple[Transport, Hired]:
    """A connection to a server that drafts for a target of this vocabulary (a digest). Raises LinkError,
    RefusedError, ProtocolError, TokenizerError."""
    transport = dial()
    try:
        transport.send(encoded(Apply(DRAFT_VERSION)))
        frame = transport.receive(OPEN_SECONDS)
        if frame is None:
            raise LinkError(f"the draft server at {url} has not answered for {OPEN_SECONDS:g} s")
        answer = _heard(frame)
        if isinstance(answer, Declined):
            raise RefusedError(f"the draft server at {url} refuses: {answer.words}", answer.why)
        if not isinstance(answer, Hired):
            raise Nonsense(f"{type(answer).__name__}, where Hired is due")
        if answer.vocabulary != vocabulary:
            raise TokenizerError(
                f"the draft server at {url} serves {answer.model}, which has another tokenizer than the "
                "target; use one that serves a smaller model of the target's own family, or drafter=ngram"
            )
        return transport, answer
    except Nonsense as error:
        transport.close()
        raise ProtocolError(f"the draft server at {url} talks nonsense: {error}") from None
    except BaseException:
        transport.close()
        raise


def _heard(frame: bytes) -> Answer | Hired | NoRoom | Declined:
    """Raises Nonsense."""
    if len(frame) > ANSWER_BYTES:
        raise Nonsense(f"a message of {len(frame)} bytes, where {ANSWER_BYTES} are the most")
    return decoded(frame, REPLIED)


class DraftConnection(Colleague):
    """An open one, until it is lost; see `colleague.Colleague`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self.full = set[int]()  # conversations that the server has no room for
        self._transport = transport
        for work in (self._speak, self._hear):
            Thread(target=work, name="edgespec draft server", daemon=True).start()

    def lose(self, why: str) -> None:
        super().lose(why)
        self._outbox.put(None)
        self._transport.abort()

    def _speak(self) -> None:
        try:
            while (data := self._outbox.get()) is not None:
                self._transport.send(data)
        except (LinkError, ProtocolError) as error:
            self.lose(str(error))

    def _hear(self) -> None:
        try:
            while self.lost is None:
                if (frame := self._transport.receive(HEARS)) is not None:
                    self.heard = monotonic()
                    self._follow(_heard(frame))
        except Nonsense as error:
            self.lose(f"it answered nonsense ({error})")
        except Exception as error:  # whatever it is, nobody hears any more
            self.lose(str(error))
        self._wake()
        with suppress(Exception):  # it is over anyway
            self._transport.close()

    def _follow(self, answer: Answer | Hired | NoRoom | Declined) -> None:
        """Raises Nonsense."""
        if isinstance(answer, Declined):
            self.lose(answer.words)
        elif isinstance(answer, NoRoom):
            if answer.seat in self.nodes:  # else the conversation is over
                self.full.add(answer.seat)
        elif isinstance(answer, Hired):
            raise Nonsense("Hired, out of turn")
        else:
            self._take(answer)
