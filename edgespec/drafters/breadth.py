"""How many nodes a pass of a draft model takes. Needs no torch.

Weights are read once a pass, so further rows cost nothing until arithmetic takes longer than that: up to
32 rows of bf16 with AMX, 8 to 16 with AVX-512 alone, 4 of int4. Beyond it a wide pass does hardly more a
second than narrow ones, and these know more when they choose: what the one before has said. (A 0.5b draft
of bf16 on a core of Zen 4, at the time: 4 rows 44 ms, 8 61, 16 116, 32 225. In 49 nodes of passes of 32
drafting after a hit took 4.1 further passes, in 45 nodes of passes of 8 2.4.) So passes get wider while
that pays, as measured: ahead of an outcome by nodes a second, before verification by the tokens that time
costs. (In memory, 16 bits by int4, passes of 8 nodes took 20 ms and of 3 11, where a second makes 7 tokens;
trees of 4 passes gave 3.43 and 3.34.) Of a low-bit copy of the target two rows take 1.1 times what one does,
four 1.9 and eight 4.1, and while the target streams a second makes 2 tokens: there 8 passes of one node gave
7.0 tokens of a story, of two 7.7, of four 7.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

WIDTHS = (4, 8, 16, 32)  # nodes of a pass ahead; narrower ones cost what the first does, or little less,
BEFORE = (1, 2, *WIDTHS)  # and of one before verification, for which everybody waits
PAYS = 1.7  # times as long, at most, may one be that is twice as wide
WEIGHT = 0.25  # of a new measurement
LATER = 0.5  # of what a node promises comes of a later pass, too, if it must wait for that
AGAIN = 64  # passes, after which all widths are tried again


class Breadth:
    """Of one draft model, by one conversation."""

    def __init__(self, widths: Sequence[int] | None = None) -> None:
        self.widths = widths or WIDTHS
        self._seconds: dict[int, float] = {}  # a pass, by widths; endless = the waits are too short for it
        self._dropped = set[int]()  # widths of which a pass was left in the middle
        self._passes = 0

    def learn(self, nodes: int, seconds: float) -> None:
        """A pass of so many nodes took so long, with the rows that a drafter adds of itself."""
        width = self._width(nodes)
        if width is None or (4 * nodes < 3 * width and width != self.widths[0]):
            return  # too wide, or half as wide as the one that it would stand for
        known = self._seconds.get(width, inf)
        self._seconds[width] = seconds if known == inf else known + WEIGHT * (seconds - known)
        self._passes += 1
        if self._passes % AGAIN == 0:  # one may have been a pause of the machine
            self._seconds.clear()
            self._dropped.clear()

    def dropped(self, nodes: int) -> None:
        """A pass of so many nodes did not come to its end, as the outcome was there. Of a width that was not
        timed yet one such may be chance; with the second it counts as too long for the waits: else it would
        be tried, and dropped, in each cycle, and nothing be prepared. The narrowest has to do."""
        width = self._width(nodes)
        if width is None or width == self.widths[0]:
            return
        if width in self._dropped:
            self._seconds.setdefault(width, inf)
        self._dropped.add(width)

    def _width(self, nodes: int) -> int | None:
        """Of a pass over so many nodes; None = wider than any."""
        return next((width for width in self.widths if nodes <= width), None)

    def width(self, most: int) -> int:
        """Of the next pass ahead, in nodes, `most` or fewer."""
        width = self.widths[0]
        for wider in self.widths[1:]:
            before, took = self._seconds.get(width), self._seconds.get(wider)
            if before is None or (took is not None and took > PAYS * before):
                break  # what was not timed is tried
            width = wider
        return min(width, most)

    def worth(self, chances: Sequence[float], price: float) -> int:
        """Nodes of the next pass, of those with such `chances` of acceptance, descending, where a second
        costs so many tokens: a node promises about as much as it is likely, by its children and theirs, but
        a later pass may take it, too. (16 of the copy's passes: 2.54 tokens a second; 2.43 as if none did,
        and 2.38 of one node each.)"""

        best, gain, worse = 0, -inf, 0
        for width in self.widths:
            took = self._seconds.get(width)
            if took is None:  # it is tried, if it is the next one to the best but one at most
                tried = worse < 2 and (not best or 4 * len(chances) >= 3 * width)
                return min(width if tried else best, len(chances))
            own = (1 - LATER) * sum(chances[:width]) - price * took
            best, gain, worse = (width, own, 0) if own > gain else (best, gain, worse + 1)
        return min(best, len(chances))
