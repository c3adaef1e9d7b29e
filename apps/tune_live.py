"""`edgespec tune -i`: keys move the dial, and every one redraws plan and prediction."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from edgespec.apps.terminal import Terminal
from edgespec.apps.tune_view import KEYS, State, chosen, drawn, moved
from edgespec.config import EngineOptions
from edgespec.errors import OptionError
from edgespec.tuning.live import Live
from edgespec.tuning.result import Tuning
from edgespec.tuning.tune import dials_of, open_tuner

ESCAPE = 0.05  # seconds after which Esc is no longer the beginning of another key


def check_view(model: str, others: dict[str, Any]) -> None:
    """others: options that write what there is no view of. Raises OptionError, also where there is nothing to
    draw on."""
    given = [name for name, value in others.items() if value]
    if given:
        raise OptionError(f"interactive draws the table in a terminal; leave {given[0]}= out", "interactive")
    plain = f"leave it out for the table: edgespec tune {shlex.quote(model)}"
    missing = [name for name, stream in (("input", sys.stdin), ("output", sys.stdout)) if not stream.isatty()]
    if missing:
        raise OptionError(
            f"interactive needs a terminal, and standard {missing[0]} is none; {plain}", "interactive"
        )
    if os.environ.get("TERM") == "dumb":
        raise OptionError(
            f"interactive needs a terminal that can be drawn on, and TERM is dumb; {plain}", "interactive"
        )


def explore(
    model: str, engine: EngineOptions, dials: Sequence[str], preset: str | None, terminal: Terminal
) -> Tuning:
    """What was found, with what was chosen in the recommendation's place."""
    sizes = dials_of(dials, engine)
    with open_tuner(model, engine, preset, terminal.progress) as tuner:
        found, live = tuner.tune(sizes), Live(tuner.search)
        terminal.clear()
        return replace(found, recommended=chosen(live, _view(found, live, engine)))


def _view(found: Tuning, live: Live, engine: EngineOptions) -> State:
    """Until it is left; what it was left with. Raises KeyboardInterrupt for Ctrl-C."""
    from prompt_toolkit.application import Application
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.layout import FormattedTextControl, Layout, Window

    dial = min(max(found.recommended.dial, live.least), live.most)
    state, bindings = State(dial), KeyBindings()

    def text() -> StyleAndTextTuples:
        size = app.output.get_size()
        pieces: StyleAndTextTuples = []
        for line in drawn(found, live, state, engine, size.columns, size.rows):
            pieces += [*line, ("", "\n")]
        return pieces[:-1]

    def move(event: KeyPressEvent) -> None:
        nonlocal state
        state = moved(state, event.key_sequence[0].key, live)

    def end(number: int, frame: object) -> None:
        """A signal leaves as a key does: raised while something is drawn, it would leave the terminal so."""
        if app.loop is None:
            raise SystemExit(128 + number)
        app.loop.call_soon_threadsafe(lambda: app.is_done or app.exit(result=number))

    def leave(event: KeyPressEvent) -> None:
        event.app.exit(result=state)

    def stop(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    for key in (*KEYS, "home", "end", "up", "down"):
        bindings.add(key)(move)
    for key in ("q", "escape", "enter"):
        bindings.add(key)(leave)
    for key in ("c-c", "<sigint>"):
        bindings.add(key)(stop)
    window = Window(FormattedTextControl(text, focusable=True, show_cursor=False), wrap_lines=False)
    app = Application[State | int](layout=Layout(window), key_bindings=bindings, full_screen=True)
    app.ttimeoutlen = app.timeoutlen = ESCAPE
    with _hearing(end):
        left_with = app.run()
    if isinstance(left_with, int):
        raise SystemExit(128 + left_with)
    return left_with


@contextmanager
def _hearing(end: Callable[[int, object], None]) -> Iterator[None]:
    """SIGTERM and SIGHUP call `end`, where they end the process else."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    heard = [number for number in numbers if callable(before[number])]
    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])
