"""What may be said of a packed copy, and of one for another engine. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgespec.config import PRECISIONS
from edgespec.errors import OptionError
from edgespec.values import Option, Options

EXPORT_ENGINES = ("onnx", "coreml")
EXPORT_PRECISIONS = ("fp32", "fp16", "int8")
STATEFUL_UNIT = 128  # of positions of which a quarter is for drafts: the rest is a multiple of 32


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


@dataclass(frozen=True)
class ExportOptions(Options):
    """What `export_model` writes; its keywords."""

    engine: Annotated[
        str, Option("Who is to run it: onnx or coreml.", metavar="NAME", choices=EXPORT_ENGINES)
    ] = "onnx"
    adapters: Annotated[
        str | None,
        Option(
            "What `train streaming` made for MODEL: export that, with MODEL's embedding and head.",
            metavar="DIR", default="none, export MODEL",
        ),
    ] = None  # fmt: skip
    precision: Annotated[
        str | None,
        Option(
            f"Numbers of weights, and of states where that is fp16: {', '.join(EXPORT_PRECISIONS)}; coreml "
            "has fp16 and int8.",
            metavar="NAME", choices=EXPORT_PRECISIONS, default="fp32; of coreml fp16",
        ),
    ] = None  # fmt: skip
    rows: Annotated[
        int | None,
        Option(
            "Static shapes, which neural processors ask for: so many rows a pass of drafting.",
            metavar="N", default="none, passes of any number of rows; of coreml 32", least=1, most=64,
        ),
    ] = None  # fmt: skip
    positions: Annotated[
        int | None,
        Option(
            "Static shapes: positions of the cache, of which a quarter, at most 512, is for drafts.",
            metavar="N", default="2048, or what the model has", least=64, most=2**20,
        ),
    ] = None  # fmt: skip
    stateful: Annotated[
        bool,
        Option(
            "Of coreml: Core ML keeps the keys and values of what is committed, but for a last part, and "
            "need not be given them in each pass.",
        ),
    ] = False  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine == "coreml" and self.adapters is not None:
            raise OptionError(
                f"adapters is {self.adapters}, and what was trained is exported for onnx only, so far; use "
                "engine=onnx, or leave adapters= out"
            )
        if self.engine == "coreml" and self.precision == "fp32":
            raise OptionError(
                "precision is fp32, and the Neural Engine computes in fp16; use precision=int8, or leave "
                "precision= out"
            )
        if self.stateful and self.engine != "coreml":
            raise OptionError(
                f"stateful is for engine=coreml, and the cache of {self.engine} is the host's; leave "
                "stateful= out"
            )
        if self.stateful and (self.positions or STATEFUL_UNIT) % STATEFUL_UNIT:
            raise OptionError(
                f"positions is {self.positions}, and with stateful= it must be a multiple of {STATEFUL_UNIT}",
                "positions",
            )
        if self.positions is not None and self.rows is None and self.engine != "coreml":
            raise OptionError(
                f"positions is {self.positions}, but without rows= the cache has as many as it needs; name "
                "rows=, or leave positions= out"
            )
