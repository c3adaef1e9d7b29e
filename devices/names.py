"""Devices that options may name. Needs no torch."""

from __future__ import annotations

from edgespec.errors import DeviceError

DEVICES = ("auto", "cpu", "cuda")
# Devices that people have and ask for, and why they are not among these.
NOT_YET = {
    "mps": "torch computes on Metal only in memory that Metal has allotted, so each chunk would be copied "
    "within the one memory that dial and device share, and not counted as this process's; and whether a "
    "row's bits there depend on the rows beside it has not been measured"
}


def check_device(name: str) -> None:
    """Raises DeviceError for a device that is unknown, or not supported."""
    if name in NOT_YET:
        raise DeviceError(f"device {name!r} is not supported yet: {NOT_YET[name]}; use cpu")
    if name not in DEVICES:
        raise DeviceError(f"device {name!r} is unknown; choose {', '.join(DEVICES)}")
