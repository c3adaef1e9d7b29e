"""Loading goes wrong halfway: the error that happened is the error that is raised, and nothing stays open."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.apps import main
from edgespec.errors import CorruptFileError, EdgeSpecError, StorageError
from edgespec.offload.chunk_store import open_store
from edgespec.offload.reader import DirectFile
from edgespec.offload.streamer import Streamer
from edgespec.progress import Progress
from edgespec.runtimes.torch.weights import Weights
from tests.test_end_to_end import write_model
from tests.tiny import open_tiny, run_tree

FAULTS: dict[str, Callable[[], BaseException]] = {
    "Ctrl-C": KeyboardInterrupt,
    "callback": lambda: LookupError("of the caller"),
    "cancelled": lambda: edgespec.errors.Cancelled("enough"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[DirectFile]:
    """Every weight file that is opened."""
    files: list[DirectFile] = []
    begin = DirectFile.__init__

    def recorded(file: DirectFile, *arguments: Any, **options: Any) -> None:
        begin(file, *arguments, **options)
        files.append(file)

    monkeypatch.setattr(DirectFile, "__init__", recorded)
    return files


def check_closed(opened: list[DirectFile]) -> None:
    assert opened
    assert [file.path for file in opened if file._descriptor != -1] == []


@pytest.mark.parametrize("layers", [None, 0, 2], ids=["fits", "streams", "half"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_progress_raises_is_what_load_raises(
    model: Path, opened: list[DirectFile], fault: str, layers: int | None
) -> None:
    """At every chunk that is reported, of a model that fits, and of one that does not."""
    reports = pinned = 0
    for nth in range(10**6):
        seen, error = 0, FAULTS[fault]()

        def stop(progress: Progress, nth: int = nth, error: BaseException = error) -> None:
            nonlocal seen
            if progress.stage == "load":
                if seen == nth:
                    raise error
                seen += 1

        opened.clear()
        try:
            with edgespec.load(model, resident_layers=layers, progress=stop) as engine:
                pinned = len(engine.plan.pinned)
                break
        except BaseException as caught:  # KeyboardInterrupt, too
            raised = caught
            reports += 1
        assert raised is error
        check_closed(opened)
    assert reports == pinned
    assert (pinned > 8) == (layers != 0)


def test_ctrl_c_at_loading_ends_the_command_as_ctrl_c_does(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], opened: list[DirectFile]
) -> None:
    read = DirectFile.read

    def interrupted(file: DirectFile, offset: int, nbytes: int) -> memoryview:
        if nbytes > 8192:  # a chunk, no norm
            raise KeyboardInterrupt
        return read(file, offset, nbytes)

    monkeypatch.setattr(DirectFile, "read", interrupted)
    assert main.run(["generate", str(model), "-p", "Once", "--memory", "4GB"]) == 130
    assert "Traceback" not in capsys.readouterr().err
    check_closed(opened)


@pytest.mark.parametrize("precision", ["source", "int8"])
@pytest.mark.parametrize("layers", [None, 0])
def test_a_damaged_chunk_is_named(
    model: Path, tmp_path: Path, opened: list[DirectFile], precision: str, layers: int | None
) -> None:
    assert main.run(["pack", str(model), "-o", str(tmp_path / "p"), "--precision", precision]) == 0
    chunk = open_store(tmp_path / "p").table.chunks[1]
    with open(chunk.file, "r+b") as file:
        file.seek(chunk.offset)
        byte = file.read(1)[0]
        file.seek(chunk.offset)
        file.write(bytes([byte ^ 1]))
    opened.clear()
    with (
        pytest.raises(CorruptFileError, match=r"chunk 1 of layer 1 .* the file is damaged"),
        edgespec.load(tmp_path / "p", resident_layers=layers) as engine,
    ):
        edgespec.generate(engine, "Once", max_tokens=1)
    check_closed(opened)


@pytest.mark.parametrize("kind", ["norm", "chunk"])
def test_a_disk_that_fails_is_a_storage_error(
    model: Path, monkeypatch: pytest.MonkeyPatch, opened: list[DirectFile], kind: str
) -> None:
    pread = DirectFile._pread

    def broken(file: DirectFile, view: memoryview, offset: int) -> int:
        if (len(view) > 8192) == (kind == "chunk"):
            raise OSError(errno.EIO, "Input/output error")
        return pread(file, view, offset)

    monkeypatch.setattr(DirectFile, "_pread", broken)
    with pytest.raises(StorageError, match="Input/output error"):
        edgespec.load(model).close()
    check_closed(opened)


def test_a_draft_model_that_is_interrupted_closes_both(model: Path, opened: list[DirectFile]) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "load" and progress.done > progress.total // 2 + 10_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edgespec.load(model, drafter="model", draft_model=str(model), progress=stop)
    check_closed(opened)
    assert len({id(file) for file in opened}) >= 2


def test_no_stream_is_started_for_what_is_about_to_be_pinned(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks for the device and chunks for the host are pinned before anything streams: with both, nothing
    is left, and the ring has no room for anything."""
    weights = open_tiny(model, pinned=lambda chunk: False).weights
    weights.close()
    weights = Weights(weights.table, 0, weights.dtype)
    chunks = weights.table.chunks
    weights.pin(range(1, len(chunks)), on_device=[0])
    assert weights.streamer is None
    assert weights.pinned.keys() | weights.on_device.keys() == {c.index for c in chunks}
    weights.close()


def test_a_hand_over_that_is_cancelled_streams_what_it_has_not_read(model: Path) -> None:
    """The engine lives on: what had been read stays, the rest is streamed, and the logits are the same."""
    target = open_tiny(model, pinned=lambda chunk: chunk.layer == 0)
    weights = target.weights
    expected = run_tree(target, target.new_cache(40), [7, 8], [-1, 0])
    more = [c.index for c in weights.table.chunks if c.layer > 0]
    reads = 0

    def stop(nbytes: int) -> None:
        nonlocal reads
        reads += 1
        if reads == 3:
            raise edgespec.errors.Cancelled("enough")

    held = len(weights.pinned)
    with pytest.raises(EdgeSpecError, match="enough"):
        weights.pin(more, progress=stop)
    assert len(weights.pinned) == held + 3
    assert isinstance(weights.streamer, Streamer)
    streamed = {c.index for c in weights.streamer._rotation.chunks}
    assert streamed == {c.index for c in weights.table.chunks} - weights.pinned.keys()
    assert run_tree(target, target.new_cache(40), [7, 8], [-1, 0]).equal(expected)
    weights.close()
    assert not [t for t in threading.enumerate() if t in weights.streamer._threads]
