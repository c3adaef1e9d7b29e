"""Every byte of the dial has an owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgespec.errors import BudgetError

HEADROOM = "headroom"  # the owner of what nobody means to use
PROGRAMS = "page cache of programs"  # that of what is in no process, but counts against a cgroup's limit


def gigabytes(n: float) -> str:
    """Bytes as people read them: "1.07 GB", "64.0 MB"."""
    return f"{n / 1e9:.2f} GB" if abs(n) >= 1e9 else f"{n / 1e6:.1f} MB"


@dataclass(frozen=True)
class Ledger:
    """Bytes by owner, against the dial (the most the process may use, page cache included)."""

    dial: int
    owners: Mapping[str, int]

    @property
    def used(self) -> int:
        return sum(self.owners.values())

    @property
    def planned(self) -> int:
        """What the process should really use."""
        return self.used - self.headroom

    @property
    def headroom(self) -> int:
        return self.owners.get(HEADROOM, 0)

    @property
    def free(self) -> int:
        return self.dial - self.used

    def rows(self) -> list[str]:
        """A line an owner."""
        return [f"  {gigabytes(n):>10}  {owner}" for owner, n in self.owners.items() if n]

    def require(self, smallest: int, advice: str) -> None:
        """Raises BudgetError, naming every owner, when they do not fit the dial."""
        if self.free >= 0:
            return
        rows = "\n".join(self.rows())
        raise BudgetError(
            f"the dial is {gigabytes(self.dial)}, but {gigabytes(self.used)} are needed "
            f"({gigabytes(-self.free)} short):\n{rows}\n"
            f"The smallest dial that works here is {smallest_dial_text(smallest)}{advice}",
            dict(self.owners),
            self.dial,
            smallest,
        )


def smallest_dial_text(nbytes: int) -> str:
    """Rounded up to whole megabytes, as one would type it: "1234MB"."""
    return f"{-(-nbytes // 10**6)}MB"
