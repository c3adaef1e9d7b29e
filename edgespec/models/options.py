"""What may be said of a packed copy. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgespec.config import PRECISIONS
from edgespec.values import Option, Options


@dataclass(frozen=True)
class PackOptions(Options):
    """What `pack_model` writes; its keywords."""

    precision: Annotated[
        str | None,
        Option(
            f"Encoding of the weights: {', '.join(PRECISIONS)}.",
            metavar="NAME", default="source", choices=PRECISIONS,
        ),
    ] = None  # fmt: skip
    substitute: Annotated[
        str | None,
        Option(
            "Also write a low-bit copy to draft with: int8 or int4. If DIR holds MODEL already, only that is "
            "added.",
            metavar="NAME", choices=("int8", "int4"),
        ),
    ] = None  # fmt: skip
