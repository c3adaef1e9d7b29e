"""A small engine that streams, what it replies, and threads to ask it from."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core import batch
from edgespec.core.schedule import TreeBudget
from edgespec.engine import Engine
from edgespec.response import Response
from tests.test_session import prompt_of, write_model

REPLY = GenerationOptions(max_tokens=30, ignore_eos=True)
PROMPTS = [prompt_of(n, seed=n) for n in (20, 33, 7, 50)]
SHORT = Fixed(TreeBudget(4, 2, 2))  # at most three tokens a cycle, however quick the machine
WAIT = 60.0  # seconds, beyond which a test has hung


def long_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's leave time to draft beside them, however busy the machine is."""
    judge = batch._judge
    monkeypatch.setattr(batch, "_judge", lambda *parts: (time.sleep(0.02), judge(*parts)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("sessions") / "m", max_position_embeddings=2048)


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="4GB", context=800, resident_layers=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    with edgespec.load(model, memory="4GB", context=400, drafter="none") as engine:
        return [edgespec.generate(engine, prompt, REPLY).tokens for prompt in PROMPTS]


def tokens_of(responses: list[Response]) -> list[int]:
    return [response.token for response in responses if response.token is not None]


def wait_for(true: Callable[[], bool]) -> None:
    last = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < last
        time.sleep(0.001)


def in_threads(
    calls: list[Callable[[], Any]],
    held: AbstractContextManager[Any] | None = None,
    started: Callable[[int], None] = lambda count: None,
) -> list[Any]:
    """Results or exceptions. While threads are started `held` is held; after each, `started` gets how many
    there are."""
    found: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            found[place] = calls[place]()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    with held or nullcontext():
        for count, thread in enumerate(threads, start=1):
            thread.start()
            started(count)
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    return found
