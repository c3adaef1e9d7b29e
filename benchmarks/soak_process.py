"""Random conversations with one engine, for as long as asked: the process whose memory `soak.py` watches.

    python -m benchmarks.soak_process MODEL '{"memory": 4e8}' '{"replies": 1000}'

New words in every prompt, replies of 1 to 60 tokens, trees of all sizes (fixed budgets and the engine's own
controller), greedy and drawn, ended by length, stop strings, cancelling and leaving, in this thread and in
threads that end with them, sessions of 1 to 8 replies: whatever is kept by word, shape, thread or session has
grown by the end. The last line of stdout is JSON.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil

from benchmarks.common import Row
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.engine import Engine
from edgespec.session import Session
from edgespec.text.conversation import Message

LETTERS = "etaoinshrdlucmfwyp" * 8 + "0123456789,.-" * 2 + "éàüößабвгджзあいう漢字🙂"
SETTLED = 50  # replies, after which all that is kept once is there
LEAK = 60_000  # bytes a reply


def words(rng: random.Random) -> str:
    count = min(80, 1 + int(rng.expovariate(1 / 8)))
    return " ".join("".join(rng.choices(LETTERS, k=rng.randint(1, 9))) for _ in range(count))


def options(rng: random.Random, number: int) -> GenerationOptions:
    return GenerationOptions(
        max_tokens=min(60, 1 + int(rng.expovariate(1 / 10))),
        temperature=rng.choice([0.0, 0.0, 0.9]),
        seed=number,
        stop=rng.choice([(), (), ("a",), (". ", "x")]),
        ignore_eos=rng.random() < 0.5,
    )


class Conversations:
    """One after another."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.engine, self.rng = engine, rng
        self.replies = self.tokens = 0
        self.begin()

    def begin(self) -> None:
        rng, controller = self.rng, None
        if rng.random() < 0.5:
            nodes = rng.randint(1, 32)
            controller = Fixed(TreeBudget(nodes, rng.randint(0, nodes - 1), rng.randint(0, 8)))
        self.session = self.engine.new_session(controller=controller)
        self.messages: list[Message] = []
        self.left = rng.randint(1, 8)  # replies

    def reply(self) -> None:
        """Answer one message more."""
        rng, asked = self.rng, options(self.rng, self.replies)
        while True:
            question: Message = {"role": "user", "content": words(rng)}
            prompt = self.engine.encode([*self.messages, question])
            if self.left and len(prompt) + (asked.max_tokens or 0) <= self.session.context:
                break
            self.session.close()
            self.begin()
        self.messages.append(question)
        ending, after = rng.choice(["end", "end", "cancel", "leave"]), rng.randint(1, 20)
        if rng.random() < 0.2:
            with ThreadPoolExecutor(1) as elsewhere:
                text = elsewhere.submit(answer, self.session, prompt, asked, ending, after).result()
        else:
            text = answer(self.session, prompt, asked, ending, after)
        self.messages.append({"role": "assistant", "content": "".join(text)})
        self.replies, self.tokens, self.left = self.replies + 1, self.tokens + len(text), self.left - 1


def answer(
    session: Session, prompt: list[int], asked: GenerationOptions, ending: str, after: int
) -> list[str]:
    """The texts of a reply's tokens; after so many it is cancelled or left, unless it should `end`."""
    said = []
    with closing(session.generate(prompt, asked)) as responses:
        for response in responses:
            said.append(response.text)
            if len(said) >= after and ending == "cancel":
                session.cancel()
            elif len(said) >= after and ending == "leave":
                break
    return said


class _MallInfo2(ctypes.Structure):
    """See malloc.h; the fifth field is hblkhd, the eighth uordblks."""

    _fields_ = (("numbers", ctypes.c_size_t * 10),)


def allocated() -> int | None:
    """Bytes that were asked of the C library's allocator and not given back; None where it does not tell."""
    try:
        mallinfo2 = ctypes.CFUNCTYPE(_MallInfo2)(("mallinfo2", ctypes.CDLL(None)))  # glibc 2.33
    except (OSError, AttributeError, TypeError):
        return None
    numbers = mallinfo2().numbers
    return int(numbers[4] + numbers[7])


def look(talk: Conversations, began: float) -> Row:
    """Bytes: `rss`, of this process in memory, of which `own` are of no file (libraries come and go where
    memory is short); `allocated`: see there, without what awaits collection."""
    row: Row = {"replies": talk.replies, "tokens": talk.tokens, "seconds": time.perf_counter() - began}
    memory = psutil.Process().memory_info()
    row |= {"rss": memory.rss, "own": memory.rss - getattr(memory, "shared", 0)}
    gc.collect()
    row["allocated"] = allocated()
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def soak(
    engine: Engine, replies: int | None, minutes: float | None, every: int, leak_from: int | None
) -> Row:
    """Until so many replies or minutes are over, with a look after `SETTLED` and after every so many replies.

    From reply `leak_from` on `LEAK` bytes are lost in each, to see that a leak shows.
    """
    talk, began = Conversations(engine, random.Random(0)), time.perf_counter()
    looks, lost, over = list[Row](), list[bytes](), False
    while not over:
        talk.reply()
        if leak_from is not None and talk.replies > leak_from:
            lost.append(bytes([1]) * LEAK)
        over = talk.replies == replies or (minutes is not None and time.perf_counter() > began + 60 * minutes)
        if over or talk.replies == SETTLED or talk.replies % every == 0:
            looks.append(look(talk, began))
    return {"looks": looks, "peak_memory": engine.peak_memory(), "plan": engine.plan.to_dict()}


def main() -> None:
    model, given, limits = sys.argv[1:]
    defaults = {"replies": None, "minutes": None, "every": 1000, "leak_from": None}
    with Engine.load(model, EngineOptions(**json.loads(given))) as engine:
        print(json.dumps(soak(engine, **(defaults | json.loads(limits)))))


if __name__ == "__main__":
    main()
