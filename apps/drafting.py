"""`chat --server URL --drafter NAME` and `generate --server URL`: a server verifies what is drafted here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.apps.batch import BatchRun
from edgespec.apps.common import describe_plan, open_engine, say_whose
from edgespec.apps.talk import Talk
from edgespec.apps.terminal import Terminal
from edgespec.chat import Chat
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import ClosedError, EdgeSpecError, LinkError, OptionError, RefusedError
from edgespec.progress import Progress
from edgespec.response import Stats, whole
from edgespec.serving.many import Ended, Turns
from edgespec.split.client import RemoteEngine
from edgespec.split.drafting import meant_here
from edgespec.split.keys import read_keys
from edgespec.split.options import ConnectOptions
from edgespec.split.websocket import websocket
from edgespec.tuning.predict import Interval
from edgespec.values import count_of, with_keywords

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def connected(
    url: str,
    key_file: Path | None,
    link: ConnectOptions,
    engine: EngineOptions,
    model: str | None,
    terminal: Terminal,
) -> Iterator[RemoteEngine]:
    """The server's engine; of this one's options, those about drafting. `model`: the same one, that goes on
    here, with all of them. Raises as `edgespec.connect` and `open_engine`."""
    key = None if key_file is None else read_keys(key_file)[0]
    ours = meant_here(engine)
    drafting = with_keywords(EngineOptions(), {name: getattr(engine, name) for name in ours})
    with ExitStack() as stack:
        standby = None
        if model is None:
            say_whose(engine, terminal, ours)
        else:
            standby = stack.enter_context(open_engine(model, _for_target(engine), terminal))
        dial = websocket(url, key, link.ca)
        opened = stack.enter_context(RemoteEngine(dial, url, link, drafting, standby=standby))
        if opened.away is not None:
            terminal.note(f"{opened.away}; until it is there, replies are made here")
        yield opened


def _for_target(options: EngineOptions) -> EngineOptions:
    """For the model here, which has no use for a client's half of its own drafter, nor for a small model that
    is open already."""
    files = {"adapters": None, "draft_model": None, "draft_engine": None}
    plain = options.adapters is None and options.draft_model is None
    return options if plain else replace(options, drafter="auto", **files)  # type: ignore[arg-type]


class RemoteRun(BatchRun[RemoteEngine]):
    """Replies of a server's model, one after another: it is the server who shares passes."""

    def identity(self) -> str:
        return str(self.engine.config.name)

    def converse(self, conversations: Iterator[tuple[int, Turns, int]]) -> Generator[Ended[int], None, None]:
        """Each as it ends. Raises LinkError when the server stays away: what was not verified is no answer,
        unless it is to be kept."""
        with self.engine.new_session() as session:
            for done, (key, turns, _) in enumerate(conversations):
                self.progress(Progress("replies", done, 0, "rows"))
                ended = Ended(key)
                try:
                    asked = next(turns)
                    while True:
                        reply = whole(session.generate(*asked))
                        if not reply.verified and self.engine.asked.unverified == "again":
                            raise _not_verified(reply.stats.unverified_tokens)
                        ended.replies.append(reply)
                        asked = turns.send(reply)
                except StopIteration:
                    pass
                except (LinkError, RefusedError, ClosedError):  # no fault of this prompt
                    raise
                except EdgeSpecError as error:
                    ended.error = error
                yield ended


def _not_verified(count: int) -> LinkError:
    return LinkError(
        f"the server has not come back, so {count_of(count, 'token')} were not verified; the same command "
        "goes on later, and unverified=keep takes them as they are"
    )


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
        self.remote, self._away = engine, engine.away is not None
        self._begin(Chat(engine, options=options, forgets=True), engine.config.name, terminal)
        self.show_stats, self.verbose, self.remembers = show_stats, False, remembers

    plan, expected_speed = None, None

    @property
    def templated(self) -> bool:
        return self.remote.tokenizer.has_chat_template

    def describe(self) -> str:
        drafters = " and ".join(self.remote.drafters) or "nobody"
        context, standby = self.remote.config.max_context, self.remote.standby
        said = f"{self.model} · context {context}, at {self.remote.url} · drafts: {drafters}, here"
        return (
            said if standby is None else f"{said}\nwhen it is away: {describe_plan(self.model, standby.plan)}"
        )

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
        came, self._away = self._away and self.remote.away is None, self.remote.away is not None
        return ["the server is there: from now on it verifies"] if came else []
