"""`edgespec chat --server URL --drafter NAME`: a server verifies what is drafted here."""

from __future__ import annotations

from edgespec.apps.talk import Talk
from edgespec.apps.terminal import Terminal
from edgespec.chat import Chat
from edgespec.config import EngineOptions, GenerationOptions, with_keywords
from edgespec.errors import OptionError
from edgespec.response import Stats
from edgespec.split.client import OF_DRAFTING, RemoteEngine
from edgespec.split.options import ConnectOptions
from edgespec.split.websocket import websocket
from edgespec.tuning.predict import Interval


def connected(url: str, key: str | None, link: ConnectOptions, engine: EngineOptions) -> RemoteEngine:
    """The server's engine; of this one's options, those about drafting. Raises as `edgespec.connect`."""
    here = {name: getattr(engine, name) for name in OF_DRAFTING}
    drafting = with_keywords(EngineOptions(), here)
    return RemoteEngine(websocket(url, key, link.ca), url, link, drafting)


class DraftingTalk(Talk):
    """A conversation on a terminal whose target is on a server."""

    def __init__(
        self,
        engine: RemoteEngine,
        terminal: Terminal,
        options: GenerationOptions,
        show_stats: bool = True,
        remembers: bool = False,
    ) -> None:
        """Raises as `RemoteEngine.new_session`."""
        self.remote = engine
        self._begin(Chat(engine, options=options), engine.config.name, terminal)
        self.show_stats, self.verbose, self.remembers = show_stats, False, remembers

    plan, expected_speed = None, None

    @property
    def templated(self) -> bool:
        return self.remote.tokenizer.has_chat_template

    def describe(self) -> str:
        drafters = " and ".join(self.remote.drafters) or "nobody"
        context = self.remote.config.max_context
        return f"{self.model} · context {context}, at {self.remote.url} · drafts: {drafters}, here"

    def expected(self) -> Interval | None:
        return None

    @property
    def dial(self) -> int:
        raise OptionError("memory is the server's; see edgespec chat --server without --drafter", "memory")

    def set_memory(self, memory: str) -> None:
        raise OptionError("memory is the server's; see edgespec chat --server without --drafter", "memory")

    def check(self, options: GenerationOptions) -> None:
        pass  # `new_reply` asks

    def _learn(self, stats: Stats) -> list[str]:
        return []
