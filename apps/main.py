"""The `edgespec` command: its subcommands, and how errors end it.

Exit codes: 0, 1 for an error met while working, 2 for a wrong option, 130 for Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from edgespec import __version__
from edgespec.apps import options
from edgespec.apps.bench import bench
from edgespec.apps.chat import chat
from edgespec.apps.generate import generate
from edgespec.apps.pack import pack
from edgespec.apps.terminal import Terminal
from edgespec.apps.train import train
from edgespec.errors import EdgeSpecError, OptionError

# The base of typer's usage errors: click's class, or, from typer 0.26 on, typer's own copy of it.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="edgespec",
    help="Run language models larger than the memory they may use, with exactly the model's own output.",
    epilog="Options can be set in the environment too, as EDGESPEC_MEMORY, and in edgespec.toml.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (chat, generate, pack, bench):
    app.command()(command)
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
    """Run one command line; the exit code."""
    try:
        return int(app(args=list(arguments), prog_name="edgespec", standalone_mode=False) or 0)
    except EdgeSpecError as error:
        Terminal().error(options.message_of(error))
        return 2 if isinstance(error, OptionError) else 1
    except OSError as error:
        if error.filename is None:
            raise
        Terminal().error(f"{error.filename}: {error.strerror}")
        return 1
    except UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "edgespec"
        Terminal().error(f"{error.format_message()} (see {command} --help)")  # type: ignore[attr-defined]
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return 130


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
