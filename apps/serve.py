"""`edgespec serve`: replies over HTTP, to many at once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.apps import options
from edgespec.apps.common import check_source, demo_model, demo_options, describe_plan, load_engine, say_whose
from edgespec.apps.interrupts import held
from edgespec.apps.terminal import Terminal
from edgespec.apps.yielding import HELP as YIELD_HELP
from edgespec.apps.yielding import giving_way
from edgespec.config import MOST_BATCH, EngineOptions, GenerationOptions
from edgespec.errors import ClosedError, EdgeSpecError, MissingExtraError, OptionError
from edgespec.split.keys import read_keys
from edgespec.values import Option, Options, count_of, format_bytes

if TYPE_CHECKING:
    from edgespec.drafters.remote.host import DraftHost
    from edgespec.engine import Engine

ROLES = ("target", "drafter")
PATIENCE = 10.0  # seconds that replies under way have when the server is told to stop


@dataclass(frozen=True)
class ServeFlags(Options):
    """Where it listens, and whom it serves."""

    host: Annotated[
        str,
        Option("Address to listen on; one that others can reach needs --api-key-file.", metavar="ADDRESS"),
    ] = "127.0.0.1"
    port: Annotated[
        int, Option("Port to listen on; 0 takes a free one.", metavar="N", least=0, most=65535)
    ] = 8642
    as_: Annotated[
        str,
        Option(
            "What it does: target (it replies, and verifies) or drafter (it drafts for targets elsewhere: "
            "--draft-server there).",
            metavar="NAME", choices=ROLES,
        ),
    ] = "target"  # fmt: skip
    api_key_file: Annotated[
        Path | None, Option("Serve only who has one of the keys in this file, one a line.", metavar="FILE")
    ] = None
    ssl_certfile: Annotated[
        Path | None, Option("Serve https, with the certificate in this file (PEM).", metavar="FILE")
    ] = None
    ssl_keyfile: Annotated[
        Path | None,
        Option("The certificate's private key (PEM).", metavar="FILE", default="in --ssl-certfile"),
    ] = None
    yield_: Annotated[bool, Option(YIELD_HELP)] = False
    max_sessions: Annotated[
        int,  # 0 = auto
        Option(
            "Replies made at once; each pass of the weights serves all of them. A number, or auto.",
            metavar="N|auto", default="auto, as many as have room and pay", least=0, most=MOST_BATCH,
        ),
    ] = 0  # fmt: skip


@options.takes()
def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help=options.MODEL_HELP + " Without one: the demo model.", show_default=False
        ),
    ] = None,
    *,
    wanted: ServeFlags,
    engine: EngineOptions,
    generation: GenerationOptions,
) -> None:
    """Reply over HTTP as OpenAI's API does, to many at once: /v1/chat/completions and others. Or draft for
    targets elsewhere."""
    source = model or str(demo_model())
    drafts = wanted.as_ == "drafter"
    if drafts and wanted.yield_:
        raise OptionError("--yield does not go with --as drafter, whose weights stay in memory; leave it out")
    if model is None and not drafts:
        adapters, engine = engine.adapters, demo_options(engine)
        if wanted.max_sessions != 1:  # the demo's adapters draft for one reply at a time
            engine = replace(engine, adapters=adapters)
    options.check_together(engine, generation)
    asked = _with_sessions(engine, wanted.max_sessions)
    try:
        with held():  # an exception amidst hundreds of imports may be lost in a callback of theirs
            from edgespec.apps.server.draft import make_draft_app
            from edgespec.apps.server.listen import Server, listening
            from edgespec.apps.server.problems import log
            from edgespec.apps.server.service import Service, digest_of
            from edgespec.apps.server.tls import tls_context
            from edgespec.drafters.remote.opening import MEANT, open_host
    except ImportError as error:
        raise MissingExtraError(
            f"a server needs {error.name}, which is not installed: pip install 'edgespec[serve]'"
        ) from None
    check_source(source)
    keys = [] if wanted.api_key_file is None else read_keys(wanted.api_key_file)
    tls = tls_context(wanted.ssl_certfile, wanted.ssl_keyfile)
    name = Path(source).resolve().name if Path(source).exists() else source
    with (
        Terminal() as terminal,
        listening(wanted.host, wanted.port, bool(keys), tls) as (socket, url),
        ExitStack() as stack,
    ):
        locked = ", with a key" if keys else ""

        def ready(engine: Engine) -> None:
            terminal.note(describe_plan(name, engine.plan, engine.drafters))
            most = engine.plan.sequences
            terminal.note(f"serving at {url}/v1{locked}, {count_of(most, 'request')} at once; Ctrl-C ends it")
            if wanted.yield_:
                stack.enter_context(giving_way(engine, terminal.note))

        def ready_to_draft(host: DraftHost) -> None:
            terminal.note(
                f"{name} · context {host.positions}, {format_bytes(host.nbytes)} of weights in memory"
            )
            many = count_of(host.seats, "conversation")
            terminal.note(f"drafting at {url}{locked}, for {many} at once; Ctrl-C ends it")

        service = Service(name, source, generation, [digest_of(key.encode()) for key in keys])
        terminal.busy("starting")
        if drafts:
            server = Server(service, PATIENCE, tls, make_draft_app)
            say_whose(replace(asked, batch=1), terminal, MEANT, "nothing that a drafter goes by")
            service.load(lambda p: open_host(name, source, asked, p), terminal.progress, ready_to_draft)
        else:
            server = Server(service, PATIENCE, tls)
            service.load(lambda p: load_engine(source, asked, p), terminal.progress, ready)
        try:
            server.run([socket])
        finally:
            stack.close()
            service.close()
        broken = service.error
        if broken is not None and not isinstance(broken, EdgeSpecError):
            log.error("what has ended the server", exc_info=broken)
            broken = ClosedError(f"the server broke: {type(broken).__name__}: {broken}")
        if broken is not None:
            raise _in_our_words(broken)


def _with_sessions(engine: EngineOptions, most: int) -> EngineOptions:
    """Raises OptionError."""
    try:
        return replace(engine, batch=most)
    except OptionError as error:
        raise _in_our_words(error) from None


def _in_our_words(error: EdgeSpecError) -> EdgeSpecError:
    """The engine's option `batch` is --max-sessions here."""
    message = error.message.replace("batch is", "max-sessions is", 1).replace("batch=", "max_sessions=")
    error.args = (message, *error.args[1:])
    return error
