"""A server under many clients for minutes: errors, fairness, memory, descriptors, and every text checked.

    python -m benchmarks.serving [MODEL] --clients 32 --minutes 10

Each client asks one of some prompts, some of them sampled, half of them streamed, and asks again. What each
says is compared with what the first client who asked it was told, and that with the model by itself. Needs
the extra `serve`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psutil

import edgespec
from benchmarks.common import edgespec_command, served
from edgespec.apps.common import demo_model
from edgespec.text.conversation import Conversation

WORDS = ("/clear", "/undo", "the dial", "a draft", "flash", "/save", "a token tree", "the ring")
QUESTIONS = [f"{ask} {word}?" for word in WORDS for ask in ("What is", "Why is there", "Tell me of")]


@dataclass
class Figures:
    tokens: list[int] = field(default_factory=list)  # of each reply
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each reply
    firsts: list[float] = field(default_factory=list)  # until its first text, where it was streamed


def options_of(number: int) -> dict[str, Any]:
    sampled = {"temperature": 0.8, "seed": number} if number % 3 == 2 else {}
    return {"max_tokens": 16 + 8 * (number % 6), "ignore_eos": True, **sampled}


class Client:
    """One client, in a thread."""

    def __init__(self, url: str, number: int, said: dict[int, str], end: float) -> None:
        self.host, self.rng, self.said, self.end = urlsplit(url).netloc, random.Random(number), said, end
        self.figures = Figures()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while time.monotonic() < self.end:
            try:
                self.one(self.rng.randrange(len(QUESTIONS)), stream=self.rng.random() < 0.5)
            except Exception as error:
                self.figures.errors.append(f"{type(error).__name__}: {error}"[:200])
                time.sleep(0.1)

    def one(self, number: int, stream: bool) -> None:
        messages = [{"role": "user", "content": QUESTIONS[number]}]
        # Texts of a next turn may differ in a near tie, so every reply is a first one.
        body = {"messages": messages, "stream": stream, **options_of(number)}
        connection = http.client.HTTPConnection(self.host, timeout=600)
        began = time.monotonic()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{response.status} {response.read()[:100]!r}")
            text = self.streamed(response, began) if stream else self.whole(response.read())
        finally:
            connection.close()
        self.figures.seconds.append(time.monotonic() - began)
        self.figures.tokens.append(options_of(number)["max_tokens"])
        if self.said.setdefault(number, text) != text:
            raise RuntimeError(f"prompt {number}: {text!r} and {self.said[number]!r}")

    def whole(self, data: bytes) -> str:
        return str(json.loads(data)["choices"][0]["message"]["content"])

    def streamed(self, response: http.client.HTTPResponse, began: float) -> str:
        text, ended = "", False
        for line in response:
            if line.startswith(b"data: [DONE]"):
                ended = True
            elif line.startswith(b"data: "):
                piece = json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                if piece and not text:
                    self.figures.firsts.append(time.monotonic() - began)
                text += piece
        if not ended:
            raise RuntimeError("a stream without its end")
        return text


def watch(process: psutil.Process, end: float) -> list[tuple[int, int]]:
    """Bytes and descriptors, every second."""
    seen = []
    while time.monotonic() < end:
        seen.append((process.memory_info().rss, process.num_fds()))
        time.sleep(1)
    return seen


def checked(model: str, said: dict[int, str], context: int) -> int:
    """How many of the texts are not what the model says by itself."""
    wrong = 0
    with edgespec.load(model, context=context, drafter="none") as engine:
        for number, text in said.items():
            conversation = Conversation(engine.tokenizer)
            conversation.ask(QUESTIONS[number])
            options = conversation.options(edgespec.GenerationOptions(**options_of(number)))
            wrong += edgespec.generate(engine, conversation.prompt(), options).text != text
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default=str(demo_model()))
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--sessions", default="16", help="--max-sessions of the server")
    parser.add_argument("--memory", default="4GB")
    given = parser.parse_args()
    flags = ["--context", given.context, "--max-sessions", given.sessions, "--memory", given.memory]
    said: dict[int, str] = {}
    with served(edgespec_command("serve", given.model, "--port", 0, *flags)) as (process, url):
        end = time.monotonic() + 60 * given.minutes
        clients = [Client(url, number, said, end) for number in range(given.clients)]
        for client in clients:
            client.thread.start()
        seen = watch(psutil.Process(process.pid), end)
        for client in clients:
            client.thread.join()
    figures = [client.figures for client in clients]
    counts = sorted(len(f.tokens) for f in figures)
    errors = [error for f in figures for error in f.errors]
    warm = seen[len(seen) // 4 :]
    replies, firsts = (sorted(x for f in figures for x in getattr(f, n)) for n in ("seconds", "firsts"))
    print(json.dumps({
        "clients": given.clients, "minutes": given.minutes, "replies": sum(counts),
        "tokens_per_second": sum(sum(f.tokens) for f in figures) / (60 * given.minutes),
        "errors": len(errors), "first_errors": errors[:3],
        "slowest_of_fastest": counts[0] / counts[-1],
        "reply_seconds": {"median": statistics.median(replies), "worst": replies[-1]},
        "first_text_seconds": {"median": statistics.median(firsts), "worst": firsts[-1]},
        "rss": {"after_a_quarter": warm[0][0], "end": warm[-1][0], "most": max(m for m, _ in seen)},
        "descriptors": {"after_a_quarter": warm[0][1], "end": warm[-1][1], "most": max(d for _, d in seen)},
        "texts": len(said), "texts_other_than_alone": checked(given.model, said, given.context),
        "exit_code": process.returncode,
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
