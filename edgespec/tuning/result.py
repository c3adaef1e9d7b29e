"""What tuning has found."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.devices.machine import Machine
from edgespec.devices.presets import Preset
from edgespec.tuning.compare import Compared
from edgespec.tuning.fit import UNFITTED, Fit
from edgespec.tuning.predict import Doubt, Setting


@dataclass(frozen=True)
class Row:
    """One dial. settings: all that were predicted, the fastest first. more: how many times as fast the best
    would be with 1 GB more; None = the machine has no more. refusal: why nothing runs in it."""

    dial: int
    plain: Setting | None
    best: Setting | None
    settings: tuple[Setting, ...]
    more: float | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class Tuning:
    """What was found. fit: of what runs of the model have shown here, by which predictions are set right.
    compared: these runs.
    front: settings that no other beats in both memory and speed, the exact ones alone."""

    model: str
    digest: str
    layers: int
    max_context: int  # positions that the model has
    nbytes: int  # of the weights, as they are
    precision: str
    machine: Machine
    preset: Preset | None
    doubt: Doubt
    rows: tuple[Row, ...]
    recommended: Setting
    front: tuple[Setting, ...]
    later: Setting | None  # faster than the recommended one, when something has been packed
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    fit: Fit = UNFITTED
    compared: tuple[Compared, ...] = ()

    @property
    def front_tells(self) -> bool:
        """It is neither a single dial nor all of the table's."""
        return 1 < len(self.front) < sum(row.best is not None for row in self.rows)
