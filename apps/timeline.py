"""A run as a timeline: Chrome's trace format, for ui.perfetto.dev or chrome://tracing. Needs no torch.

    cycles      |  cycle +3           |  cycle +1       |  ...      tokens, and how many drafts were accepted
    target      |      verify         |     verify      |           layer by layer, and the head
    waits       |          ▌  ▌   ▌ ▌ |                             blocked until a chunk was there
    drafting    |▐▐▐▐▐                |▐▐▐                          before a pass, or in its waits
    worker      |▐▐▐▐▐▐▐▐▐▐▐▐▐▐▐▐▐▐ ▐▐▐▐▐▐▐▐▐▐▐▐▐▐▐               a draft worker's rounds: asked for, or ahead
    flash 1, 2  |▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂           chunks, as many tracks as are read at a time

Events are written as they end, about 150 bytes each: one a layer and one a chunk that is read or waited for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from edgespec.devices.files import replacing
from edgespec.errors import OptionError, StorageError

if TYPE_CHECKING:
    from edgespec.core.schedule import Controller
    from edgespec.core.trace import Cycle, Layer, Phase, Round
    from edgespec.engine import Engine
    from edgespec.offload.chunks import ChunkEvent
    from edgespec.session import Session
    from edgespec.tuning.watch import Watch

T = TypeVar("T")
TRACE_HELP = "Write a timeline of the run there, for ui.perfetto.dev or chrome://tracing."
CYCLES, TARGET, WAITS, DRAFTING, WORKER, FLASH = range(
    1, 7
)  # tracks; FLASH and those behind it are for chunks
NAMES = {CYCLES: "cycles", TARGET: "target", WAITS: "waits", DRAFTING: "drafting"}


@contextmanager
def timeline(path: Path | None) -> Iterator[Timeline | None]:
    """Write what the block traces to `path`, when it is over; None = nothing. Raises OptionError at once when
    that cannot be written, StorageError at the end when it could not be.

    What was traced before the block failed, or was interrupted, is kept. The block ends what it traces.
    """
    if path is None:
        yield None
        return
    failed: BaseException | None = None
    try:
        with ExitStack() as stack:
            try:
                if path.exists() and not path.is_file():  # a device or a pipe would be replaced
                    raise OSError(0, "it is no file")
                file = open(stack.enter_context(replacing(path)), "w", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                fact = f"trace is {path}, which cannot be written: {error.strerror}"
                raise OptionError(f"{fact}; name a file that can", "trace") from None
            stack.callback(file.close)
            traced = Timeline(file)
            try:
                yield traced
            except BaseException as error:
                failed = error
                if not traced.events:
                    raise
            traced.finish()
    except OSError as error:
        if failed is None:
            raise StorageError(f"the trace cannot be written to {path}: {error.strerror}") from None
    if failed is not None:
        raise failed


def new_session(
    engine: Engine,
    traced: Timeline | None,
    controller: Controller | None = None,
    hear: Callable[[Cycle], None] | None = None,
    watch: Watch | None = None,
) -> Session:
    """A conversation that the timeline hears of, `hear` of its cycles, and `watch` of what it shows."""
    from edgespec.core.trace import Trace  # numpy: not for --help
    from edgespec.drafters.resident import Outside

    if traced is not None:
        traced.layers = engine.config.layers
        for resident in engine.resident:
            if isinstance(resident, Outside):
                resident.listen(traced.round)
    heard = [one for one in (traced, watch) if one is not None]
    cycles = [*(one.cycle for one in heard), *([hear] if hear else [])]
    if heard:
        engine.target.weights.listen(_all([one.chunk for one in heard]))
    trace = Trace(_all(cycles), traced.layer if traced else None, _all([one.phase for one in heard]))
    return engine.new_session(controller=controller, trace=trace)


def _all(listeners: Sequence[Callable[[T], None]]) -> Callable[[T], None] | None:
    """One that tells them all; None for none."""

    def tell(event: T) -> None:
        for listener in listeners:
            listener(event)

    return tell if listeners else None


class Timeline:
    """Writes the events of one conversation, and of its engine's flash, to `file` as JSON.

    Callable from any thread. A write that fails ends the writing, not the reply: `finish` raises it.
    """

    def __init__(self, file: TextIO) -> None:
        self.events = 0
        self.layers = 0  # of the target
        self._file: TextIO | None = file
        self._error: OSError | None = None
        self._lock = threading.Lock()
        self._origin = perf_counter()
        self._began: dict[str, float] = {}  # phases under way
        self._layer_began, self._last_layer = self._origin, -1
        self._cycle_began: float | None = None
        self._worker_named = False
        self._lanes: list[float] = []  # of chunks being read at a time: when the latest one was there
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        file.write(json.dumps({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "edgespec"}}))
        for track, name in NAMES.items():
            self._name(track, name)

    def finish(self) -> None:
        """No more events. Raises OSError when some could not be written."""
        self._write("\n]}\n")
        with self._lock:
            self._file = None
        if self._error is not None:
            raise self._error

    # What it hears of.

    def phase(self, event: Phase) -> None:
        if event.begins:
            self._began[event.name] = event.at
            if self._cycle_began is None:
                self._cycle_began = event.at
            if event.name in ("prefill", "verify"):
                self._layer_began, self._last_layer = event.at, -1
            return
        began = self._began.pop(event.name, event.at)
        if event.name in ("prefill", "verify"):
            if self._last_layer == self.layers - 1:  # else the pass was broken off
                self._span(TARGET, "head", self._layer_began, event.at)
            self._span(TARGET, event.name, began, event.at)
        else:
            self._span(DRAFTING, event.name, began, event.at)
        if event.name == "prefill":
            self._cycle_began = None

    def layer(self, event: Layer) -> None:
        self._span(TARGET, f"layer {event.index}", self._layer_began, event.at, {"rows": event.rows})
        self._layer_began, self._last_layer = event.at, event.index

    def cycle(self, event: Cycle) -> None:
        outcome, now = event.outcome, perf_counter()
        shown: dict[str, Any] = {
            "tokens": len(outcome.tokens),
            "accepted": outcome.accepted,
            "verified": len(event.tree),
            "draft passes": event.passes,
        }
        if (overlap := event.overlap) is not None:
            shown |= {"hit": overlap.hit, "found": overlap.found, "asked": overlap.asked}
        began = now if self._cycle_began is None else self._cycle_began
        self._span(CYCLES, f"cycle +{len(outcome.tokens)}", began, now, shown)
        self._cycle_began = None

    def round(self, event: Round) -> None:
        if not self._worker_named:  # most runs have none
            self._worker_named = True
            self._name(WORKER, "draft worker")
        name, began = "draft ahead" if event.ahead else "draft", max(event.began, self._origin)
        self._span(WORKER, name, began, event.ended, {"nodes": event.nodes})

    def chunk(self, event: ChunkEvent) -> None:
        chunk = event.chunk
        nbytes = chunk.nbytes + sum(other.nbytes for other in event.others)
        shown = {"chunk": chunk.index, "layer": chunk.layer, "bytes": nbytes}
        name = f"chunk {chunk.index}" + (f"-{event.others[-1].index}" if event.others else "")
        track = WAITS if event.kind == "wait" else FLASH + self._lane(event.began, event.ended)
        self._span(track, name, max(event.began, self._origin), event.ended, shown)

    def _lane(self, began: float, ended: float) -> int:
        """A track on which no other chunk was being read at the time."""
        with self._lock:
            lane = next((i for i, end in enumerate(self._lanes) if end <= began), len(self._lanes))
            new = lane == len(self._lanes)
            self._lanes[lane : lane + 1] = [ended]
        if new:
            self._name(FLASH + lane, f"flash {lane + 1}")
        return lane

    # How it is written.

    def _name(self, track: int, name: str) -> None:
        for kind, value in (("name", name), ("sort_index", track)):
            event = {"name": f"thread_{kind}", "ph": "M", "pid": 1, "tid": track, "args": {kind: value}}
            self._write(",\n" + json.dumps(event))

    def _span(
        self, track: int, name: str, began: float, ended: float, shown: Mapping[str, Any] | None = None
    ) -> None:
        start, stop = (round((at - self._origin) * 1e6, 3) for at in (began, ended))  # microseconds
        event = {
            "name": name,
            "ph": "X",
            "pid": 1,
            "tid": track,
            "ts": start,
            "dur": round(stop - start, 3),  # of rounded ends, so that what nests still does
            "args": shown or {},
        }
        self._write(",\n" + json.dumps(event))
        self.events += 1

    def _write(self, text: str) -> None:
        with self._lock:
            if self._file is None or self._error is not None:
                return
            try:
                self._file.write(text)
            except OSError as error:
                self._error = error
