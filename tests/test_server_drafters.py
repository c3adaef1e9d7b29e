"""`edgespec serve` with streaming and exported drafters: each of several clients gets what single decoding
says, side by side where the target's process drafts, and one after another where one of its own does."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import edgespec
from edgespec.apps.common import demo_model
from edgespec.engine import Engine
from edgespec.models.exporting import export_model
from edgespec.text.conversation import Conversation
from tests.servers import ServerProcess
from tests.sessions import wait_for
from tests.streamings import write_streaming

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

FLAGS = (
    "--context",
    "400",
    "--threads",
    "1",
    "--memory",
    "2GB",
    "--resident-layers",
    "1",
)  # where a streaming drafter's drafts pay; an export's, of as many layers, may not: passes take 5 ms
ASKED = (
    "What does /clear do?",
    "Tell me a story.",
    "What is the dial?",
    "Who are you?",
    "How do I save a chat?",
)
CLIENTS = 7  # at once: more than there are sessions, or places to ask from


@pytest.fixture(scope="module")
def alone() -> Iterator[Engine]:
    with edgespec.load(demo_model(), context=400, drafter="none", threads=1, memory="2GB") as engine:
        yield engine


def options_of(number: int) -> dict[str, Any]:
    return {"max_tokens": 20 + number, "temperature": 0.7 * (number % 2), "seed": number}


@pytest.fixture(scope="module")
def said(alone: Engine) -> list[str]:
    """What each is told."""
    replies = []
    for number in range(2 * CLIENTS):
        conversation = Conversation(alone.tokenizer)
        conversation.ask(ASKED[number % len(ASKED)])
        replies.append(edgespec.generate(alone, conversation.prompt(), **options_of(number)).text)
    return replies


def streaming(folder: Path) -> list[str]:
    out = write_streaming(demo_model(), out=folder / "streaming")
    return ["--drafter", "streaming", "--adapters", str(out), "--max-sessions", "4"]


def beside(folder: Path) -> list[str]:
    return [*streaming(folder)[:-1], "1", "--draft-worker", "1"]


def exported_streaming(folder: Path) -> list[str]:
    pytest.importorskip("onnxruntime")
    out = write_streaming(demo_model(), out=folder / "streaming")
    export_model(str(demo_model()), folder / "exported", adapters=out)
    return ["--draft-model", str(folder / "exported"), "--max-sessions", "1"]


def exported(folder: Path) -> list[str]:
    pytest.importorskip("onnxruntime")
    export_model(str(demo_model()), folder / "exported", precision="int8")
    return ["--draft-model", str(folder / "exported"), "--max-sessions", "1"]


@pytest.mark.parametrize("drafter", [streaming, beside, exported_streaming, exported])
def test_every_client_gets_what_single_decoding_says(
    drafter: Callable[[Path], list[str]], said: list[str], tmp_path: Path
) -> None:
    """All at once, and behind one another; and when the process that drafts is killed under the replies."""
    server = ServerProcess(*FLAGS, *drafter(tmp_path), cache=tmp_path)
    try:
        server.loaded()

        def ask(number: int) -> tuple[str, int]:
            messages = [{"role": "user", "content": ASKED[number % len(ASKED)]}]
            body = {"messages": messages, **options_of(number)}
            status, reply, _ = server.get("/v1/chat/completions", body)
            assert status == 200, reply
            return reply["choices"][0]["message"]["content"], reply["timings"]["draft_n"]

        with ThreadPoolExecutor(6) as pool:
            replies = [*pool.map(ask, range(CLIENTS))]
        assert sum(drafted for _, drafted in replies) > 0 or drafter in (exported, exported_streaming)
        workers = psutil.Process(server.process.pid).children()
        assert len(workers) == (drafter is not streaming)
        with ThreadPoolExecutor(6) as pool:
            later = [pool.submit(ask, number) for number in range(CLIENTS, 2 * CLIENTS)]
            for worker in workers:
                wait_for(lambda: server.metric("replying") > 0)
                worker.kill()
            replies += [each.result() for each in later]
    finally:
        assert server.end(signal.SIGINT) == 130, server.said
    assert not [line for line in server.said if "Traceback" in line], server.said
    assert [found for found, _ in replies] == said
