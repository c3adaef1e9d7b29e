"""Flags from the fields of the options' dataclasses, and options from flags. Needs no torch."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer

from edgespec.apps.settings import resolve
from edgespec.config import PANELS, STANDING, EngineOptions, GenerationOptions, refuse_idle
from edgespec.errors import Call, EdgeSpecError, OptionError
from edgespec.values import Field, Option, Options, did_you_mean, in_words, options_of

MODEL_HELP = "Hugging Face directory or hub id, GGUF file, or packed directory."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]

ALL = {name: field for kind in STANDING for name, field in options_of(kind).items()}
FLAGS = {name: field.flag for name, field in ALL.items()}  # and, by `takes`, those of the commands alone

LIVE = ("memory",)  # options of an engine that can be set while it runs

# Variables that are not options of a run: where things are remembered, install.sh's, the benchmark scripts'.
_OTHER_VARIABLES = {"EDGESPEC_CACHE", "EDGESPEC_TORCH", "EDGESPEC_VENV", "EDGESPEC_BENCH_DIR"}

T = TypeVar("T", bound=Options)


@dataclass(frozen=True)
class ProfileOptions(Options):
    """What every command that loads a model to use it takes."""

    profile: Annotated[
        Path | None, Option("Settings that `tune` has written.", metavar="FILE", panel=PANELS[0])
    ] = None


def takes(
    *, swept: Sequence[str] = (), **only: tuple[str, ...]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of its options, for each parameter that is a dataclass of them; it is called
    with these resolved.

    swept: options whose flags take several values with commas. A parameter `list[...]` gets every
        combination, the last of them changing fastest.
    only: by parameter, the options that become flags, where not all of them do.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own, fields, kinds = [], list[Field](), dict[str, type[Options]]()
        several, others = set[str](), set[str]()  # the latter: options of other commands alone
        for name, parameter in signature.parameters.items():
            kind = parameter.annotation
            if get_origin(kind) is list and issubclass(inside := get_args(kind)[0], Options):
                several.add(name)
                kind = inside
            if isinstance(kind, type) and issubclass(kind, Options):
                known = options_of(kind)
                kinds[name] = kind
                for_some = {n: field.option.only for n, field in known.items() if field.option.only}
                others |= {n for n, commands in for_some.items() if command.__name__ not in commands}
                fields += [known[option] for option in only.get(name, known) if option not in others]
                continue
            own.append(parameter)
            shown = parameter.annotation.__metadata__[0]  # typer's; in Annotated, its "default" is a flag
            for flag in (shown.default, *(shown.param_decls or ())):
                if str(flag).startswith("--"):
                    FLAGS.setdefault(name, flag)
        profiled = "engine" in kinds and "engine" not in only and "model" in signature.parameters
        if profiled:
            fields += options_of(ProfileOptions).values()
        for field in fields:
            FLAGS.setdefault(field.name, field.flag)
        fields.sort(key=lambda f: PANELS.index(f.option.panel) if f.option.panel in PANELS else -1)

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            flags = {field.name: arguments.pop(field.name) for field in fields}
            profile = _profile(flags.pop("profile"), arguments["model"]) if profiled else {}
            for name, kind in kinds.items():
                heard = profile if kind is EngineOptions else {}
                made = partial(from_flags, kind, profile=heard, without=others)
                arguments[name] = [*map(made, _every(flags, swept))] if name in several else made(flags)
            if "generation" in kinds:
                refuse_idle(arguments["generation"], flags)
            command(**arguments)

        parameters = own + [_parameter(field, field.name in swept) for field in fields]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        del run.__wrapped__  # typer would look there for types
        return run

    return decorate


def switches(field: Field) -> list[str]:
    """The flag of an option, and for a switch that is on the one that turns it off."""
    return [field.flag, f"--no-{field.flag[2:]}"] if field.default is True else [field.flag]


def _every(flags: Mapping[str, Any], swept: Sequence[str]) -> list[dict[str, Any]]:
    """The flags with each combination of the values that some have. Raises OptionError for an empty one."""
    values = {name: flags[name].split(",") for name in swept if flags.get(name) is not None}
    for name, parts in values.items():
        if not all(part.strip() for part in parts):
            raise OptionError(f"{FLAGS[name]} is {flags[name]!r}; a value is missing beside a comma", name)
    return [{**flags, **dict(zip(values, chosen, strict=True))} for chosen in product(*values.values())]


def _parameter(field: Field, swept: bool) -> inspect.Parameter:
    """The flag of one option. Its value stays text, which `Field.typed` reads for flags as for variables."""
    option = field.option
    silent = not option.default and (field.default is False or field.default_words == "none")
    info = typer.Option(
        "/".join(switches(field)),
        *filter(None, [option.short]),
        metavar=option.metavar + ",..." * swept,
        help=option.help + ("" if silent else f" Default: {field.default_words}."),
        rich_help_panel=option.panel or None,
        hidden=option.hidden,
        show_default=False,
    )
    kind: Any = list[str] if field.item is str else bool if field.kind is bool else str
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def from_flags(
    kind: type[T],
    flags: Mapping[str, Any],
    profile: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> T:
    """From flags (None or [] = not given), and where else `resolve` looks. Raises OptionError."""
    _check_environment()
    given = {name: None if value == [] else value for name, value in flags.items()}
    return resolve(kind, given, profile=profile, without=without)


def _profile(file: str | None, model: str | None) -> Mapping[str, Any]:
    """The settings of a profile that hold here; those that do not are said."""
    if file is None:
        return {}
    from edgespec.apps.common import demo_model
    from edgespec.apps.terminal import Terminal
    from edgespec.tuning.profile import read_profile

    found = read_profile(Path(file), model or str(demo_model()))
    for note in found.notes:
        Terminal().note(in_flags(note))
    return found.options


def check_together(engine: EngineOptions, generation: GenerationOptions) -> None:
    """Raises OptionError for a drafter, schedule, acceptance and sampling that do not go together; needs no
    model."""
    from edgespec.core.acceptance import make_acceptance  # numpy: not for --help
    from edgespec.drafters.choice import choose_drafters
    from edgespec.schedules.kinds import check_acceptance, check_idle, check_schedule

    members = choose_drafters(engine)
    check_schedule(engine.schedule, members)
    check_idle(engine)
    acceptance = make_acceptance(generation.acceptance, generation)
    check_acceptance(acceptance, engine, members)


def in_flags(message: str, in_chat: bool = False) -> str:
    """A message of the library, which names options as Python does (`memory=`), with flags; or, in a chat,
    with /set for what can be set there."""
    live = {*options_of(GenerationOptions), *LIVE} if in_chat else set()
    return in_words(message, {n: f"/set {flag[2:]}" if n in live else flag for n, flag in FLAGS.items()})


TASKS = {
    "pack_model": "pack",
    "verify_store": "pack --verify",
    "export_model": "export",
    "train_cascade": "train cascade",
    "train_moa": "train moa",
    "train_eagle": "train eagle",
    "train_specformer": "train specformer",
    "train_streaming": "train streaming",
    "train_spd": "train spd",
}


def command_of(call: Call) -> str:
    """The command that does what a call of the library does."""
    words = ["edgespec", TASKS[call.function]]
    for name, value in call.arguments.items():
        words += [shlex.quote(value)] if name in ("model", "directory") else [FLAGS[name], shlex.quote(value)]
    return " ".join(words)


def message_of(error: EdgeSpecError, in_chat: bool = False) -> str:
    """An error's message, with options as flags, or in a chat as /set has them, and its hint as a command."""
    text = error.message
    option = getattr(error, "option", None)
    if option in FLAGS and text.startswith(option):
        text = text.replace(option, FLAGS[option][2 if in_chat else 0 :], 1)
    text = in_flags(text, in_chat)
    return text if error.hint is None else f"{text}: `{command_of(error.hint)}`"


def known_variables() -> set[str]:
    """Names of all environment variables of this project."""
    return {field.variable for field in ALL.values()} | _OTHER_VARIABLES


def _check_environment() -> None:
    """A misspelt EDGESPEC_* variable is an error too: no option is silently ignored."""
    known = known_variables()
    for name in sorted(os.environ):
        if name.startswith("EDGESPEC_") and name not in known:
            raise OptionError(f"environment variable {name} is not an option; {did_you_mean(name, known)}")
