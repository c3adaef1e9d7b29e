"""clang compiles the kernels, too: it is told of a file's instructions in another way than gcc (target.h)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "kernels" / "native"
CLANG = shutil.which("clang")
# Instructions that a function may not use are found before anything is optimised, in a third of the time.
CLANGS = pytest.mark.parametrize(
    "how", ["-O0 -Xclang -emit-llvm-only", pytest.param("-O1", marks=pytest.mark.slow)]
)


@pytest.mark.skipif(CLANG is None, reason="there is no clang here")
@pytest.mark.parametrize("source", sorted(NATIVE.glob("*.c")), ids=lambda source: source.name)
@CLANGS
def test_clang_compiles_it(how: str, source: Path, tmp_path: Path) -> None:
    assert CLANG is not None
    flags = ["-Wall", "-Werror", "-Wno-unknown-pragmas", "-ffp-contract=off", "-fno-math-errno", *how.split()]
    subprocess.run([CLANG, *flags, "-c", source, "-o", tmp_path / "out.o"], check=True, timeout=120)
