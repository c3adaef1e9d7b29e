"""What a plan must find room for: the model's needs, what others keep beside it, what the user asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgespec.offload.chunks import Chunk


@dataclass(frozen=True)
class Request:
    """What the user sets; bytes."""

    dial: int  # the most the process may use
    context: int | None = None  # positions; None = the plan chooses
    resident_layers: int | None = None  # pin exactly the first N layers; None = the plan chooses
    device_dial: int | None = None  # the second dial, of a discrete accelerator; None = all it has
    sequences: int = 1  # that are decoded at once
    trees: bool = False  # each of many rows, and not of one


@dataclass(frozen=True)
class MustPin:
    """First layers, and the head, that somebody needs in memory: the deepest of `depths` that fits."""

    owner: str  # who, as in "{owner} {use} 3 layers"
    use: str
    depths: tuple[int, ...]  # numbers of layers, ascending; 0 = the head alone
    last: int = 0  # layers before the head that it needs, too


@dataclass(frozen=True)
class StandIn:
    """A smaller copy of chunks, in memory: of what streams, or, where that makes a cycle shorter, of all.

    Somebody reads `steps` times a cycle the copy, and what it does not stand for as it is. Every step then
    reads the pinned layers in full; where memory is not much faster than flash, that costs more than pinning
    fewer of them.
    """

    owner: str  # as in the ledger
    nbytes: Callable[[Chunk], int]  # of what stands for a chunk
    steps: int  # in a usual cycle
    reason: str  # what the plan says when it stands for pinned chunks, too
    beside: Mapping[str, int] = field(default_factory=dict)  # bytes of owners that are there if it is


@dataclass(frozen=True)
class Extras:
    """What others keep in memory beside the model.

    owners: bytes of each, with one conversation of so many positions. further: of some of these, bytes more
        for another conversation of so many positions; whoever is not named needs none.
    """

    owners: Mapping[str, Callable[[int], int]] = field(default_factory=dict)
    must_pin: MustPin | None = None
    stand_in: StandIn | None = None
    processes: tuple[str, ...] = ()  # owners that are processes, each with an interpreter and libraries
    further: Mapping[str, Callable[[int], int]] = field(default_factory=dict)

    @staticmethod
    def joined(parts: Sequence[Extras]) -> Extras:
        """All of them: no owner twice, and at most one stand-in and one that must have layers pinned."""
        owners = [item for part in parts for item in part.owners.items()]
        further = {name: nbytes for part in parts for name, nbytes in part.further.items()}
        pins = [part.must_pin for part in parts if part.must_pin is not None]
        copies = [part.stand_in for part in parts if part.stand_in is not None]
        assert len(dict(owners)) == len(owners)
        assert len(pins) < 2
        assert len(copies) < 2
        processes = tuple(name for part in parts for name in part.processes)
        return Extras(dict(owners), next(iter(pins), None), next(iter(copies), None), processes, further)

    def for_many(self, others: int, positions: int) -> Extras:
        """The same with so many further conversations, of so many positions or what the first one has."""

        def together(alone: Callable[[int], int], more: Callable[[int], int]) -> Callable[[int], int]:
            return lambda most: alone(most) + others * more(min(positions, most))

        grown = {name: together(self.owners[name], more) for name, more in self.further.items()}
        return replace(self, owners={**self.owners, **grown})

    @property
    def names(self) -> tuple[str, ...]:
        """Owners in the ledger."""
        return (
            *self.owners,
            *self.processes,
            *((self.stand_in.owner, *self.stand_in.beside) if self.stand_in else ()),
        )

    @property
    def depths(self) -> tuple[int, ...]:
        return self.must_pin.depths if self.must_pin else ()

    def bytes_for(self, positions: int, baseline: int) -> dict[str, int]:
        """By owner, a stand-in aside; `baseline` is what a process takes before it holds a model."""
        owners = {name: nbytes(positions) for name, nbytes in self.owners.items()}
        return owners | dict.fromkeys(self.processes, baseline)


@dataclass(frozen=True)
class Needs:
    """What a model needs beside its matrices, and what others need beside the model; bytes."""

    baseline: int  # the process before it holds a model: interpreter, libraries
    small: int  # norms and biases
    activations: int  # of the largest pass
    kv: Callable[[int], int]  # of a cache for so many positions
    max_context: int
    extras: Extras = field(default_factory=Extras)
    program_cache: int = 0  # page cache of programs, once for all processes
    drift: int = 0  # by so much more the baseline may be at another start, where a named dial is to work, too
