"""Who runs a draft model: torch, or another engine, in a process of its own. A row each. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name

from edgespec.config import EngineOptions
from edgespec.drafters.resident import Find, Found, Search
from edgespec.errors import Call, OptionError, UnsupportedModelError
from edgespec.runtimes.formats.exported import exported_engine, is_exported
from edgespec.values import did_you_mean

WORKER_THREADS = 1  # of another engine's process, if nothing else is said


@dataclass(frozen=True)
class DraftEngine:
    """An engine.

    find: "module:name" of a `drafters.resident.Find`, imported when it is needed. check: likewise of what
    raises, of a provider or "", where it is not here. exports: it runs what was exported for it, and nothing
    else. beside: it drafts in a process of its own.
    """

    name: str
    find: str
    check: str | None = None
    exports: bool = False
    beside: bool = False


ENGINES = (
    DraftEngine("torch", "edgespec.drafters.draft_model:find"),
    DraftEngine(
        "onnx",
        "edgespec.drafters.onnx_model:find",
        "edgespec.runtimes.onnx.providers:check_here",
        exports=True,
        beside=True,
    ),
    DraftEngine(
        "coreml",
        "edgespec.drafters.coreml_model:find",
        "edgespec.runtimes.coreml.package:check_here",
        exports=True,
        beside=True,
    ),
    DraftEngine(
        "llama_cpp",
        "edgespec.drafters.llama_cpp_model:find",
        "edgespec.runtimes.llama_cpp.package:check_here",
        beside=True,
    ),
)


def engine_named(asked: str) -> DraftEngine:
    """The engine of "onnx", or of "onnx:openvino", which names a provider, too. Raises OptionError."""
    name, _, provider = asked.partition(":")
    known = {engine.name: engine for engine in ENGINES}
    if name not in known:
        raise OptionError(
            f"draft_engine {asked[:80]!r} is unknown; {did_you_mean(name, known)}", "draft_engine"
        )
    if provider and name != "onnx":
        raise OptionError(f"draft_engine is {asked[:80]}, but only onnx has providers", "draft_engine")
    return known[name]


def check_engine_option(options: EngineOptions) -> None:
    """What can be said without files. Raises OptionError for an engine that is unknown, or has nothing to
    run."""
    if options.draft_engine is None:
        return
    engine_named(options.draft_engine)
    if options.draft_model is None:
        raise OptionError(
            f"draft_engine is {options.draft_engine}, but there is no draft model for it to run; name one "
            "with draft_model=, or leave draft_engine= out"
        )


def check_engine_here(options: EngineOptions) -> None:
    """Asked before torch is imported, which takes seconds. Raises DeviceError and MissingExtraError where the
    engine, or its provider, cannot run here, OptionError for an unknown provider."""
    name, _, provider = (options.draft_engine or "torch").partition(":")
    if (check := engine_named(name).check) is not None:
        resolve_name(check)(provider)


def with_engine(options: EngineOptions, given: Mapping[str, Path]) -> EngineOptions:
    """The options with the engine that runs the draft model, if one is given, as its files say; and with the
    process that other engines than torch draft in. Raises OptionError for another engine than theirs, and as
    `exported_engine`."""
    path = given.get("draft_model")
    if path is None:
        return options
    made_for = exported_engine(path) if is_exported(path) else None
    if made_for not in (None, *(engine.name for engine in ENGINES if engine.exports)):
        raise UnsupportedModelError(
            f"{path} was exported for {made_for!r}, an engine that this EdgeSpec does not know; export the "
            "model again"
        )
    asked = options.draft_engine or made_for or "torch"
    engine = engine_named(asked)
    if engine.exports and made_for is None:
        raise OptionError(
            f"draft_engine is {asked}, but {path} was not exported for it; export it, and name DIR",
            hint=Call("export_model", {"model": str(path), "out": "DIR"}),
        )
    if made_for is not None and engine.name != made_for:
        raise OptionError(
            f"draft_engine is {asked}, but {path} was exported for {made_for}; leave draft_engine= out"
        )
    if engine.beside and options.batch != 1:
        raise OptionError(
            f"batch is {options.batch or 'auto'}, and {asked} drafts in a process of its own, for one "
            "conversation at a time; use batch=1, or name a draft_model= that torch runs",
            "batch",
        )
    worker = options.draft_worker or (WORKER_THREADS if engine.beside else None)
    return replace(options, draft_engine=asked, draft_worker=worker)


def find(search: Search, found: dict[str, Found]) -> Found | None:
    """See `drafters.resident.Find`: the draft model, for its engine."""
    look: Find = resolve_name(engine_named(search.engine).find)
    return look(search, found)
