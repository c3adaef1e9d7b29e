"""Mirror, and a draft worker that dies, stalls or answers nonsense: the text stays plain decoding's."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable

import pytest

from edgespec.config import GenerationOptions
from edgespec.core.trace import Cycle
from edgespec.drafters import beside
from edgespec.drafters.beside import Beside
from edgespec.schedules.mirror import Mirror
from tests import test_mirror
from tests.covering import covering
from tests.sessions import WAIT, wait_for
from tests.table_runtime import GREEDY, HOT, plain
from tests.test_beside import LIES, drafter_of, start
from tests.test_mirror import TableExit, said_in

COUNT = 70  # tokens of a reply


def schedule_with(opened: Beside) -> Mirror:
    return test_mirror.mirror(drafter_of(opened), TableExit())


def reply(
    schedule: Mirror,
    options: GenerationOptions = GREEDY,
    verify: Callable[[], None] = lambda: time.sleep(0.0005),
    count: int = COUNT,
) -> tuple[list[int], list[Cycle]]:
    """`verify` is called before each layer of the target."""

    def waits() -> int:
        verify()
        return 9

    return test_mirror.reply(schedule, waits, options, count=count)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize(("options", "layer"), covering({"greedy": GREEDY, "sampled": HOT}, (0, 2, 3, 5)))
def test_a_worker_killed_in_any_part_of_a_pass_costs_no_token(options: GenerationOptions, layer: int) -> None:
    """Before the exit speaks, while it does, and after it."""
    opened = start()
    schedule, calls = schedule_with(opened), 0

    def kill() -> None:
        nonlocal calls
        calls += 1
        if calls == 6 * test_mirror.LAYERS + layer + 1:
            os.kill(opened.worker._process.pid, signal.SIGKILL)
            wait_for(lambda: opened.worker.lost is not None)

    said, cycles = reply(schedule, options, kill)
    assert said == plain(options, COUNT)
    assert said_in(cycles[:6]), "the exit had spoken"
    assert sum(cycle.outcome.accepted for cycle in cycles[:7]) > 2
    assert not any(cycle.outcome.drafted for cycle in cycles[8:])
    assert schedule.undrafted == "the draft worker is lost: it was killed by signal 9"
    assert reply(schedule, options)[0] == plain(options, COUNT)
    opened.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_stalled_worker_is_waited_for_once_and_caught_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "SILENCE", WAIT)
    opened = start()
    schedule, calls, pid = schedule_with(opened), 0, opened.worker._process.pid

    def stall() -> None:
        nonlocal calls
        calls += 1
        if calls == 5 * test_mirror.LAYERS:
            os.kill(pid, signal.SIGSTOP)
            monkeypatch.setattr(beside, "SILENCE", 0.2)
        if calls == 25 * test_mirror.LAYERS:
            os.kill(pid, signal.SIGCONT)
            wait_for(lambda: schedule.drafter.caught_up)  # type: ignore[attr-defined]
            monkeypatch.setattr(beside, "SILENCE", WAIT)

    said, cycles = reply(schedule, verify=stall, count=120)
    assert said == plain(count=120)
    assert not any(cycle.outcome.drafted for cycle in cycles[7:24])
    assert sum(cycle.outcome.accepted for cycle in cycles[26:]) > 5
    assert schedule.undrafted is None
    opened.close()


@pytest.mark.parametrize("lie", re.split(r",\s+", LIES))
def test_nonsense_ends_the_worker_and_not_the_reply(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_LIE", lie)
    monkeypatch.setattr(beside, "SILENCE", WAIT)
    opened = start("liar")
    schedule = schedule_with(opened)
    said, cycles = reply(schedule)
    assert said == plain(count=COUNT)
    assert not any(cycle.outcome.drafted for cycle in cycles[4:])
    assert "it answered nonsense" in (schedule.undrafted or "")
    opened.close()
