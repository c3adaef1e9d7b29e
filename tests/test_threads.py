"""Threads: who waits sleeps, their number is the engine's, and it changes no bits of compiled kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgespec
from edgespec.apps.settings import resolve
from edgespec.config import EngineOptions
from edgespec.errors import OptionError
from edgespec.kernels import compiled, cpu, row_class
from edgespec.kernels.row_class import RowClass
from edgespec.kernels.threads import alone, use_threads
from edgespec.models import loading
from tests.packed import pack_checkpoint
from tests.test_session import write_model
from tests.tiny import prefill

ROOT = Path(__file__).resolve().parent.parent
PROMPT = [int(token) for token in np.random.default_rng(0).integers(0, 128, 70)]
SPY = """
import os, runpy, sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("spins", os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Spy())
def command(*arguments):
    from edgespec.apps.start import main
    sys.argv = ["edgespec", *arguments]
    main()
model, text = sys.argv[1:]
"""
ENTRIES = [
    "command('generate', model, '-p', 'x')",
    "command('chat', model)",
    "command('bench', model)",
    "command('pack', model, '-o', model + '-packed', '--precision', 'int8')",
    "command('train', 'cascade', model, '--data', text, '-o', model + '-adapters')",
    "import edgespec; edgespec.load(model)",
    "from edgespec.runtimes.torch.target import TorchTarget",
    "runpy.run_module('edgespec.demo_model.recipe.train', run_name='__main__')",
    "runpy.run_module('benchmarks.kernels', run_name='__main__')",
]


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough that matmuls, attention and sums are shared out."""
    shape = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 2, "vocab_size": 1000}
    return write_model(tmp_path_factory.mktemp("model") / "m", **shape)


def environment(**settings: str) -> dict[str, str]:
    """Without what this process has been told of threads."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    return {**kept, "OMP_NUM_THREADS": "1", **settings}


@pytest.mark.parametrize("entry", ENTRIES)
def test_waiting_threads_soon_sleep_wherever_torch_is_imported(entry: str, model: Path) -> None:
    if "benchmarks" in entry and not (ROOT / "benchmarks").is_dir():
        pytest.skip("benchmarks/ is not part of an installed package")
    run = subprocess.run(
        [sys.executable, "-c", SPY + entry, str(model), str(ROOT / "LICENSE")],
        cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    spins = 3000 if entry.startswith("command('train'") else 30000
    assert run.stdout.endswith(f"spins {spins}\n"), run.stderr


@pytest.mark.parametrize(("settings", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
@pytest.mark.parametrize("entry", ["'generate', '-p', 'x'", "'chat', '--drafter', 'ngram'"])
def test_a_client_multiplies_in_one_thread(entry: str, settings: dict[str, str], threads: str) -> None:
    spy = SPY.replace('"torch"', '"numpy"').replace("GOMP_SPINCOUNT", "OPENBLAS_NUM_THREADS")
    kept = {k: v for k, v in environment(**settings).items() if k in settings or "OPENBLAS" not in k}
    run = subprocess.run(
        [sys.executable, "-c", f"{spy}command({entry}, '--server', 'http://127.0.0.1:1')", "", ""],
        cwd=ROOT, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.stdout == f"spins {threads}\n", run.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="another OpenMP says it in other words")
@pytest.mark.parametrize(
    ("settings", "spins"),
    [
        ({}, "30000"),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000", marks=pytest.mark.slow),
    ],
)
def test_openmp_hears_of_it_unless_the_user_says_something_else(settings: Any, spins: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import edgespec, torch"],
        cwd=ROOT, env=environment(OMP_DISPLAY_ENV="VERBOSE", **settings), capture_output=True, text=True,
    )  # fmt: skip
    if "GOMP_SPINCOUNT" not in run.stderr:
        pytest.skip("torch was built with another OpenMP")
    assert f"GOMP_SPINCOUNT = '{spins}'" in run.stderr


@pytest.mark.parametrize("threads", [0, -1, 257, 1e9, "two", True])
def test_a_number_of_threads_that_cannot_be(threads: Any) -> None:
    with pytest.raises(OptionError, match="threads"):
        EngineOptions(threads=threads)
    with pytest.raises(OptionError, match="--threads"):
        resolve(EngineOptions, {"threads": threads}, {}, ROOT / "no such edgespec.toml")


class Spied:
    """The kernels' library, writing down with how many threads it was called."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.counts: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if name == "es_linear":
                self.counts.add(arguments[-3])  # before the room and its bytes
            return getattr(self.library, name)(*arguments)

        return call


def test_torch_and_the_kernels_compute_with_as_many_threads_as_were_asked_for(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled.unavailable():
        pytest.skip(compiled.unavailable())
    packed = pack_checkpoint(model, tmp_path / "packed", "int8")
    spied = Spied(compiled._library()[0])
    monkeypatch.setattr(compiled, "_library", lambda: (spied, ""))
    torch.set_num_threads(1)
    found = []
    asked, loaded = threading.Event(), threading.Event()

    def reply() -> None:
        torch.ones(1 << 20).sum()  # OpenMP remembers the number of each thread that has computed
        found.append(torch.get_num_threads())
        asked.set()
        loaded.wait()
        edgespec.generate(engine, PROMPT, max_tokens=5)
        found.append(torch.get_num_threads())

    user = threading.Thread(target=reply)
    user.start()
    asked.wait()
    try:
        engine = edgespec.load(packed, memory="2GB", context=200, threads=2)
        assert torch.get_num_threads() == 2
        spied.counts.clear()  # loading may compute, too
    finally:
        loaded.set()
    user.join()
    engine.close()
    assert found == [1, 2]
    assert spied.counts == {2}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_attention_of_one_thread_has_the_bits_of_several(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So `cpu.attend` may do alone what is not worth waking others for."""
    torch.set_num_threads(2)
    used = set()
    set_threads = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda n: (used.add(n), set_threads(n)))
    for heads, blocks, rows, width in ((4, 1, 8, 64), (2, 5, 16, 32), (1, 3, 40, 128)):
        shape = heads, blocks, 64, width
        q = torch.randn(heads, blocks, rows, width).to(dtype)
        k, v = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        found = []
        for most in (0, 2**60):
            monkeypatch.setattr(cpu, "ALONE", most)
            used.clear()
            found.append(cpu.attend(q, k, v, None, 0.1))
            assert used == ({1, 2} if most else set())
            assert torch.get_num_threads() == 2
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_who_computed_alone_has_the_others_back_whatever_happened() -> None:
    torch.set_num_threads(3)
    inside = []
    with pytest.raises(ZeroDivisionError), alone():
        inside.append(1 / (torch.get_num_threads() - 1))
    assert not inside
    assert torch.get_num_threads() == 3


def test_unless_asked_for_there_are_not_more_threads_than_processors() -> None:
    torch.set_num_threads(3)
    for count, processors, then in ((None, None, 3), (None, 4, 3), (None, 2, 2), (3, 1, 3), (None, 3, 3)):
        use_threads(count, processors)
        assert torch.get_num_threads() == then


def test_what_an_engine_computed_with_is_not_what_torch_has() -> None:
    torch.set_num_threads(3)
    for count, processors, then in (
        (1, None, 1),
        (None, 4, 3),
        (2, 4, 2),
        (1, 4, 1),
        (None, 2, 2),
        (None, 4, 3),
    ):
        use_threads(count, processors)
        assert torch.get_num_threads() == then
    use_threads(1)
    torch.set_num_threads(2)  # somebody else's wish
    use_threads(None, 4)
    assert torch.get_num_threads() == 2


def test_a_large_model_behind_a_small_one_has_all_threads(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(2)
    monkeypatch.setattr(loading, "cpu_count", lambda: 2)
    for small, found in ((2**30, 1), (0, 2)):
        monkeypatch.setattr("edgespec.runtimes.torch.thread_count.SMALL", small)
        with edgespec.load(model, memory="2GB", context=200) as engine:
            assert engine.target.threads == found


def test_an_engine_in_a_container_has_as_many_as_its_share(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "cpu_count", lambda: 2)
    monkeypatch.setattr("edgespec.runtimes.torch.thread_count.SMALL", 0)
    for asked, found in ((3, 3), (None, 2)):
        torch.set_num_threads(4)
        with edgespec.load(model, memory="2GB", context=200, threads=asked) as engine:
            assert engine.target.threads == torch.get_num_threads() == found


def test_small_matrices_are_not_shared_out_unless_that_is_asked_for(model: Path) -> None:
    for asked, found in ((None, 1), (2, 2)):
        torch.set_num_threads(2)
        with edgespec.load(model, memory="2GB", context=200, threads=asked) as engine:
            assert engine.target.threads == found


def test_an_engine_keeps_its_number_beside_another(model: Path) -> None:
    with (
        edgespec.load(model, memory="2GB", context=200, threads=2) as first,
        edgespec.load(model, memory="2GB", context=200, threads=1) as second,
    ):
        edgespec.generate(second, PROMPT, max_tokens=2)
        assert torch.get_num_threads() == 1
        edgespec.generate(first, PROMPT, max_tokens=2)
        assert torch.get_num_threads() == 2


def test_row_classes_of_another_number_of_threads_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = RowClass(7, 7)
    monkeypatch.setattr(row_class, "KNOWN", {(24, 40, torch.float32, 1): planted})
    torch.set_num_threads(1)
    assert row_class.row_class(24, 40, torch.float32) is planted
    torch.set_num_threads(2)
    assert row_class.row_class(24, 40, torch.float32) != planted


def test_with_compiled_kernels_the_number_of_threads_changes_no_bits(model: Path, tmp_path: Path) -> None:
    if compiled.unavailable():
        pytest.skip(compiled.unavailable())
    packed = pack_checkpoint(model, tmp_path / "packed", "int8")
    found = []
    for threads in (1, 2, 3):
        with edgespec.load(packed, memory="2GB", context=200, threads=threads) as engine:
            logits = prefill(engine.target, engine.verifier.new_seat(100), PROMPT)
            found.append(
                (np.asarray(logits).tobytes(), edgespec.generate(engine, PROMPT, max_tokens=40).tokens)
            )
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_two_threads_drafts_change_nothing(dtype: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", hidden_size=128, torch_dtype=dtype)
    told = []
    for drafter in ("none", "ngram"):
        with edgespec.load(model, memory="2GB", context=200, threads=2, drafter=drafter) as engine:
            told.append(edgespec.generate(engine, PROMPT[:30] * 2, max_tokens=60).tokens)
    assert told[0] == told[1]
