"""Five folders beside the package install inside it: from a checkout, a wheel, and an editable install."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["apps", "runtimes", "offload", "devices", "kernels"]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def home_of(package: str) -> Path:
    """The folder of the checkout that a package lives in."""
    parts = package.split(".")
    return ROOT.joinpath(*(parts[1:] if len(parts) > 1 and parts[1] in FOLDERS else parts))


def test_every_folder_with_code_is_packaged() -> None:
    """A package left out of pyproject.toml works in a checkout and is missing from the wheel."""
    expected = {
        ".".join(p if p[0] == "edgespec" else ("edgespec", *p))
        for folder in ("edgespec", *FOLDERS)
        for p in (path.parent.relative_to(ROOT).parts for path in (ROOT / folder).rglob("__init__.py"))
    }
    assert set(SETUPTOOLS["packages"]) == expected
    code = [p for folder in ("edgespec", *FOLDERS) for p in (ROOT / folder).rglob("*.py")]
    assert {path.parent for path in code} == {home_of(package) for package in expected}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_checkout_works_without_installing(folder: str, tmp_path: Path) -> None:
    """Only the checkout's root on the path, as in `cd edgespec && python`."""
    links = tmp_path / "checkout"
    links.mkdir()
    for name in ("edgespec", "pyproject.toml", *FOLDERS):
        (links / name).symlink_to(ROOT / name)
    code = f"import edgespec.{folder} as m; print(m.__file__)"
    # -S: no site-packages, so no installed edgespec can answer instead.
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=links,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(run.stdout.strip()).resolve() == ROOT / folder / "__init__.py"


def test_a_wheel_holds_every_package_and_the_data(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="building a wheel needs setuptools 77")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("edgespec", "pyproject.toml", "README.md", "LICENSE", *FOLDERS):
        if not (ROOT / name).exists():
            pytest.fail(f"{name} is missing from the checkout")
        (source / name).symlink_to(ROOT / name)  # the build folder stays out of the checkout
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-qq",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            tmp_path,
            source,
        ],
        env=os.environ | {"CC": "false"},  # the kernels are optional, and compiling them takes a minute
        capture_output=True,  # of the compiler that fails
        check=True,
    )
    (wheel,) = tmp_path.glob("edgespec-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"edgespec"}, "a bare `kernels` or `apps` in site-packages collides with other projects"
    for package in SETUPTOOLS["packages"]:
        for path in home_of(package).glob("*.py"):
            assert f"{package.replace('.', '/')}/{path.name}" in names
    for path in (ROOT / "edgespec").rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            assert str(path.relative_to(ROOT)) in names, f"{path.name} is not in package-data"


def test_an_editable_install_points_at_this_checkout(tmp_path: Path) -> None:
    try:
        files = distribution("edgespec").read_text("direct_url.json") or ""
    except PackageNotFoundError:
        pytest.skip("edgespec is not installed in this environment")
    if '"editable": true' not in files or str(ROOT) not in files:
        pytest.skip("edgespec is not installed in editable mode from this checkout")
    code = "\n".join(f"import edgespec.{f} as m; print(m.__file__)" for f in FOLDERS)
    run = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = [Path(line).resolve() for line in run.stdout.split()]
    assert found == [ROOT / folder / "__init__.py" for folder in FOLDERS]
