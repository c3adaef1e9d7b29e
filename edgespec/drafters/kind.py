"""What a kind of drafter says of itself: a row of `drafters.kinds`. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgespec.drafters.base import Drafter
from edgespec.errors import Call

TRAINED = "adapters"  # the option for whatever was trained for the target; its directory says whose it is


@dataclass(frozen=True)
class Kind:
    """A kind of drafter.

    label: as messages call it.
    roots: it can draft behind several roots, for outcomes that are not known yet.
    draws: it can draw its drafts at random, as `ratio` acceptance needs.
    beside: it can draft in a process of its own, as it shares nothing with the target.
    elsewhere: it drafts on another machine, and has no file here.
    shares: it can draft for conversations that share passes (`batch=`); what each of them takes beside the
        first, its `Extras.further` says, or `position_bytes` for each of its positions.
    inside_target: it drafts in the target's own layers.
    takes: others that it has as parts of itself.
    option: the engine option that names its files, which `needs` says must be there; "" = it needs none.
    made_by: the call that makes such files.
    spare: under auto, it is left out where there is no room for it.
    cpu_only: it drafts beside a target on the CPU only, so far.
    make, find: what takes no memory is simply made, for each conversation; the others have files, for which
        a `drafters.resident.Find` looks: "module:name", imported when there are some: torch takes seconds.
    """

    name: str
    label: str
    roots: bool
    draws: bool
    beside: bool = False
    elsewhere: bool = False
    shares: bool = False
    position_bytes: int = 0
    inside_target: bool = False
    takes: tuple[str, ...] = ()
    option: str | None = None
    needs: str = ""
    made_by: Call | None = None
    spare: bool = False
    cpu_only: bool = False
    make: Callable[[], Drafter] | None = None
    find: str | None = None

    @property
    def alone(self) -> bool:
        """It drafts beside nobody else who costs passes, but those that it `takes`."""
        return self.inside_target or self.elsewhere or self.option == TRAINED
