"""llama-cpp-python: is it there, and what installs it. No torch."""

from __future__ import annotations

import ctypes
import os
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edgespec.errors import MissingExtraError

NEWEST_OLD = (0, 3, 35)  # its structures have other fields than those of later ones
INSTALL = "pip install 'llama-cpp-python>=0.3.36'"
_ERROR = 3  # of ggml's levels of messages
_LINES = 8  # of the latest messages

messages: list[str] = []  # the latest that say what went wrong
_callbacks: list[Any] = []  # llama.cpp calls them as long as the process lives


def package_version() -> str:
    """Of the installed llama-cpp-python, which is not imported. Raises MissingExtraError."""
    try:
        found = version("llama-cpp-python")
    except PackageNotFoundError:
        raise _missing("is not installed") from None
    numbers = tuple(map(int, re.findall(r"\d+", found)[:3]))
    if numbers <= NEWEST_OLD:
        raise _missing(f"is {found}")
    return found


def check_here(provider: str) -> None:
    """Raises as `package_version`. It has one provider."""
    package_version()


def runtime() -> Any:
    """The module `llama_cpp`, ready. Raises MissingExtraError."""
    package_version()
    # Before OpenMP is loaded: threads that wait for work sleep, and leave their cores to the target. And a
    # failed assertion is to end the process, not to look for a debugger.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:  # its library may not suit this processor
        raise _missing(f"cannot be loaded ({error})") from None
    if not _callbacks:
        _callbacks.append(llama_cpp.llama_log_callback(_listen))
        llama_cpp.llama_log_set(_callbacks[0], ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
    return llama_cpp


def _listen(level: int, text: bytes, _: Any) -> None:
    if level >= _ERROR and (words := text.decode(errors="replace").strip()):
        messages.append(words[:300])
        del messages[:-_LINES]


def _missing(how: str) -> MissingExtraError:
    return MissingExtraError(
        f"the engine llama_cpp needs llama-cpp-python, which {how}; install it (it is compiled here, which "
        f"takes minutes) with\n  {INSTALL}"
    )
