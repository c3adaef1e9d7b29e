"""The benchmarks' link: late, lossy and narrow as its profile says."""

from __future__ import annotations

import random
import statistics

import pytest

pytest.importorskip("fcntl", reason="TUN devices are Linux's")

from benchmarks.emulator import PACKETS, Direction, EmulatedLink, Profile, unable


def arrivals(direction: Direction, count: int, gap: float, size: int = 1000) -> dict[int, float]:
    """When packets arrive that are sent so many seconds apart; by number."""
    found, now = dict[int, float](), 0.0
    for number in range(count):
        now = number * gap
        direction.take(number.to_bytes(4, "little") + bytes(size - 4), now)
    while (due := direction.next) != float("inf"):
        now = max(now, due)
        for packet in direction.due(due):
            found[int.from_bytes(packet[:4], "little")] = due
    return found


def test_packets_are_late_and_lost_as_it_says() -> None:
    came = arrivals(Direction(Profile("p", 0.05, 0.01, 0.1), 1), 900, 0.01)
    late = [at - 0.01 * number for number, at in came.items()]
    assert statistics.mean(late) == pytest.approx(0.05, rel=0.05)
    assert statistics.stdev(late) == pytest.approx(0.01, rel=0.1)
    assert min(late) >= 0
    assert 0.07 < 1 - len(came) / 900 < 0.13
    assert list(came) != sorted(came), "who is less late overtakes"


def test_no_more_bits_pass_than_it_says() -> None:
    direction = Direction(Profile("p", 0.01, rate=8e6), 1)
    came = arrivals(direction, 500, 0.0)
    assert max(came.values()) == pytest.approx(0.01 + 500 * 1000 / 1e6)
    assert list(came) == sorted(came)


def test_what_waits_is_bounded_and_counted() -> None:
    direction = Direction(Profile("p", 1.0), random.randrange(9))
    came = arrivals(direction, PACKETS + 7, 0.0)
    assert len(came) == PACKETS
    assert (direction.packets, direction.lost, direction.bytes) == (PACKETS + 7, 7, 1000 * (PACKETS + 7))


def test_nothing_passes_a_cut_link() -> None:
    direction = Direction(Profile("p", 0.1), 1)
    direction.up = False
    assert arrivals(direction, 5, 0.0) == {}


@pytest.mark.skipif(unable() is not None, reason=str(unable()))
def test_real_packets_cross_it() -> None:
    with EmulatedLink(Profile("p", 0.02, loss=0.02)) as link:
        found = link.measure(probes=60, seconds=0.5)
    assert found["rtt"] > 40
    assert found["mbit"] > 0
    assert 0 <= found["loss"] < 0.3
