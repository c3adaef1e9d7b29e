"""What can be said of an engine's options before anything is loaded. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from edgespec.config import EngineOptions
from edgespec.devices.names import check_device
from edgespec.drafters.choice import choose_drafters, given_files
from edgespec.drafters.engines import check_engine_here, check_engine_option, with_engine
from edgespec.errors import OptionError
from edgespec.models.hub import resolve_model
from edgespec.progress import ProgressCallback
from edgespec.runtimes.base import TREE_ROWS
from edgespec.schedules.kinds import check_idle, check_schedule
from edgespec.values import options_of


def drafters_files(options: EngineOptions, progress: ProgressCallback | None) -> dict[str, Path]:
    """What drafters' options name, by option. A model may be on the hub, and is then fetched."""
    known = options_of(type(options))
    return {
        name: resolve_model(value, progress, options.offline)
        if known[name].option.metavar == "MODEL"
        else Path(value)
        for name, value in given_files(options).items()
        if known[name].option.metavar != "URL"
    }


def with_files(
    options: EngineOptions, progress: ProgressCallback | None
) -> tuple[EngineOptions, dict[str, Path]]:
    """The options with what drafters' files say, and these files, by option. Raises as `check_options`, and
    ModelError for a model that is not there, and as `check_engine_here`."""
    given = drafters_files(options, progress)
    settled = with_engine(options, given)
    check_options(settled)
    check_engine_here(settled)
    return settled, given


def check_options(options: EngineOptions) -> None:
    """What can be said without files: raises OptionError for drafters and schedules that are unknown, lack
    something, or do not fit, for options without a use, and DeviceError for an unknown device."""
    check_schedule(options.schedule, choose_drafters(options))
    check_engine_option(options)
    check_idle(options)
    if options.verifier_layers is not None and "cascade" not in choose_drafters(options):
        raise OptionError(
            "verifier_layers changes nothing without a cascade; name its adapters=, or leave it out",
            "verifier_layers",
        )
    check_device(options.device)
    if options.tree_nodes > TREE_ROWS:
        raise OptionError(
            f"tree_nodes is {options.tree_nodes}, but the ledger gives every KV cache room for trees of at "
            f"most {TREE_ROWS} nodes"
        )
