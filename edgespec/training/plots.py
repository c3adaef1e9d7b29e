"""Curves of a run's log as a PNG. Needs the extra `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgespec.devices.files import replacing
from edgespec.errors import MissingExtraError
from edgespec.training.log import read_log

CURVES = "curves.png"


def plot_log(log: Path, path: Path) -> None:
    """Loss, held-out agreement, and agreement by draft position, from a `log.jsonl`.

    Raises MissingExtraError when matplotlib is not installed; the log has the same numbers.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            f"curves need matplotlib: pip install 'edgespec[plot]' (the numbers are in {log})"
        ) from None
    lines = read_log(log)
    steps: list[dict[str, Any]] = [line for line in lines if line.get("loss")]
    tests: list[dict[str, Any]] = [line for line in lines if line.get("held_out")]
    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
    losses, agreement, positions = figure.subplots(1, 3)
    names = sorted(
        {name for line in tests for name in line["held_out"]} | {n for s in steps for n in s["loss"]}
    )
    for colour, name in enumerate(names):
        style = {"color": f"C{colour}", "label": name}
        known = [line for line in steps if name in line["loss"]]
        losses.plot([s["step"] for s in known], [s["loss"][name] for s in known], alpha=0.4, **style)
        tested = [(line["step"], line["held_out"][name]) for line in tests if name in line["held_out"]]
        if tested:
            at, values = zip(*tested, strict=True)
            losses.plot(at, [v["loss"] for v in values], "--", color=f"C{colour}", label=f"{name}, held out")
            agreement.plot(at, [v["agreement"] for v in values], marker="o", **style)
            last = values[-1]["positions"]
            positions.plot(range(1, len(last) + 1), last, marker="o", **style)
    for axes, title, across in (
        (losses, "loss per position", "step"),
        (agreement, "held-out agreement with the target", "step"),
        (positions, "agreement at draft position, those before agreed", "draft position"),
    ):
        axes.set_title(title)
        axes.set_xlabel(across)
        axes.grid(alpha=0.3)
        if names:
            axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
