"""`edgespec.connect`: an engine whose weights are on a server. Needs no torch; docs/split.md says what it
takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from edgespec.config import EngineOptions
from edgespec.control.controller import Adaptive
from edgespec.core.schedule import Controller, Place, Schedule
from edgespec.core.trace import Cycle, Trace
from edgespec.devices.probe import peak_memory
from edgespec.drafters.base import Drafter
from edgespec.drafters.client_moa import ClientMoa
from edgespec.drafters.combined import Combined
from edgespec.drafters.kinds import kinds_of
from edgespec.errors import ClosedError, ContextError, RefusedError, RemoteError
from edgespec.offload.plan.costs import CostModel
from edgespec.schedules.kinds import choose_schedule, make_schedule
from edgespec.split.drafting import check_drafting, found_model
from edgespec.split.link import Dial, Link, passing
from edgespec.split.options import ConnectOptions
from edgespec.split.protocol import Welcome
from edgespec.split.recall import Recollection
from edgespec.split.seat import RemoteSeat
from edgespec.split.session import RemoteSession, RemoteVerifier
from edgespec.split.standby import Reserve, as_announced, check_standby
from edgespec.split.vocabulary import fetched_tokenizer
from edgespec.split.websocket import websocket
from edgespec.text.prompt import Prompt, encode_prompt
from edgespec.values import options_of, with_keywords

if TYPE_CHECKING:
    from edgespec.engine import Engine

FAR = 0.05  # seconds of a round trip, until one is measured


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
        loaded it closes it. With one, a server that cannot be reached yet is no error: see
        `RemoteEngine.away`.
    options: fields of `ConnectOptions` (ca, unverified, alone, wait), and of `EngineOptions` those about
    drafting.
    Raises LinkError when the server cannot be reached, RefusedError when it will not serve (another version,
    an unknown key, no room), ProtocolError when it is none, TokenizerError when its tokenizer cannot be used,
    OptionError.
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
    """What `connect` returns: sessions and chats go on it as on an `edgespec.Engine`. A context manager.

    Attributes:
        away: why the server could not be reached so far; None = it was. Until then all is computed by the
            model here.
    """

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
        self.drafters = check_drafting(options)
        self._made, self.standby = drafter, standby
        self._model = None if drafter is not None else found_model(options, self.drafters)
        self._moa = ClientMoa(str(options.adapters)) if "moa" in self.drafters and drafter is None else None
        self.schedule = choose_schedule(options.schedule, self.drafters, free=True)
        self.away: str | None = None
        self.controller: Controller
        try:
            self._greet(Link(dial()))
        except RemoteError as error:
            if standby is None or not passing(error):
                raise
            self.away, self._welcome = str(error), as_announced(standby)
            self.tokenizer, self.controller = standby.tokenizer, Adaptive(CostModel(io=FAR))
        if self._model is not None:
            self._model.open(self.tokenizer)
        self.eos = frozenset(self._welcome.eos)
        self.verifier = RemoteVerifier(self._seat)
        self.closed = False
        self._sessions = weakref.WeakSet[RemoteSession]()

    def _greet(self, link: Link) -> None:
        """The first connection, where one can be made at once. Raises as `connect`."""
        try:
            self._meet(link.welcome)
            welcome = self._welcome
            self.controller = Adaptive(CostModel(io=link.round_trip))
            self.tokenizer = fetched_tokenizer(link, welcome.vocabulary, self.url)
            self.tokenizer.room = welcome.context
        finally:
            link.close()

    def _meet(self, welcome: Welcome) -> None:
        """This is the server. Raises OptionError where it is not one for what is here."""
        if self.standby is not None:
            check_standby(self.standby, welcome, self.url)
        if self._moa is not None:
            self._moa.check(welcome.memory, welcome.width, welcome.vocabulary, welcome.model)
        self._welcome, self.away = welcome, None

    @property
    def config(self) -> RemoteModel:
        """What is known of the model: by the server, once that was reached."""
        welcome = self._welcome
        return RemoteModel(welcome.model, welcome.vocabulary, welcome.layers, welcome.context)

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
        options, nodes = self.options, self._nodes
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

    @property
    def _nodes(self) -> int:
        """Of the largest tree."""
        return min(self.options.tree_nodes, self._welcome.nodes)

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
        recollection = None if self._moa is None else Recollection(self._moa.width, self._moa.each)
        connect = partial(self._open, context, self._nodes)
        return RemoteSeat(connect, context, self.config.vocab_size, recollection, self.standby is not None)

    def _open(self, context: int, nodes: int) -> Link:
        """For a conversation of so many positions, and trees of so many nodes. Raises as `Link`."""
        link = Link(self._dial())
        try:
            welcome = link.welcome
            if self.away is not None:
                self._meet(welcome)
            if _lasting(welcome) != _lasting(self._welcome):
                raise RefusedError(
                    f"{self.url} now serves {welcome.model}, and this conversation is with "
                    f"{self.config.name}, or it was loaded in another way; connect again",
                    "model",
                )
            if welcome.context < context or welcome.nodes < nodes:  # it began before that was known
                raise RefusedError(
                    f"{self.url} has conversations of {welcome.context} positions and trees of "
                    f"{welcome.nodes} nodes, and this one may need {context} and {nodes}; begin another one",
                    "full",
                )
        except BaseException:
            link.close()
            raise
        return link


def _lasting(welcome: Welcome) -> Welcome:
    """What a server that is started anew says again: room is planned by the memory that it finds."""
    return replace(welcome, context=0, nodes=0)
