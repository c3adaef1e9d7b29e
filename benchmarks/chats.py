"""A long chat, as a user has it: the whole command line, in a cgroup of exactly the dial, beside llama.cpp.

    python -m benchmarks.chats models/7b-inflated-int4 --memory 8GB --draft-model models/0.5b-inflated-int4 \\
        --gguf models/7b-inflated-q4_k_m.gguf --peer-python /opt/peers/bin/python

Held-out requests for stories, each with the questions about it, in one conversation, and at last a message
as long as six stories. Each arm is a process of its own that has learned nothing, from cold weights; timed is
what comes out of it. llama.cpp keeps keys and values, and gets token ids; it maps the file in place or, as by
default, repacks the weights in memory. Neighbours are loops of one thread.

    tokens/s      of all replies but the last, by all the time behind the first one's first byte
    first reply   its tokens by the time from its first byte to its end
    first text    from a message to the first byte of its reply, but for the first and the last one; median
    long prompt   tokens of the last message by that time, a second
"""

from __future__ import annotations

import argparse
import io
import select
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.cgroup import own_cache
from benchmarks.common import (
    Row,
    arguments,
    compile_checkout,
    edgespec_command,
    environment,
    interleave,
    numbers,
)
from benchmarks.measure import failure, limit_met, run
from benchmarks.neighbours import beside
from benchmarks.page_cache import drop_caches
from benchmarks.tables import Report, ratio, spread
from edgespec.demo_model.recipe.draw import HELD_OUT, Draw
from edgespec.demo_model.recipe.stories import story
from edgespec.demo_model.recipe.tokenizer import ASSISTANT_ID, BOS_ID, END_ID, USER_ID
from edgespec.values import format_bytes, parse_bytes

LONG = 6  # stories in the last message
TIMEOUT = 3600  # seconds
PEER = Path(__file__).parent / "peers" / "chat_llama_cpp.py"


@dataclass(frozen=True)
class Turn:
    """One message and its reply; times in seconds since the process began."""

    asked: float
    began: float  # the reply's first byte
    ended: float
    reply: bytes

    @property
    def wait(self) -> float:
        return self.began - self.asked


def talk(messages: list[bytes], turns: list[Turn], process: subprocess.Popen[bytes]) -> None:
    """One message a line, the next when the last one's reply is over, which is a line, too. If the process
    ends, is killed or says more than a line, there are fewer turns than messages."""
    given, said, start = process.stdin, process.stdout, time.perf_counter()
    assert given is not None
    assert isinstance(said, io.BufferedReader)
    with suppress(BrokenPipeError), given, said:
        for message in messages:
            asked = time.perf_counter() - start
            if select.select([said], [], [], 0)[0]:
                return
            given.write(message + b"\n")
            given.flush()
            reply = said.read1()
            began = time.perf_counter() - start
            while not reply.endswith(b"\n"):
                piece = said.read1()
                if not piece:
                    return
                reply += piece
            turns.append(Turn(asked, began, time.perf_counter() - start, reply))


def chat(
    command: list[str],
    weights: list[Path],
    dial: int,
    messages: list[bytes],
    last: int,
    count: Callable[[bytes], int],
) -> Row:
    """One conversation. last: tokens of the last message; count: of a reply."""
    turns = list[Turn]()
    drop_caches(weights)
    with own_cache():
        row = run(command, dial, None, weights, environment(), TIMEOUT, partial(talk, messages, turns)).row()
    if row["failure"]:
        return row
    if len(turns) < len(messages):
        return row | {"failure": f"ended behind {len(turns)} of {len(messages)} replies"}
    *short, long = turns
    tokens = [count(turn.reply) for turn in short]
    return row | {
        "replies": [turn.reply.decode() for turn in turns],
        "tokens": sum(tokens),
        "start": turns[0].wait,
        "first_text": statistics.median(turn.wait for turn in short[1:]),
        "rate": sum(tokens) / (short[-1].ended - short[0].began),
        "first_reply": tokens[0] / (short[0].ended - short[0].began),
        "prompt_rate": last / long.wait,
    }


def runtimes(args: argparse.Namespace) -> dict[str, Callable[[], Row]]:
    """One conversation by each."""
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    asked = [turn.user for i in range(args.stories) for turn in story(Draw(f"chat {i}", HELD_OUT))]
    told = [turn.reply for i in range(LONG) for turn in story(Draw(f"chat, told {i}", HELD_OUT))[:1]]
    asked.append(" ".join([*told, "Which of these do you like best?"]))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in asked]
    framed = [[USER_ID, *text, END_ID, ASSISTANT_ID] for text in ids]
    framed[0].insert(0, BOS_ID)

    context = sum(map(len, framed)) + len(framed) * (args.tokens + 2)  # with what the template puts between
    asking = "--max-tokens", args.tokens, "--context", context
    ours = edgespec_command("chat", args.model, "--memory", args.memory, *asking)
    wanted = "--tokens", args.tokens, "--end", END_ID, "--context", context
    theirs = [str(part) for part in (args.peer_python, PEER, args.gguf, *wanted)]
    lines = [text.encode() for text in asked]
    run_chat = partial(chat, dial=args.memory, last=len(framed[-1]))
    drafts = [args.draft_model] if args.draft_model else []
    as_text = partial(
        run_chat,
        weights=[args.model, *drafts],
        messages=lines,
        count=lambda said: min(  # with the token that ends it
            len(tokenizer.encode(said.decode().strip(), add_special_tokens=False).ids) + 1, args.tokens
        ),
    )
    known: dict[str, Callable[[], Row]] = {"EdgeSpec, plain": partial(as_text, [*ours, "--drafter", "none"])}
    if args.draft_model:
        known["EdgeSpec, drafts"] = partial(as_text, [*ours, "--draft-model", str(args.draft_model)])
    if args.gguf:
        messages = [",".join(map(str, line)).encode() for line in framed]
        by_ids = partial(
            run_chat, weights=[args.gguf], messages=messages, count=lambda said: len(said.split())
        )
        known["llama.cpp"] = partial(by_ids, theirs)
        known["llama.cpp, repacked"] = partial(by_ids, [*theirs, "--repack"])
    return known


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("model", type=Path)
    parser.add_argument("--memory", type=parse_bytes, required=True, help="the dial")
    parser.add_argument("--draft-model", type=Path, help="also with these drafts")
    parser.add_argument("--gguf", type=Path, help="llama.cpp's")
    parser.add_argument("--peer-python", default="/opt/peers/bin/python")
    parser.add_argument("--stories", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=160, help="most of a reply")
    parser.add_argument("--neighbours", type=numbers, default=[0, 1])
    args = parser.parse_args()
    compile_checkout()
    known = runtimes(args)
    arms = {
        f"{name}, {busy} busy": partial(beside, busy, arm)
        for busy in args.neighbours
        for name, arm in known.items()
    }
    found = interleave(arms, args.rounds)

    title = f"A conversation about {args.stories} stories, {args.model.name}, {format_bytes(args.memory)}"
    report, quiet = Report(title, raw=dict(found)), f"{args.neighbours[0]} busy"
    for name, rows in found.items():
        if why := failure(rows):
            report.failed(name, why)
            continue
        who, busy = name.rsplit(", ", 1)
        rates, waits = ([row[key] for row in rows] for key in ("rate", "first_text"))
        cells = {"arm": name, "tokens": rows[0]["tokens"], "tokens/s": spread(rates, 3)}
        for beside_it, other in (("× llama.cpp", f"llama.cpp, {busy}"), ("of quiet", f"{who}, {quiet}")):
            those = found.get(other, [])
            fit = those and not failure(those)
            cells[beside_it] = ratio(rates, [row["rate"] for row in those]) if fit else "–"
        cells["first reply, tokens/s"] = spread([row["first_reply"] for row in rows], 3)
        cells["start, s"] = spread([row["start"] for row in rows], 1)
        cells["first text, s"] = spread(waits)
        cells["long prompt, tokens/s"] = spread([row["prompt_rate"] for row in rows], 1)
        peak = format_bytes(max(row["peak"] for row in rows))
        report.add(cells | {"peak": peak, "limit": limit_met(rows)})
    texts = [
        row["replies"]
        for name, rows in found.items()
        for row in rows
        if name.startswith("EdgeSpec") and not row["failure"]
    ]
    if len(texts) > 1:
        same = all(text == texts[0] for text in texts)
        report.notes.append(f"EdgeSpec's replies are {'all the same' if same else 'NOT THE SAME'}.")
    report.finish(args.json)


if __name__ == "__main__":
    main()
