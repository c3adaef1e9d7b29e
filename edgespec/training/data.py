"""Training sequences on disk and in batches, the same for every drafter.

    DIR/data.json                what the shards were made from; written when they are complete
    DIR/00000.safetensors ...    tokens [n], lengths [m], spans [k, 2] of the m
                                 sequences together, counts [m] of spans; all int32

Shards are written once, before training: what a run learns from does not change under it when it is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from edgespec.devices.files import replacing
from edgespec.errors import CorruptFileError, OptionError, StorageError
from edgespec.offload.strict_json import read_object
from edgespec.training.corpus import Sample
from edgespec.values import count_of

SHARD_TOKENS = 2**22
MANIFEST = "data.json"
_LIMIT = 2**20  # bytes of a manifest
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class Shards:
    """A directory of sequences that grows shard by shard, and is then complete."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def begin(self, source: dict[str, Any]) -> bool:
        """Whether the shards are all there. If not, some may be, of an interrupted preparation.

        source: what they are made from, as JSON. Raises OptionError when there are some that were made from
        something else.
        """
        path = self.directory / MANIFEST
        if not path.is_file() or not self.paths():
            self.clear()
            _write_json(path, {"source": source, "complete": False})
            return False
        manifest = read_object(path, _LIMIT)
        made = manifest.get("source")
        if not isinstance(made, dict):
            raise CorruptFileError(f"{path} does not say what the data was made from; remove the directory")
        if different := sorted(k for k in source.keys() | made.keys() if made.get(k) != source.get(k)):
            raise OptionError(
                f"{self.directory} holds data made with another {', '.join(different)}; give the same "
                "options to resume, or choose another out="
            )
        return manifest.get("complete") is True

    def finish(self, source: dict[str, Any]) -> None:
        """All shards are there."""
        _write_json(self.directory / MANIFEST, {"source": source, "complete": True})

    def paths(self) -> list[Path]:
        return sorted(self.directory.glob("[0-9]*.safetensors"))

    def clear(self) -> None:
        """Remove the shards of a preparation that was interrupted and has to start again."""
        for path in self.paths():
            path.unlink()

    def forget(self) -> None:
        """Remove all: whatever text is next, nothing here stands in its way."""
        self.clear()
        (self.directory / MANIFEST).unlink(missing_ok=True)
        with suppress(OSError):  # it holds something else
            self.directory.rmdir()

    def append(self, samples: Sequence[Sample], **more: Sequence[int]) -> None:
        """One more shard, with further int32 columns; a kill leaves all of it or nothing.

        Raises StorageError when the disk is full.
        """
        path = self.directory / f"{len(self.paths()):05d}.safetensors"
        columns = {
            "tokens": np.concatenate([np.asarray(s.tokens, np.int32) for s in samples]),
            "lengths": np.asarray([len(s.tokens) for s in samples], np.int32),
            "spans": np.concatenate([np.asarray(s.spans, np.int32).reshape(-1, 2) for s in samples]),
            "counts": np.asarray([len(s.spans) for s in samples], np.int32),
            **{name: np.asarray(values, np.int32) for name, values in more.items()},
        }
        try:
            with replacing(path) as temporary:
                save_file(columns, temporary)
        except (OSError, SafetensorError) as error:
            raise StorageError(
                f"{path} cannot be written: {error}; free some space and start again"
            ) from None

    def column(self, name: str) -> Int32:
        """One column of all shards."""
        parts = [_load(path).get(name, np.empty(0, np.int32)).ravel() for path in self.paths()]
        return np.concatenate([np.empty(0, np.int32), *parts])

    def write_all(self, samples: Iterable[Sample]) -> None:
        """Shards of bounded size from any number of sequences."""
        waiting: list[Sample] = []
        size = 0
        for sample in samples:
            waiting.append(sample)
            size += len(sample.tokens)
            if size >= SHARD_TOKENS:
                self.append(waiting)
                waiting, size = [], 0
        if waiting:
            self.append(waiting)


class Samples(Sequence[Sample]):
    """All sequences of a directory of shards, in memory: 4 bytes a token. Replies are in the order of their
    prompts; shards have the short ones first."""

    def __init__(self, shards: Shards, vocabulary: int) -> None:
        """Raises CorruptFileError when a shard is not sound, or holds tokens that the target lacks."""
        self.tokens = shards.column("tokens")
        self.spans = shards.column("spans")
        lengths, counts = (shards.column(name).astype(np.int64) for name in ("lengths", "counts"))
        if not _sound(self.tokens, self.spans, lengths, counts):
            raise CorruptFileError(f"{shards.directory} has damaged shards; remove it and start again")
        if len(self.tokens) and not 0 <= self.tokens.min() <= self.tokens.max() < vocabulary:
            raise CorruptFileError(
                f"{shards.directory} has tokens outside the target's vocabulary of {vocabulary}; remove it"
            )

        prompts = shards.column("prompts")
        if len(prompts) == len(lengths):
            order = np.argsort(prompts, kind="stable")
            self.tokens = _reordered(self.tokens, lengths, order)
            self.spans = _reordered(self.spans, 2 * counts, order)
            lengths, counts = lengths[order], counts[order]
        self.spans = self.spans.reshape(-1, 2)
        self.ends, self._span_ends = lengths.cumsum(), counts.cumsum()

    @property
    def nbytes(self) -> int:
        return int(self.tokens.nbytes + self.spans.nbytes + 2 * self.ends.nbytes)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        begin, first = (int(ends[index - 1]) if index else 0 for ends in (self.ends, self._span_ends))
        spans = self.spans[first : int(self._span_ends[index])].tolist()
        return Sample(self.tokens[begin : int(self.ends[index])].tolist(), tuple((a, b) for a, b in spans))


def _sound(tokens: Int32, spans: Int32, lengths: Int64, counts: Int64) -> bool:
    if len(lengths) != len(counts) or lengths.sum() != len(tokens) or 2 * counts.sum() != len(spans):
        return False
    starts, stops = spans.reshape(-1, 2).T
    longest = np.repeat(lengths, counts) if np.all(counts >= 0) else np.zeros(len(starts))
    inside = (starts >= 1) & (starts < stops) & (stops <= longest)
    return bool(np.all(lengths >= 1) and np.all(counts >= 1) and np.all(inside))


def _reordered(values: Int32, sizes: Int64, order: Int64) -> Int32:
    """The parts of `values`, of these sizes, in another order."""
    parts = np.split(values, sizes.cumsum()[:-1])
    return np.concatenate([parts[i] for i in order])


def split(samples: Samples, share: float, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices to train on, and held out: the last `share` of the data, at most `most` tokens of it.

    The end, not a random choice: neighbouring pieces of one text resemble each other.

    Raises OptionError when there is too little for both.
    """
    if len(samples) < 2:
        raise OptionError(
            f"the data makes {count_of(len(samples), 'sequence')}, too few to train on some and hold others "
            "out; add text"
        )
    total = len(samples.tokens)
    first = int(np.searchsorted(samples.ends, total * (1 - share), side="right"))
    first = min(max(first, 1), len(samples) - 1)
    begin = int(samples.ends[first - 1])
    last = max(first + 1, int(np.searchsorted(samples.ends, begin + most, side="right")))
    return np.arange(first), np.arange(first, min(last, len(samples)))


class Batches(Iterator[list[list[Sample]]]):
    """Step after step: sequences of about `step_tokens` tokens, in passes of at most `pass_tokens`.

    Sequences come in an order that is random in each epoch and a function of the seed; `state` is where it
    stands, exactly. How a step is cut into passes changes only rounding. With several workers, each gets its
    part of every step, and never nothing.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        indices: NDArray[np.int64],
        step_tokens: int,
        pass_tokens: int,
        seed: int,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        """Raises OptionError when there are fewer sequences than workers."""
        if len(indices) < workers:
            raise OptionError(
                f"{count_of(len(indices), 'sequence')} cannot be shared by {workers} workers; add text"
            )
        self.samples = samples
        self.indices = indices
        self.step_tokens = step_tokens
        self.pass_tokens = pass_tokens
        self.seed = seed
        self.worker, self.workers = worker, workers
        self.state = {"epoch": 0, "place": 0}
        self._order = self._shuffle()

    def restore(self, state: dict[str, int]) -> None:
        """Raises ValueError when there is no such place among these sequences."""
        if state["epoch"] < 0 or not 0 <= state["place"] <= len(self.indices):
            raise ValueError(f"place {state['place']} of {len(self.indices)} sequences")
        self.state = dict(state)
        self._order = self._shuffle()

    def _shuffle(self) -> NDArray[np.int64]:
        return np.random.default_rng([self.seed, self.state["epoch"]]).permutation(self.indices)

    def __next__(self) -> list[list[Sample]]:
        drawn: list[Sample] = []
        tokens = 0
        while tokens < self.step_tokens or len(drawn) < self.workers:
            if self.state["place"] == len(self._order):
                self.state = {"epoch": self.state["epoch"] + 1, "place": 0}
                self._order = self._shuffle()
            drawn.append(self.samples[int(self._order[self.state["place"]])])
            tokens += len(drawn[-1].tokens)
            self.state["place"] += 1
        return passes(drawn[self.worker :: self.workers], self.pass_tokens)


class Numbered(Iterator[Sequence[Any]]):
    """Steps that `make` makes from their numbers, which count from 0 (see `trainer.Steps`)."""

    def __init__(self, make: Callable[[int], Sequence[Any]]) -> None:
        self.make = make
        self.state = {"step": 0}

    def __next__(self) -> Sequence[Any]:
        number = self.state["step"]
        self.state = {"step": number + 1}
        return self.make(number)

    def restore(self, state: dict[str, int]) -> None:
        self.state = dict(state)


def passes(samples: Sequence[Sample], most: int) -> list[list[Sample]]:
    """Samples in groups of similar length, each of at most `most` tokens, padding included (but at least one
    sample)."""
    groups: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda s: -len(s.tokens)):
        if groups and (len(groups[-1]) + 1) * padded(len(groups[-1][0].tokens)) <= most:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return groups


def padded(length: int) -> int:
    """Positions that a sequence takes in a pass: KV caches come in blocks of 64."""
    return -(-length // 64) * 64


def _load(path: Path) -> dict[str, Int32]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CorruptFileError(f"{path} is damaged ({error}); remove the directory and start again") from None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    try:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None
