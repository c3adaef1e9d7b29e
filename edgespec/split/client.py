"""`edgespec.connect`: an engine whose weights are on a server. Needs no torch; docs/split.md says what it
takes."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgespec.config import EngineOptions, with_keywords
from edgespec.control.controller import Adaptive
from edgespec.core.schedule import Controller, Place, Schedule
from edgespec.core.trace import Cycle, Trace
from edgespec.devices.probe import peak_memory
from edgespec.drafters.base import Drafter
from edgespec.drafters.client_moa import ClientMoa
from edgespec.drafters.client_model import ClientModel
from edgespec.drafters.combined import Combined
from edgespec.drafters.engines import check_engine_option
from edgespec.drafters.kinds import choose_drafters, kinds_of
from edgespec.errors import ClosedError, ContextError, LinkError, OptionError, ProtocolError, RefusedError
from edgespec.models.hub import find_here
from edgespec.offload.plan.costs import CostModel
from edgespec.schedules.kinds import check_idle, check_schedule, choose_schedule, make_schedule
from edgespec.split.link import OPEN_SECONDS, Dial, Link
from edgespec.split.options import ConnectOptions
from edgespec.split.protocol import AskTokenizer, TokenizerPart, Welcome, written
from edgespec.split.recall import Recollection
from edgespec.split.seat import RemoteSeat
from edgespec.split.session import RemoteSession, RemoteVerifier
from edgespec.split.standby import Reserve, check_standby
from edgespec.split.vocabulary import PACKED_BYTES, unpacked_tokenizer
from edgespec.split.websocket import websocket
from edgespec.text.prompt import Prompt, encode_prompt
from edgespec.values import options_of

if TYPE_CHECKING:
    from edgespec.engine import Engine

SLOWEST = 2**14  # bytes a second, at which a tokenizer must come
OF_DRAFTING = (
    "drafter", "adapters", "draft_model", "draft_engine", "schedule", "tree_nodes", "fan_out",
    "fan_out_budget", "fallback",
)  # fmt: skip
OPENED_HERE = ("moa", "model")  # kinds of drafters with files that a client can draft with


def meant_here(options: EngineOptions) -> tuple[str, ...]:
    """Options of an engine that mean something on a client: the others are the server's."""
    return OF_DRAFTING if options.draft_model is None else (*OF_DRAFTING, "threads", "draft_worker")


def connect(
    url: str,
    *,
    key: str | None = None,
    make: Callable[[], Drafter] | None = None,
    standby: Engine | None = None,
    **options: Any,
) -> RemoteEngine:
    """An engine on a server (`edgespec serve MODEL`), which verifies what this process drafts.

    url: https://host:port or wss://..., http or ws on a network that is trusted. key: that the server asks
    for. make: makes a drafter of one's own for a conversation, in place of those that `drafter` names.
    standby: the same model on this machine, which goes on while the server does not answer; whoever has
        loaded it closes it.
    options: fields of `ConnectOptions` (ca, unverified, alone, wait), and of `EngineOptions` those about
    drafting.
    Raises LinkError when the server cannot be reached, RefusedError when it will not serve (another version,
    an unknown key, no room), ProtocolError when it is none, OptionError.
    """
    of_link = {name: options.pop(name) for name in options_of(ConnectOptions) if name in options}
    asked = with_keywords(ConnectOptions(), of_link)
    dial = websocket(url, key, asked.ca)
    return RemoteEngine(dial, url, asked, with_keywords(EngineOptions(), options), make, standby)


@dataclass(frozen=True)
class RemoteModel:
    """What a client knows of the target; see `core.reply.ModelShape`."""

    name: str
    vocab_size: int
    layers: int
    max_context: int


class RemoteEngine:
    """What `connect` returns: sessions and chats go on it as on an `edgespec.Engine`. A context manager."""

    def __init__(
        self,
        dial: Dial,
        url: str,
        asked: ConnectOptions,
        options: EngineOptions,
        drafter: Callable[[], Drafter] | None = None,
        standby: Engine | None = None,
    ) -> None:
        """dial: makes a connection to the server at `url`. drafter: makes one for a conversation, in place of
        what the options name. standby: see `connect`. Raises as `connect`."""
        self.url, self.asked, self.options, self._dial = url, asked, options, dial
        self.drafters = _checked(options)
        self._made, self.standby = drafter, standby
        self._model = None if drafter is not None else _found_model(options, self.drafters)
        self.schedule = choose_schedule(options.schedule, self.drafters, free=True)
        link = Link(dial())
        try:
            self._welcome = welcome = link.welcome
            if standby is not None:
                check_standby(standby, welcome, url)
            self.controller: Controller = Adaptive(CostModel(io=link.round_trip))
            self.tokenizer = unpacked_tokenizer(_tokenizer(link), welcome.tokenizer, welcome.vocabulary, url)
        finally:
            link.close()
        if self._model is not None:
            self._model.open(self.tokenizer)
        self._moa = self._open_moa(welcome)
        self.config = RemoteModel(welcome.model, welcome.vocabulary, welcome.layers, welcome.context)
        self.tokenizer.room = welcome.context
        self.eos = frozenset(welcome.eos)
        self.verifier = RemoteVerifier(self._seat)
        self.closed = False
        self._sessions = weakref.WeakSet[RemoteSession]()

    def __repr__(self) -> str:
        return f"<RemoteEngine of {self.config.name} at {self.url}{', closed' if self.closed else ''}>"

    def new_session(
        self, context: int | None = None, controller: Controller | None = None, trace: Trace | None = None
    ) -> RemoteSession:
        """A conversation of up to `context` positions (default: all that the server gives one), with a
        connection of its own.

        Raises as `connect`, ContextError for more positions than the server gives, ClosedError.
        """
        if self.closed:
            raise ClosedError("the connection was closed; connect again")
        context = options_of(EngineOptions)["context"].typed(context) or self.config.max_context
        if context > self.config.max_context:
            most = self.config.max_context
            raise ContextError(f"context {context} is more than the server's {most} positions")
        seat = self.verifier.new_seat(context)
        options, nodes = self.options, min(self.options.tree_nodes, self._welcome.nodes)
        drafter = self._drafter(seat)
        drafting = [] if drafter is None or nodes == 1 else [drafter]
        schedule = make_schedule(
            self.schedule,
            with_keywords(options, {"tree_nodes": nodes}) if nodes > 1 else options,
            drafting,
            controller or self.controller.successor(),
            Place(None),
        )
        asked = self.asked
        keep = asked.unverified == "keep", asked.wait, asked.alone
        reserve = Reserve(self.standby, context)
        session = RemoteSession(self, seat, schedule, drafter, reserve, *keep, trace)
        self._sessions.add(session)
        return session

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of text, of chat messages (by the model's template), or of ids as they are."""
        return encode_prompt(self.tokenizer, prompt)

    def close(self) -> None:
        """End all replies as cancelled, and all conversations."""
        self.closed = True
        for session in [*self._sessions]:
            session.close()

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What sessions ask: see `core.reply.SessionHost`.

    @property
    def dial(self) -> int | None:
        """Bytes that this process may use, by the plan of the model here; None = there is none."""
        return None if self.standby is None else self.standby.dial

    @property
    def bytes_read(self) -> int:
        return 0 if self.standby is None else self.standby.bytes_read

    def peak_memory(self) -> int:
        """Bytes that this process has used at most."""
        return peak_memory()

    def after_cycle(self, schedule: Schedule, cycle: Cycle, check: Callable[[], None]) -> None:
        pass

    def learn(self, schedule: Schedule) -> None:
        if (lesson := schedule.lesson()) is not None:
            self.controller = lesson

    def _open_moa(self, welcome: Welcome) -> ClientMoa | None:
        """Raises as `ClientMoa`."""
        if "moa" not in self.drafters or self._made is not None:
            return None
        moa = ClientMoa(str(self.options.adapters))
        moa.check(welcome.memory, welcome.width, welcome.vocabulary, welcome.model)
        return moa

    def _drafter(self, seat: RemoteSeat) -> Drafter | None:
        if self._made is not None:
            return self._made()
        made = [kind.make() for kind in kinds_of(self.drafters) if kind.make is not None]
        if self._moa is not None and seat.recollection is not None:
            made.append(self._moa.drafter(seat.recollection, seat.capacity))
        if self._model is not None:
            made.append(self._model.drafter(seat.capacity, self.config.vocab_size))
        return None if not made else made[0] if len(made) == 1 else Combined(made)

    def _seat(self, context: int) -> RemoteSeat:
        recollection = None if self._moa is None else Recollection(self._welcome.width)
        return RemoteSeat(self._open, context, self.config.vocab_size, recollection)

    def _open(self) -> Link:
        """Raises as `Link`."""
        link = Link(self._dial())
        if link.welcome != self._welcome:
            link.close()
            raise RefusedError(
                f"{self.url} now serves {link.welcome.model}, and this conversation is with "
                f"{self.config.name}, or it was loaded in another way; connect again",
                "model",
            )
        return link


def _checked(options: EngineOptions) -> tuple[str, ...]:
    """The kinds of drafters. Raises OptionError for what cannot be done, or changes nothing, on a client."""
    known, ours = options_of(EngineOptions), meant_here(options)
    for name in known:
        if name not in ours and getattr(options, name) != known[name].default:
            raise OptionError(f"{name} is the server's to choose; leave it out", name)
    if options.draft_worker is not None:
        raise OptionError(
            "draft_worker is for a process beside a target, which is on the server; say with threads= how "
            "many processors draft here",
            "draft_worker",
        )
    members = choose_drafters(options)
    if options.drafter == "auto":
        members = tuple(kind.name for kind in kinds_of(members) if kind.make is not None or kind.needs)
    if needing := [kind for kind in kinds_of(members) if kind.make is None and kind.name not in OPENED_HERE]:
        raise OptionError(
            f"{needing[0].label} drafts where torch is; use drafter=ngram, {' or '.join(OPENED_HERE)}",
            "drafter",
        )
    if options.schedule == "mirror":
        raise OptionError(
            "schedule mirror asks an early exit of the target, which is on the server; use schedule=ssd or "
            "serial",
            "schedule",
        )
    check_schedule(options.schedule, members)
    check_engine_option(options)
    check_idle(options)
    return members


def _found_model(options: EngineOptions, members: tuple[str, ...]) -> ClientModel | None:
    """Raises ModelError for what is not there, and as `ClientModel`."""
    if "model" not in members:
        return None
    found = find_here(str(options.draft_model))
    return ClientModel(found if isinstance(found, Path) else None, options)


def _tokenizer(link: Link) -> bytes:
    """Raises LinkError and ProtocolError."""
    link.send(written(AskTokenizer()))
    parts, left, began = list[bytes](), PACKED_BYTES, time.monotonic()
    while left:
        part = link.receive(OPEN_SECONDS)
        patience = 2 * OPEN_SECONDS + sum(map(len, parts)) / SLOWEST
        if part is None or time.monotonic() - began > patience:
            raise LinkError(f"the server has not sent its tokenizer within {patience:.0f} s")
        if not isinstance(part, TokenizerPart) or not part.data or len(part.data) + part.left > left:
            raise ProtocolError("the server does not send its tokenizer as it was asked to")
        parts.append(part.data)
        left = part.left
    return b"".join(parts)
