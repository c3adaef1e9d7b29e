"""install.sh and install.ps1, as far as they can be run, or read, without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None or sys.platform == "win32", reason="needs bash on Unix")

# Stands for Python: makes environments with FOLDER for programs, and notes what it is asked.
PYTHON = """#!/bin/sh
echo "$*" >> "$NOTES"
case "$*" in
  *"-m venv "*) for venv; do :; done; mkdir -p "$venv/FOLDER"; cp "$0" "$venv/FOLDER/NAME";;
  *--report*) for one; do
      [ "$last" = --report ] && echo '{"name": "torch"}' > "$one"
      last=$one
    done;;
  *importlib.metadata*torch*) [ -e "$NOTES.torch" ];;
  *"install torch"*) touch "$NOTES.torch";;
  *EXT_SUFFIX*) echo kernels/_native.so;;
  *--editable*) [ ! -e "$NOTES.compiles" ] || touch kernels/_native.so;;
  *--version*) echo "Python 3.12.0";;
esac
"""


def set_up(
    tmp_path: Path, folder: str, *extras: str, compiler: bool = True, compiles: bool = True
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Runs install.sh in a copy of the project, with a Python whose environments have `folder`, and with or
    without a compiler, which works or not."""
    project, notes = tmp_path / "project", tmp_path / "notes"
    project.mkdir(exist_ok=True)
    for name in ("install.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, project)
    (project / "kernels" / "native").mkdir(parents=True, exist_ok=True)
    (project / "kernels" / "native" / "native.c").touch()
    python = tmp_path / "tools" / "python3"
    python.parent.mkdir(exist_ok=True)
    if compiler:
        (tmp_path / "tools" / "ours").touch(0o755)
    mark = Path(f"{notes}.compiles")
    mark.touch() if compiles else mark.unlink(missing_ok=True)
    name = "python" if folder == "bin" else "python.exe"
    python.write_text(PYTHON.replace("FOLDER", folder).replace("NAME", name))
    python.chmod(0o755)
    notes.write_text("")
    assert BASH is not None
    path = f"{python.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    ended = subprocess.run(
        [BASH, str(project / "install.sh"), *extras],
        env={"PATH": path, "NOTES": str(notes), "HOME": str(tmp_path), "CC": "ours"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended, notes.read_text().splitlines()


@needs_bash
@pytest.mark.parametrize("folder", ["bin", "Scripts"])
def test_an_environment_is_made_and_then_known(tmp_path: Path, folder: str) -> None:
    """Windows' environments, which Git Bash sees, have Scripts instead of bin."""
    ended, asked = set_up(tmp_path, folder, "test")
    assert ended.returncode == 0, ended.stderr
    assert f"Ready: .venv/{folder}/edgespec" in ended.stderr
    assert "-m venv .venv" in asked
    assert any("--editable .[test]" in line for line in asked)
    again, asked = set_up(tmp_path, folder, "test")
    assert again.returncode == 0
    assert f"is set up in .venv: .venv/{folder}/edgespec" in again.stderr
    assert len(asked) == 1, "asked only whether torch and edgespec are there"
    other, asked = set_up(tmp_path, folder)
    assert "Ready" in other.stderr
    assert not any("-m venv" in line for line in asked)


@needs_bash
def test_kernels_that_were_not_built_are_built_once_a_compiler_works(tmp_path: Path) -> None:
    none, _ = set_up(tmp_path, "bin", compiler=False, compiles=False)
    assert none.returncode == 0
    assert "apt install gcc; then run this again" in none.stderr
    assert "Ready" in none.stderr
    again, _ = set_up(tmp_path, "bin", compiler=False, compiles=False)
    assert "is set up" in again.stderr, "nothing has changed"
    for _ in range(2):
        fails, asked = set_up(tmp_path, "bin", compiles=False)
        assert "apt install gcc" in fails.stderr
        assert any("--editable" in line for line in asked), "it is tried again"
    stale = tmp_path / "project" / "kernels" / "_native.other.so"
    stale.touch()  # of another Python
    assert "apt install gcc" in set_up(tmp_path, "bin", compiles=False)[0].stderr
    works, _ = set_up(tmp_path, "bin")
    assert "apt install gcc" not in works.stderr
    assert "is set up" in set_up(tmp_path, "bin")[0].stderr
    assert stale.exists()


@needs_bash
@pytest.mark.parametrize("lost", [True, False])
def test_kernels_that_are_gone_or_of_another_environment_are_built_again(tmp_path: Path, lost: bool) -> None:
    set_up(tmp_path, "bin")
    library = tmp_path / "project" / "kernels" / "_native.so"
    if lost:
        library.unlink()
    else:  # a checkout of other sources has been set up in another folder meanwhile
        later = library.stat().st_mtime + 10
        os.utime(library, (later, later))
    again, asked = set_up(tmp_path, "bin")
    assert "Ready" in again.stderr
    assert any("--editable" in line for line in asked)
    assert "is set up" in set_up(tmp_path, "bin")[0].stderr


@needs_bash
def test_what_is_no_extra_is_refused(tmp_path: Path) -> None:
    ended, asked = set_up(tmp_path, "bin", "--help")
    assert ended.returncode == 1
    assert "is not a list of extras" in ended.stderr
    assert not asked


def test_both_scripts_ask_for_the_same() -> None:
    """PowerShell's cannot be run here: its versions and variables, at least, are those of the other."""
    shell, power = ((ROOT / name).read_text(encoding="utf-8") for name in ("install.sh", "install.ps1"))
    for pattern in (
        r"torch[=>]=[\d.]+",
        r"(?:setuptools|pip)>=\d+",
        r"\(3, \d+\)",
        r"EDGESPEC_[A-Z]+",
        r"--[a-z][a-z-]+",
        r"\^\[a-z0-9,\]\*\$",
    ):
        ours, theirs = set(re.findall(pattern, shell)), set(re.findall(pattern, power))
        only = {"--dry-run", "--report", "--find-links", "--torch-backend"}  # of finding a CPU build on Linux
        assert ours - only == theirs - only, pattern
    assert power.isascii(), "Windows PowerShell reads files without a mark as its own code page"
    for opening, closing in ("()", "{}", "[]"):
        code = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", power)
        assert code.count(opening) == code.count(closing)
