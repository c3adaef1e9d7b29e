"""The target's early exit for a schedule that asks one: a trained adapter, or its own head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from edgespec.config import OF_SCHEDULES, EngineOptions
from edgespec.drafters.resident import Drafters, ExitFound
from edgespec.errors import OptionError
from edgespec.offload.plan.needs import Extras
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.formats.needs import exit_bytes
from edgespec.runtimes.formats.trained import trained_kind
from edgespec.runtimes.target import EarlyExit, Target
from edgespec.schedules.kinds import choose_schedule
from edgespec.schedules.mirror import check

if TYPE_CHECKING:
    from edgespec.runtimes.formats.describe import ModelFiles


def find_exit(options: EngineOptions, files: ModelFiles, drafters: Drafters) -> ExitFound | None:
    """The early exit that these drafters are told of; None where the schedule asks none, and for
    a batch. Raises
    OptionError and ModelError for an adapter that is not there, does not fit, or that no drafter would hear.

    Under `auto` it is the target's own head, which costs nothing while it is not asked: an adapter would
    follow every pass.
    """
    if options.batch != 1:
        return None
    if options.schedule == "auto":
        able = choose_schedule("auto", list(drafters.found), free=True) == "ssd"
        return BareExit.of(options, files) if able and options.fan_out == "best-first" else None
    if "adapters" not in OF_SCHEDULES.get(options.schedule, ()):
        return None
    if options.adapters is None or trained_kind(Path(options.adapters)) in drafters.found:  # a drafter's own
        return BareExit.of(options, files) if drafters.found else None
    if not drafters.found:
        raise OptionError(
            f"schedule {options.schedule} tells drafters that prepare outcomes what the early exit says, and "
            "there is none; name a model with draft_model=, or leave adapters= out"
        )
    find: Callable[[Path, ModelFiles, int | None], ExitFound]
    find = resolve_name("edgespec.drafters.cascade.early:find")  # torch
    return find(Path(options.adapters), files, options.exit_layer)


@dataclass(frozen=True)
class BareExit:
    """The target's own norm and head behind so many of its layers; see `drafters.resident.ExitFound`."""

    files: ModelFiles
    layers: int
    reads = 0

    @staticmethod
    def of(options: EngineOptions, files: ModelFiles) -> BareExit | None:
        """As the schedule's options have it; None = this model cannot have it so."""
        try:
            check(options, files.config)
        except OptionError:
            return None
        return BareExit(files, options.exit_layer or files.config.layers // 2)

    @property
    def extras(self) -> Extras:
        nbytes = exit_bytes(self.files.config, self.files.element)
        return Extras({"early exit": lambda context: nbytes})

    def open(self, target: Target, progress: Callable[[int], None]) -> BareExits:
        return BareExits(target, self.layers)


@dataclass(frozen=True)
class BareExits:
    """See `drafters.resident.Exits`."""

    target: Target
    layers: int

    def exit(self, cache: KVCache) -> EarlyExit:
        return self.target.early_exit(self.layers)

    def close(self) -> None:
        """It has nothing of its own."""
