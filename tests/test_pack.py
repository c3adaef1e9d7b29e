"""Packing and verifying: layout, conversions, kills and full disks, memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from edgespec.errors import CorruptFileError, ModelError, OptionError, StorageError
from edgespec.kernels.gguf_blocks import dequantize
from edgespec.kernels.quantize import dequantize_int4, dequantize_int8, quantize_int4, quantize_int8
from edgespec.offload.chunk_store import open_store
from edgespec.offload.chunks import CHUNK_BYTES, PAGE, StreamOrder, TensorSource, stored_bytes
from edgespec.offload.pack.layout import lay_out
from edgespec.offload.pack.pack import pack, verify
from edgespec.runtimes.config import EMBEDDING, FINAL_NORM, HEAD, from_hf
from edgespec.runtimes.formats.checkpoint import read_checkpoint, stream_order
from edgespec.runtimes.formats.packed import open_packed
from tests.packed import pack_checkpoint, read_matrices, read_range, read_source
from tests.tiny import SHAPE, tensor_shapes, write_checkpoint

ROOT = Path(__file__).parent.parent
PRECISIONS = ["source", "bf16", "int8", "int4"]
UP = "model.layers.1.mlp.up_proj.weight"


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 8 KiB, so that small matrices are cut."""
    monkeypatch.setattr("edgespec.offload.pack.layout.CHUNK_BYTES", 8192)


# --- what is written ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_files_are_safetensors_and_chunks_begin_on_pages(
    tmp_path: Path, precision: str, tied: bool
) -> None:
    path = write_checkpoint(tmp_path / "m", tie_word_embeddings=tied)
    out = pack_checkpoint(path, tmp_path / "p", precision)
    config, store = open_packed(out)
    for file in store.table.files():
        assert file.stat().st_size % PAGE == 0
        with safe_open(file, "pt") as handle:
            assert set(handle.keys()) >= {EMBEDDING, FINAL_NORM}
    for chunk in store.table.chunks:
        shared = tied and precision in ("source", "bf16") and chunk.layer == config.layers
        assert shared or chunk.offset % PAGE == 0
        assert chunk.nbytes <= CHUNK_BYTES
        assert all((chunk.offset + p.offset) % 64 == 0 for p in chunk.pieces if not shared)
    assert store.table.embedding.offset % PAGE == 0
    assert not list(tmp_path.glob("*.partial"))
    assert not (out / "journal.txt").exists()
    assert (out / "config.json").read_bytes() == (path / "config.json").read_bytes()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_source_precision_keeps_every_byte(tmp_path: Path, dtype: str, tied: bool) -> None:
    path = write_checkpoint(tmp_path / "m", torch_dtype=dtype, tie_word_embeddings=tied)
    checkpoint = read_checkpoint(path)
    config, store = open_packed(pack_checkpoint(path, tmp_path / "p"))
    assert config == checkpoint.config
    expected = {t.name: read_source(t).tobytes() for layer in checkpoint.order.layers for t in layer}
    expected[HEAD] = read_source(checkpoint.order.head).tobytes()
    assert {name: data.tobytes() for name, data in read_matrices(store.table).items()} == expected
    assert sum(c.layer == 0 for c in store.table.chunks) > 5  # matrices were cut
    assert read_source(store.table.embedding).tobytes() == read_source(checkpoint.order.embedding).tobytes()
    for tensor in store.table.small:
        assert read_source(tensor).tobytes() == read_source(checkpoint.tensors[tensor.name]).tobytes()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bf16_is_each_number_rounded_once(tmp_path: Path, dtype: str) -> None:
    path = write_checkpoint(tmp_path / "m", torch_dtype=dtype)
    tensors = load_file(path / "model.safetensors")
    config, store = open_packed(pack_checkpoint(path, tmp_path / "p", "bf16"))
    assert config.dtype == "bfloat16"
    for name, data in read_matrices(store.table).items():
        assert data.tobytes() == tensors[name].bfloat16().view(torch.uint8).numpy().tobytes()
    for source in (*store.table.small, store.table.embedding):
        assert source.encoding == "BF16"
        assert (
            read_source(source).tobytes()
            == tensors[source.name].bfloat16().view(torch.uint8).numpy().tobytes()
        )


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_low_bits_are_what_quantize_defines(tmp_path: Path, precision: str, tied: bool) -> None:
    path = write_checkpoint(tmp_path / "m", torch_dtype="bfloat16", tie_word_embeddings=tied)
    tensors = load_file(path / "model.safetensors")
    config, store = open_packed(pack_checkpoint(path, tmp_path / "p", precision))
    assert config.tied_head is tied
    found = read_matrices(store.table)
    names = [name for layer in range(3) for name in config.matrix_shapes(layer)] + [HEAD]
    assert [name for name in found if not name.endswith("_scale")] == names
    for name in names:
        weight = tensors[EMBEDDING if tied and name == HEAD else name]
        data, scale = (quantize_int8 if precision == "int8" else quantize_int4)(weight)
        assert found[name].tobytes() == data.contiguous().view(torch.uint8).numpy().tobytes()
        assert found[name + "_scale"].tobytes() == scale.view(torch.uint8).numpy().tobytes()
    embedding = store.table.embedding  # its rows are read one by one: bf16, beside a low-bit head
    assert embedding.encoding == "BF16"
    assert read_source(embedding).tobytes() == tensors[EMBEDDING].view(torch.uint8).numpy().tobytes()
    assert all(t.encoding == "BF16" for t in store.table.small)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_pieces_dequantise_by_themselves(tmp_path: Path, precision: str) -> None:
    """As the runtime does it: from one chunk, a matrix and its scales."""
    path = write_checkpoint(tmp_path / "m")
    weight = load_file(path / "model.safetensors")[UP]
    table = open_store(pack_checkpoint(path, tmp_path / "p", precision)).table
    [chunk] = [c for c in table.chunks if any(p.tensor == UP for p in c.pieces)]
    data = read_range(chunk.file, chunk.offset, chunk.nbytes)
    piece, scale = [p for p in chunk.pieces if p.tensor.startswith(UP)]
    stored = [torch.from_numpy(data[p.offset : p.offset + p.nbytes].copy()) for p in (piece, scale)]
    assert piece.shape == (172, 64)  # logical, whatever the encoding
    if precision == "int8":
        back = dequantize_int8(stored[0].view(torch.int8).view(172, 64), stored[1].view(torch.float32))
    else:
        back = dequantize_int4(stored[0].view(172, -1), stored[1].view(torch.float32), columns=64)
    bound = 0.01 if precision == "int8" else 0.1
    assert float((back.float() - weight).norm() / weight.norm()) < bound


def test_several_weight_files(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    out = pack_checkpoint(path, tmp_path / "p", file_bytes=200_000)
    _, store = open_packed(out)
    names = sorted(file.name for file in store.table.files())
    assert len(names) > 2
    assert names[0] == f"target-00001-of-{len(names):05}.safetensors"
    loaded: dict[str, torch.Tensor] = {}
    for name in names:
        assert (out / name).stat().st_size < 200_000 + 2 * PAGE
        loaded |= load_file(out / name)
    for name, tensor in load_file(path / "model.safetensors").items():
        assert torch.equal(loaded[name], tensor)
    whole = open_store(pack_checkpoint(path, tmp_path / "q"))
    assert {n: d.tobytes() for n, d in read_matrices(store.table).items()} == {
        n: d.tobytes() for n, d in read_matrices(whole.table).items()
    }
    assert verify(out) == verify(tmp_path / "q")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("encoding", ["Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_gguf_blocks(tmp_path: Path, encoding: str, precision: str) -> None:
    """Kept as they are at source precision, else converted from their fp32 values."""
    config = read_checkpoint(write_checkpoint(tmp_path / "m", hidden_size=256, intermediate_size=256)).config
    rng = np.random.default_rng(0)
    file, place = tmp_path / "x.gguf", 32
    tensors: dict[str, TensorSource] = {}
    blob = [bytes(32)]
    for name, shape in tensor_shapes(config).items():
        kind = encoding if len(shape) == 2 else "F32"
        nbytes = stored_bytes(kind, shape)
        raw = rng.integers(0, 48, nbytes, dtype=np.uint8)  # such fp16 and fp32 numbers are finite
        tensors[name] = TensorSource(name, kind, shape, file, place, nbytes)
        blob.append(raw.tobytes())
        place += nbytes
    file.write_bytes(b"".join(blob))
    order = StreamOrder(
        tuple(tuple(tensors[n] for n in config.matrix_shapes(i)) for i in range(config.layers)),
        tensors[HEAD],
        tensors[EMBEDDING],
        tuple(t for t in tensors.values() if len(t.shape) == 1),
    )
    options: dict[str, Any] = {"config": config.to_dict(), "source": "x", "source_digest": "d"}
    pack(order, tmp_path / "p", precision=precision, **options)
    verify(tmp_path / "p")
    table = open_store(tmp_path / "p").table
    found = read_matrices(table)
    raw = read_source(tensors[UP]).reshape(256, -1)
    weight = torch.from_numpy(dequantize(encoding, raw, 256))
    if precision == "source":
        assert found[UP].tobytes() == raw.tobytes()
        assert {p.encoding for c in table.chunks for p in c.pieces} == {encoding}
    elif precision == "bf16":
        assert found[UP].tobytes() == weight.bfloat16().view(torch.uint8).numpy().tobytes()
    else:
        data, scale = (quantize_int8 if precision == "int8" else quantize_int4)(weight)
        assert found[UP].tobytes() == data.contiguous().view(torch.uint8).numpy().tobytes()
        assert found[UP + "_scale"].tobytes() == scale.view(torch.uint8).numpy().tobytes()


def test_tiles_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint(tmp_path / "m")
    whole = [content(pack_checkpoint(path, tmp_path / p, p)) for p in PRECISIONS]
    monkeypatch.setattr("edgespec.offload.pack.convert.READ_BYTES", 1500)
    monkeypatch.setattr("edgespec.offload.pack.convert.TILE_WEIGHTS", 200)
    assert [content(pack_checkpoint(path, tmp_path / f"{p}-", p)) for p in PRECISIONS] == whole


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    pack_checkpoint(
        write_checkpoint(tmp_path / "m"),
        tmp_path / "p",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 5


def test_a_weight_that_cannot_be_quantised_is_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    source = read_checkpoint(path).tensors[UP]
    with open(source.file, "r+b") as file:
        file.seek(source.offset + 40)
        file.write(np.float32("nan").tobytes())
    with pytest.raises(
        ModelError, match=rf"model.safetensors: tensor {UP}: a weight is infinite or not a number"
    ):
        pack_checkpoint(path, tmp_path / "p", "int8")
    pack_checkpoint(path, tmp_path / "q", "bf16")


# --- verify ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["source", "int4"])
def test_verify_finds_any_changed_byte(tmp_path: Path, precision: str) -> None:
    out = pack_checkpoint(write_checkpoint(tmp_path / "m"), tmp_path / "p", precision)
    table = open_store(out).table
    seen: list[tuple[int, int]] = []
    checked = verify(out, lambda done, total: seen.append((done, total)))
    assert checked == seen[-1][0] == seen[-1][1]
    assert checked == table.nbytes + table.embedding.nbytes + sum(t.nbytes for t in table.small)
    rng = random.Random(0)
    chunk = rng.choice(table.chunks)
    small = rng.choice(table.small)
    places = [
        (chunk.file, chunk.offset, chunk.nbytes, rf"chunk {chunk.index} of layer {chunk.layer}"),
        (small.file, small.offset, small.nbytes, small.name),
        (table.embedding.file, table.embedding.offset, table.embedding.nbytes, EMBEDDING),
    ]
    for file, offset, nbytes, name in places:
        place = offset + rng.randrange(nbytes)
        flip(file, place)
        with pytest.raises(CorruptFileError, match=rf"{name}.*{file.name}.*checksum"):
            verify(out)
        flip(file, place)
        assert verify(out) == checked


def flip(file: Path, place: int) -> None:
    with open(file, "r+b") as handle:
        handle.seek(place)
        byte = handle.read(1)[0]
        handle.seek(place)
        handle.write(bytes([byte ^ 0x10]))


def test_verify_wants_a_packed_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a packed directory"):
        verify(write_checkpoint(tmp_path / "m"))


# --- kills, and going on --------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
import edgespec.offload.pack.layout as layout
import edgespec.offload.pack.pack as packing
import edgespec.offload.pack.units as units
from edgespec.runtimes.formats.checkpoint import read_checkpoint
from edgespec.offload.pack.pack import pack

model, out, precision, moment = sys.argv[1:]
layout.CHUNK_BYTES = 8192
units.SYNC_BYTES = 16384
left = [int(moment)]

def tick():
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def slowly(function):
    def wrapped(*arguments):
        tick()
        result = function(*arguments)
        tick()
        return result
    return wrapped

units.WeightWriter.write = slowly(units.WeightWriter.write)
units.WeightWriter.sync = slowly(units.WeightWriter.sync)
units.Journal.append = slowly(units.Journal.append)
packing.sync_path = slowly(packing.sync_path)
Path.write_bytes = slowly(Path.write_bytes)
Path.unlink = slowly(Path.unlink)
os.rename = slowly(os.rename)
checkpoint = read_checkpoint(Path(model))
pack(checkpoint.order, Path(out), precision=precision, config=checkpoint.config.to_dict(), source=model,
     source_digest=checkpoint.digest, beside=checkpoint.companions())
print("steps", left[0])
"""


def run_killed(model: Path, out: Path, precision: str, moment: int) -> subprocess.CompletedProcess[str]:
    """Pack in a process that kills itself at the given step; 0: never."""
    command = [sys.executable, "-c", KILLED, str(model), str(out), precision, str(moment)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("precision", "kills"), [("source", 8), ("int8", 1)])
def test_killed_at_any_moment_the_same_command_goes_on(tmp_path: Path, precision: str, kills: int) -> None:
    model = write_checkpoint(tmp_path / "m", tie_word_embeddings=True)
    whole = run_killed(model, tmp_path / "whole", precision, 0)
    assert whole.returncode == 0, whole.stderr
    steps = -int(whole.stdout.split("steps")[1])
    assert steps > 60
    expected = content(tmp_path / "whole")
    assert content(pack_checkpoint(model, tmp_path / "q", precision)) == expected
    rng = random.Random(precision)
    last = [steps - 1, steps - 3] if kills > 2 else []  # around the rename
    for moment in {*rng.sample(range(1, steps), kills - len(last)), *last}:
        out = tmp_path / f"{moment}" / "out"
        killed = run_killed(model, out, precision, moment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if out.exists():  # never a half directory under the final name
            verify(out)
        journal = out.with_name("out.partial") / "journal.txt"
        done = journal.read_text().count("\n") - 1 if journal.exists() else 0
        notes: list[str] = []
        pack_checkpoint(model, out, precision, notify=notes.append)
        assert content(out) == expected
        assert not journal.parent.exists()
        if done > 0:
            assert notes[0].startswith("going on with out.partial")


def interrupt(path: Path, out: Path, precision: str = "source") -> None:
    """Leave an unfinished pack behind."""

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_checkpoint(path, out, precision, progress=stop)


def test_an_interrupted_pack_loses_nothing(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    interrupt(path, tmp_path / "p")
    notes: list[str] = []
    seen: list[int] = []
    pack_checkpoint(path, tmp_path / "p", notify=notes.append, progress=lambda done, total: seen.append(done))
    assert seen[0] > 0
    assert notes[0].startswith("going on with p.partial")
    assert content(tmp_path / "p") == content(pack_checkpoint(path, tmp_path / "q"))


@pytest.mark.parametrize("change", ["source", "precision"])
def test_another_source_or_precision_starts_again(tmp_path: Path, change: str) -> None:
    path = write_checkpoint(tmp_path / "m")
    interrupt(path, tmp_path / "p", "bf16")
    if change == "source":
        path = write_checkpoint(tmp_path / "n", seed=1)
    precision = "int8" if change == "precision" else "bf16"
    notes: list[str] = []
    pack_checkpoint(path, tmp_path / "p", precision, notify=notes.append)
    assert notes == ["p.partial was left by a pack of another source or precision; starting again"]
    assert content(tmp_path / "p") == content(pack_checkpoint(path, tmp_path / "q", precision))


def test_a_journal_that_claims_too_much_is_not_believed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    interrupt(path, tmp_path / "p")
    [weights] = (tmp_path / "p.partial").glob("*.safetensors")
    with open(weights, "r+b") as file:
        file.truncate(weights.stat().st_size // 2 // PAGE * PAGE)
    with open(tmp_path / "p.partial" / "journal.txt", "a") as journal:
        journal.write("0123456789ab")  # and half a line
    pack_checkpoint(path, tmp_path / "p")
    verify(tmp_path / "p")
    assert content(tmp_path / "p") == content(pack_checkpoint(path, tmp_path / "q"))


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_only_one_process_packs_into_a_directory(tmp_path: Path) -> None:
    import fcntl

    path = write_checkpoint(tmp_path / "m")
    interrupt(path, tmp_path / "p")
    holder = os.open(tmp_path / "p.partial", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(StorageError, match="another process is packing"):
        pack_checkpoint(path, tmp_path / "p")
    os.close(holder)
    pack_checkpoint(path, tmp_path / "p")


# --- places and disks -----------------------------------------------------------------------------------


def test_only_new_or_empty_directories_are_written(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        with pytest.raises(OptionError, match="not an empty directory"):
            pack_checkpoint(path, tmp_path / name)
    pack_checkpoint(path, tmp_path / "empty")
    verify(tmp_path / "empty")
    with pytest.raises(OptionError, match="holds a packed model already"):
        pack_checkpoint(path, tmp_path / "empty")
    pack_checkpoint(path, tmp_path / "new" / "deep")
    verify(tmp_path / "new" / "deep")


def test_a_partial_directory_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    (tmp_path / "p.partial").mkdir()
    (tmp_path / "p.partial" / "mine.txt").write_text("x")
    with pytest.raises(StorageError, match="in the way"):
        pack_checkpoint(path, tmp_path / "p")
    assert (tmp_path / "p.partial" / "mine.txt").read_text() == "x"


def test_unknown_precision(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'int3' is unknown; choose from source, bf16, int8, int4"):
        pack_checkpoint(write_checkpoint(tmp_path / "m"), tmp_path / "p", "int3")


def test_too_little_space_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "m", vocab_size=20_000)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 2_000_000, 2_000_000))
    order = read_checkpoint(path).order
    (path / "model.safetensors").unlink()  # reading would fail
    with pytest.raises(StorageError, match=r"needs 11\.8 MB .* has 2\.0 MB free; free 9\.8 MB"):
        pack(order, tmp_path / "p", precision="source", config={}, source="m", source_digest="d")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_while_packing(
    tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "m", vocab_size=5_000)
    usage = namedtuple("usage", "total used free")
    with pytest.raises(StorageError, match="free; free"):
        pack_checkpoint(path, tiny_disk / "p")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 10**9))
        patch.setattr("edgespec.offload.pack.units.SYNC_BYTES", PAGE)
        with pytest.raises(StorageError, match=r"is full.*pack again, it goes on where it stopped"):
            pack_checkpoint(path, tiny_disk / "p")
    subprocess.run(["mount", "-o", "remount,size=20m", str(tiny_disk)], check=True)
    notes: list[str] = []
    pack_checkpoint(path, tiny_disk / "p", notify=notes.append)
    assert notes[0].startswith("going on")
    assert content(tiny_disk / "p") == content(pack_checkpoint(path, tmp_path / "q"))


def test_a_source_that_is_truncated_meanwhile(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    order = read_checkpoint(path).order
    with open(path / "model.safetensors", "r+b") as file:
        file.truncate(200_000)
    with pytest.raises(CorruptFileError, match="truncated"):
        pack(order, tmp_path / "p", precision="source", config={}, source="m", source_digest="d")


def test_ordinary_writes_where_direct_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "m")
    expected = content(pack_checkpoint(path, tmp_path / "p"))
    real = os.pwrite

    def refuse(descriptor: int, data: memoryview, offset: int) -> int:
        import fcntl

        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0):
            raise OSError(22, "Invalid argument")
        return real(descriptor, data[: max(1000, len(data) // 2)], offset)  # short writes, too

    monkeypatch.setattr(os, "pwrite", refuse)
    assert content(pack_checkpoint(path, tmp_path / "q")) == expected


# --- memory ---------------------------------------------------------------------------------------------

PEAK = """
import resource, sys
from pathlib import Path
from edgespec.runtimes.formats.checkpoint import read_checkpoint
from edgespec.offload.pack.pack import pack
checkpoint = read_checkpoint(Path(sys.argv[1]))
pack(checkpoint.order, Path(sys.argv[2]), precision=sys.argv[3], config={}, source="m", source_digest="d")
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("precision", "limit"), [("source", 300 * 10**6), ("bf16", 700 * 10**6)])
def test_memory_does_not_follow_the_models_size(tmp_path: Path, precision: str, limit: int) -> None:
    """A head and an embedding of 205 MB each; the file is sparse."""
    changes = {"vocab_size": 50_000, "hidden_size": 1024, "num_hidden_layers": 1, "intermediate_size": 1024}
    path = write_checkpoint(tmp_path / "m")
    (path / "config.json").write_text(json.dumps(SHAPE | changes))
    place, table = 0, {}
    for name, shape in tensor_shapes(from_hf(SHAPE | changes)).items():
        nbytes = stored_bytes("F32", shape)
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, place + nbytes]}
        place += nbytes
    header = json.dumps(table).encode()
    with open(path / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + place)
    assert place > 400 * 10**6
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), str(tmp_path / "p"), precision],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < limit, done.stdout


def test_layout_of_a_70b_shape_needs_no_files() -> None:
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "vocab_size": 128256}
    config = from_hf(SHAPE | sizes | {"num_hidden_layers": 80, "num_key_value_heads": 8})
    tensors, place = {}, 0
    for name, shape in tensor_shapes(config).items():
        nbytes = stored_bytes("BF16", shape)
        tensors[name] = TensorSource(name, "BF16", shape, Path("m"), place, nbytes)
        place += nbytes
    for precision, bits in (("source", 16.0), ("int8", 8.01), ("int4", 4.13)):
        layout = lay_out(stream_order(config, tensors), precision)
        matrices = [u for u in layout.units if u.layer is not None]
        assert max(u.nbytes for u in layout.units) <= CHUNK_BYTES
        weights = sum(p.rows * p.columns for u in matrices for p in u.parts)
        assert sum(u.nbytes for u in matrices) * 8 / weights == pytest.approx(bits, rel=2e-3)
        assert sum(f.nbytes for f in layout.files) < 1.001 * sum(u.nbytes for u in layout.units)
        assert all(f.nbytes <= 33 * 2**30 for f in layout.files)
