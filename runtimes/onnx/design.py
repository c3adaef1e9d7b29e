"""Which graphs an exported model has: one for each part of it and each number of rows. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.onnx.graph import GraphBuilder, head_graph, layers_graph, streams_graph
from edgespec.runtimes.onnx.layout import Stored, stored_tensors

WEIGHTS = "weights.safetensors"

Precision = Literal["fp32", "fp16", "int8"]
Part = Literal["before", "streams", "layers", "head"]
"""See `graph`: all layers of a plain model are `layers`."""


class Lookahead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The streams of a speculative streaming drafter, and through how many of its last layers they go; see
    `runtimes.torch.streaming`."""

    streams: Annotated[int, msgspec.Meta(ge=1, le=8)]
    layers: Annotated[int, msgspec.Meta(ge=1, le=256)]


@dataclass(frozen=True)
class Design:
    """rows, positions: of static shapes, see `exported.manifest.ExportRecord`."""

    config: ModelConfig
    precision: Precision
    rows: Sequence[int] = ()
    positions: int = 0
    lookahead: Lookahead | None = None

    @property
    def streams(self) -> int:
        """Of each row that has some."""
        return self.lookahead.streams if self.lookahead else 0

    @property
    def before(self) -> int:
        """Layers that streams do not go through."""
        return self.config.layers - self.lookahead.layers if self.lookahead else 0

    @property
    def parts(self) -> Sequence[Part]:
        found: list[Part] = ["layers", "head"]
        if self.lookahead:
            found.append("streams")
        return [*found, "before"] if self.before else found

    def buckets(self, part: Part) -> Sequence[int | None]:
        """Rows of a call that there is a graph for, ascending; None = any."""
        if not self.rows:
            return (None,)
        if part in ("before", "streams"):
            return self.rows
        return sorted({self.rows[0] * (1 + self.streams), *self.rows[self.streams > 0 :], self.rows[-1]})

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """See `layout.stored_tensors`."""
        return stored_tensors(self.config, self.precision, self.streams)

    def graph(self, part: Part, rows: int | None, weights: Mapping[str, Stored]) -> bytes:
        """A graph for so many rows, whose weights lie there in `WEIGHTS`."""
        build, config, before = GraphBuilder(self.precision, WEIGHTS, weights), self.config, self.before
        if part == "head":
            return head_graph(config, build, rows)
        if part == "streams":
            return streams_graph(config, build, self.streams, rows)
        layers = range(before) if part == "before" else range(before, config.layers)
        return layers_graph(config, build, rows, self.positions or None, layers)


def graph_name(part: Part, rows: int | None) -> str:
    """A graph's file."""
    return f"{part}.onnx" if rows is None else f"{part}-{rows}.onnx"
