"""What the kernels give on ARM: the bits that they give here, by NEON (with i8mm, without) and in plain C.

Where a cross compiler and an emulator are: Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgespec.kernels import compiled
from edgespec.kernels.choice import AVX512
from tests.test_clang import CLANGS

NATIVE = Path(__file__).parent.parent / "kernels" / "native"
BITS = Path(__file__).with_name("native_bits.c")
SOURCES = [*sorted(NATIVE.glob("*.c")), BITS]
CC, CROSS, EMULATOR = shutil.which("cc"), shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
CLANG, HEADERS = shutil.which("clang"), Path("/usr/aarch64-linux-gnu/include")
FLAGS = ["-Wall", "-Werror", "-Wno-psabi", "-Wno-unknown-pragmas", "-ffp-contract=off"]


def built(compiler: str, folder: Path, sources: Sequence[str | Path], *flags: str) -> Path:
    """tests/native_bits.c, with kernels."""
    program = folder / Path(compiler).name
    command = [compiler, *FLAGS, "-I", NATIVE, "-o", program, *sources, "-lm", "-lpthread", *flags]
    subprocess.run(command, check=True, timeout=600)
    return program


def printed(*command: str | Path) -> dict[str, list[str]]:
    """By level, the lines that the program prints."""
    run = subprocess.run(command, check=True, timeout=600, stdout=subprocess.PIPE, text=True)
    levels: dict[str, list[str]] = {}
    for line in run.stdout.splitlines():
        if line.startswith("level"):
            lines = levels[line] = []
        else:
            lines.append(line)
    return levels


@pytest.mark.skipif(CC is None, reason="there is no C compiler here")
@pytest.mark.skipif(CROSS is None or EMULATOR is None, reason="no compiler for ARM, or no emulator, is here")
@pytest.mark.skipif(platform.machine() == "aarch64", reason="this is an ARM, which test_compiled.py tests")
@pytest.mark.skipif(compiled.library() is None, reason="there are no compiled kernels here")
@pytest.mark.parametrize("optimised", ["-O1", pytest.param("-O3", marks=pytest.mark.slow)])  # 3: as shipped
def test_an_arm_gives_this_machines_bits(optimised: str, tmp_path: Path) -> None:
    library = compiled.library()
    assert library is not None
    assert CC is not None
    assert CROSS is not None
    assert EMULATOR is not None
    here = printed(built(CC, tmp_path, [BITS, library._name], f"-Wl,-rpath,{NATIVE.parent}"))
    program = built(CROSS, tmp_path, SOURCES, optimised, "-static")
    arm = printed(EMULATOR, "-cpu", "max", program)
    assert list(arm) == ["level 0", "level 1", "level 2"]
    assert len(here["level 0"]) > 300
    for level in arm:
        assert arm[level] == here["level 0"]
    for level in here:
        if int(level.removeprefix("level ")) <= AVX512:  # beyond, fp32 sums of bf16 have other orders
            assert here[level] == here["level 0"]
    del arm["level 2"]
    assert printed(EMULATOR, "-cpu", "cortex-a76", program) == arm  # without i8mm
    del arm["level 1"]
    assert printed(EMULATOR, "-cpu", "cortex-a72", program) == arm  # without dot products, too


@pytest.mark.skipif(CLANG is None or not HEADERS.is_dir(), reason="clang, or ARM's headers, are not here")
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
@CLANGS
def test_clang_compiles_it_for_apple_silicon(how: str, source: Path, tmp_path: Path) -> None:
    """As far as Linux's headers stand for macOS's."""
    assert CLANG is not None
    target = ["--target=aarch64-linux-gnu", "-mcpu=apple-m1", "-isystem", HEADERS, "-I", NATIVE, *how.split()]
    subprocess.run([CLANG, *FLAGS, *target, "-c", source, "-o", tmp_path / "out.o"], check=True, timeout=120)
