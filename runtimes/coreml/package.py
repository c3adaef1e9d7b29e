"""coremltools: is it there, and what installs it. No torch."""

from __future__ import annotations

import sys
import warnings
from contextlib import redirect_stderr
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from typing import Any

from edgespec.errors import DeviceError, MissingExtraError

INSTALL = "pip install 'coremltools>=9'"
ABOUT = "Core ML runs on macOS 15 and later only"  # functions of a package, by name


def package_version() -> str:
    """Of the installed coremltools, which is not imported. Raises MissingExtraError."""
    try:
        return version("coremltools")
    except PackageNotFoundError:
        raise MissingExtraError(
            f"the engine coreml needs coremltools, which is not installed; install it with\n  {INSTALL}"
        ) from None


def runtime() -> Any:
    """The module `coremltools`. Raises MissingExtraError."""
    package_version()
    # It warns of versions of torch and others that it was not tried with, and of not being on a Mac.
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        try:
            import coremltools
        except ImportError as error:
            raise MissingExtraError(
                f"the engine coreml needs coremltools ({error}); install it with\n  {INSTALL}"
            ) from None
    return coremltools


def check_here(provider: str = "") -> None:
    """Raises DeviceError where Core ML cannot run anything, MissingExtraError. It has one provider."""
    here: str = sys.platform
    if here != "darwin":
        raise DeviceError(f"{ABOUT}, and this is {here}; export the model with engine=onnx, which runs here")
    package_version()
