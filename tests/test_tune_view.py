"""`tune -i`: what is drawn of a dial, what keys do, and the view on a real (pseudo-)terminal."""

from __future__ import annotations

import codecs
import os
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec.apps import main
from edgespec.apps.tune_live import check_view
from edgespec.apps.tune_view import (
    COARSE,
    FINE,
    LEAST_HEIGHT,
    LEAST_WIDTH,
    Line,
    State,
    chosen,
    drawn,
    moved,
)
from edgespec.config import EngineOptions
from edgespec.errors import BudgetError, OptionError
from edgespec.runtimes.formats.needs import DRIFT
from edgespec.tuning import live as living
from edgespec.tuning import search as searching
from edgespec.tuning.live import GRAIN, Live, way_of
from edgespec.tuning.profile import read_profile
from edgespec.tuning.reasons import reasons_for
from edgespec.tuning.result import Tuning
from edgespec.tuning.tune import open_tuner, tune_model
from edgespec.values import format_bytes
from tests.machine import GB, MACHINE
from tests.tuned import SEVEN, config_only

pytestmark = pytest.mark.usefixtures("tuned_machine")

SMALL = SEVEN | {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}
ROOT = Path(__file__).resolve().parent.parent
KEYS = ("left", "right", "pageup", "pagedown", "home", "end", "up", "down")


class View:
    """A model, and what would be seen of it."""

    def __init__(self, found: Tuning, live: Live, engine: EngineOptions) -> None:
        self.found, self.live, self.engine = found, live, engine

    def lines(self, state: State, width: int = 80, height: int = 24) -> list[str]:
        return [text_of(line) for line in self.pieces(state, width, height)]

    def pieces(self, state: State, width: int, height: int) -> list[Line]:
        return drawn(self.found, self.live, state, self.engine, width, height)


def text_of(line: Line) -> str:
    return "".join(text for _, text in line)


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[View]:
    monkeypatch.chdir(tmp_path)  # names as long as users'
    engine = EngineOptions(draft_model=config_only(Path("small"), SMALL))
    with open_tuner(config_only(Path("seven"), SEVEN), engine) as tuner:
        yield View(tuner.tune([8 * GB]), Live(tuner.search), engine)


# What is predicted.


def test_a_dial_shows_what_the_table_says(view: View) -> None:
    (row,) = tune_model(view.found.model, view.engine, ["6GB"]).rows
    live = view.live.row(6 * GB)
    own = [s for s in row.settings if s.exact]
    assert [(way_of(s), s.speed, s.plan.owners) for s in live.settings] == [
        (way_of(s), s.speed, s.plan.owners) for s in own
    ]
    assert {way_of(s) for s in own} <= {*view.live.ways}
    assert row.best is not None
    assert live.best is not None
    assert (way_of(live.best), live.best.speed) == (way_of(row.best), row.best.speed)
    assert view.live.more(row.best) == pytest.approx(row.more)


def test_the_dial_goes_from_the_least_that_works_to_what_the_machine_has(view: View) -> None:
    assert view.live.row(view.live.least).best is not None
    assert view.live.row(view.live.least - 2 * DRIFT).best is None  # a refusal names it with that much room
    with open_tuner("seven", view.engine) as tuner, pytest.raises(BudgetError) as refused:
        tuner.tune([10**8])
    assert refused.value.smallest == view.live.least
    assert view.live.most <= MACHINE.total < view.live.most + GRAIN
    largest = view.live.row(view.live.most).best
    assert largest is not None
    assert view.live.more(largest) is None


def test_where_nothing_runs_there_is_nothing_to_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = config_only(tmp_path / "seven", SEVEN)
    tight = replace(MACHINE, total=600 * 10**6)
    with open_tuner(model, EngineOptions()) as tuner:
        monkeypatch.setattr(tuner.search, "machine", tight)
        with pytest.raises(BudgetError):
            Live(tuner.search)


def test_a_dial_is_planned_once_and_few_plans_are_made_for_a_key(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, real = list[int](), searching.plan_model

    def plan(files: Any, machine: Any, request: Any, extras: Any) -> Any:
        plans.append(request.dial)
        return real(files, machine, request, extras)

    monkeypatch.setattr(searching, "plan_model", plan)
    state = moved(State(5 * GB), "right", view.live)
    view.lines(state)
    # Plain decoding and n-grams have one plan, the draft model another; likewise with 1 GB more.
    assert sorted(plans) == [5_100_000_000] * 2 + [6_100_000_000] * 2
    del plans[:]
    for height in range(10, 40):
        view.lines(state, 100, height)
    assert plans == []


def test_only_so_many_dials_are_remembered(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(living, "DIALS", 4)
    first = view.live.row(3 * GB)
    for dial in range(4 * GB, 8 * GB, GB):
        view.live.row(dial)
    assert len(view.live._rows) == 4
    assert view.live.row(3 * GB) == first


# Keys.


def test_keys_move_the_dial_by_whole_steps(view: View) -> None:
    def after(dial: int, *keys: str) -> int:
        state = State(dial)
        for key in keys:
            state = moved(state, key, view.live)
        return state.dial

    assert after(8 * GB, "right") == 8 * GB + FINE
    assert after(8 * GB, "left") == 8 * GB - FINE
    assert after(8 * GB, "pageup") == 8 * GB + COARSE
    assert after(8 * GB, "pagedown", "pagedown") == 8 * GB - 2 * COARSE
    assert after(8_050_000_000, "right") == 8_100_000_000
    assert after(8_050_000_000, "left") == 8 * GB
    assert after(8_050_000_000, "pagedown") == 8 * GB
    assert after(8 * GB, "home") == after(8 * GB, "home", "left", "pagedown") == view.live.least
    assert after(8 * GB, "end") == after(8 * GB, "end", "right", "pageup") == view.live.most
    assert after(8 * GB, "home", "right") % FINE == 0


def test_up_and_down_choose_among_all_ways(view: View) -> None:
    state, seen = State(8 * GB), list[Any]()
    for _ in range(len(view.live.ways) + 3):
        seen.append(state.way)
        state = moved(state, "down", view.live)
    assert [*dict.fromkeys(seen)] == [None, *view.live.ways]
    assert state.way == view.live.ways[-1]
    assert view.live.ways[0][0] == "none"
    for _ in range(len(view.live.ways) + 3):
        state = moved(state, "up", view.live)
    assert state == State(8 * GB)


def test_a_dial_at_which_nothing_runs_is_not_gone_to(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    row = view.live.row

    def hole(dial: int) -> Any:
        return replace(row(dial), best=None) if dial == 7 * GB else row(dial)

    monkeypatch.setattr(view.live, "row", hole)
    assert moved(State(7 * GB + FINE), "left", view.live) == State(7 * GB + FINE)
    assert moved(State(8 * GB), "pagedown", view.live) == State(8 * GB)


def test_whatever_is_pressed_there_is_something_to_run(view: View) -> None:
    dice, state = random.Random(0), State(8 * GB)
    for _ in range(60):
        state = moved(state, dice.choice(KEYS), view.live)
        setting = chosen(view.live, state)
        assert setting.dial == state.dial
        assert view.live.least <= state.dial <= view.live.most
        assert state.way is None or way_of(setting) in (
            state.way,
            way_of(chosen(view.live, State(state.dial))),
        )
        lines = view.lines(state, dice.randint(1, 140), dice.randint(1, 50))
        assert lines


# What is drawn.


@pytest.mark.parametrize(("width", "height"), [(LEAST_WIDTH, LEAST_HEIGHT), (80, 24), (100, 30), (200, 60)])
def test_the_window_is_filled_and_never_overrun(view: View, width: int, height: int) -> None:
    for dial in (view.live.least, 3 * GB, 8 * GB, view.live.most):
        for way in (None, *view.live.ways):
            lines = view.lines(State(dial, way), width, height)
            assert len(lines) == height
            assert max(map(len, lines)) < width
            text = "\n".join(lines)
            assert format_bytes(dial) in lines[1] + lines[2] + lines[3]
            for shown in ("seven", "●", "pinned: ", "tokens/s (80 %", "fastest: ", "plain decoding", "▶"):
                assert shown in text
            assert "first token after 500" in text
            assert "- " in text
            assert "edgespec chat" in text
            assert lines[-1].startswith("←→ 100 MB")


def test_at_80_x_24_nothing_that_matters_is_missing(view: View) -> None:
    setting = chosen(view.live, State(8 * GB))
    row = view.live.row(8 * GB)
    assert row.plain is not None
    text = "\n".join(view.lines(State(8 * GB)))
    for owner, nbytes in setting.plan.owners.items():
        if nbytes > 0.01 * 8 * GB:
            assert f"{re.sub(r' [(].*[)]$', '', owner)} {format_bytes(nbytes)}" in text
    assert f"pinned: {format_bytes(setting.plan.pinned_bytes)}, " in text
    assert f"context {setting.plan.context}" in text
    more = view.live.more(setting)
    assert more is not None
    assert f"1 GB more: {more - 1:+.0%} tokens/s" in text
    assert "--memory 8GB" in text
    assert setting.speed.middle > row.plain.speed.middle
    assert "flash-bound" in text


def test_the_bar_shares_the_dial_as_its_owners_do(view: View) -> None:
    width = 101
    for dial in (view.live.least, 4 * GB, 8 * GB, view.live.most):
        setting = chosen(view.live, State(dial))
        lines = view.pieces(State(dial), width, 40)
        bar = next(line for line in lines if len(line) > 4 and len(text_of(line).strip("█▓▒░· ")) == 0)
        assert len(text_of(bar)) == width - 1
        sizes = sorted(n for n in (*setting.plan.owners.values(), setting.plan.ledger.free) if n)
        cells = sorted(len(text) for _, text in bar)
        assert len(cells) == len(sizes)
        for n, nbytes in zip(cells, sizes, strict=True):
            assert abs(n - nbytes / dial * (width - 1)) <= 1


def test_a_way_that_does_not_fit_is_said_to(view: View) -> None:
    way = next(way for way in view.live.ways if "model" in way[0])
    state = State(view.live.least, way)
    (line,) = [line for line in view.lines(state) if "▶" in line]
    assert "does not fit; the fastest is shown" in line
    assert "--drafter ngram " in " ".join(view.lines(state)) + " "
    (line,) = [line for line in view.lines(State(8 * GB, way)) if "▶" in line]
    assert "does not fit" not in line
    (waiting,) = [way for way in view.live.ways if way[:2] == ("ngram", "ssd")]
    (line,) = [line for line in view.lines(State(view.live.most, waiting), 120) if "▶" in line]
    assert "no waits to draft in; the fastest is shown" in line


def test_memory_that_others_hold_is_told(view: View) -> None:
    most = "\n".join(view.lines(State(view.live.most), 120, 40))
    assert f"only {format_bytes(MACHINE.baseline + MACHINE.available)} are free now" in most
    assert "free now" not in "\n".join(view.lines(State(8 * GB), 120, 40))


def test_reasons_are_those_of_what_was_chosen(view: View) -> None:
    row = view.live.row(8 * GB)
    assert row.plain is not None
    assert row.best is not None
    (said,) = [why for why in reasons_for(row.plain, [row]) if "as fast" in why]
    assert said.startswith(f"{row.best.drafter} under {row.best.schedule}")
    assert "would cost more" not in said
    assert any(
        "drafts would cost more" in why for why in reasons_for(row.plain, [replace(row, best=row.plain)])
    )


@pytest.mark.parametrize("size", [(LEAST_WIDTH - 1, 24), (80, LEAST_HEIGHT - 1), (5, 3), (1, 1)])
def test_a_window_that_is_too_small_says_so(view: View, size: tuple[int, int]) -> None:
    lines = view.lines(State(8 * GB), *size)
    assert 0 < len(lines) <= size[1]
    assert max(map(len, lines)) <= size[0]
    if size[0] > 40:
        assert f"{size[0]} x {size[1]} is too small; {LEAST_WIDTH} x {LEAST_HEIGHT} will do" in " ".join(
            lines
        )


# What is refused.


def test_without_a_terminal_there_is_no_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = config_only(tmp_path / "a model", SEVEN)
    assert main.run(["tune", model, "-i", "-o", str(tmp_path / "p.toml")]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert "--interactive needs a terminal" in error
    assert f"edgespec tune '{model}'" in " ".join(error.split())
    assert not (tmp_path / "p.toml").exists()


@pytest.mark.parametrize("flag", ["json", "html", "png"])
def test_what_it_does_not_write_is_refused(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    check_view("m", {flag: None})
    with pytest.raises(OptionError, match=flag):
        check_view("m", {flag: True})
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(OptionError, match=r"dumb.*edgespec tune m"):
        check_view("m", {})


# On a terminal.


class Screen:
    """A process behind a pseudo-terminal, and what is to be seen there: as much of a VT100 as is used."""

    def __init__(self, arguments: list[str], rows: int = 24, columns: int = 80) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.master, self.slave = pty.openpty()
        self._size = lambda size: fcntl.ioctl(
            self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0)
        )
        self.modes = lambda: termios.tcgetattr(self.slave)
        self.before = self.modes()
        self._cells, self._at, self.raw = dict[tuple[int, int], str](), [0, 0], b""
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.rows = rows
        self._size((rows, columns))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgespec.apps.start", *arguments],
            stdin=self.slave, stdout=self.slave, stderr=subprocess.PIPE, cwd=ROOT,
            env={**os.environ, "TERM": "xterm"}, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def resize(self, rows: int, columns: int) -> None:
        """When nothing is being written: the signal would cut it off, and with it where the cursor went."""
        while self._read(0.3):
            pass
        self.rows = rows
        self._size((rows, columns))

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, text: str) -> str:
        """Read until `text` is to be seen; returns the screen."""
        patience = 600  # silent looks and no clock: time in which all of this was stopped does not count
        while text not in self.shown():
            patience -= not self._read(0.2)
            if not patience or (self.process.poll() is not None and not self._read(0.2)):
                pytest.fail(f"{text!r} is not shown, but\n{self.shown()}\n{self.process.poll()}")
        return self.shown()

    def end(self) -> tuple[int, str, str]:
        """Exit code, what the screen shows then, standard error."""
        code = self.process.wait(60)
        while self._read(0.1):
            pass
        assert self.process.stderr is not None
        return code, self.shown(), self.process.stderr.read().decode()

    def shown(self) -> str:
        lines = [""] * self.rows
        for (row, column), character in sorted(self._cells.items()):
            if row < self.rows:
                lines[row] = lines[row].ljust(column) + character
        return "\n".join(lines)

    def _read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        self.raw += (data := os.read(self.master, 65536))
        text = self._rest + self._decoder.decode(data)
        cut = text.rfind("\x1b")
        whole = cut < 0 or re.match(r"\x1b(\[[0-9;?]*[A-Za-z@]|[^\[])", text[cut:])
        text, self._rest = (text, "") if whole else (text[:cut], text[cut:])
        for piece in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z@])|\x1b.|([^\x1b])", text, re.DOTALL):
            self._draw(piece)
        return bool(data)

    def _draw(self, piece: re.Match[str]) -> None:
        numbers, order, character = piece.groups()
        row, column = self._at
        if character is not None:
            if character == "\n":
                self._at[0] = row + 1
            elif character == "\r":
                self._at[1] = 0
            elif character == "\b":
                self._at[1] = column - 1
            elif character >= " ":
                self._cells[row, column] = character
                self._at[1] = column + 1
            return
        n = int(numbers) if numbers and numbers.isdigit() else 1
        if order in ("A", "B"):
            self._at[0] = max(0, row + (n if order == "B" else -n))
        elif order in ("C", "D"):
            self._at[1] = max(0, column + (n if order == "C" else -n))
        elif order == "H":
            ends = [int(part) for part in numbers.split(";")] if numbers else [1, 1]
            self._at = [ends[0] - 1, ends[1] - 1]
        elif order in ("J", "K"):
            everything = order == "J" and numbers == "2"
            for place in [*self._cells]:
                below = order == "J" and place[0] > row
                if everything or below or (place[0] == row and place[1] >= column):
                    del self._cells[place]
        elif order in ("h", "l") and numbers == "?1049":
            self._cells, self._at = {}, [0, 0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def screens() -> Iterator[Any]:
    pytest.importorskip("pty", reason="needs pseudo-terminals")
    opened = list[Screen]()

    def open_one(*arguments: str) -> Screen:
        opened.append(Screen([*arguments]))
        return opened[-1]

    yield open_one
    for screen in opened:
        screen.close()


def test_keys_move_the_dial_on_a_terminal_and_leaving_prints_the_command(
    screens: Any, tmp_path: Path
) -> None:
    model, out = config_only(tmp_path / "seven", SEVEN), tmp_path / "p.toml"
    screen = screens("tune", model, "--preset", "laptop-16gb-nvme", "--memory", "8GB", "-i", "-o", str(out))
    first = screen.wait_for("--memory 8GB")
    assert len([line for line in first.splitlines() if "fastest: ngram" in line]) == 1
    assert "first token after 500" in first
    screen.press("\x1b[C")
    screen.wait_for("memory   8.1 GB")
    screen.wait_for("--memory 8100MB")
    screen.press("\x1b[6~")
    screen.wait_for("memory     8 GB")
    screen.press("\x1b[6~\x1b[B")
    screen.wait_for("▶ plain decoding")
    screen.wait_for("memory     7 GB")
    screen.resize(16, 60)
    small = screen.wait_for("q leave")
    assert small.splitlines()[15].startswith("←→ 100 MB")
    assert "memory     7 GB" in small
    screen.resize(10, 40)
    screen.wait_for("too small")
    screen.resize(30, 100)
    screen.wait_for("q: leave, with the command")
    screen.press("q")
    code, shown, error = screen.end()
    assert code == 0
    assert shown.strip().splitlines() == [f"edgespec chat {model} --memory 7GB --drafter none"]
    assert "written to" in error
    assert read_profile(out, model).options["memory"] == 7 * GB
    assert read_profile(out, model).options["drafter"] == "none"
    assert screen.modes() == screen.before
    assert screen.raw.endswith(b"\n")
    assert screen.raw.count(b"\x1b[?1049h") == screen.raw.count(b"\x1b[?1049l") == 1
    assert screen.raw.rfind(b"\x1b[?25h") > screen.raw.rfind(b"\x1b[?25l")


@pytest.mark.parametrize("how", ["ctrl-c", "escape", "SIGINT", "SIGTERM"])
def test_however_it_is_left_the_terminal_is_as_it_was(screens: Any, tmp_path: Path, how: str) -> None:
    model, out = config_only(tmp_path / "seven", SEVEN), tmp_path / "p.toml"
    screen = screens("tune", model, "--preset", "laptop-16gb-nvme", "--memory", "8GB", "-i", "-o", str(out))
    screen.wait_for("--memory 8GB")
    assert screen.modes() != screen.before
    if how in ("ctrl-c", "escape"):
        screen.press("\x03" if how == "ctrl-c" else "\x1b")
    else:
        os.kill(screen.process.pid, getattr(signal, how))
    code, shown, error = screen.end()
    assert code == {"ctrl-c": 130, "escape": 0, "SIGINT": 130, "SIGTERM": 143}[how], error
    assert out.exists() == (how == "escape")
    assert shown.startswith("edgespec chat") == (how == "escape")
    assert "Traceback" not in error
    assert screen.modes() == screen.before
    assert screen.raw.count(b"\x1b[?1049l") == 1
    assert screen.raw.rfind(b"\x1b[?25h") > screen.raw.rfind(b"\x1b[?25l")
