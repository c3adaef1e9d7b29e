"""`edgespec pack`: write a model at another precision or in the best layout, or check one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from edgespec.apps import options
from edgespec.apps.progress import format_seconds
from edgespec.apps.terminal import Terminal
from edgespec.config import PRECISIONS, format_bytes
from edgespec.errors import OptionError
from edgespec.progress import Progress


def pack(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP, show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Where to write.", show_default=False)
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            metavar="NAME",
            help=f"{', '.join(PRECISIONS)}. Default: source.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", metavar="DIR", help="Check a packed model's bytes.", show_default=False),
    ] = None,
) -> None:
    """Pack MODEL into DIR. Interrupted, the same command goes on where it stopped."""
    if verify is not None:
        if model is not None or out is not None or precision is not None:
            raise OptionError("--verify DIR stands alone: MODEL, --out and --precision do not apply to it")
        _verify(verify)
        return
    if model is None or out is None:
        raise OptionError("pack needs MODEL and --out DIR (or --verify DIR)")
    chosen = options.engine_options({"precision": precision}).precision or "source"
    _pack(model, out, chosen)


def _pack(model: str, out: Path, precision: str) -> None:
    with Terminal() as terminal:
        terminal.busy("starting")
        from edgespec.packing import pack_model

        watch = _Watch("pack", terminal)
        try:
            pack_model(model, out, precision, watch)
        except KeyboardInterrupt:
            terminal.note(f"stopped at {watch.where()}; the same command goes on from there")
            raise typer.Exit(130) from None
        terminal.result(f"{out}: packed {format_bytes(watch.total)} at precision {precision} {watch.speed()}")


def _verify(directory: Path) -> None:
    with Terminal() as terminal:
        terminal.busy("starting")
        from edgespec.packing import verify_store

        watch = _Watch("verify", terminal)
        verify_store(directory, watch)
        terminal.result(f"{directory}: all {format_bytes(watch.total)} are intact {watch.speed()}")


class _Watch:
    """Passes progress on, says when the work goes on from an earlier run, and keeps its rate."""

    def __init__(self, stage: str, terminal: Terminal) -> None:
        self.stage = stage
        self.terminal = terminal
        self.first: int | None = None  # bytes that were done before this run
        self.done = self.total = 0
        self.began = time.monotonic()

    def __call__(self, report: Progress) -> None:
        if report.stage == self.stage:
            if self.first is None:
                self.first, self.began = report.done, time.monotonic()
                if self.first:
                    self.terminal.note(
                        f"going on at {format_bytes(self.first)} of {format_bytes(report.total)}"
                    )
            self.done, self.total = report.done, report.total
        self.terminal.progress(report)

    def where(self) -> str:
        return f"{format_bytes(self.done)} of {format_bytes(self.total)}" if self.total else "the start"

    def speed(self) -> str:
        seconds = max(time.monotonic() - self.began, 1e-9)
        rate = (self.done - (self.first or 0)) / seconds
        return f"in {format_seconds(seconds)} ({format_bytes(rate)}/s)"
