"""Wrong values and types in the Python API: typed errors that say what to do, before anything is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec import Chat, Engine
from edgespec.errors import BudgetError, OptionError
from tests.test_session import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("misuse") / "m")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="2GB", context=400) as engine:
        yield engine


@pytest.mark.parametrize(
    ("context", "part"),
    [
        (-60, "context is -60; it must be at least 1"),
        (0, "context is 0; it must be at least 1"),
        (True, "context is True; it must be a whole number"),
        (1.5, "context is 1.5; it must be a whole number"),
        ("many", "context is 'many'; it must be a whole number"),
        ([5], r"context is \[5\]; it must be a whole number"),
    ],
)
def test_a_session_has_a_whole_number_of_positions(engine: Engine, context: Any, part: str) -> None:
    for open_one in (engine.new_session, lambda context: Chat(engine, context=context)):
        with pytest.raises(OptionError, match=f"^{part}$") as refused:
            open_one(context)
        assert refused.value.option == "context"
    with engine.new_session("5") as session:  # type: ignore[arg-type]  # as in load(context="400")
        assert session.context == 5
        with pytest.raises(BudgetError, match="sessions hold 5"):
            engine.new_session(396)
    with engine.new_session() as session:
        assert session.context == 400, "the ledger is as it was"
