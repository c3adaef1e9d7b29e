"""A link between this machine and a network namespace, as slow and lossy as a profile says.

    this namespace                      the forwarder                        a namespace of its own
    10.77.0.1 ─ TUN ── late, lost, at so many bits a second ── TUN ─ 10.77.0.2

IP packets really cross it, so TCP retransmits, backs off and fills its window as over the link itself. Where
the kernel has netem, that does the same; here it has not. Each direction delays and loses by itself: a round
trip is twice a profile's delay. A packet that is less late overtakes, as in netem. Linux, as root.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from random import Random
from types import TracebackType

from benchmarks.common import REPO

NEAR, FAR = "10.77.0.1", "10.77.0.2"
ECHO = 7  # port of the far end's echo, by UDP, and of its sink, by TCP
PACKETS = 1000  # that wait in a direction, at most; netem's own limit
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@dataclass(frozen=True)
class Profile:
    """Of each direction: seconds, normally distributed around `delay` and not below 0; chance of a packet to
    be lost; bits a second, 0 = without a bound."""

    name: str
    delay: float
    jitter: float = 0.0
    loss: float = 0.0
    rate: float = 0.0


PROFILES = (
    Profile("lan", 0.0005),
    Profile("5g", 0.010, 0.010, 0.001),  # Mixture of Attentions, section 4.3, as the next
    Profile("4g", 0.021, 0.019, 0.001, 20e6),
    Profile("far", 0.100, 0.0, 0.05),
)


class Direction:
    """Packets on their way."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self.profile, self.up = profile, True
        self.bytes = self.packets = self.lost = 0  # that came to it; lost: of the packets
        self._chance, self._waiting = Random(seed), list[tuple[float, int, bytes]]()  # a heap
        self._free = 0.0  # when the sender may send again

    def take(self, packet: bytes, now: float) -> None:
        """A packet is sent at `now`, in seconds."""
        p, chance = self.profile, self._chance
        self.bytes, self.packets = self.bytes + len(packet), self.packets + 1
        if not self.up or chance.random() < p.loss or len(self._waiting) >= PACKETS:
            self.lost += 1
            return
        self._free = max(self._free, now) + (8 * len(packet) / p.rate if p.rate else 0.0)
        late = max(0.0, chance.gauss(p.delay, p.jitter)) if p.jitter else p.delay
        heappush(self._waiting, (self._free + late, self.packets, packet))

    def due(self, now: float) -> Iterator[bytes]:
        """Packets that arrive by `now`."""
        while self._waiting and self._waiting[0][0] <= now:
            yield heappop(self._waiting)[2]

    @property
    def next(self) -> float:
        """When the next one arrives."""
        return self._waiting[0][0] if self._waiting else float("inf")


def forward(near: int, far: int, profile: Profile) -> None:
    """Between two TUN devices, until standard input ends; its lines are commands: down, up, count."""
    sides = {near: Direction(profile, 1), far: Direction(profile, 2)}
    out = {near: far, far: near}
    commands = sys.stdin.fileno()
    poll = select.epoll()
    for descriptor in (near, far, commands):
        poll.register(descriptor, select.EPOLLIN)
    while True:
        wait = min(side.next for side in sides.values()) - time.monotonic()
        ready = [fd for fd, _ in poll.poll(min(max(wait, 0.0), 1.0))]
        for descriptor in ready:
            if descriptor == commands:
                if not (words := os.read(commands, 100)):
                    return
                if (word := words.strip()) in (b"down", b"up"):
                    for side in sides.values():
                        side.up = word == b"up"
                counts = [[s.bytes, s.packets, s.lost] for s in sides.values()]
                print(json.dumps(counts), flush=True)
                continue
            with contextlib.suppress(BlockingIOError):
                while True:
                    sides[descriptor].take(os.read(descriptor, 65536), time.monotonic())
        for descriptor, side in sides.items():
            for packet in side.due(time.monotonic()):
                with contextlib.suppress(OSError):  # the device's queue is full: it drops, as devices do
                    os.write(out[descriptor], packet)


def unable() -> str | None:
    """Why there can be no such link here; None = there can."""
    if sys.platform != "linux" or os.geteuid():
        return "a network namespace and TUN devices need Linux, and root"
    if not os.path.exists("/dev/net/tun"):
        return "the kernel has no TUN devices: /dev/net/tun is not there"
    made = subprocess.run(["ip", "netns", "list"], capture_output=True, check=False)
    return None if made.returncode == 0 else "`ip netns` does not work here"


@dataclass(frozen=True)
class Crossed:
    """Bytes and packets that were sent into the link from either end, and packets that it lost."""

    near_bytes: int
    far_bytes: int
    packets: int
    lost: int

    def since(self, before: Crossed) -> Crossed:
        return Crossed(*(a - b for a, b in zip(self._all(), before._all(), strict=True)))

    def _all(self) -> Sequence[int]:
        return self.near_bytes, self.far_bytes, self.packets, self.lost


class EmulatedLink:
    """A context manager; processes of the far end are started by `command`, and reached at FAR."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.name = f"edgespec-{os.getpid()}"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> EmulatedLink:
        """Raises SystemExit where there can be none."""
        if (why := unable()) is not None:
            raise SystemExit(why)
        with contextlib.ExitStack() as stack:
            _ip("netns", "add", self.name)
            stack.callback(_ip, "netns", "del", self.name)
            tuns = [_tun(f"espec{side}{os.getpid() % 100_000}") for side in "ab"]
            for _, fd in tuns:
                stack.callback(os.close, fd)
            (near, near_fd), (far, far_fd) = tuns
            _ip("link", "set", far, "netns", self.name)
            _ip("addr", "add", NEAR, "peer", FAR, "dev", near)
            _ip("link", "set", near, "up")
            inside = ("-n", self.name)
            _ip(*inside, "addr", "add", FAR, "peer", NEAR, "dev", far)
            _ip(*inside, "link", "set", far, "up")
            _ip(*inside, "link", "set", "lo", "up")
            code = "from benchmarks.emulator import *; "
            code += f"forward({near_fd}, {far_fd}, Profile(**{asdict(self.profile)!r}))"
            self._forwarder = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                pass_fds=(near_fd, far_fd),
            )  # fmt: skip
            stack.callback(_end, self._forwarder)
            self._stack = stack.pop_all()
        self.count()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def command(self, *words: str) -> list[str]:
        """To run at the far end."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """From now on everything is lost."""
        self._tell("down")

    def mend(self) -> None:
        self._tell("up")

    def count(self) -> Crossed:
        """Since the link was made."""
        (near, packets, lost), (far, more, lost_too) = self._tell("count")
        return Crossed(near, far, packets + more, lost + lost_too)

    def _tell(self, word: str) -> list[list[int]]:
        assert self._forwarder.stdin is not None
        assert self._forwarder.stdout is not None
        self._forwarder.stdin.write(f"{word}\n")
        self._forwarder.stdin.flush()
        counts: list[list[int]] = json.loads(self._forwarder.stdout.readline())
        return counts

    def measure(self, probes: int = 200, seconds: float = 2.0) -> dict[str, float]:
        """What it is like: round trips of UDP packets (median and 95 %, in ms), the share of packets lost,
        Mbit/s by TCP from the far end."""
        code = "from benchmarks.emulator import answer; answer()"
        far = subprocess.Popen(self.command(sys.executable, "-c", code), cwd=REPO, stdout=subprocess.PIPE)
        try:
            assert far.stdout is not None
            far.stdout.readline()
            before = self.count()
            trips = sorted(_probe(probes))
            crossed = self.count().since(before)
            rate = _receive(seconds)
        finally:
            far.kill()
            far.communicate()
        last = trips[int(0.95 * (len(trips) - 1))]
        loss = crossed.lost / crossed.packets
        return {"rtt": statistics.median(trips), "rtt95": last, "loss": loss, "mbit": rate}


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _tun(name: str) -> tuple[str, int]:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
    return name, descriptor


def _probe(count: int) -> list[float]:
    """Milliseconds of the round trips that came back, one packet every 10 ms."""
    trips = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((FAR, ECHO))
        probe.settimeout(0.01)
        sent: dict[int, float] = {}
        end = time.monotonic() + 0.01 * count + 2
        while time.monotonic() < end and len(trips) < count:
            if len(sent) < count:
                sent[len(sent)] = time.monotonic()
                probe.send(struct.pack("<I", len(sent) - 1))
            with contextlib.suppress(TimeoutError, ConnectionRefusedError):
                number = struct.unpack("<I", probe.recv(4))[0]
                trips.append(1000 * (time.monotonic() - sent[number]))
    return trips


def _receive(seconds: float) -> float:
    """Mbit/s from the far end."""
    with socket.create_connection((FAR, ECHO)) as sink:
        began, received = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            received += len(sink.recv(65536))
        return 8e-6 * received / (time.monotonic() - began)


def answer() -> None:
    """The far end of `measure`."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo,
        socket.create_server((FAR, ECHO)) as server,
    ):
        echo.bind((FAR, ECHO))
        print("ready", flush=True)
        while True:
            for ready in select.select([echo, server], [], [])[0]:
                with contextlib.suppress(OSError):  # a prober who has gone, a queue that is full
                    if ready is echo:
                        packet, sender = echo.recvfrom(4)
                        echo.sendto(packet, sender)
                        continue
                    sink, _ = server.accept()
                    with sink:
                        while True:
                            sink.sendall(bytes(65536))
