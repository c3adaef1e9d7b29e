"""Programs that take a draft worker's place: with a table for a model, slow, damaged, or talking nonsense."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters import channel, worker
from edgespec.drafters.channel import Load, Sent, Tree
from edgespec.drafters.opened import Opened
from edgespec.errors import CorruptFileError, ModelError
from edgespec.progress import LoadCallback
from tests.table_runtime import TablePass, TableRuntime

NOISE = 0.5  # between the drafter's table and the target's
ROWS = 256


def table() -> None:
    """No torch, no file: it drafts with a table."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # whoever imports it fails
    worker.run(lambda load, progress: Opened(lambda capacity: TableRuntime(ROWS, capacity, noise=NOISE)))


class SlowPass:
    """A pass that some device runs meanwhile: one unit, so many seconds long."""

    def __init__(self, begun: TablePass, seconds: float) -> None:
        self.begun, self.seconds = begun, seconds

    def advance(self) -> bool:
        time.sleep(self.seconds)
        while not self.begun.advance():
            pass
        return True

    @property
    def logits(self) -> NDArray[np.float32]:
        return self.begun.logits


class SlowRuntime(TableRuntime):
    """As an accelerator would: the processor sleeps."""

    seconds = 0.01

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> SlowPass:  # type: ignore[override]
        return SlowPass(super().begin(tokens, parents), self.seconds)


def busy() -> None:
    """It says that it is at work, for ever."""

    def at_work(self: worker.Desk, seat: object, message: channel.Draft) -> None:
        while True:
            time.sleep(0.02)
            self.say(channel.Beat(message.seat, message.question, 0))

    worker.Desk._draft = at_work  # type: ignore[assignment, method-assign]
    table()


def device() -> None:
    """A stand-in for an accelerator: passes take as long whatever else is computed."""
    worker.run(lambda load, progress: Opened(lambda capacity: SlowRuntime(ROWS, capacity, noise=NOISE)))


class SlowPrompt(TableRuntime):
    """What follows a prompt's first token takes until TEST_GO exists."""

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        for done in super().prefill(tokens):
            yield done
            while len(self.text) == 1 and not Path(os.environ["TEST_GO"]).exists():
                time.sleep(0.01)
                yield done


def slow_prompt() -> None:
    worker.run(lambda load, progress: Opened(lambda capacity: SlowPrompt(ROWS, capacity, noise=NOISE)))


class Failing(TableRuntime):
    error: Exception = MemoryError("of the accelerator")

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> TablePass:
        if len(self.text) > 12:
            raise self.error
        return super().begin(tokens, parents)


def failing() -> None:
    worker.run(lambda load, progress: Opened(lambda capacity: Failing(ROWS, capacity, noise=NOISE)))


def damaged() -> None:
    Failing.error = ModelError("the model's logits are not numbers")
    failing()


def _raises(error: BaseException) -> worker.OpenModel:
    def open_model(load: Load, progress: Callable[[int], None]) -> Opened:
        progress(7)
        raise error

    return open_model


def corrupt() -> None:
    worker.run(_raises(CorruptFileError("model.safetensors is truncated")))


def out_of_memory() -> None:
    worker.run(_raises(MemoryError("4 GB")))


def dies() -> None:
    print("no such library: libdevice.so", file=sys.stderr, flush=True)
    os._exit(3)


def compiles() -> None:
    """Two functions, for longer than a start may say nothing: under the first nothing else can run here."""

    def open_model(load: Load, progress: LoadCallback) -> Opened:
        progress(0, (1, 2))
        ctypes.PyDLL(None).usleep(500_000)  # which keeps Python's lock
        progress(0, (2, 2))
        time.sleep(0.5)
        return Opened(lambda capacity: TableRuntime(ROWS, capacity, noise=NOISE))

    worker.run(open_model)


def mute() -> None:
    time.sleep(1000)


def talks_first() -> None:
    os.write(1, channel.frame(channel.Committed(1, True, 5)))
    time.sleep(1000)


def liar() -> None:
    """Says what TEST_LIE says instead of its trees, from the third on."""
    which, count, true = os.environ["TEST_LIE"], 0, channel.frame

    def lie(message: Sent) -> bytes:
        nonlocal count
        if not isinstance(message, channel.Trees):
            return true(message)
        count += 1
        if count < 3:
            return true(message)
        number, (tree, *_) = message.question, message.trees
        trees = {
            "root": Tree([(tree.tokens[0] + 1) % 12, *tree.tokens[1:]], tree.parents, tree.logprobs),
            "vocabulary": Tree([*tree.tokens[:-1], 12], tree.parents, tree.logprobs),
            "parents": Tree(
                tree.tokens, [-1, *[len(tree.tokens) - 1] * (len(tree.tokens) - 1)], tree.logprobs
            ),
            "two roots": Tree(tree.tokens, [-1] * len(tree.tokens), tree.logprobs),
            "columns": Tree(tree.tokens, tree.parents, tree.logprobs[:-1]),
            "nan": Tree(tree.tokens, tree.parents, [0.0, *[float("nan")] * (len(tree.tokens) - 1)]),
            "infinite": Tree(tree.tokens, tree.parents, [*tree.logprobs[:-1], float("-inf")]),
            "above 0": Tree(tree.tokens, tree.parents, [*tree.logprobs[:-1], 0.5]),
            "deep": Tree([tree.tokens[0], *range(9)], list(range(-1, 9)), [0.0] * 10),
            "large": Tree([tree.tokens[0], *range(11), *range(11)], [-1, *[0] * 11, *[1] * 11], [0.0] * 23),
            "twice": Tree([tree.tokens[0], 5, 5], [-1, 0, 0], [0.0, -1.0, -1.0]),
        }
        if which in trees:
            return true(channel.Trees(number, [trees[which]]))
        return {
            "two trees": true(channel.Trees(number, [tree, tree])),
            "other question": true(channel.Trees(number + 7, [tree])),
            "other answer": true(channel.Committed(number, True, 1)),
            "twice answered": 2 * true(message),
            "ready again": true(channel.Ready(1)),
            "request": true(channel.Stop(1)),
            "long": (2**31).to_bytes(4, "little") + b"x" * 100,
            "noise": np.random.default_rng(0).bytes(4000),
            "text": b"Segmentation fault\n",
        }[which]

    worker.frame = lie  # type: ignore[attr-defined]
    table()
