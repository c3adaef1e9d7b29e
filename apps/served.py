"""`edgespec chat --server URL`: the same chat, with a server's replies."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

from edgespec.apps.talk import Talk
from edgespec.apps.terminal import Terminal
from edgespec.chat import Chat
from edgespec.config import GenerationOptions
from edgespec.errors import OptionError, ProtocolError
from edgespec.progress import ProgressCallback
from edgespec.response import Response, Stats
from edgespec.serving.client import ServerClient
from edgespec.text.conversation import Conversation
from edgespec.tuning.predict import Interval
from edgespec.values import count_of, parse_bytes


class ServedChat(Chat):
    """Messages are kept here and sent in full; the server formats them, and computes nothing twice.

    Attributes:
        model: the name of the server's model.
        context: its positions; 0 = the server does not say.
    """

    def __init__(self, client: ServerClient, options: GenerationOptions) -> None:
        """Raises LinkError, RefusedError, ProtocolError when the server is not one to talk with."""
        models = client.ask("/v1/models").get("data")
        first = models[0] if isinstance(models, list) and models else None
        if not isinstance(first, dict) or not isinstance(first.get("id"), str):
            raise ProtocolError(f"the server at {client.url} names no model")
        self.client, self.model = client, first["id"][:1000]
        context = first.get("context_length")
        self.context = context if isinstance(context, int) else 0
        self.options, self.last = options, None
        self.forgets, self.forgot = False, 0
        self.engine: Any = SimpleNamespace(eos=frozenset(), url=client.url)
        self.session: Any = SimpleNamespace(cancel=client.cancel, close=client.cancel, context=self.context)
        formatter: Any = _Unformatted()
        self.conversation = Conversation(formatter)
        self._latest = lambda: None

    def _reply(
        self,
        asked: Conversation,
        options: GenerationOptions,
        progress: ProgressCallback | None,
        whole_only: bool = False,
    ) -> Generator[Response, None, None]:
        if asked.private:
            raise OptionError(
                "a message of this conversation is private, and this server's replies are made there, of all "
                "messages; draft here, with --drafter ngram, or take the message back"
            )
        self.last = reply = Response("")
        replies = self.client.reply(self.model, asked.messages, options)
        followed = self._follow(asked, (), reply, replies, whole_only)
        self._latest = weakref.ref(followed)
        return followed


class _Unformatted:
    """In a tokenizer's place: the server has the model's template."""

    def render_chat(self, messages: Sequence[Any]) -> str:
        return "".join(f"{message['role']}\0{message['content']}\0" for message in messages)


class ServedTalk(Talk):
    """A conversation on a terminal with a server."""

    def __init__(
        self,
        client: ServerClient,
        terminal: Terminal,
        options: GenerationOptions,
        show_stats: bool = True,
        remembers: bool = False,
    ) -> None:
        """Raises as `ServedChat`."""
        self.check(options)
        self.client = client
        chat = ServedChat(client, options)
        self.context = chat.context
        self._begin(chat, chat.model, terminal)
        self.show_stats, self.verbose, self.remembers = show_stats, False, remembers

    templated, plan, expected_speed = True, None, None

    def describe(self) -> str:
        context = f" · context {self.context}" if self.context else ""
        return f"{self.model}{context}, at {self.client.url}"

    def expected(self) -> Interval | None:
        return None

    @property
    def dial(self) -> int:
        memory = self.client.ask("/v1/edgespec/memory").get("memory")
        if not isinstance(memory, int | float):
            raise ProtocolError(f"the server at {self.client.url} does not tell its memory")
        return int(memory)

    def set_memory(self, memory: str) -> None:
        self.client.ask("/v1/edgespec/memory", {"memory": parse_bytes(memory)})

    def in_use(self) -> str:
        stats = self.last_stats or Stats()
        used = stats.prompt_tokens + stats.reply_tokens
        return f"{used} of {self.context} positions in use" if self.context else count_of(used, "token")

    def check(self, options: GenerationOptions) -> None:
        if options.acceptance is not None:
            raise OptionError("acceptance is the server's; leave it out", "acceptance")

    def _learn(self, stats: Stats) -> list[str]:
        return []
