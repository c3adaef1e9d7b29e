"""`edgespec pack`: write a model at another precision or in the best layout, or check one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from edgespec.apps import common, options
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions
from edgespec.errors import OptionError
from edgespec.models.options import PackOptions
from edgespec.progress import Progress
from edgespec.values import format_bytes, format_seconds


@options.takes()
def pack(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP, show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Where to write.", show_default=False)
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", metavar="DIR", help="Check a packed model's bytes.", show_default=False),
    ] = None,
    client: Annotated[
        Path | None,
        typer.Option(
            "--client",
            metavar="ADAPTERS",
            help="Write what a client without torch drafts with, of what `train moa` made for MODEL, and of "
            "MODEL itself (its last layers, too, where drafts go through these).",
            show_default=False,
        ),
    ] = None,
    *,
    wanted: PackOptions,
) -> None:
    """Pack MODEL into DIR. Interrupted, the same command goes on where it stopped."""
    if verify is not None:
        if (model, out, client, wanted) != (None, None, None, PackOptions()):
            raise OptionError("--verify DIR stands alone: no other option applies to it")
        _verify(verify)
        return
    if model is None or out is None:
        raise OptionError("pack needs MODEL and --out DIR (or --verify DIR)")
    if client is not None:
        if wanted != PackOptions():
            raise OptionError("--client writes what clients draft with: no other option applies to it")
        _pack_client(model, client, out)
        return
    standing = options.from_flags(EngineOptions, {}).precision
    _pack(model, out, wanted.precision or standing, wanted.substitute)


def _pack(model: str, out: Path, precision: str | None, substitute: str | None) -> None:
    with Terminal() as terminal:
        terminal.busy("starting")
        common.check_source(model)
        from edgespec.models.packing import pack_model
        from edgespec.offload.chunk_store import is_store

        added = substitute is not None and is_store(out)  # to what is there already
        watch = _StageProgress("pack", terminal)
        try:
            pack_model(model, out, precision, substitute, watch, terminal.note)
        except KeyboardInterrupt:
            terminal.note(f"stopped at {watch.where()}; the same command goes on from there")
            raise typer.Exit(130) from None
        parts = [] if added else [f"precision {precision or 'source'}"]
        if substitute:
            parts.append(f"substitute {substitute}")
        what = ", ".join(parts)
        if watch.total:
            done = f"packed {format_bytes(watch.total)} at {what} {watch.speed()}"
        else:
            done = f"packed already at {what}"
        terminal.result(f"{out}: {done}")


def _pack_client(model: str, adapters: Path, out: Path) -> None:
    with Terminal() as terminal:
        terminal.busy("starting")
        common.check_source(model)
        from edgespec.models.client_half import export_client

        nbytes = export_client(model, adapters, out)
        terminal.result(f"{out}: {format_bytes(nbytes)} for clients of {model}")


def _verify(directory: Path) -> None:
    with Terminal() as terminal:
        terminal.busy("starting")
        from edgespec.models.packing import verify_store

        watch = _StageProgress("verify", terminal)
        verify_store(directory, watch)
        terminal.result(f"{directory}: all {format_bytes(watch.total)} are intact {watch.speed()}")


class _StageProgress:
    """Passes progress on, and keeps how far and how fast one stage is."""

    def __init__(self, stage: str, terminal: Terminal) -> None:
        self.stage = stage
        self.terminal = terminal
        self.began = time.monotonic()
        self.timed_from: tuple[float, int] | None = None  # the first report: what came before was not moved
        self.done = self.total = 0

    def __call__(self, report: Progress) -> None:
        if report.stage == self.stage:
            self.timed_from = self.timed_from or (time.monotonic(), report.done)
            self.done, self.total = report.done, report.total
        self.terminal.progress(report)

    def where(self) -> str:
        return f"{format_bytes(self.done)} of {format_bytes(self.total)}" if self.total else "the start"

    def speed(self) -> str:
        """The time of the whole command, and the rate since the first report."""
        now = time.monotonic()
        text = f"in {format_seconds(now - self.began)}"
        start, first = self.timed_from or (now, 0)
        moved = self.done - first
        return f"{text} ({format_bytes(moved / (now - start))}/s)" if moved > 0 and now > start else text
