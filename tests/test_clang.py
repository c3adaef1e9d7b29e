"""clang compiles the kernels, too: it is told of a file's instructions in another way than gcc (target.h)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "kernels" / "native"
CLANG = shutil.which("clang")


@pytest.mark.skipif(CLANG is None, reason="there is no clang here")
@pytest.mark.parametrize("source", sorted(NATIVE.glob("*.c")), ids=lambda source: source.name)
def test_clang_compiles_it(source: Path, tmp_path: Path) -> None:
    assert CLANG is not None
    flags = ["-Wall", "-Werror", "-Wno-unknown-pragmas", "-O1", "-ffp-contract=off", "-fno-math-errno"]
    subprocess.run([CLANG, *flags, "-c", source, "-o", tmp_path / "out.o"], check=True, timeout=120)
