"""The two charts of a tuning as a PNG. Needs the extra `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.apps.tune_charts import COLOURS, FREE, owners_of, places, ticks_to
from edgespec.apps.tune_words import machine_line
from edgespec.errors import MissingExtraError
from edgespec.offload.plan.ledger import HEADROOM
from edgespec.values import format_bytes

if TYPE_CHECKING:
    from edgespec.tuning.result import Tuning


def require_plots() -> None:
    """Raises MissingExtraError when matplotlib is not installed."""
    try:
        import matplotlib.backends.backend_agg  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "png= needs matplotlib: pip install 'edgespec[plot]' (html= draws the same without)"
        ) from None


def draw(found: Tuning, path: Path) -> None:
    """Speed by memory, and who owns each dial's bytes. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5), layout="constrained")
    FigureCanvasAgg(figure)
    # Names may have "$", which begins a formula, and letters that the font lacks.
    title = f"{found.model}, {machine_line(found)}".encode("ascii", "replace").decode()
    figure.suptitle(title if len(title) <= 120 else f"{title[:117]}...", parse_math=False)
    speeds, bars = figure.subplots(1, 2)
    fitting = [row for row in found.rows if row.best is not None]
    labels = [format_bytes(row.dial) for row in fitting]
    across = places([row.dial for row in fitting])
    best = [row.best.speed for row in fitting if row.best is not None]
    plain = [row.plain.speed.middle for row in fitting if row.plain is not None]
    middle = [speed.middle for speed in best]
    ends = [[speed.middle - speed.low for speed in best], [speed.high - speed.middle for speed in best]]
    speeds.fill_between(
        across, [speed.low for speed in best], [speed.high for speed in best], color="C0", alpha=0.2
    )
    speeds.errorbar(across, middle, ends, color="C0", marker="o", label="best, with its 80 %")
    speeds.plot(across, plain, "o--", color="C1", label="plain decoding")
    speeds.set_title("tokens a second by memory")
    speeds.set_xticks(across, labels)
    speeds.set_xlim(-0.1, 1.1)
    ticks = ticks_to(max(speed.high for speed in best))
    speeds.set_ylim(0, ticks[-1])
    speeds.set_yticks(ticks)
    speeds.grid(alpha=0.3)
    speeds.legend()
    left, lines = [0.0] * len(fitting), range(len(fitting))
    for n, (owner, sizes) in enumerate(owners_of(found.rows).items()):
        shares = [size / row.dial for size, row in zip(sizes, fitting, strict=True)]
        colour = {HEADROOM: "lightgray", FREE: "white"}.get(owner, f"C{n % COLOURS}")
        bars.barh(lines, shares, left=left, color=colour, edgecolor="gray", linewidth=0.5, label=owner)
        left = [sum(pair) for pair in zip(left, shares, strict=True)]
    bars.set_title("shares of the memory by owner")
    bars.set_yticks(lines, labels)
    bars.invert_yaxis()
    bars.set_xlim(0, 1)
    bars.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    bars.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3, fontsize="small")
    figure.savefig(path, format="png", dpi=120, metadata={"Software": "edgespec tune"})
