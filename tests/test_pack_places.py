"""Where a pack may go, and what is said when it cannot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from edgespec.errors import ModelError, OptionError, StorageError
from edgespec.models.packing import pack_model
from edgespec.offload.chunk_store import is_store
from edgespec.offload.pack import journal, pack, units
from edgespec.offload.pack.weight_writer import WeightWriter
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.adapter_files import describe_adapters
from tests.tiny import write_checkpoint


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source", num_hidden_layers=1)


@pytest.mark.parametrize("place", ["source", "source/sub", "source/a/b", "link/sub", "other/../source/sub"])
def test_a_pack_does_not_go_into_its_source(source: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "other").mkdir()
    before = sorted(os.listdir(source))
    with pytest.raises(OptionError, match="in the directory of the model that is packed"):
        pack_model(str(source), tmp_path / place)
    with pytest.raises(OptionError, match="in the directory of the model that is packed"):
        pack_model(str(tmp_path / "link"), tmp_path / place)
    assert sorted(os.listdir(source)) == before


def test_a_pack_may_lie_beside_its_source(source: Path, tmp_path: Path) -> None:
    for name in ("source2", "out/source"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pack_model(str(source), tmp_path / name)
        assert is_store(tmp_path / name)
    with pytest.raises(OptionError, match="packed already"):
        pack_model(str(tmp_path / "source2"), tmp_path / "source2" / "sub")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_what_was_never_begun_is_not_gone_on_with(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def denied(path: Path, *arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(StorageError, match="check its permissions, or choose another directory") as caught:
        pack_model(str(source), tmp_path / "out")
    assert "goes on" not in str(caught.value)


def test_a_directory_that_cannot_be_is_not_the_disks_fault(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "out", tmp_path / ("n" * 300)):
        with pytest.raises(StorageError, match=r"cannot be made \(.*\); choose another directory") as caught:
            pack_model(str(source), place)
        assert "check" not in str(caught.value)


def test_what_was_begun_is_gone_on_with(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(writer: WeightWriter) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(units.WeightWriter, "sync", broken)
        with pytest.raises(StorageError, match="check the disk, packing again then goes on"):
            pack_model(str(source), tmp_path / "out")
    assert journal.journal_key(tmp_path / "out.partial")
    pack_model(str(source), tmp_path / "out")
    pack.verify(tmp_path / "out")


def test_adapters_that_are_not_there(source: Path, tmp_path: Path) -> None:
    files = describe_model(source)
    with pytest.raises(ModelError, match="does not exist; name a directory of adapters"):
        describe_adapters(tmp_path / "no", files)
    with pytest.raises(ModelError, match=r"has no adapter\.json; train adapters"):
        describe_adapters(tmp_path, files)
