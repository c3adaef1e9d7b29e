"""Sessions that come to hold more positions, or fewer: the same text, and the ledger knows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import edgespec
from edgespec.config import GenerationOptions
from edgespec.engine import Engine
from edgespec.errors import BudgetError, ContextError
from edgespec.runtimes.torch.reserved import Reserved
from tests.test_session import prompt_of, write_model

OPTIONS = GenerationOptions(max_tokens=200, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("growing") / "m", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="4GB", context=1000, batch=3, resident_layers=1) as engine:
        yield engine


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_session_that_grows_says_the_same(engine: Engine) -> None:
    """In steps, in the middle of a reply; and its positions are the pool's."""
    prompt = prompt_of(30)
    expected = edgespec.generate(engine, prompt, OPTIONS).tokens
    assert engine.may_grow
    session = engine.new_session(held=64)
    assert session.context == 1000
    assert engine.pool.held == 64
    said, held = list[int](), 64
    for response in session.generate(prompt, OPTIONS):
        assert response.token is not None
        said.append(response.token)
        if session.cache.length + 1 >= held:
            held += 64
            engine.hold(session, held)
            assert engine.pool.held == held
    assert said == expected
    assert engine.pool.held == 256
    engine.hold(session, len(session.tokens))
    again = [*prompt, *said, 5]
    engine.hold(session, len(again) + 20)
    more = [r.token for r in session.generate(again, GenerationOptions(max_tokens=20, ignore_eos=True))]
    other = engine.new_session(600)
    for _ in other.generate(prompt, OPTIONS):
        pass
    assert more == [r.token for r in other.generate(again, GenerationOptions(max_tokens=20, ignore_eos=True))]
    session.close()
    other.close()
    assert engine.pool.held == 0


def test_who_grows_beyond_the_pool_is_refused_and_stays_what_it_was(engine: Engine) -> None:
    one, two = engine.new_session(held=1000), engine.new_session(held=900)
    assert engine.pool.free == 1024 + 2 * 512 - 1024 - 960
    engine.hold(two, 1000)
    with pytest.raises(BudgetError, match="a session of 100 positions does not fit"):
        engine.new_session(held=100)
    two.close()
    three = engine.new_session(held=64)
    four = engine.new_session(held=900)
    with pytest.raises(BudgetError, match="a session of 500 positions"):
        engine.hold(three, 500)
    assert three.cache.capacity == 64
    for session in (one, three, four):
        session.close()


def test_who_does_not_grow_in_time_is_told(engine: Engine) -> None:
    with engine.new_session(held=64) as session, pytest.raises(ContextError, match="need 65 places"):
        for _ in session.generate(prompt_of(30), OPTIONS):
            pass


def test_a_borrowed_prefix_is_as_computed(engine: Engine) -> None:
    prompt = prompt_of(600, seed=1)
    options = GenerationOptions(max_tokens=10, ignore_eos=True)
    expected = edgespec.generate(engine, prompt, options)
    with engine.new_session(700) as one, engine.new_session(700) as two:
        for _ in one.generate([*prompt[:550], 7], options):
            pass
        two.borrow(one, 512)
        reply = [*two.generate(prompt, options)]
        assert [r.token for r in reply] == expected.tokens
        assert reply[-1].stats.reused_tokens == 512


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_only_what_is_held_takes_memory() -> None:
    """200 MB of addresses: what is held is there, what was is given back, and what stays is what it was."""
    gc.collect()
    before = resident()
    area = Reserved((4, 3, 16384, 256), torch.float32)
    held = area.hold(128)
    assert not held.any()
    held[:] = torch.arange(256)
    assert resident() - before < 20 * 10**6
    assert area.hold(8192).shape == (4, 3, 8192, 256)
    grown = resident() - before
    assert grown > 90 * 10**6
    kept = area.hold(64)
    assert resident() - before < grown - 80 * 10**6
    assert (kept == torch.arange(256)).all()
    assert not area.hold(256)[:, :, 128:].any()
    del area, held, kept
    assert resident() - before < 5 * 10**6


def test_odd_rows_do_not_touch_the_next_heads() -> None:
    """Pages that two heads share stay."""
    area: Any = Reserved((2, 3, 100, 6), torch.bfloat16)
    whole = area.hold(100)
    whole[:] = 3
    assert (area.hold(1) == 3).all()
    assert (area.hold(1)[:, :, 0] == 3).all()
