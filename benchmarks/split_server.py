"""What a server can carry whose clients draft: its CPU time and reads a token, for one client and for many.

    python -m benchmarks.split_server [MODEL] --clients 1,8,32 --drafters none,ngram,moa+ngram --adapters DIR
    python -m benchmarks.split_server MODEL --memory 800MB --drafters none,model+ngram --draft-model DIR

What a drafter said in a client's replies is recorded first, with the frames of each round. Then clients that
are those frames and nothing else ask the server again, all at once, each a reply after the other: so they eat
hardly any of the cores, and every answer is compared with the first one. `none` is a round trip a token, what
a client without drafts asks for. CPU time is the server's process's, of all its threads; what it reads from
flash is the kernel's count (the second example: a model larger than its dial, every pass streams). Clients
say all that was recorded, each beginning elsewhere: so all have the same work, and who is slower than others
was served later.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil

import edgespec
from benchmarks.cgroup import throttled
from benchmarks.common import edgespec_command, names, numbers, served
from benchmarks.split import prompts_of
from edgespec.apps.common import demo_model
from edgespec.config import GenerationOptions
from edgespec.core.trace import Cycle, Trace
from edgespec.core.tree import TokenTree
from edgespec.models.client_half import export_client
from edgespec.split.link import OPEN_SECONDS, Link
from edgespec.split.payload import pack_nodes, pack_tokens, squeeze
from edgespec.split.protocol import (
    Judge,
    Judged,
    LeaveSeat,
    Recalled,
    Seated,
    Still,
    TakeSeat,
    Told,
    Upload,
    Uploaded,
    as_manner,
    written,
)
from edgespec.split.recall import Recollection, known
from edgespec.split.transcript import Transcript
from edgespec.split.websocket import websocket
from edgespec.values import parse_bytes

CONTEXT, NODES = 448, 64  # positions of a conversation, and of a tree
OPTIONS = {"moa": "adapters", "model": "draft_model"}  # that name a drafter's files


@dataclass(frozen=True)
class Record:
    """A reply: its prompt, the trees that were judged, and what came of each, accepted tokens and the next.
    attends: the drafter was sent what it attends to."""

    prompt: Sequence[int]
    first: int
    trees: Sequence[TokenTree]
    said: Sequence[tuple[int, ...]]
    attends: bool

    @property
    def tokens(self) -> int:
        return 1 + sum(map(len, self.said))


def recorded(
    url: str, drafter: str, files: dict[str, str], prompts: Sequence[list[int]], most: int
) -> list[Record]:
    """A reply to each prompt, by a client that drafts. files: of drafters, by their names."""
    attends = "moa" in drafter
    options = GenerationOptions(max_tokens=most, ignore_eos=True)
    found = []
    wants = {OPTIONS[name]: files[name] for name in drafter.split("+") if name in files}
    with edgespec.connect(url, drafter=drafter, **wants) as engine:
        for prompt in prompts:
            cycles = list[Cycle]()
            with engine.new_session(CONTEXT, trace=Trace(cycles.append)) as session:
                tokens = [step.token for step in session.generate(prompt, options) if step.token is not None]
            trees, said = [c.tree for c in cycles], [c.outcome.tokens for c in cycles]
            found.append(Record(prompt, tokens[0], trees, said, attends))
    return found


class Client:
    """Says what was recorded, in a thread, and hears whether the answers are the same."""

    def __init__(self, url: str, records: Sequence[Record], begin: threading.Barrier) -> None:
        self.link = Link(websocket(url, None, None)())
        self.records, self.begin = records, begin
        self.round, self.seconds, self.waits = 0, 0.0, list[float]()
        self.error: Exception | None = None
        self.link.send(written(TakeSeat(b"", CONTEXT)))
        self.seat = self.link.expect(Seated).seat
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.begin.wait()
            began = time.perf_counter()
            for record in self.records:
                self._reply(record)
            self.seconds = time.perf_counter() - began
            self.link.send(written(LeaveSeat(self.seat)))
        except Exception as error:
            self.error = error
            self.begin.abort()
        finally:
            self.link.close()

    def _reply(self, record: Record) -> None:
        text = Transcript()
        heard = Recollection(self.link.welcome.width) if record.attends else None
        self.link.send(written(as_manner(GenerationOptions(), "greedy")))
        body = squeeze(pack_tokens(record.prompt))
        answer = self._ask(Upload(self.seat, self._next(), 0, text.hash(), known(heard), True, *body))
        assert isinstance(answer, Uploaded), answer
        assert answer.token == record.first, "another token"
        text.extend(list(record.prompt))
        self._hear(heard, len(text))
        for tree, said in zip(record.trees, record.said, strict=True):
            where = len(text), text.hash(), known(heard), int(tree.tokens[0])
            answer = self._ask(Judge(self.seat, self._next(), *where, pack_nodes(tree)))
            assert isinstance(answer, Judged), answer
            assert answer.tokens == pack_tokens(said), "other tokens"
            text.extend([int(tree.tokens[0]), *said[:-1]])
            self._hear(heard, len(text))

    def _hear(self, heard: Recollection | None, tokens: int) -> None:
        """What the drafter attends to, of all these tokens."""
        while heard is not None and heard.length < tokens:
            answer = self._answer()
            assert isinstance(answer, Recalled), answer
            heard.take(answer, tokens)

    def _next(self) -> int:
        self.round += 1
        return self.round

    def _ask(self, request: Upload | Judge) -> Told:
        began = time.perf_counter()
        self.link.send(written(request))
        answer = self._answer()
        self.waits.append(time.perf_counter() - began)
        return answer

    def _answer(self) -> Told:
        while isinstance(answer := self.link.receive(OPEN_SECONDS), Still):
            pass
        assert answer is not None, f"silent for {OPEN_SECONDS:g} s"
        return answer


def counters(url: str) -> tuple[float, float]:
    """Rounds that the server has verified, and its passes."""
    with urlopen(f"{url}/metrics") as answer:
        told = dict(line.split() for line in answer.read().decode().splitlines() if not line.startswith("#"))
    return float(told["edgespec_rounds_total"]), float(told["edgespec_passes_total"])


def measure(
    process: psutil.Process, url: str, count: int, records: Sequence[Record], times: int
) -> dict[str, Any]:
    """So many clients at once, each with all replies so many times, beginning with another prompt."""
    begin = threading.Barrier(count + 1)
    replies = times * len(records)
    turns = [[records[(number + n) % len(records)] for n in range(replies)] for number in range(count)]
    clients = [Client(url, turn, begin) for turn in turns]
    for client in clients:
        client.thread.start()
    before, read_before = process.cpu_times(), process.io_counters().read_bytes
    counted = counters(url)
    begin.wait()
    began = time.perf_counter()
    for client in clients:
        client.thread.join()
    seconds, after = time.perf_counter() - began, process.cpu_times()
    read = process.io_counters().read_bytes - read_before
    verified, passes = (now - then for then, now in zip(counted, counters(url), strict=True))
    cpu = after.user + after.system - before.user - before.system
    tokens = [sum(record.tokens for record in turn) for turn in turns]
    speeds = [n / client.seconds for n, client in zip(tokens, clients, strict=True) if client.seconds]
    rounds = sum(len(record.trees) for turn in turns for record in turn)
    waits = np.array([wait for client in clients for wait in client.waits])
    return {
        "clients": count, "errors": [str(client.error) for client in clients if client.error is not None],
        "tokens/s": round(sum(tokens) / seconds, 1),
        "tokens a round": round(sum(tokens) / rounds, 2),
        "slowest of fastest": round(min(speeds, default=0.0) / max(speeds, default=1.0), 2),
        "a client's tokens/s": round(statistics.median(speeds), 1) if speeds else 0.0,
        "rounds a pass": round(verified / max(passes, 1), 2),
        "ms a round (50 %, 95 %, most)": (1000 * np.quantile(waits, [0.5, 0.95, 1])).round().tolist(),
        "MB read a token": round(1e-6 * read / sum(tokens), 2),
        "server ms CPU a token": round(1000 * cpu / sum(tokens), 3),
        "clients at 10 tokens/s a CPU": round(sum(tokens) / cpu / 10, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default=str(demo_model()))
    parser.add_argument("--clients", type=numbers, default=[1, 8, 32], help="one alone says all 4 times")
    parser.add_argument("--drafters", type=names, default=["none", "ngram"])
    parser.add_argument("--adapters", help="of a trained MoA drafter, for --drafters moa")
    parser.add_argument("--draft-model", metavar="DIR", help="exported, for --drafters model")
    parser.add_argument("--memory", default="2GB", help="dial of the server")
    parser.add_argument("--throttle", type=parse_bytes, metavar="RATE", help="of a slower disk; root")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    prompts = prompts_of(given.model, given.prompts)
    flags = (
        "--max-sessions",
        str(max(given.clients)),
        "--context",
        str(CONTEXT + NODES),
        "--memory",
        given.memory,
    )
    files = {} if given.draft_model is None else {"model": given.draft_model}
    with tempfile.TemporaryDirectory() as folder, throttled(Path(given.model), given.throttle):
        if given.adapters is not None:
            files["moa"] = f"{folder}/client"
            export_client(given.model, given.adapters, files["moa"])
            flags = *flags, "--client-adapters", given.adapters
        command = edgespec_command("serve", given.model, "--port", 0, *flags)
        with served(command) as (server, url):
            process = psutil.Process(server.pid)
            for drafter in given.drafters:
                records = recorded(url, drafter, files, prompts, given.tokens)
                for count in given.clients:
                    measure(process, url, count, records[:1], 1)  # what is done once is done
                    times = 4 if count == 1 else 1
                    row = {"drafts": drafter, **measure(process, url, count, records, times)}
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
