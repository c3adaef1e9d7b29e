"""The GGUF container: read as the gguf package reads it, refused when it is damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edgespec.errors import CorruptFileError, ModelError, UnsupportedModelError
from edgespec.runtimes.formats.gguf import read_gguf
from edgespec.runtimes.formats.gguf_file import read_gguf_file
from tests.models import make_checkpoint, write_gguf


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama3")


def test_header_equals_the_gguf_packages_reading(tmp_path: Path, checkpoint: Path) -> None:
    path = write_gguf(checkpoint, tmp_path / "m.gguf", "Q8_0")
    ours, theirs = read_gguf_file(path), gguf.GGUFReader(path)
    fields = {k: v for k, v in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata.keys() == fields.keys()
    for key, field in fields.items():
        value = ours.metadata[key]
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents(), key
    assert ours.tensors.keys() == {t.name for t in theirs.tensors}
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(tensor.shape[::-1].tolist())
        assert (mine.offset, mine.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert mine.encoding == tensor.tensor_type.name


class Bytes:
    """A GGUF file, made byte by byte."""

    def __init__(self, version: int = 3) -> None:
        self.version = version
        self.metadata: list[bytes] = []
        self.tensors: list[bytes] = []
        self.data = b""
        self.counts: tuple[int, int] | None = None  # claimed, when not the true ones

    @staticmethod
    def text(value: str | bytes) -> bytes:
        raw = value.encode() if isinstance(value, str) else value
        return struct.pack("<Q", len(raw)) + raw

    def entry(self, key: str, kind: int, value: bytes) -> Bytes:
        self.metadata.append(self.text(key) + struct.pack("<I", kind) + value)
        return self

    def tensor(self, name: str, shape: list[int], kind: int = 0, offset: int = 0) -> Bytes:
        info = self.text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        self.tensors.append(info + struct.pack("<IQ", kind, offset))
        return self

    def write(self, path: Path) -> Path:
        tensors, entries = self.counts or (len(self.tensors), len(self.metadata))
        head = b"GGUF" + struct.pack("<IQQ", self.version, tensors, entries)
        head += b"".join(self.metadata + self.tensors)
        path.write_bytes(head + b"\0" * (-len(head) % 32) + self.data)
        return path


def test_every_value_type(tmp_path: Path) -> None:
    file = Bytes(version=2)
    scalars = [(0, "B", 255), (1, "b", -1), (2, "H", 65535), (3, "h", -2), (4, "I", 2**32 - 1), (5, "i", -3)]
    scalars += [(6, "f", 1.5), (7, "?", True), (10, "Q", 2**64 - 1), (11, "q", -4), (12, "d", 0.1)]
    for kind, code, value in scalars:
        file.entry(f"one.{kind}", kind, struct.pack("<" + code, value))
        file.entry(f"many.{kind}", 9, struct.pack("<IQ" + 2 * code, kind, 2, value, value))
    file.entry("text", 8, Bytes.text("héllo"))
    file.entry("texts", 9, struct.pack("<IQ", 8, 2) + Bytes.text("") + Bytes.text("b"))
    inner = struct.pack("<IQ2H", 2, 2, 7, 8)
    file.entry("nested", 9, struct.pack("<IQ", 9, 2) + inner + struct.pack("<IQ", 8, 0))
    got = read_gguf_file(file.write(tmp_path / "m.gguf")).metadata
    for kind, _, value in scalars:
        assert got[f"one.{kind}"] == value
        assert type(got[f"one.{kind}"]) is type(value)
        many = got[f"many.{kind}"]
        assert isinstance(many, np.ndarray)
        assert many.tolist() == [value, value]
    assert got["text"] == "héllo"
    assert got["texts"] == ["", "b"]
    nested = got["nested"]
    assert isinstance(nested, list)
    assert nested[0].tolist() == [7, 8]
    assert nested[1] == []


HUGE = 2**63
NESTED = struct.pack("<IQ", 9, 1) * 50 + struct.pack("<IQ", 0, 0)
DAMAGE: dict[str, tuple[Any, str]] = {
    "version 1": (lambda: Bytes(version=1), "version 1"),
    "big-endian": (lambda: Bytes(version=3 << 24), "big-endian"),
    "long string": (lambda: Bytes().entry("k", 8, struct.pack("<Q", HUGE)), "length of 9223372036854775808"),
    "string past the end": (lambda: Bytes().entry("k", 8, struct.pack("<Q", 999)), "needs 999 bytes"),
    "long array": (lambda: Bytes().entry("k", 9, struct.pack("<IQ", 4, HUGE)), "bytes, and"),
    "many strings": (lambda: Bytes().entry("k", 9, struct.pack("<IQ", 8, HUGE)), "at most 4194304"),
    "deep array": (lambda: Bytes().entry("k", 9, NESTED), "more than 4 deep"),
    "array of unknown": (lambda: Bytes().entry("k", 9, struct.pack("<IQ", 77, 1)), "unknown type 77"),
    "unknown value": (lambda: Bytes().entry("k", 13, b""), "unknown type 13"),
    "bad truth value": (lambda: Bytes().entry("k", 7, b"\x02"), "truth value"),
    "key twice": (lambda: Bytes().entry("k", 7, b"\0").entry("k", 7, b"\0"), "'k' occurs twice"),
    "bad text": (lambda: Bytes().entry("k", 8, Bytes.text(b"\xff")), "UTF-8"),
    "tensor twice": (lambda: Bytes().tensor("t", [1]).tensor("t", [1], offset=32), "'t' occurs twice"),
    "no dimensions": (lambda: Bytes().tensor("t", []), "0 dimensions"),
    "five dimensions": (lambda: Bytes().tensor("t", [1] * 5), "5 dimensions"),
    "empty tensor": (lambda: Bytes().tensor("t", [4, 0]), "no elements"),
    "overflowing shape": (lambda: Bytes().tensor("t", [2**40, 2**40]), "'t' ends at byte"),
    "ragged blocks": (lambda: Bytes().tensor("t", [2, 33], kind=8), "rows of 33, not whole Q8_0 blocks"),
    "unaligned": (lambda: Bytes().tensor("t", [1], offset=8), "offset 8, not a multiple of 32"),
    "past the end": (lambda: Bytes().tensor("t", [64], offset=64), "'t' ends at byte"),
    "overlap": (lambda: Bytes().tensor("t", [16]).tensor("u", [8], offset=32), "'t' and 'u' overlap"),
    "alignment 0": (lambda: Bytes().entry("general.alignment", 4, struct.pack("<I", 0)), "power of two"),
    "alignment 24": (lambda: Bytes().entry("general.alignment", 4, struct.pack("<I", 24)), "power of two"),
    "alignment text": (lambda: Bytes().entry("general.alignment", 8, Bytes.text("32")), "power of two"),
    "Q2_K": (lambda: Bytes().tensor("blk.0.x", [2, 256], kind=10), "'blk.0.x' is of type Q2_K"),
    "unknown tensor type": (lambda: Bytes().tensor("t", [2, 32], kind=99), "type number 99"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    make, message = DAMAGE[damage]
    file = make()
    file.data = bytes(128)
    path = file.write(tmp_path / "bad.gguf")
    with pytest.raises((CorruptFileError, UnsupportedModelError), match=message) as caught:
        read_gguf_file(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("counts", [(HUGE, 0), (0, HUGE), (3, 0), (0, 3)])
def test_claimed_counts_are_bounded(tmp_path: Path, counts: tuple[int, int]) -> None:
    file = Bytes()
    file.counts = counts
    with pytest.raises(CorruptFileError, match="corrupt"):
        read_gguf_file(file.write(tmp_path / "bad.gguf"))


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    (tmp_path / "b.gguf").write_bytes(b"GG")
    with pytest.raises(CorruptFileError, match="not a GGUF file"):
        read_gguf_file(tmp_path / "a.gguf")
    with pytest.raises(CorruptFileError, match="2 are left"):
        read_gguf_file(tmp_path / "b.gguf")
    for absent in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="not a file"):
            read_gguf_file(absent)


def test_every_truncation_of_the_header_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    whole = write_gguf(checkpoint, tmp_path / "m.gguf", tokenizer=False).read_bytes()
    end = min(t.offset for t in read_gguf_file(tmp_path / "m.gguf").tensors.values())
    path = tmp_path / "cut.gguf"
    for length in range(0, end, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptFileError):
            read_gguf_file(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptFileError, match="download it again"):
        read_gguf_file(path)


def test_random_damage_never_escapes_as_another_error(tmp_path: Path, checkpoint: Path) -> None:
    whole = bytearray(write_gguf(checkpoint, tmp_path / "m.gguf").read_bytes())
    end = min(t.offset for t in read_gguf_file(tmp_path / "m.gguf").tensors.values())
    rng = np.random.default_rng(0)
    path, refused = tmp_path / "bad.gguf", 0
    for _ in range(150):
        damaged = whole.copy()
        for place in rng.integers(0, end, 3):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            read_gguf(path).companions()
        except ModelError:
            refused += 1
    assert refused > 20
