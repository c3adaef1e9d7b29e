"""Flags from the fields of the options' dataclasses, and options from flags. Needs no torch."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from edgespec.config import PANELS, EngineOptions, GenerationOptions, refuse_idle, resolve
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.values import Field, Options, did_you_mean, options_of

MODEL_HELP = "Hugging Face directory or hub id, GGUF file, or packed directory."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]

KINDS: tuple[type[Options], ...] = (EngineOptions, GenerationOptions)
ALL = {name: field for kind in KINDS for name, field in options_of(kind).items()}
FLAGS = {name: field.flag for name, field in ALL.items()}  # and, by `takes`, those of the commands alone

# Variables that are not options of a run: where things are remembered, install.sh's, the benchmark scripts'.
_OTHER_VARIABLES = {"EDGESPEC_CACHE", "EDGESPEC_TORCH", "EDGESPEC_VENV", "EDGESPEC_BENCH_DIR"}

T = TypeVar("T", bound=Options)


def takes(
    engine: tuple[str, ...] | None = (), generation: tuple[str, ...] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of options; it is called with `engine` and `generation`, resolved.

    engine, generation: names of EngineOptions and GenerationOptions that become flags; () = all, None = no
        such parameter.
    """
    wanted: dict[str, tuple[type[Options], tuple[str, ...]]] = {}
    if engine is not None:
        wanted["engine"] = (EngineOptions, engine or tuple(options_of(EngineOptions)))
    if generation is not None:
        wanted["generation"] = (GenerationOptions, generation or tuple(options_of(GenerationOptions)))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for name, p in signature.parameters.items() if name not in wanted]
        for parameter in own:
            shown = parameter.annotation.__metadata__[0]  # typer's; in Annotated, its "default" is a flag
            for flag in (shown.default, *(shown.param_decls or ())):
                if str(flag).startswith("--"):
                    FLAGS.setdefault(parameter.name, flag.split("/")[0])
            if parameter.annotation.__origin__ is bool:
                shown.metavar = ""  # typer shows <bool>, as if there were a value to give
        given = [_parameter(options_of(kind)[name]) for kind, names in wanted.values() for name in names]
        order = sorted(given, key=lambda p: PANELS.index(_panel(p)))

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            flags = {p.name: arguments.pop(p.name) for p in given}
            for parameter, (kind, _) in wanted.items():
                arguments[parameter] = from_flags(kind, flags)
            if "generation" in wanted:
                refuse_idle(arguments["generation"], flags)
            command(**arguments)

        run.__signature__ = signature.replace(parameters=own + order)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in own + order}
        del run.__wrapped__  # typer would look there for types
        return run

    return decorate


def _parameter(field: Field) -> inspect.Parameter:
    """The flag of one option. Its value stays text, which `Field.typed` reads for flags as for variables."""
    option = field.option
    info = typer.Option(
        field.flag,
        metavar=option.metavar,
        help=f"{option.help} Default: {field.default_words}.",
        rich_help_panel=option.panel,
        hidden=option.hidden,
        show_default=False,
    )
    kind: Any = {tuple: list[str], bool: bool}.get(field.kind, str)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _panel(parameter: inspect.Parameter) -> str:
    return ALL[parameter.name].option.panel


def from_flags(kind: type[T], flags: Mapping[str, Any]) -> T:
    """From flags (None or [] = not given), the environment and edgespec.toml. Raises OptionError."""
    _check_environment()
    return resolve(kind, {name: None if value == [] else value for name, value in flags.items()})


def check_together(engine: EngineOptions, generation: GenerationOptions) -> None:
    """Raises OptionError when drafter, acceptance and sampling do not go together; needs no model."""
    from edgespec.core.acceptance import make_acceptance  # numpy: not for --help
    from edgespec.drafters.kinds import check_acceptance, choose_drafters
    from edgespec.schedules.kinds import check_schedule

    members = choose_drafters(engine)
    check_schedule(engine.schedule, members)
    check_acceptance(make_acceptance(generation.acceptance, generation), engine.drafter, members)


def in_flags(message: str, in_chat: bool = False) -> str:
    """A message of the library, which names options as Python does (`memory=`), with flags; or, in a chat,
    with /set for what can be set there."""

    def flag(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        settable = in_chat and name in options_of(GenerationOptions)
        shown = f"/set {FLAGS[name][2:]}" if settable else FLAGS[name]
        return shown + (f" {value}" if value else "")

    # Not in paths, whose folders may be named so: runs/seed=3/model.
    return re.sub(rf"(?<![\w/\\.-])({'|'.join(FLAGS)})=(?![^\s]*[/\\])([\w.+\"'-]*)", flag, message)


def message_of(error: EdgeSpecError, in_chat: bool = False) -> str:
    """An error's message with options as the user writes them: as flags, or in a chat as /set does."""
    text = str(error)
    option = getattr(error, "option", None)
    if option in FLAGS and text.startswith(option):
        text = text.replace(option, FLAGS[option][2 if in_chat else 0 :], 1)
    return in_flags(text, in_chat)


def known_variables() -> set[str]:
    """Names of all environment variables of this project."""
    return {field.variable for field in ALL.values()} | _OTHER_VARIABLES


def _check_environment() -> None:
    """A misspelt EDGESPEC_* variable is an error too: no option is silently ignored."""
    known = known_variables()
    for name in sorted(os.environ):
        if name.startswith("EDGESPEC_") and name not in known:
            raise OptionError(f"environment variable {name} is not an option; {did_you_mean(name, known)}")
