"""The slash commands of a chat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.apps import saved
from edgespec.apps.options import LIVE, in_flags
from edgespec.apps.stats import stats_table
from edgespec.apps.tune_words import speed_of
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import OptionError
from edgespec.values import count_of, did_you_mean, format_bytes, options_of, with_keywords

if TYPE_CHECKING:
    from edgespec.apps.talk import Talk


@dataclass(frozen=True)
class ChatCommand:
    run: Callable[[Talk, str], None]
    usage: str
    help: str


def run_command(talk: Talk, line: str) -> None:
    """Run one line that begins with "/". Raises OptionError for an unknown command or a wrong argument."""
    name, _, argument = line[1:].partition(" ")
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        hint = did_you_mean(f"/{name}", [f"/{known}" for known in COMMANDS], "/help lists them")
        raise OptionError(f"there is no command /{name}; {hint} (begin with a space to send it as text)")
    COMMANDS[name].run(talk, argument.strip())


def _help(talk: Talk, argument: str) -> None:
    _takes_nothing("help", argument)
    width = max(len(c.usage) for c in COMMANDS.values())
    lines = [f"{c.usage:<{width}}  {c.help}" for c in COMMANDS.values()]
    lines += [
        "",
        'Enter sends; Alt-Enter or Ctrl-J begins a new line; """ starts and ends a longer message.',
        "Ctrl-G opens $EDITOR. Ctrl-C stops a reply. Ctrl-D leaves.",
    ]
    talk.terminal.note("\n".join(lines))


def _set(talk: Talk, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        talk.terminal.note(f"{_memory(talk)} · {describe_options(talk.chat.options)}")
        return
    known = options_of(GenerationOptions)
    key = name.replace("-", "_")
    if key in options_of(EngineOptions) and key not in LIVE:
        flag = key.replace("_", "-")
        raise OptionError(
            f"{name} is for the start: leave the chat and say `edgespec chat --{flag} VALUE -c`"
        )
    if key not in known and key not in LIVE:
        flags = [n.replace("_", "-") for n in (*known, *LIVE)]
        raise OptionError(f"there is no option {name}; {did_you_mean(name, flags)}")
    if not value.strip():
        other = f"; now it is {_memory(talk)}" if key in LIVE else ", or `default`"
        raise OptionError(f"/set {name} needs a value{other}")
    if key in LIVE:
        talk.set_memory(value.strip())
        talk.terminal.note(talk.describe())
        return
    given = known[key].default if value.strip() == "default" else value.strip()
    wanted = with_keywords(talk.chat.options, {key: given})
    talk.check(wanted)
    talk.chat.options = wanted
    talk.terminal.note(describe_options(talk.chat.options))
    if wanted.idle:
        idle = " and ".join(n.replace("_", "-") for n in wanted.idle)
        talk.terminal.note(f"at temperature 0 the likeliest token is taken, whatever {idle} says")


def _memory(talk: Talk) -> str:
    return f"memory {format_bytes(talk.dial)}"


def describe_options(options: GenerationOptions) -> str:
    """One line of all options."""
    shown = {f.name.replace("_", "-"): getattr(options, f.name) for f in fields(options) if f.name != "stop"}
    shown["max-tokens"] = options.max_tokens or "none"
    shown["acceptance"] = options.acceptance or "auto"
    if options.stop:
        shown["stop"] = " ".join(map(repr, options.stop))
    return " · ".join(f"{name} {value}" for name, value in shown.items())


def _show(talk: Talk, argument: str) -> None:
    if argument == "plan":
        if talk.plan is None:
            raise OptionError("the plan of memory is the server's; `edgespec serve` shows it")
        expected = talk.expected()
        speed = "" if expected is None else f"expected: {speed_of(expected)} tokens/s"
        talk.terminal.note(in_flags(talk.plan.describe(speed)))
    elif argument == "chat":
        lines = [
            f"{m.role}{' (private)' * m.private}{' (stopped)' * m.stopped}: {m.content}"
            for m in talk.chat.conversation.messages
        ]
        talk.terminal.note("\n".join(lines) or "nothing has been said yet")
    elif not argument:
        talk.terminal.note(f"{talk.describe()}\n{describe_options(talk.chat.options)}\n{talk.in_use()}")
    else:
        raise OptionError(f"/show {argument}: write /show, /show plan or /show chat")


def _stats(talk: Talk, argument: str) -> None:
    if argument in ("on", "off"):
        talk.show_stats = argument == "on"
    elif argument:
        raise OptionError(f"/stats {argument}: write /stats, /stats on or /stats off")
    else:
        talk.terminal.note(
            stats_table(talk.last_stats, talk.plan, talk.expected_speed)
            if talk.last_stats
            else "there is no reply yet"
        )


def _clear(talk: Talk, argument: str) -> None:
    _takes_nothing("clear", argument)
    talk.chat.conversation.clear()
    talk.terminal.note("the conversation is forgotten")


def _system(talk: Talk, argument: str) -> None:
    conversation = talk.chat.conversation
    if not argument:
        talk.terminal.note(conversation.system or "there is no system prompt")
        return
    conversation.set_system(None if argument == "none" else argument)
    talk.terminal.note("the system prompt is removed" if argument == "none" else "the system prompt is set")


def _save(talk: Talk, argument: str) -> None:
    path = _path("save", argument)
    if path.exists() and path.resolve() not in talk.files:
        try:
            saved.load(path)
        except OptionError:
            raise OptionError(f"{path} exists and is not a chat of edgespec; choose another name") from None
        raise OptionError(f"{path} exists and holds another chat; choose another name, or remove it first")
    saved.save(path, talk.chat.messages, talk.model)
    talk.files.add(path.resolve())
    talk.terminal.note(f"saved {count_of(len(talk.chat.messages), 'message')} in {path}")


def _load(talk: Talk, argument: str) -> None:
    path = _path("load", argument)
    talk.restore(saved.load(path))
    talk.files.add(path.resolve())
    talk.terminal.note(f"loaded {count_of(len(talk.chat.messages), 'message')} from {path}")


def _private(talk: Talk, argument: str) -> None:
    if not argument:
        raise OptionError("/private needs a message")
    talk.ask(argument, private=True)


def _undo(talk: Talk, argument: str) -> None:
    _takes_nothing("undo", argument)
    message = talk.chat.undo()
    if message is None:
        raise OptionError("there is no message to take back")
    shown = " ".join(message.split())
    talk.terminal.note(f"taken back: {shown if len(shown) <= 60 else shown[:59] + '…'}")


def _regen(talk: Talk, argument: str) -> None:
    _takes_nothing("regen", argument)
    talk.regenerate()


def _exit(talk: Talk, argument: str) -> None:
    _takes_nothing("exit", argument)
    talk.leaving = True


def _takes_nothing(name: str, argument: str) -> None:
    if argument:
        raise OptionError(f"/{name} takes no argument, but got {argument!r}")


def _path(name: str, argument: str) -> Path:
    if not argument:
        raise OptionError(f"/{name} needs a file name")
    return Path(argument).expanduser()


ALIASES = {"?": "help", "quit": "exit", "bye": "exit", "h": "help", "q": "exit"}
COMMANDS = {
    "help": ChatCommand(_help, "/help", "this list"),
    "set": ChatCommand(
        _set, "/set [NAME VALUE]", "change an option, such as temperature 0.7 or memory 6GB; show them all"
    ),
    "system": ChatCommand(_system, "/system [TEXT]", "set the system prompt; `none` removes it; show it"),
    "show": ChatCommand(
        _show, "/show [plan|chat]", "the model and options, the memory plan, or what was said"
    ),
    "stats": ChatCommand(
        _stats, "/stats [on|off]", "the last reply's measurements; the line after each reply"
    ),
    "regen": ChatCommand(
        _regen,
        "/regen",
        "answer the last message again, with the next seed",
    ),
    "private": ChatCommand(
        _private, "/private TEXT", "a message that, with all that follows it, is not sent to a server"
    ),
    "undo": ChatCommand(_undo, "/undo", "take the last message and its reply back"),
    "clear": ChatCommand(_clear, "/clear", "forget the conversation, but not the system prompt"),
    "save": ChatCommand(_save, "/save FILE", "write the conversation to a file"),
    "load": ChatCommand(_load, "/load FILE", "go on with a conversation from a file"),
    "exit": ChatCommand(_exit, "/exit", "leave (also Ctrl-D)"),
}
