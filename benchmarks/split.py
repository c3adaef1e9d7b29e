"""A client that drafts over links as they are, beside plain remote decoding and an API's stream.

    python -m benchmarks.split [MODEL] --profiles lan,5g,4g,far --drafters none,ngram,moa --adapters DIR

A row is a drafter on the client (none: one round trip a token), or `api`: one request, whose text is streamed
as server-sent events, with n-grams beside the target. All make the same text, which is checked. Then the link
is cut in the middle of replies, for a few seconds; with --standby, of replies that the same model on this
machine goes on with, too. The links are emulated (`benchmarks.emulator`: Linux, root, openssl), and measured
before each profile's rows.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import ssl
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import edgespec
from benchmarks.common import edgespec_command, served
from benchmarks.emulator import FAR, PROFILES, Crossed, EmulatedLink
from edgespec.apps.common import demo_model
from edgespec.config import GenerationOptions
from edgespec.core.trace import Cycle, Trace
from edgespec.models.client_half import export_client
from edgespec.split.client import RemoteEngine
from edgespec.text.conversation import Conversation

PORT, KEY = 8642, "benchmark"
QUESTIONS = (
    "What is a draft?", "How do I save a conversation?", "Why is flash slow?", "What does /undo do?",
    "What is the dial?", "Tell me of the ring.",
)  # fmt: skip


@dataclass
class Figures:
    """Of one row's replies."""

    speeds: list[float] = field(default_factory=list)  # tokens a second, the prompt's time included
    firsts: list[float] = field(default_factory=list)  # seconds until the first token
    calls: int = 0
    late: int = 0  # rounds whose answer did not come in time
    sent: int = 0  # bytes of frames
    received: int = 0
    crossed: list[Crossed] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)

    def row(self, tokens: int) -> dict[str, Any]:
        all_tokens = tokens * len(self.speeds)
        near, far = (sum(getattr(c, n) for c in self.crossed) for n in ("near_bytes", "far_bytes"))
        return {
            "tokens/s": round(statistics.median(self.speeds), 1),
            "from": round(min(self.speeds), 1), "to": round(max(self.speeds), 1),
            "first token, s": round(statistics.median(self.firsts), 3),
            "calls a token": round(self.calls / all_tokens, 3),
            "late rounds": self.late, "of": self.calls,
            "frame bytes a token": [round(self.sent / all_tokens, 1), round(self.received / all_tokens, 1)],
            "IP bytes a token": [round(near / all_tokens, 1), round(far / all_tokens, 1)],
        }  # fmt: skip


@dataclass
class Bench:
    """A server beyond a link, and what is asked of it."""

    link: EmulatedLink
    certificate: Path
    prompts: Sequence[Sequence[int]]
    options: GenerationOptions
    adapters: str | None = None  # the client's half of a MoA drafter

    @property
    def url(self) -> str:
        return f"https://{FAR}:{PORT}"

    def connect(self, drafter: str, **more: Any) -> RemoteEngine:
        files = {"adapters": self.adapters} if "moa" in drafter else {}
        return edgespec.connect(self.url, key=KEY, ca=str(self.certificate), drafter=drafter, **files, **more)

    def drafting(self, drafter: str, **more: Any) -> Figures:
        figures = Figures()
        with self.connect(drafter, **more) as engine, engine.new_session() as session:
            for prompt in self.prompts:
                asked, bytes_before, before = session.rounds, session.traffic, self.link.count()
                began, first = time.monotonic(), 0.0
                tokens: list[int] = []
                late = 0
                for step in session.generate(prompt, self.options):
                    if step.withdrawn is not None:
                        del tokens[len(tokens) - step.withdrawn.tokens :]
                    if step.token is not None:
                        first = first or time.monotonic() - began
                        tokens.append(step.token)
                    late = step.stats.lost
                figures.speeds.append(len(tokens) / (time.monotonic() - began))
                figures.firsts.append(first)
                figures.calls += session.rounds - asked
                figures.late += late
                figures.sent += session.traffic[0] - bytes_before[0]
                figures.received += session.traffic[1] - bytes_before[1]
                figures.crossed.append(self.link.count().since(before))
                figures.said.append(engine.tokenizer.decode(tokens))
        return figures

    def streamed(self) -> Figures:
        figures = Figures()
        trusting = ssl.create_default_context(cafile=str(self.certificate))
        connection = http.client.HTTPSConnection(FAR, PORT, context=trusting)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        for prompt in [self.prompts[0], *self.prompts]:  # the first time, the connection is made
            before, began, first, text = self.link.count(), time.monotonic(), 0.0, ""
            body = {
                "prompt": list(prompt), "max_tokens": self.options.max_tokens, "ignore_eos": True,
                "stream": True,
            }  # fmt: skip
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    piece = json.loads(line[6:])["choices"][0]["text"]
                    first = first or (time.monotonic() - began if piece else 0.0)
                    text += piece
            if connection.sock is None:
                raise SystemExit("the server closes connections: their making would be counted")
            figures.speeds.append((self.options.max_tokens or 0) / (time.monotonic() - began))
            figures.firsts.append(first)
            figures.calls += 1
            figures.crossed.append(self.link.count().since(before))
            figures.said.append(text)
        for kept in (figures.speeds, figures.firsts, figures.crossed, figures.said):
            del kept[0]  # type: ignore[attr-defined]
        figures.calls -= 1
        return figures

    def cut(self, drafter: str, after: int, seconds: float, expected: str, **more: Any) -> dict[str, Any]:
        """A reply whose link is cut for some seconds: how long no text came meanwhile, and how long an answer
        would have been waited for; what was said then, and whether it is the text of an uninterrupted one in
        the end."""
        with self.connect(drafter, **more) as engine, engine.new_session() as session:
            tokens: list[int] = []
            pause, during, alone, again, cut, last = 0.0, 0, 0, 0, 0.0, 0.0
            whole = False  # all was said, verified or not, but for the last token, which is verified first
            usual, patience = 0.0, 0.0
            mending = threading.Timer(seconds, self.link.mend)
            try:
                for step in session.generate(self.prompts[0], self.options):
                    now = time.monotonic()
                    if step.withdrawn is not None:
                        again += step.withdrawn.tokens
                        del tokens[len(tokens) - step.withdrawn.tokens :]
                    if step.token is not None:
                        tokens.append(step.token)
                        alone += not step.verified
                        if cut and last < cut + seconds and not whole:
                            pause = max(pause, min(now, cut + seconds) - last)
                            during += now < cut + seconds
                        whole = whole or len(tokens) >= (self.options.max_tokens or 0) - 1
                        last = now
                    if len(tokens) >= after and not cut:
                        waits = session.cache.links.patience
                        usual, patience = waits.usual, waits.seconds
                        self.link.cut()
                        mending.start()
                        cut = time.monotonic()
            finally:
                if cut:
                    mending.join()
            return {
                "cut after": after, "longest silence, s": round(pause, 2),
                "late after, s": round(usual, 2), "lost after, s": round(patience, 2),
                "tokens meanwhile": during,
                "not verified": alone, "made again": again,
                "the same text": engine.tokenizer.decode(tokens) == expected,
            }  # fmt: skip


@contextlib.contextmanager
def far_server(link: EmulatedLink, model: str, folder: Path, flags: Sequence[str]) -> Iterator[None]:
    """`edgespec serve` at the far end, loaded."""
    (folder / "keys").write_text(KEY)
    files = "--ssl-certfile", str(folder / "server.pem"), "--ssl-keyfile", str(folder / "server.key")
    where = "--host", FAR, "--port", str(PORT), "--api-key-file", str(folder / "keys"), *files
    start = edgespec_command("serve", model, *where, *flags)
    with served(link.command(*start)):
        yield


def certify(folder: Path) -> Path:
    """A certificate of the far end that trusts itself."""
    subject = "-subj", "/CN=benchmark", "-addext", f"subjectAltName=IP:{FAR}", "-days", "2"
    made = "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject
    files = "-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem")
    subprocess.run([*made, *files], check=True, capture_output=True)
    return folder / "server.pem"


def prompts_of(model: str, count: int) -> list[list[int]]:
    from edgespec.text.tokenizer import Tokenizer

    found = []
    for question in QUESTIONS[:count]:
        conversation = Conversation(Tokenizer.from_directory(Path(model)))
        conversation.ask(question)
        found.append(list(conversation.prompt()))
    return found


def seconds_a_pass(engine: edgespec.Engine, prompt: Sequence[int]) -> float:
    cycles = list[Cycle]()
    with engine.new_session(trace=Trace(cycles.append)) as session:
        for _ in session.generate(prompt, GenerationOptions(max_tokens=20, ignore_eos=True)):
            pass
    return statistics.median(cycle.verify_seconds for cycle in cycles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default=str(demo_model()))
    parser.add_argument("--profiles", default=",".join(p.name for p in PROFILES))
    parser.add_argument("--drafters", default="none,ngram")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=len(QUESTIONS))
    parser.add_argument("--cuts", default="1,10,25,50", help="tokens after which the link is cut")
    parser.add_argument("--cut-seconds", type=float, default=3.0)
    parser.add_argument("--adapters", help="of a trained MoA drafter, for --drafters moa")
    parser.add_argument("--sessions", default="4", help="--max-sessions of the server")
    parser.add_argument("--standby", metavar="DIAL", help="the same model on this machine, by this dial")
    given = parser.parse_args()
    prompts = prompts_of(given.model, given.prompts)
    options = GenerationOptions(max_tokens=given.tokens, ignore_eos=True)
    flags: tuple[str, ...] = "--max-sessions", given.sessions, "--context", "512", "--memory", "2GB"
    drafters = given.drafters.split(",")
    standbys: dict[str, dict[str, Any]] = {drafters[-1]: {}}
    if given.standby is not None:
        here = edgespec.load(given.model, memory=given.standby, context=512, drafter="ngram")
        print(json.dumps({"here": given.standby, "s a pass": round(seconds_a_pass(here, prompts[0]), 3)}))
        standbys["the model here"] = {"standby": here}
    if given.adapters is not None:
        flags = *flags, "--client-adapters", given.adapters
    for profile in [p for p in PROFILES if p.name in given.profiles.split(",")]:
        with tempfile.TemporaryDirectory() as folder, EmulatedLink(profile) as link:
            client = None
            if given.adapters is not None:
                client = f"{folder}/client"
                export_client(given.model, given.adapters, client)
            bench = Bench(link, certify(Path(folder)), prompts, options, client)
            print(json.dumps({"link": profile.name, **_rounded(link.measure())}), flush=True)
            with far_server(link, given.model, Path(folder), flags):
                rows = {name: bench.drafting(name) for name in drafters}
                rows["api"] = bench.streamed()
                for name, figures in rows.items():
                    same = figures.said == rows["api"].said
                    row = {"link": profile.name, "drafts": name, **figures.row(given.tokens), "same": same}
                    print(json.dumps(row), flush=True)
                for after in map(int, filter(None, given.cuts.split(","))):
                    for stand_in, how in standbys.items():
                        about = after, given.cut_seconds, rows["api"].said[0]
                        cut = bench.cut("ngram" if how else drafters[-1], *about, **how)
                        print(json.dumps({"link": profile.name, "goes on": stand_in, **cut}), flush=True)


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}


if __name__ == "__main__":
    main()
