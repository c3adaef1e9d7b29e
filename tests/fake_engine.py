"""An engine without a model: it replies from a script, token by token, and notices cancellation.

Run as a program, it is the `edgespec` command with this engine behind it (for tests with a terminal).
Characters are tokens. A message with "calm", "slow" or "glacial" gets such a reply; with "wrong", an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import BudgetError, ContextError, ModelError, StorageError
from edgespec.offload.plan.costs import CostModel
from edgespec.offload.plan.ledger import HEADROOM, Ledger
from edgespec.progress import Progress
from edgespec.response import Response, Stats
from edgespec.values import options_of

EOS = 0
SECONDS = {"glacial": 0.2, "slow": 0.05, "calm": 0.005}  # a layer, by a word of the message
LAYERS = 4


class FakeTokenizer:
    """One token a character; EOS is 0, BOS is 1."""

    def __init__(self, has_chat_template: bool = True) -> None:
        self.has_chat_template = has_chat_template
        self.bos = 1
        self.template = SimpleNamespace(stop=() if has_chat_template else ("\nUser:",))

    def encode(self, text: str, add_bos: bool = True, continues: bool = False) -> list[int]:
        return [1] * add_bos + [ord(c) for c in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(t) for t in tokens if t > 1)

    def render_chat(self, messages: Sequence[dict[str, str]]) -> str:
        return "\x01" + "".join(f"<{m['role']}>{m['content']}\0" for m in messages) + "<assistant>"


@dataclass
class FakePlan:
    dial: int = 8 * 10**9
    context: int = 400
    pinned_bytes: int = 5 * 10**9
    streamed_bytes: int = 8 * 10**9
    predicted_tokens_per_second: float | None = 0.25
    costs: Any = CostModel  # a method
    table: Any = field(
        default_factory=lambda: SimpleNamespace(
            nbytes=13 * 10**9, precision="source", files=lambda: iter([Path(__file__)]), chunks=()
        )
    )

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.dial, {"pinned weights": 5 * 10**9, "process": 2 * 10**9, HEADROOM: 10**8})

    def describe(self, speed: str = "") -> str:
        return f"dial 8 GB\n  5 GB  pinned weights\n{speed}".rstrip()

    def to_dict(self) -> dict[str, object]:
        return {"dial": self.dial, "context": self.context}


class FakeSession:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.context = engine.plan.context
        self.tokens: list[int] = []
        self.prompts: list[list[int]] = []
        self.options: list[GenerationOptions] = []
        self._cancelled = False  # an Event that is waited for cannot be set by a signal's handler

    def cancel(self) -> None:
        self._cancelled = True

    def generate(
        self,
        prompt: Sequence[int],
        options: GenerationOptions,
        progress: Callable[[Progress], None] | None = None,
        safe: int | None = None,
    ) -> Generator[Response, None, None]:
        wanted = options.max_tokens or 1
        if len(prompt) + wanted > self.context:
            raise ContextError(
                f"the prompt has {len(prompt)} tokens and the reply may have {wanted}, "
                f"but the context is {self.context}"
            )
        self.prompts.append(list(prompt))
        self.options.append(options)
        return self._reply(list(prompt), options, progress)

    def _reply(
        self, prompt: list[int], options: GenerationOptions, progress: Any
    ) -> Generator[Response, None, None]:
        self._cancelled = False
        text = self.engine.tokenizer.decode(prompt)
        message = text.rsplit("<user>")[-1]
        reply = [*map(ord, self.engine.script(text)), EOS]
        limit = min(options.max_tokens or len(reply), self.context - len(prompt))
        stats = Stats(prompt_tokens=len(prompt), dial=self.engine.plan.dial, peak_memory=7_900_000_000)
        stats.undrafted = self.engine.undrafted
        for place, token in enumerate(reply):
            for layer in range(LAYERS):
                time.sleep(next((s for word, s in SECONDS.items() if word in message), 0.0))
                if self._cancelled:
                    yield Response("", None, False, "cancelled", stats=stats)
                    return
                if progress is not None:
                    progress(Progress("layers", layer + 1, LAYERS, "layers"))
                self.engine.bytes_read += 2 * 10**9
            if "wrong" in message and place == 2:
                raise StorageError("model.safetensors: a read failed: Input/output error")
            stats.reply_tokens = stats.cycles = place + 1
            stats.prefill_seconds = 1.0
            stats.decode_seconds = 4.0 * place
            stats.bytes_read = 8 * 10**9 * (place + 1)
            stats.decode_bytes_read = 8 * 10**9 * place
            ended = token in self.engine.eos and not options.ignore_eos
            reason = "stop" if ended else "length" if place + 1 == limit else None
            yield Response("" if ended else chr(token), token, False, reason, stats=stats)
            if reason:
                return
        raise AssertionError("the script ended without EOS")


class FakeEngine:
    """`script` maps the prompt's text to the reply's."""

    schedule = "serial"

    def __init__(self, script: Callable[[str], str] | None = None, template: bool = True) -> None:
        self.script = script or (lambda text: f"reply {text.count('<user>')}")
        self.tokenizer = FakeTokenizer(template)
        self.plan = FakePlan()
        self.target = SimpleNamespace(weights=SimpleNamespace(listen=lambda listener: None))
        self.config = SimpleNamespace(layers=LAYERS, vocab_size=200)
        self.eos = frozenset({EOS})
        self.drafters: tuple[str, ...] = ("ngram",)
        self.bytes_read = 0
        self.resident: list[Any] = []  # drafters
        self.undrafted: str | None = None
        self.sessions: list[FakeSession] = []
        self.loaded_with: tuple[str, EngineOptions] | None = None
        self.options = EngineOptions()
        self.closed = False

    @property
    def files(self) -> Any:
        raise ModelError("a script has no files: what it should give is not known")

    def new_session(
        self, context: int | None = None, controller: object = None, trace: object = None
    ) -> FakeSession:
        self.sessions.append(FakeSession(self))
        return self.sessions[-1]

    @property
    def dial(self) -> int:
        return self.plan.dial

    def set_memory(self, memory: str | float) -> None:
        dial = options_of(EngineOptions)["memory"].typed(memory)
        if dial < 10**9:
            raise BudgetError("the dial is too small; raise memory=", {}, dial, 10**9)
        self.plan.dial = dial

    def peak_memory(self) -> int:
        return 7_900_000_000

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True

    def load(self, model: str, options: EngineOptions, progress: Callable[[Progress], None]) -> FakeEngine:
        """Stands in for `apps.common.load_engine`."""
        self.loaded_with = (str(model), options)
        progress(Progress("load", 0, 5 * 10**9, "bytes"))
        time.sleep(float(os.environ.get("FAKE_LOAD_SECONDS", "0")))
        progress(Progress("load", 5 * 10**9, 5 * 10**9, "bytes"))
        return self


def long_story(text: str) -> str:
    return "once upon a time " * 4


if __name__ == "__main__":
    from edgespec.apps import common, start

    common.load_engine = FakeEngine(long_story).load  # type: ignore[assignment]
    start.main()
