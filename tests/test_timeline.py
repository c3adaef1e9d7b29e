"""A run's timeline in Chrome's trace format: whole, nested, and refused before any work if it must be."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import stat
import sys
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from edgespec.apps.timeline import CYCLES, DRAFTING, FLASH, TARGET, WAITS, WORKER, timeline
from edgespec.config import GenerationOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.reply import _Observer
from edgespec.core.trace import Cycle, Layer, Overlap, Phase, Trace
from edgespec.core.tree import TokenTree
from edgespec.core.verify import Cancellation
from edgespec.drafters import beside
from edgespec.errors import OptionError, StorageError
from edgespec.offload.chunks import Chunk, ChunkEvent
from edgespec.offload.streamer import Streamer
from edgespec.schedules.serial import Plain
from tests.fake_engine import FakeEngine
from tests.sessions import long_passes
from tests.test_cli import ROOT, Edgespec, edgespec, engine
from tests.test_end_to_end import Run, model, run
from tests.test_streamer import SMALL, Gate, Store, drain, eventually, gate, store

__all__ = ["edgespec", "engine", "gate", "model", "run", "store"]  # fixtures
Event = dict[str, Any]
LAYERS = 3  # of the tiny model


def events_of(path: Path) -> dict[int, list[Event]]:
    """Complete events by track, by their beginnings, the longer first; what is always so is checked."""
    whole = json.loads(path.read_text())
    assert whole["displayTimeUnit"] == "ms"
    tracks = defaultdict(list)
    named = {e["tid"] for e in whole["traceEvents"] if e["name"] == "thread_name"}
    for event in whole["traceEvents"]:
        if event["ph"] == "M":
            continue
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        tracks[event["tid"]].append(event)
    assert set(tracks) <= named
    for track, events in tracks.items():
        ends = [end(event) for event in events]
        if track < FLASH:  # readers tell of chunks each for itself, and the file's order means nothing
            assert ends == sorted(ends), f"track {track} is not in the order of its events' ends"
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        check_nested(events)
    return tracks


def end(event: Event) -> float:
    return round(event["ts"] + event["dur"], 3)


def check_nested(events: list[Event]) -> None:
    """An event ends before the next begins, or after the next has ended."""
    open_until: list[float] = []
    for event in events:
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        assert not open_until or end(event) <= open_until[-1], f"{event} overlaps what it does not lie within"
        open_until.append(end(event))


def named(events: list[Event], start: str) -> list[Event]:
    return [event for event in events if event["name"].startswith(start)]


def inside(events: list[Event], outer: Event) -> list[Event]:
    found = [e for e in events if e is not outer and outer["ts"] <= e["ts"] and end(e) <= end(outer)]
    return [e for e in found if e["ts"] < end(outer)]


def test_a_streamed_reply(run: Run, model: Path, tmp_path: Path) -> None:
    flags = ["generate", model, "-p", "Once upon", "--max-tokens", "24", "--json", "--resident-layers", "0"]
    flags += ["--drafter", "model", "--draft-model", model, "--schedule", "serial"]
    code, out, _ = run(*flags, "--trace", "trace.json")
    assert code == 0
    said, tracks = json.loads(out), events_of(tmp_path / "trace.json")
    assert said["tokens"] == json.loads(run(*flags)[1])["tokens"]

    cycles = tracks[CYCLES]
    assert len(cycles) == said["stats"]["cycles"] - 1  # the first token is the prompt's
    assert sum(c["args"]["tokens"] for c in cycles) + 1 >= len(said["tokens"])
    assert sum(c["args"]["accepted"] for c in cycles) == said["stats"]["accepted"]
    assert not any("hit" in c["args"] for c in cycles), "nothing is prepared"
    for before, after in pairwise(cycles):
        assert end(before) <= after["ts"]

    target = tracks[TARGET]
    passes = named(target, "prefill") + named(target, "verify")
    assert len(passes) == said["stats"]["cycles"]
    for one in passes:  # every layer once, in order, and the head; nothing else
        parts = [event["name"] for event in inside(target, one)]
        assert parts == [*(f"layer {i}" for i in range(LAYERS)), "head"]
    assert len(target) == len(passes) * (LAYERS + 2)
    assert [v["ts"] for v in named(target, "verify")] == sorted(v["ts"] for v in named(target, "verify"))
    rows = [event["args"]["rows"] for event in named(target, "layer 0")]
    assert rows[1:] == [c["args"]["verified"] for c in cycles]

    drafts = tracks[DRAFTING]
    for cycle, draft in zip(cycles, drafts, strict=True):
        (verify,) = named(inside(target, cycle), "verify")
        assert cycle["ts"] <= draft["ts"]
        assert end(draft) <= verify["ts"] <= end(verify) <= end(cycle)

    reads = [event for track, events in tracks.items() if track >= FLASH for event in events]
    spans = [event["name"].removeprefix("chunk ").split("-") for event in reads]  # what one read brings
    chunks = {chunk for span in spans for chunk in range(int(span[0]), int(span[-1]) + 1)}
    assert chunks == set(range(max(chunks) + 1))
    assert len(chunks) > 4 * LAYERS
    read = sum(event["args"]["bytes"] for event in reads)
    assert read >= said["stats"]["plan"]["streamed_bytes"] * (len(passes) - 1)
    for wait in tracks[WAITS]:  # of a pass: nobody else waits
        assert any(one["ts"] <= wait["ts"] and end(wait) <= end(one) for one in passes)


def test_a_draft_workers_rounds(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it drafted and when: while the target verifies, and what it is asked for before."""
    monkeypatch.setattr(beside, "SILENCE", 60.0)  # the machine may be busy,
    long_passes(monkeypatch)  # and passes short
    flags = ["generate", model, "-p", "Once upon", "--max-tokens", "40", "--json", "--resident-layers", "0"]
    flags += ["--drafter", "model", "--draft-model", model, "--draft-worker", "1", "--schedule", "ssd"]
    code, out, _ = run(*flags, "--trace", "trace.json")
    assert code == 0
    stats, tracks = json.loads(out)["stats"], events_of(tmp_path / "trace.json")
    cycles = [cycle["args"] for cycle in tracks[CYCLES]]
    hits = [cycle["hit"] for cycle in cycles]
    assert (hits.count(True), hits.count(False)) == (stats["cache_hits"], stats["cache_misses"])
    assert hits[0] is None, "nothing had been drafted ahead of it"
    assert not any(cycle["asked"] for cycle in cycles), "there is no early exit"
    rounds, verified = tracks[WORKER], named(tracks[TARGET], "verify")
    asked = [one for one in rounds if one["name"] == "draft"]
    ahead = [one for one in rounds if one["name"] == "draft ahead"]
    assert 0 < len(asked) <= 2 * len(tracks[DRAFTING]), "beside what was prepared, too"
    assert 0 < len(ahead) <= len(verified)
    assert sum(one["args"]["nodes"] for one in asked) > 0
    assert any(o["ts"] < v["ts"] + v["dur"] and v["ts"] < end(o) for o in ahead for v in verified)


def test_bench(run: Run, model: Path, tmp_path: Path) -> None:
    flags = ["-p", "20", "-n", "3", "-r", "2", "--drafter", "none"]
    assert run("bench", model, *flags, "--trace", tmp_path / "trace.json")[0] == 0
    tracks = events_of(tmp_path / "trace.json")
    assert len(named(tracks[TARGET], "prefill")) == 1 + 2 * 2  # the first is the warming one
    assert len(tracks[CYCLES]) == 2 * 3
    assert not tracks[WAITS]  # all in memory
    assert not any(events for track, events in tracks.items() if track >= FLASH)


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_what_cannot_be_written_is_refused_before_the_model_is_loaded(
    command: str, edgespec: Edgespec, engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    paths = ["folder", "missing/trace.json", "file/trace.json", "x" * 300]
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe")
        paths += ["pipe", os.devnull]
    flags = ["-p", "x"] if command == "generate" else []
    for path in paths:
        result = edgespec(command, "m", *flags, "--trace", path)
        assert result.code == 2
        assert result.err.startswith(f"error: --trace is {path}, which cannot be written: ")
        assert result.err.count("\n") == 1
        assert engine.loaded_with is None
    if sys.platform != "win32":
        assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
        assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "pipe") == ["file", "folder"]


def traced_until(path: Path, layers: list[float], error: BaseException | None = None) -> None:
    """Layers that end so many seconds after the beginning, in a pass that is left by an error."""
    with timeline(path) as traced:
        assert traced is not None
        traced.phase(Phase("verify", True, traced._origin))
        for index, at in enumerate(layers):
            traced.layer(Layer(index, 1, traced._origin + at))
        if error is not None:
            raise error


def test_a_failure_keeps_what_was_traced_before_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for error in (KeyboardInterrupt(), OSError(5, "the disk"), ValueError("a defect")):
        with pytest.raises(type(error)) as raised:
            traced_until(path, [], error)
        assert raised.value is error
        assert not path.exists()  # nothing had ended
    path.write_text("of an earlier run")
    with pytest.raises(KeyboardInterrupt):
        traced_until(path, [], KeyboardInterrupt())
    assert path.read_text() == "of an earlier run"
    with pytest.raises(KeyboardInterrupt):
        traced_until(path, [0.001], KeyboardInterrupt())
    assert [event["name"] for event in events_of(path)[TARGET]] == ["layer 0"]
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_a_disk_that_fills_up_ends_the_trace_and_not_the_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            if self.tell() > 2000:
                raise OSError(28, "No space left on device")
            return super().write(text)

    monkeypatch.setattr("edgespec.apps.timeline.open", lambda *how, **more: Full(), raising=False)
    with pytest.raises(StorageError, match=r"cannot be written to .*trace.json: No space"):
        traced_until(tmp_path / "trace.json", [0.1 * i for i in range(100)])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OptionError, match="cannot be written: it is no file"), timeline(tmp_path):
        pass
    with timeline(None) as nothing:
        assert nothing is None


def test_a_pass_that_was_broken_off_has_no_head(tmp_path: Path) -> None:
    with timeline(tmp_path / "trace.json") as traced:
        assert traced is not None
        traced.layers, origin = 2, traced._origin
        for pass_, layers in enumerate((1, 2, 0)):
            at = origin + pass_
            traced.phase(Phase("verify", True, at))
            for index in range(layers):
                traced.layer(Layer(index, 4, at + 0.1 * (index + 1)))
            traced.phase(Phase("verify", False, at + 0.5))
        traced.phase(Phase("verify", True, origin + 9))  # and one that was left by Ctrl-C
    tracks = events_of(tmp_path / "trace.json")
    expected = ["verify", "layer 0", "verify", "layer 0", "layer 1", "head", "verify"]
    assert [event["name"] for event in tracks[TARGET]] == expected


def test_a_cycle_says_what_had_been_prepared_for_it(tmp_path: Path) -> None:
    tree, outcome = TokenTree.root(1), Outcome(np.array([0]), (2,))
    overlaps = [None, Overlap(), Overlap(hit=False), Overlap(hit=True, found=3, asked=True)]
    with timeline(tmp_path / "trace.json") as traced:
        assert traced is not None
        for overlap in overlaps:
            traced.cycle(Cycle(None, tree, outcome, 0.0, 0.0, overlap=overlap))
    told = [cycle["args"] for cycle in events_of(tmp_path / "trace.json")[CYCLES]]
    for args, overlap in zip(told, overlaps, strict=True):
        for name in ("hit", "found", "asked"):
            assert (name in args) == (overlap is not None)
            assert overlap is None or args[name] == getattr(overlap, name)


def test_cycles_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with timeline(path) as traced:
        assert traced is not None
        traced.layers = 1
        for at in (1.0, 2.0, 3.0):  # seconds; a layer takes a third of a cycle, and the chunk two
            began = traced._origin + at
            traced.phase(Phase("draft", True, began))
            traced.phase(Phase("draft", False, began + 0.1))
            traced.phase(Phase("verify", True, began + 0.1))
            traced.layer(Layer(0, 1, began + 0.4))
            traced.phase(Phase("verify", False, began + 0.9))
            traced._span(CYCLES, "cycle +1", began, began + 0.9)
        traced.chunk(ChunkEvent("read", chunk(7), traced._origin + 1.5, traced._origin + 2.5))
        traced.chunk(ChunkEvent("wait", chunk(7), traced._origin + 2.2, traced._origin + 2.5))
    spec = importlib.util.spec_from_file_location("draw_timeline", ROOT / "docs" / "draw_timeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    picture = module.drawn(*module.read(path), 1, 1)
    ElementTree.fromstring(picture)
    bars = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)".*?<title>(.*?)</title>', picture)
    wide = module.WIDTH - module.LABEL - 2 * module.MARGIN  # of a cycle, 0.9 s
    expected = {"cycle +1": 1, "layer 0": 3 / 9, "head": 5 / 9, "draft": 1 / 9}
    widths = {name: float(width) / wide for _, width, name in bars if name != "chunk 7"}
    assert widths == {name: pytest.approx(share, abs=1e-3) for name, share in expected.items()}
    waited, read = sorted(float(width) / wide for _, width, name in bars if name == "chunk 7")
    assert waited == pytest.approx(3 / 9, abs=1e-3)
    assert read == pytest.approx(5 / 9, abs=1e-3)  # what lies before the cycle is cut off
    assert re.findall(r">([\d.]+) ms<", picture) == [str(n) for n in range(0, 1000, 200)]
    with pytest.raises(SystemExit, match="no cycles from 3 on; the trace has 3"):
        module.drawn(*module.read(path), 3, 1)


def chunk(index: int) -> Chunk:
    return Chunk(index, 0, Path("weights"), 0, 100, ())


def test_chunks_that_are_read_at_the_same_time_have_tracks_of_their_own(tmp_path: Path) -> None:
    with timeline(tmp_path / "trace.json") as traced:
        assert traced is not None
        at = traced._origin
        for index, (began, ended) in enumerate([(0, 2), (1, 3), (2, 4), (3, 5), (2.5, 6), (6, 7)]):
            traced.chunk(ChunkEvent("read", chunk(index), at + began, at + ended))
        traced.chunk(ChunkEvent("read", chunk(9), at - 5, at + 8))  # begun before anybody listened
    tracks = events_of(tmp_path / "trace.json")
    lanes = [[event["args"]["chunk"] for event in tracks[FLASH + lane]] for lane in range(4)]
    assert lanes == [[0, 2, 5], [1, 3], [4], [9]]
    assert tracks[FLASH + 3][0]["ts"] == 0


def test_the_reader_tells_of_every_chunk_once(store: Store, gate: Gate) -> None:
    heard: list[ChunkEvent] = []

    def open_late() -> None:
        eventually(lambda: bool(streamer._ready._waiters))  # type: ignore[attr-defined]
        time.sleep(0.005)
        gate.open()

    def on_wait() -> bool:
        threading.Thread(target=open_late).start()
        return False

    with Streamer(store.chunks, len(store.data), SMALL) as streamer:
        streamer.listener = heard.append
        store.check(streamer, store.chunks[0], on_wait)
        for chunk in store.chunks[1:]:
            store.check(streamer, chunk)
        drain(streamer, store.chunks[0])
        waits = [event for event in heard if event.kind == "wait"]
        assert waits[0].chunk is store.chunks[0]
        waited = sum(event.ended - event.began for event in waits)
        assert waited == pytest.approx(streamer.wait_seconds, abs=1e-6)
        assert waited > 0.001
    reads = [event for event in heard if event.kind == "read"]
    # Readers tell one by one, and go round: a chunk's second reading may be told of before another's first.
    assert {event.chunk for event in reads} == set(store.chunks)
    assert len({(event.chunk.index, event.began) for event in reads}) == len(reads)
    assert all(event.began < event.ended for event in heard)


def test_drafting_in_a_wait_is_told_of_where_it_did_something() -> None:
    class Busy(Plain):
        left = 2

        def on_wait(self) -> bool:
            self.left -= 1
            return self.left >= 0

    heard: list[Phase] = []
    for trace in (Trace(), Trace(phase=heard.append)):
        observer = _Observer(Cancellation(), Busy(), LAYERS, None, trace)
        assert [observer.on_wait() for _ in range(3)] == [True, True, False]
    assert [(phase.name, phase.begins) for phase in heard] == [("draft in a wait", b) for b in (1, 0, 1, 0)]
    assert [phase.at for phase in heard] == sorted(phase.at for phase in heard)


def test_phases_of_a_session(run: Run, model: Path) -> None:
    import edgespec

    heard: list[Phase] = []
    with (
        edgespec.load(model, drafter="ngram") as engine,
        engine.new_session(100, trace=Trace(phase=heard.append)) as session,
    ):
        steps = session.generate([1, 2, 3], GenerationOptions(max_tokens=3, ignore_eos=True))
        last = list(steps)[-1]
    names = [phase.name for phase in heard if phase.begins]
    assert names == ["prefill", *["draft", "verify"] * (last.stats.cycles - 1)]
    for opened, closed in zip(heard[::2], heard[1::2], strict=True):
        assert (opened.name, opened.begins, closed.begins) == (closed.name, True, False)
        assert opened.at <= closed.at
