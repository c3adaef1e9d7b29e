"""Settings for all tests: what one finds on the machine must not decide what another does."""

from __future__ import annotations

import builtins
import gc
import math
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Nothing of the user's: neither settings nor what was remembered of this machine. Fixtures of modules and
# children see a folder of this process, every test one of its own (below).
for name in [name for name in os.environ if name.startswith("EDGESPEC_") and name != "EDGESPEC_VENV"]:
    del os.environ[name]
_home = tempfile.TemporaryDirectory(prefix="edgespec-tests-", ignore_cleanup_errors=True)
os.environ["EDGESPEC_CACHE"] = str(Path(_home.name) / "cache")
for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "HF_HOME"):
    os.environ[name] = _home.name

# Several processes of tests share the cores: whoever waits sleeps at once, and does not look for work first,
# as `import edgespec` would have it (tests/test_threads.py tests that in processes of its own).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402

# A shell's background job ignores Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tiny matrices gain nothing from threads, and on a busy machine every parallel region waits for the slowest.
# Tests that are about threads set their own number.
torch.set_num_threads(1)

# Without a GPU the Triton kernels run in its interpreter. Whoever imports triton first decides it for all.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def passes_of_drafting_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """How wide they are is a matter of the clock (`drafters.breadth`), and tests compare what was drafted."""
    monkeypatch.setattr("edgespec.drafters.forest.perf_counter", float)


@pytest.fixture(autouse=True)
def workers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes of tests share the cores: a draft worker is put off for longer than it would be."""
    monkeypatch.setattr("edgespec.drafters.beside.SILENCE", 0.5)


def pytest_xdist_auto_num_workers() -> int:
    """One more than processors (`-n auto`): servers, workers and timeouts are often waited for."""
    from edgespec.devices.probe import cpu_count

    return cpu_count() + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", help="run the tests of each file reversed, or shuffled by this number")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests must not depend on one another; `--order reversed` and `--order 7` show it."""
    order = config.getoption("--order")
    if order == "reversed":
        items.reverse()
    elif order is not None:
        random.Random(int(order)).shuffle(items)
        items.sort(key=lambda item: item.path)  # fixtures of a module are made once


def pytest_collection_finish(session: pytest.Session) -> None:
    """Whoever loads an engine collects garbage; what has been imported is none (0.1 s each time)."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test remembers of this machine, it alone remembers."""
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{os.urandom(6).hex()}"))


@pytest.fixture(autouse=True, scope="session")
def _given_machine() -> Iterator[None]:
    """Plans go by `tests.machine.GIVEN`: this process may have grown to more than a test's dial."""
    from tests.machine import given

    with given():
        yield


@pytest.fixture(autouse=True, scope="session")
def _given_kernels() -> Iterator[None]:
    """What multiplies is chosen by features: a busy machine's measurements must not decide what tests see."""
    from edgespec.kernels import trials

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "measure", trials.by_features)
        yield


@pytest.fixture(autouse=True, scope="session")
def _small_matmuls() -> Iterator[None]:
    """How long matmuls take is measured with small matrices: those of a 7B model take 13 s, every time that a
    test that remembers nothing asks."""
    from edgespec.runtimes.torch import matmuls

    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("OUT", 256), ("INNER", 256), ("CYCLED", 2**20)):
            patch.setattr(matmuls, name, size)
        yield


@pytest.fixture
def best_level() -> Iterator[None]:
    """Compiled kernels use this CPU's best instructions again, whatever a test has tried."""
    yield
    from edgespec.kernels import compiled
    from edgespec.kernels.choice import LEVELS

    if not compiled.unavailable():
        compiled.level(len(LEVELS))


@pytest.fixture
def steady_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training keeps its number of threads, however busy the machine: with another, sums have other bits."""
    monkeypatch.setattr("edgespec.training.threads.SHORT", math.inf)


@pytest.fixture
def tuned_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who tunes for this machine finds `tests.machine.MACHINE`."""
    from edgespec.devices.machine import Machine
    from tests.machine import MACHINE

    monkeypatch.setattr(Machine, "remembered", staticmethod(lambda weights: MACHINE))


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra `plot` is not installed."""
    plain: Callable[..., Any] = builtins.__import__

    def missing(name: str, *more: Any, **others: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return plain(name, *more, **others)

    monkeypatch.setattr(builtins, "__import__", missing)
