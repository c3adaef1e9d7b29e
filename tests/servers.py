"""Server processes for tests, and requests to them as bytes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WAIT = 120.0


class ServerProcess:
    """`edgespec serve` with these flags, on a free port."""

    def __init__(self, *flags: str, cache: Path, port: int = 0, scheme: str = "http") -> None:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
            self.port = free.getsockname()[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "edgespec.apps.start", "serve", "--port", str(self.port), *flags]
        environment = {**os.environ, "EDGESPEC_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
        pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=cache, env=environment, **pipes)
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.said.extend(lines)

    def loaded(self) -> list[int]:
        """Wait until it can be used; what /health said meanwhile, without repetitions."""
        seen, last = list[int](), time.monotonic() + WAIT
        while seen[-1:] != [200]:
            assert time.monotonic() < last and self.process.poll() is None, self.said  # noqa: PT018
            try:
                status = self.get("/health")[0]
            except OSError:
                status = 0
            if seen[-1:] != [status]:
                seen.append(status)
            time.sleep(0.02)
        return seen

    def get(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON or text, and headers; POST where there is a body."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=WAIT) as response:
                status, raw, kept = response.status, response.read(), dict(response.headers)
        except urllib.error.HTTPError as error:
            with error:
                status, raw, kept = error.code, error.read(), dict(error.headers)
        text = raw.decode()
        return status, json.loads(text) if text.startswith(("{", "[")) else text, kept

    def metric(self, name: str) -> float:
        found = re.search(rf"^edgespec_{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.M)
        assert found is not None
        return float(found[1])

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code, after this signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(WAIT)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join()


def exchange(port: int, request: bytes, patience: float = 0.3) -> bytes:
    """What the server answers to these bytes, up to its end; nobody waits for what will not come."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as connection:
        answer = b""
        try:
            connection.sendall(request)
            connection.settimeout(patience)
            while chunk := connection.recv(65536):
                answer += chunk
        except TimeoutError:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(WAIT)
            try:
                while chunk := connection.recv(65536):
                    answer += chunk
            except OSError:
                pass
        except OSError:  # closed while we still wrote
            pass
        return answer


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
