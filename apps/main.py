"""The `edgespec` command: its subcommands, and how errors end it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Annotated

import typer

from edgespec import __version__
from edgespec.apps import options
from edgespec.apps.bench import bench
from edgespec.apps.chat import chat
from edgespec.apps.devices import devices
from edgespec.apps.examples import BENCH, CHAT, DEVICES, EDGESPEC, EXPORT, GENERATE, PACK, SERVE, TUNE
from edgespec.apps.export import export
from edgespec.apps.generate import generate
from edgespec.apps.help import Command, Group
from edgespec.apps.pack import pack
from edgespec.apps.serve import serve
from edgespec.apps.terminal import Terminal
from edgespec.apps.train import train
from edgespec.apps.tune import tune
from edgespec.errors import EdgeSpecError, OptionError

# The base of typer's usage errors: click's class, or, from typer 0.26 on, typer's own copy of it.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}

app = typer.Typer(
    name="edgespec",
    help="Run language models larger than the memory they may use, with exactly the model's own output.",
    epilog=EDGESPEC,
    pretty_exceptions_enable=False,
    cls=Group,
)
COMMANDS = (
    (chat, CHAT),
    (generate, GENERATE),
    (serve, SERVE),
    (tune, TUNE),
    (devices, DEVICES),
    (pack, PACK),
    (export, EXPORT),
    (bench, BENCH),
)
for command, examples in (*COMMANDS, (bench, BENCH)):
    app.command(epilog=examples, cls=Command)(command)
app.add_typer(train)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"edgespec {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _edgespec(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code (`edgespec.apps.start` has the list)."""
    try:
        return int(app(args=list(arguments), prog_name="edgespec", standalone_mode=False) or 0)
    except EdgeSpecError as error:
        Terminal().error(options.message_of(error))
        return 2 if isinstance(error, OptionError) else 1
    except BrokenPipeError:  # whoever read the replies has enough
        return 1
    except OSError as error:
        if error.filename is None and error.errno not in _NO_ROOM:
            raise
        Terminal().error(f"{error.filename or 'writing to standard output failed'}: {error.strerror}")
        return 1
    except UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "edgespec"
        Terminal().error(f"{error.format_message()} (see {command} --help)")  # type: ignore[attr-defined]
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return 130
