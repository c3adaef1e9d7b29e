"""Where the `edgespec` command begins: light, so that Ctrl-C is heard before anything heavy is imported.

Exit codes: 0; 1 for an error met while working; 2 for wrong use; 128 and the signal's number for Ctrl-C
(130), SIGTERM (143) and SIGHUP (129). Ended by any of them, the command still closes what it opened.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """The console script."""
    code = 130
    try:
        for name in ("SIGTERM", "SIGHUP"):
            # What began with a signal ignored keeps that (nohup).
            if (number := getattr(signal, name, None)) and signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _end)
        _open_streams()
        from edgespec.apps.interrupts import HeldImports

        sys.meta_path.insert(0, HeldImports("torch", "triton"))  # C++ that runs Python while it initialises
        from edgespec.apps.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        pass
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    # CPython notes a Ctrl-C in code that is made from text (a dataclass's methods, in imports) and, caught
    # or not, ends `python -m` by the signal at last. More such code clears the note.
    exec("")
    sys.exit(_flushed(code))


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _open_streams() -> None:
    """Pipes and files hold UTF-8 on every platform; what a console cannot show does not end the program; what
    was closed before (`<&-`, a service) is empty."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if not hasattr(stream, "reconfigure"):
            continue
        errors = "surrogateescape" if stream is sys.stdin else "backslashreplace"
        if stream.isatty():
            stream.reconfigure(errors=errors)
        else:
            stream.reconfigure(encoding="utf-8", errors=errors)


def _flushed(code: int) -> int:
    """The exit code, after all output is out; 1 when there is no room for it."""
    try:
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        pass
    except OSError as error:
        if not code:
            print(f"error: writing to standard output failed: {error.strerror}", file=sys.stderr)
    # Python would try once more while it ends, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code or 1


if __name__ == "__main__":
    main()
