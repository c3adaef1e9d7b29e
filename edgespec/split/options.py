"""What may be said of a connection to a server. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgespec.values import Option, Options

UNVERIFIED = ("again", "keep")
SERVER = "Server"


@dataclass(frozen=True)
class ConnectOptions(Options):
    """How a server is reached, and what happens while it is not; keywords of `edgespec.connect`."""

    ca: Annotated[
        str | None,
        Option(
            "File of certificates to trust, for https:// and wss://.",
            metavar="FILE", panel=SERVER, default="the system's",
        ),
    ] = None  # fmt: skip
    unverified: Annotated[
        str,
        Option(
            "What becomes of text that the drafter wrote alone, when the server is back: again (it is made "
            "again) or keep.",
            metavar="NAME", panel=SERVER, choices=UNVERIFIED,
        ),
    ] = "again"  # fmt: skip
    alone: Annotated[
        int,
        Option("Most tokens that the drafter writes alone.", metavar="N", panel=SERVER, least=0),
    ] = 200
    wait: Annotated[
        float,
        Option(
            "Seconds that a reply waits for the server when the drafter can write no more.",
            metavar="SECONDS", panel=SERVER, least=0, most=1e6,
        ),
    ] = 30.0  # fmt: skip
