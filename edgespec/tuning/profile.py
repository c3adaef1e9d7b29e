"""Profiles: recommended settings in a file, and what of them is valid for another model or machine."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.config import OF_SCHEDULES, EngineOptions
from edgespec.devices.files import read_bounded, replacing
from edgespec.devices.probe import cpu_name, memory_total
from edgespec.errors import EdgeSpecError, OptionError, StorageError
from edgespec.models.hub import find_here
from edgespec.tuning.predict import Setting
from edgespec.tuning.result import Tuning
from edgespec.values import did_you_mean, format_bytes, options_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMAT = 1
PROFILE_BYTES = 10**5  # at most
# Options that a profile may set; the others are not tuned.
TUNED = (
    *("memory", "context", "precision", "resident_layers", "drafter", "draft_model", "draft_worker"),
    *("adapters", "tree_nodes", "schedule", "verifier_layers"),
)
OF_THE_MODEL = (
    *("context", "precision", "resident_layers", "draft_model", "draft_worker", "adapters"),
    "verifier_layers",
)


def settings_of(setting: Setting, engine: EngineOptions) -> dict[str, Any]:
    """The options that run a setting, with what `engine` has set beside."""
    known = options_of(EngineOptions)
    fixed = {name: getattr(engine, name) for name in TUNED if getattr(engine, name) != known[name].default}
    chosen: dict[str, Any] = {"memory": setting.dial, "drafter": setting.drafter}
    # What this drafter has no use for would be refused.
    heard = {*setting.files, *OF_SCHEDULES.get(setting.schedule, ())}
    if "model" in setting.drafter.split("+"):
        heard.add("draft_worker")
    if "cascade" in setting.drafter.split("+"):
        heard.add("verifier_layers")
    of_others = {"draft_model", "draft_worker", "adapters", "verifier_layers"} - heard
    fixed = {name: value for name, value in fixed.items() if name not in of_others}
    if setting.drafter != "none":
        chosen |= {
            "schedule": setting.schedule,
            **setting.files,
            **setting.set_,
        }  # the controller finds the tree's size
    else:
        fixed = {name: value for name, value in fixed.items() if name in ("context", "resident_layers")}
    return chosen | {name: value for name, value in fixed.items() if name not in chosen}


def write_profile(found: Tuning, engine: EngineOptions, path: Path) -> None:
    """The recommended setting, with what it was made for and what it should give. Raises StorageError."""
    best = found.recommended
    machine = found.preset.name if found.preset else this_machine()
    tables: dict[str, Mapping[str, Any]] = {
        "model": {"name": found.model, "digest": found.digest, "layers": found.layers},
        "machine": {"name": machine, "memory": found.machine.total},
        "options": {name: _lasting(name, value) for name, value in settings_of(best, engine).items()},
        "predicted": {
            "tokens_per_second": best.speed.middle,
            "low": best.speed.low,
            "high": best.speed.high,
            "cycle_seconds": best.cycle_seconds,
            "tokens_per_cycle": best.tokens_per_cycle,
            "first_token_seconds": best.first_token.middle,
        },
    }
    lines = [
        "# Recommended settings, as predicted; [options] are what a run takes over.",
        f"format = {FORMAT}",
    ]
    for name, values in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    try:
        with replacing(path) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None


def _lasting(name: str, value: Any) -> Any:
    """A path that means the same from every folder."""
    here = name in ("draft_model", "adapters") and Path(value).exists()
    return str(Path(value).absolute()) if here else value


def _toml(value: Any) -> str:
    """A text as TOML's basic string, which JSON's is but for one character; a finite number as it is."""
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return repr(value)


@dataclass(frozen=True)
class Profile:
    """What a profile sets here, and what of it was left out, and why."""

    options: Mapping[str, Any]
    notes: tuple[str, ...]


def read_profile(path: Path, model: str) -> Profile:
    """The settings in a profile that hold for `model` on this machine.

    Raises OptionError for a file that is no profile, or sets what profiles cannot.
    """
    table = _tables(path)
    values = table["options"]
    if unknown := sorted(set(values) - set(TUNED)):
        raise OptionError(f"{path}: unknown option {unknown[0][:80]!r}; {did_you_mean(unknown[0], TUNED)}")
    notes = []
    if not _is_same_model(table["model"], model):
        name = _quoted(table["model"].get("name"))
        dropped = [option for option in OF_THE_MODEL if option in values]
        notes.append(_note(f"{path} was made for {name}", dropped))
        values = {option: value for option, value in values.items() if option not in dropped}
    try:
        EngineOptions(**values)
    except OptionError as error:
        raise OptionError(f"{path}: {error.message}", error.option) from None
    made_for, dial, total = table["machine"].get("name"), EngineOptions(**values).memory, memory_total()
    dropped = ["memory"] if dial is not None and dial > total else []
    if made_for != this_machine() or dropped:
        notes.append(_note(f"{path} was made for the machine {_quoted(made_for)}", dropped))
    if dropped:
        notes[-1] += f", as this one, or its container, has {format_bytes(total)}"
        values = {option: value for option, value in values.items() if option not in dropped}
    return Profile(values, tuple(notes))


def _quoted(name: Any) -> str:
    """A name from a file of others: what would drive a terminal, or turn its text around, is escaped."""
    return repr(str(name)[:200])


def _note(fact: str, dropped: list[str]) -> str:
    names = ", ".join(f"{option}=" for option in dropped)
    return f"{fact}: its {names} left out" if dropped else f"{fact}; it may be too hopeful here"


def _tables(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a profile, of the right kinds. Raises OptionError."""
    try:
        table = tomllib.loads(read_bounded(path, PROFILE_BYTES).decode())
    except EdgeSpecError as error:
        raise OptionError(f"profile {error.message}", "profile") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is not valid TOML: {str(error)[:200]}", "profile") from None
    if table.get("format") != FORMAT:
        raise OptionError(f"{path} is not a profile of format {FORMAT}; tune again to write one", "profile")
    found = {name: table.get(name) for name in ("model", "machine", "options")}
    for name, value in found.items():
        if not isinstance(value, dict):
            raise OptionError(f"{path} has no table [{name}]; tune again to write it", "profile")
    return found  # type: ignore[return-value]


def _is_same_model(made_for: Mapping[str, Any], model: str) -> bool:
    """By what its files hold, where both are known; else by name."""
    found = find_here(model)
    digest = made_for.get("digest")
    if isinstance(found, Path) and digest:
        from edgespec.runtimes.formats.describe import describe_model

        return bool(describe_model(found).digest == digest)
    return made_for.get("name") == model


def this_machine() -> str:
    """A name for this machine; home folders can be shared by several."""
    return f"{platform.node()} {cpu_name()}"
