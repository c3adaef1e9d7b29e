"""The slash commands of a chat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.apps import conversation
from edgespec.apps.options import check_together
from edgespec.apps.stats import stats_table
from edgespec.config import GenerationOptions, with_keywords
from edgespec.errors import OptionError
from edgespec.values import did_you_mean, options_of

if TYPE_CHECKING:
    from edgespec.apps.chat import Chat


@dataclass(frozen=True)
class Command:
    run: Callable[[Chat, str], None]
    usage: str
    help: str


def run_command(chat: Chat, line: str) -> None:
    """Run one line that begins with "/". Raises OptionError for an unknown command or a wrong argument."""
    name, _, argument = line[1:].partition(" ")
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        hint = did_you_mean(f"/{name}", [f"/{known}" for known in COMMANDS], "/help lists them")
        raise OptionError(f"there is no command /{name}; {hint} (begin with a space to send it as text)")
    COMMANDS[name].run(chat, argument.strip())


def _help(chat: Chat, argument: str) -> None:
    _takes_nothing("help", argument)
    width = max(len(c.usage) for c in COMMANDS.values())
    lines = [f"{c.usage:<{width}}  {c.help}" for c in COMMANDS.values()]
    lines += [
        "",
        'Enter sends; Alt-Enter or Ctrl-J begins a new line; """ starts and ends a longer message.',
        "Ctrl-G opens $EDITOR. Ctrl-C stops a reply. Ctrl-D leaves.",
    ]
    chat.terminal.note("\n".join(lines))


def _set(chat: Chat, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        chat.terminal.note(describe_options(chat.options))
        return
    known = options_of(GenerationOptions)
    key = name.replace("-", "_")
    if key not in known:
        flags = [n.replace("_", "-") for n in known]
        raise OptionError(f"there is no option {name}; {did_you_mean(name, flags)}")
    if not value.strip():
        raise OptionError(f"/set {name} needs a value, or `default`")
    given = known[key].default if value.strip() == "default" else value.strip()
    wanted = with_keywords(chat.options, {key: given})
    check_together(chat.engine.options, wanted)
    chat.options = wanted
    chat.terminal.note(describe_options(chat.options))
    if wanted.idle:
        idle = " and ".join(n.replace("_", "-") for n in wanted.idle)
        chat.terminal.note(f"at temperature 0 the likeliest token is taken, whatever {idle} says")


def describe_options(options: GenerationOptions) -> str:
    """One line of all options."""
    shown = {f.name.replace("_", "-"): getattr(options, f.name) for f in fields(options) if f.name != "stop"}
    shown["max-tokens"] = options.max_tokens or "none"
    shown["acceptance"] = options.acceptance or "auto"
    if options.stop:
        shown["stop"] = " ".join(map(repr, options.stop))
    return " · ".join(f"{name} {value}" for name, value in shown.items())


def _show(chat: Chat, argument: str) -> None:
    if argument == "plan":
        chat.terminal.note(chat.engine.plan.describe())
    elif argument == "chat":
        lines = [
            f"{m.role}{' (stopped)' if m.stopped else ''}: {m.content}" for m in chat.conversation.messages
        ]
        chat.terminal.note("\n".join(lines) or "nothing has been said yet")
    elif not argument:
        positions = f"{len(chat.session.tokens)} of {chat.session.context} positions in use"
        chat.terminal.note(f"{chat.describe()}\n{describe_options(chat.options)}\n{positions}")
    else:
        raise OptionError(f"/show {argument}: write /show, /show plan or /show chat")


def _stats(chat: Chat, argument: str) -> None:
    if argument in ("on", "off"):
        chat.show_stats = argument == "on"
    elif argument:
        raise OptionError(f"/stats {argument}: write /stats, /stats on or /stats off")
    else:
        chat.terminal.note(stats_table(chat.last_stats) if chat.last_stats else "there is no reply yet")


def _clear(chat: Chat, argument: str) -> None:
    _takes_nothing("clear", argument)
    chat.conversation.clear()
    chat.terminal.note("the conversation is forgotten")


def _system(chat: Chat, argument: str) -> None:
    if not argument:
        chat.terminal.note(chat.conversation.system or "there is no system prompt")
        return
    chat.conversation.set_system(None if argument == "none" else argument)
    chat.terminal.note("the system prompt is removed" if argument == "none" else "the system prompt is set")


def _save(chat: Chat, argument: str) -> None:
    path = _path("save", argument)
    conversation.save(path, chat.conversation.messages, chat.model)
    chat.terminal.note(f"saved {len(chat.conversation.messages)} messages in {path}")


def _load(chat: Chat, argument: str) -> None:
    path = _path("load", argument)
    chat.conversation.messages = conversation.load(path)
    chat.terminal.note(f"loaded {len(chat.conversation.messages)} messages from {path}")


def _regen(chat: Chat, argument: str) -> None:
    _takes_nothing("regen", argument)
    if not chat.options.temperature:
        raise OptionError("at temperature 0 the reply would be the same; /set temperature 0.7 first")
    earlier = chat.conversation.copy()
    question = chat.conversation.take_back()
    if question is None:
        raise OptionError("there is no reply to make again")
    # The noise depends on the seed and the position only, so the same seed would give the same reply.
    chat.options = replace(chat.options, seed=chat.options.seed + 1)
    chat.ask(question, earlier)


def _exit(chat: Chat, argument: str) -> None:
    _takes_nothing("exit", argument)
    chat.leaving = True


def _takes_nothing(name: str, argument: str) -> None:
    if argument:
        raise OptionError(f"/{name} takes no argument, but got {argument!r}")


def _path(name: str, argument: str) -> Path:
    if not argument:
        raise OptionError(f"/{name} needs a file name")
    return Path(argument).expanduser()


ALIASES = {"?": "help", "quit": "exit", "bye": "exit", "h": "help", "q": "exit"}
COMMANDS = {
    "help": Command(_help, "/help", "this list"),
    "set": Command(_set, "/set [NAME VALUE]", "change an option, such as temperature 0.7; show them all"),
    "system": Command(_system, "/system [TEXT]", "set the system prompt; `none` removes it; show it"),
    "show": Command(_show, "/show [plan|chat]", "the model and options, the memory plan, or what was said"),
    "stats": Command(_stats, "/stats [on|off]", "the last reply's measurements; the line after each reply"),
    "regen": Command(_regen, "/regen", "answer the last message again, with the next seed"),
    "clear": Command(_clear, "/clear", "forget the conversation, but not the system prompt"),
    "save": Command(_save, "/save FILE", "write the conversation to a file"),
    "load": Command(_load, "/load FILE", "go on with a conversation from a file"),
    "exit": Command(_exit, "/exit", "leave (also Ctrl-D)"),
}
