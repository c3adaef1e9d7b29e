"""How the command begins and ends: signals at any moment, and output that cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "edgespec.apps.start", *arguments]
    return subprocess.run(command, cwd=ROOT, timeout=60, **{"capture_output": True, **options})  # type: ignore[call-overload, no-any-return]


# A process begins with the signals ignored that its parents ignore: under nohup, SIGHUP.
NOT_IGNORED = "import signal\nif hasattr(signal, 'SIGHUP'): signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"


def ended_by(number: signal.Signals, code: str) -> tuple[int, str, str]:
    """Start the command with `code` in place of its parts; once it says "ready", send the signal."""
    command = [sys.executable, "-c", NOT_IGNORED + code]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


WHILE_IMPORTING = """
import builtins, sys, time
from edgespec.apps import start
real = builtins.__import__
def slow(name, *rest):
    if name == "edgespec.apps.main":
        print("ready", flush=True)
        time.sleep(20)
    return real(name, *rest)
builtins.__import__ = slow
start.main()
"""

IN_TORCH = """
import signal, sys, time
from edgespec.apps import interrupts, start
import edgespec.apps.main
def run(arguments):
    with interrupts.held():
        print("ready", flush=True)
        for _ in range(4):
            time.sleep(0.1)  # a Python exception here would be C++'s end
        print("imported", flush=True)
    print("never")
edgespec.apps.main.run = run
start.main()
"""

AT_WORK = """
import sys, time
sys.argv = ["edgespec", "chat", "m", "-p", "slow"]
from edgespec.apps import common, start
from tests.fake_engine import FakeEngine
class Engine(FakeEngine):
    def __exit__(self, *error):
        print("closed")
def reply(text):
    print("ready", flush=True)
    return "a" * 300
common.load_engine = Engine(reply).load
start.main()
"""


@POSIX
@pytest.mark.parametrize(("number", "code"), [(s, 128 + s) for s in ENDING])
def test_signals_while_it_starts_end_it_quietly(number: signal.Signals, code: int) -> None:
    assert ended_by(number, WHILE_IMPORTING) == (code, "", "")


def test_little_is_imported_before_signals_are_heard() -> None:
    code = (
        "import sys; from edgespec.apps import start; print(*{'pathlib', 're', 'typing'} & set(sys.modules))"
    )
    command = [sys.executable, "-S", "-c", code]  # without site: what is installed beside may import anything
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


@POSIX
def test_ctrl_c_while_a_dataclass_is_made_is_an_exit_too(tmp_path: Path) -> None:
    """CPython would end the process by SIGINT, although the exception was caught (1 of 40 at start-up)."""
    (tmp_path / "begin.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from edgespec.apps import start\n"
        "def hears():\n"
        "    exec('raise KeyboardInterrupt')\n"
        "start._open_streams = hears\n"
        "start.main()\n"
    )
    done = subprocess.run([sys.executable, "-m", "begin"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@POSIX
@pytest.mark.parametrize(("number", "code"), [(s, 128 + s) for s in ENDING[:2]])
def test_signals_wait_until_torch_is_imported(number: signal.Signals, code: int) -> None:
    assert ended_by(number, IN_TORCH) == (code, "imported\n", "")


@POSIX
@pytest.mark.parametrize("number", ENDING[:2])
@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "demo", "-p", "x"),
        ("pack", "demo", "-o", "packed", "--precision", "int4"),
        ("train", "cascade", "demo", "--data", "text.txt", "-o", "adapters"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_imports_torch_with_signals_held(
    tmp_path: Path, arguments: tuple[str, ...], number: signal.Signals
) -> None:
    """Wherever in the library that is: an exception within is C++'s end (`terminate called`, SIGABRT)."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "import os\n"
        f"os.kill(os.getpid(), {int(number)})\n"
        "for _ in range(1000):\n"
        "    pass\n"
        "print('imported', flush=True)\n"
    )
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "demo").symlink_to(ROOT / "edgespec" / "demo_model")
    done = subprocess.run(
        [sys.executable, "-m", "edgespec.apps.start", *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (128 + number, "imported\n")
    assert done.stderr in ("", "stopped at the start; the same command goes on from there\n")


@POSIX
def test_a_second_signal_does_not_wait() -> None:
    code = IN_TORCH.replace("range(4)", "range(400)")
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == ""
    assert process.returncode == 130


@POSIX
@pytest.mark.parametrize(("number", "code"), [(s, 128 + s) for s in ENDING[1:]])
def test_ended_at_work_it_still_closes_what_it_opened(number: signal.Signals, code: int) -> None:
    returned, out, err = ended_by(number, AT_WORK)
    assert returned == code
    assert out.endswith("closed\n")
    assert "Traceback" not in err


@FULL
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["train"], ["chat", "--help"]])
def test_a_full_disk_is_one_line_and_code_1(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        result = run(*arguments, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert result.returncode == 1
    assert result.stderr == b"error: writing to standard output failed: No space left on device\n"


@FULL
@pytest.mark.parametrize(
    "arguments",
    [["generate", "m", "-p", "x"], ["generate", "m", "-p", "x", "--json"], ["chat", "m", "-p", "x"]],
)
def test_a_reply_to_a_full_disk(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "tests.fake_engine", *arguments],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=60,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr == b"error: writing to standard output failed: No space left on device\n"


@POSIX
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty(closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-m", "tests.fake_engine"]
    done = subprocess.run(
        [*command, "chat", "m", "-p", "hi", "--no-stats"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert done.returncode == 0
    assert done.stdout == (b"" if " >&-" in f" {closed}" else b"once upon a time " * 4 + b"\n")
    assert done.stderr == b""


def test_a_console_that_cannot_show_a_character_goes_on() -> None:
    code = "from edgespec.apps import start; start._open_streams(); print('日本')"
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True)
    assert done.stdout.decode("utf-8").strip() == "日本", "pipes hold UTF-8 whatever the console speaks"


@pytest.mark.parametrize(
    ("arguments", "part", "code"),
    [
        (["generate", "/no/such/model", "-p", "x"], b"neither a directory", 1),
        (["generate", str(ROOT / "docs"), "-p", "x"], b"no config.json", 1),
        (["chat", "--device", "tpu", "-p", "x"], b"--device 'tpu' is unknown", 2),
        (["chat", "--adapters", "/no/such", "-p", "x"], b"no such directory", 2),
    ],
)
def test_what_can_be_refused_without_torch_is(arguments: list[str], part: bytes, code: int) -> None:
    command = "import sys; from edgespec.apps import start\ntry:\n start.main()\nfinally:\n"
    command += " print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", command, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert part in result.stderr
    assert result.stdout == b"False\n"
    assert result.returncode == code
