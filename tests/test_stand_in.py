"""The benchmarks' stand-in for an accelerator, by a clock of its own and in its process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from benchmarks import stand_in
from benchmarks.held_out import stories
from benchmarks.stand_in import Device, SlowDraft
from benchmarks.worker import Worker
from edgespec.models.exporting import export_model

DEMO = Path(__file__).parent.parent / "edgespec" / "demo_model"


class Clock:
    """`monotonic` and `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Pass:
    """Of two parts, which take no time."""

    def __init__(self) -> None:
        self.parts = 0
        self.logits = np.zeros((1, 3), np.float32)

    def advance(self) -> bool:
        self.parts += 1
        return self.parts == 2


class Draft:
    """A draft runtime, of lookahead streams where there are `streams`."""

    length = 7

    def __init__(self, streams: int = 0) -> None:
        self.streams = streams
        self.begun: list[Pass] = []

    def prefill(self, tokens: list[int]) -> Iterator[int]:
        for done in range(32, len(tokens) + 32, 32):
            yield min(done, len(tokens))

    def begin(self, tokens: list[int], parents: list[int]) -> Pass:
        self.begun.append(Pass())
        return self.begun[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stand_in, "monotonic", lambda: clock.now)
    monkeypatch.setattr(stand_in, "sleep", clock.sleep)
    return clock


def finish(under_way: Any) -> int:
    """Run it to its end: in how many parts."""
    parts = 1
    while not under_way.advance():
        parts += 1
    return parts


@pytest.mark.parametrize(("rows", "streams", "passes"), [(1, 0, 1), (64, 0, 1), (65, 0, 2), (17, 3, 2)])
def test_a_pass_takes_as_long_as_it_is_told(clock: Clock, rows: int, streams: int, passes: int) -> None:
    made = Draft(streams)
    draft = SlowDraft(made, Device(0.03))
    began = clock.now
    parts = finish(draft.begin([0] * rows, [-1] * rows))
    assert clock.now - began == pytest.approx(0.03 * passes)
    assert made.begun[0].parts == 2, "computed once"
    assert parts > 10, "whoever wants something else must be heard meanwhile"


def test_what_is_given_up_goes_on_to_its_end(clock: Clock) -> None:
    """It does one pass at a time, of whichever conversation."""
    device = Device(0.03)
    one, other = SlowDraft(Draft(), device), SlowDraft(Draft(), device)
    began = clock.now
    one.begin([0], [-1]).advance()  # and nobody asks for it again
    finish(other.begin([0], [-1]))
    assert clock.now - began == pytest.approx(0.06)
    clock.now += 1.0
    finish(one.begin([0], [-1]))
    assert clock.now - began == pytest.approx(1.09), "idle since"


def test_a_prompt_takes_time_and_all_else_is_the_models(clock: Clock) -> None:
    made = Draft()
    draft = SlowDraft(made, Device(0.03))
    began = clock.now
    assert list(draft.prefill([1] * 130)) == [32, 64, 96, 128, 130]
    assert 0.09 - 1e-9 <= clock.now - began < 0.1, "three passes of 64"
    assert draft.length == 7
    draft.length = 9
    assert made.length == 9


@pytest.mark.parametrize("exported", [True, False], ids=["onnx", "torch"])
def test_an_engine_drafts_on_it(tmp_path: Path, exported: bool) -> None:
    """Drafts come no sooner than its passes take, and the text is the same."""
    draft = tmp_path / "draft"
    if exported:
        export_model(str(DEMO), draft)
    (asked,) = stories(DEMO, 1)
    mode = {"kind": "fixed", "steps": [2], "nodes": 8}
    options = {"draft_model": draft if exported else DEMO, "schedule": "serial", "context": 256, "threads": 1}
    with Worker(DEMO, 10**9, "model", draft_worker=1, device=0.05, **options) as worker:
        on_it = worker.run(asked, 30, mode)
    with edgespec.load(DEMO, memory="2GB", drafter="none", context=256, threads=1) as engine:
        alone = edgespec.generate(engine, engine.encode(asked), max_tokens=30)
    assert on_it["tokens"] == alone.tokens
    cycles = on_it["cycles"][1:-1]
    assert len(cycles) > 4
    # Of two passes, or of one beside what was drafted before; who is late is left behind.
    drafts = [cycle["draft"] for cycle in cycles if cycle["nodes"] > 1]
    assert max(drafts) > 2 * 0.05
    assert sum(drafts) > 0.05 * len(drafts)
