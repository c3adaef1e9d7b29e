"""What the tuner knows of a model: by its configuration and headers, here or on a hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec.config import EngineOptions
from edgespec.errors import CorruptFileError, ModelError, OptionError
from edgespec.models import headers
from edgespec.models.packing import pack_model
from edgespec.offload.chunk_store import open_store
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.packed import SUBSTITUTE
from edgespec.tuning.subject import low_bit_bytes, open_subject
from edgespec.tuning.tune import tune_model
from tests.models import make_checkpoint, write_gguf
from tests.test_hub import REPOS, FakeHub
from tests.tuned import SEVEN, checkpoint, config_only

__all__ = ["checkpoint"]  # fixtures
pytestmark = pytest.mark.usefixtures("tuned_machine")


# What is known of a model.


def test_a_configuration_alone_says_what_a_checkpoint_would_hold(checkpoint: Path, tmp_path: Path) -> None:
    alone = config_only(tmp_path / "alone", json.loads((checkpoint / "config.json").read_text()))
    with open_subject(alone) as imagined, open_subject(str(checkpoint)) as real:
        assert imagined.files.config == replace(real.files.config, bos=imagined.files.config.bos)
        assert imagined.files.table.stored == real.files.table.stored
        small = [sum(t.nbytes for t in subject.files.table.small) for subject in (imagined, real)]
        assert small[0] == small[1]
        assert (imagined.here, real.here) == (False, True)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", ["int8", "int4", "bf16"])
def test_a_variant_is_what_packing_writes(tmp_path: Path, precision: str, tied: bool) -> None:
    path = make_checkpoint(tmp_path / "m", tied=tied)
    pack_model(str(path), tmp_path / "p", precision=precision)
    packed = open_store(tmp_path / "p").table
    with open_subject(str(path)) as subject:
        table = subject.variant(precision).files.table
    assert table.stored == packed.stored
    assert [(c.layer, c.nbytes, c.pieces) for c in table.chunks] == [
        (c.layer, c.nbytes, c.pieces) for c in packed.chunks
    ]
    assert table.embedding.nbytes == packed.embedding.nbytes
    assert table.precision == precision


def test_a_copy_that_would_be_has_the_bytes_of_one_that_is(checkpoint: Path, tmp_path: Path) -> None:
    from edgespec.runtimes.torch.substitute import LowBitCopy

    pack_model(str(checkpoint), tmp_path / "p", substitute="int4")
    target = describe_model(tmp_path / "p").table
    copy = LowBitCopy(describe_model(tmp_path / "p" / SUBSTITUTE).table, target)
    assert [low_bit_bytes(c, "int4") for c in target.chunks] == [copy.nbytes(c) for c in target.chunks]


def test_what_is_packed_is_not_packed_again_on_paper(checkpoint: Path, tmp_path: Path) -> None:
    pack_model(str(checkpoint), tmp_path / "p", precision="int8")
    with open_subject(str(tmp_path / "p")) as subject:
        assert subject.variant("int8") is subject
        with pytest.raises(OptionError, match="packed as int8"):
            subject.variant("int4")


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"architectures": ["Unknown"]}, "not supported"),
        (SEVEN | {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        (SEVEN | {"hidden_size": -1}, "hidden_size"),
        (SEVEN | {"rope_scaling": 7}, "wrong kind"),
    ],
)
def test_configurations_that_cannot_be_are_refused(
    tmp_path: Path, config: dict[str, Any], error: str
) -> None:
    with pytest.raises(ModelError, match=error):
        tune_model(config_only(tmp_path / "m", config))


def test_a_gguf_is_tuned_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    path = write_gguf(checkpoint, tmp_path / "m.gguf", "Q8_0")
    found = tune_model(str(path), memory=["1GB"])
    assert found.recommended.exact
    assert "Q8_0" in found.recommended.plan.table.stored


# The hub, by headers.


class Remote:
    """A file on a hub that is this directory's; counts what is read of it."""

    read_bytes = 0

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def read(self, count: int) -> bytes:
        data = self.file.read(count)
        Remote.read_bytes += len(data)
        return data

    def seek(self, place: int) -> None:
        self.file.seek(place)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub whose one model, org/m, is the directory that this returns."""
    import huggingface_hub

    root = tmp_path / "hub"

    class Api:
        def model_info(self, repo: str, **rest: Any) -> Any:
            files = [p for p in root.iterdir() if p.is_file()]
            listed = [type("File", (), {"rfilename": p.name, "size": p.stat().st_size}) for p in files]
            return type("Info", (), {"siblings": listed, "sha": "c0ffee"})

    class Files:
        def open(self, name: str, mode: str, block_size: int) -> Remote:
            return Remote(root / name.rpartition("/")[2])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", Files)
    monkeypatch.setattr(headers, "_check_ranges", lambda *asked: None)
    Remote.read_bytes = 0
    return root


def enlarged(path: Path) -> None:
    """The weights become a hole: nobody could have read them."""
    with path.open("r+b") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        file.truncate(header)
        file.truncate(size)


def test_a_model_on_the_hub_is_known_by_its_headers(checkpoint: Path, hub: Path) -> None:
    make_checkpoint(hub, dtype="bfloat16")
    weights = hub / "model.safetensors"
    enlarged(weights)
    size = weights.stat().st_size
    with open_subject("org/m") as subject, open_subject(str(checkpoint)) as here:
        assert not subject.here
        assert subject.files.table.stored == here.files.table.stored
        assert subject.files.config == here.files.config
    assert Remote.read_bytes < size / 4
    found = tune_model("org/m", memory=["1GB"])
    assert found.model == "org/m"


def test_a_gguf_on_the_hub_is_known_by_its_header(
    checkpoint: Path, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "BLOCK", 1000)  # so that the header comes in parts
    hub.mkdir()
    scaled = make_checkpoint(tmp_path / "scaled", "llama3", dtype="bfloat16")
    write_gguf(scaled, hub / "m.gguf", "Q8_0")
    with open_subject("org/m/m.gguf") as subject, open_subject(str(hub / "m.gguf")) as here:
        assert subject.files.config == here.files.config  # its rope frequencies among it
        assert subject.files.config.rope.factors
        assert subject.files.table.stored == here.files.table.stored
    assert Remote.read_bytes < (hub / "m.gguf").stat().st_size


@pytest.mark.parametrize("header", [2**62, 2**30, 10**6, 0])
def test_headers_on_the_hub_that_lie(hub: Path, header: int) -> None:
    make_checkpoint(hub, dtype="bfloat16")
    weights = hub / "model.safetensors"
    with weights.open("r+b") as file:
        file.write(header.to_bytes(8, "little"))
    with pytest.raises(CorruptFileError) as caught:
        tune_model("org/m", memory=["1GB"])
    assert "org/m" in str(caught.value)
    assert "edgespec-headers" not in str(caught.value)
    assert Remote.read_bytes < 2 * 10**6


@pytest.fixture
def served(checkpoint: Path, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub on 127.0.0.1 that has org/m and org/g/m.gguf, as in `tmp_path`."""
    enlarge = make_checkpoint(tmp_path / "m", dtype="bfloat16", hidden_size=512, vocab_size=4000)
    write_gguf(enlarge, tmp_path / "m.gguf", "Q8_0")
    REPOS["org/m"] = {path.name: path.read_bytes() for path in enlarge.iterdir()}
    REPOS["org/g"] = {"m.gguf": (tmp_path / "m.gguf").read_bytes()}
    hub = FakeHub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    yield hub
    hub.shutdown()
    hub.server_close()
    del REPOS["org/m"], REPOS["org/g"]


def asked_of(hub: FakeHub, home: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the library reads its environment at import."""
    script = (
        "from edgespec.tuning.subject import open_subject\n"
        "for name in ('org/m', 'org/g/m.gguf'):\n"
        "    with open_subject(name) as subject:\n"
        "        print(subject.files.table.nbytes, subject.here)\n"
    )
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    run = [sys.executable, "-c", script]
    return subprocess.run(run, env=environment, capture_output=True, text=True, check=False)


def test_the_hub_s_own_library_asks_for_ranges(served: FakeHub, tmp_path: Path) -> None:
    done = asked_of(served, tmp_path / "hf")
    sizes = [describe_model(path).table.nbytes for path in (tmp_path / "m", tmp_path / "m.gguf")]
    assert done.stdout.split() == [str(sizes[0]), "False", str(sizes[1]), "False"], done.stderr
    ends = [int(asked.rpartition("-")[2]) for asked in served.ranges]
    assert len(ends) == len(served.fetched), "everything by ranges"
    assert max(ends) < sizes[0] / 2


def test_a_mirror_without_ranges_is_not_read_whole(served: FakeHub, tmp_path: Path) -> None:
    served.whole = True
    done = asked_of(served, tmp_path / "hf")
    assert done.returncode == 1
    assert "gives whole files only" in done.stderr
    assert served.fetched == ["model.safetensors"], "asked for once, and not read"


def test_sizes_that_lie_are_refused(hub: Path) -> None:
    make_checkpoint(hub, dtype="bfloat16")
    weights = hub / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 10)
    with pytest.raises(CorruptFileError, match="truncated"):
        tune_model("org/m", memory=["1GB"])


def test_offline_nothing_is_fetched(hub: Path) -> None:
    with pytest.raises(ModelError, match="not in the cache"):
        tune_model("org/m", EngineOptions(offline=True))
    assert not Remote.read_bytes
