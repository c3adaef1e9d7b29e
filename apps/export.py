"""`edgespec export`: write a model for another engine to draft with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from edgespec.apps import common, options
from edgespec.apps.terminal import Terminal
from edgespec.models.options import ExportOptions
from edgespec.values import format_bytes, format_seconds


@options.takes()
def export(
    model: options.Model,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write.", show_default=False)
    ],
    *,
    wanted: ExportOptions,
) -> None:
    """Export MODEL, a small one, to DIR, for another engine to draft with."""
    with Terminal() as terminal:
        terminal.busy("starting")
        common.check_source(model)
        from edgespec.models.exporting import export_model

        began = time.monotonic()
        export_model(model, out, progress=terminal.progress, **vars(wanted))
        nbytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        how = f"{wanted.engine}, {wanted.precision or ('fp16' if wanted.engine == 'coreml' else 'fp32')}" + (
            f", {wanted.rows} rows a pass" if wanted.rows else ""
        )
        took = format_seconds(time.monotonic() - began)
        terminal.result(f"{out}: exported {format_bytes(nbytes)} for {how} in {took}")
