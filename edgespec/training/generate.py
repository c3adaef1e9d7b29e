"""The target's own replies as training data: many conversations in one pass, resumable.

A streamed target reads its layers once a pass, so the passes carry as many conversations as the ledger has KV
memory for, and new ones join as others end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import torch

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.core.acceptance import make_acceptance
from edgespec.core.batch import Verification
from edgespec.core.passes import LocalVerifier
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.tree import TokenTree
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.base import TREE_ROWS, KVCache
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.kv_cache import cache_bytes
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights
from edgespec.training.corpus import Sample
from edgespec.training.data import Shards, padded
from edgespec.training.target import KERNELS_BYTES, open_beside, pass_bytes

MAX_SESSIONS = TREE_ROWS  # rows that the ledger has logits for
PREFILL_ROWS = 1024  # of the prompts that join in one pass
SAVE_SECONDS = 60.0


@dataclass
class _Seat:
    prompt: int  # its index
    start: int  # its length
    tokens: list[int]
    cache: KVCache
    noise: Noise = field(repr=False)


class Replies:
    """Replies to many prompts at once: `done(prompt index, sample)` as each ends."""

    def __init__(
        self,
        target: TorchTarget[Weights],
        eos: frozenset[int],
        sessions: int,
        length: int,
        options: GenerationOptions,
    ) -> None:
        """length: of prompt and reply together, in tokens; a reply ends there, or with a token of `eos`."""
        self.verifier = LocalVerifier(target)
        self.target = target
        self.eos = eos
        self.sessions = sessions
        self.length = length
        self.sampler, self.seed = Sampler(options), options.seed
        self.acceptance = make_acceptance(None, options)

    def run(self, prompts: Sequence[tuple[int, list[int]]], done: Callable[[int, Sample], None]) -> None:
        """`prompts`: (index, tokens); each shorter than `length`."""
        waiting = list(reversed(prompts))
        active: list[_Seat] = []
        while waiting or active:
            if waiting and (not active or (self.sessions - len(active)) * 4 >= self.sessions):
                active += self._join(waiting, self.sessions - len(active))
            else:
                self._go_on(active)
            for seat in active:
                if self._ended(seat):
                    done(seat.prompt, Sample.behind(seat.tokens, seat.start))
            active = [seat for seat in active if not self._ended(seat)]

    def _ended(self, seat: _Seat) -> bool:
        return seat.tokens[-1] in self.eos or len(seat.tokens) >= self.length

    def _join(self, waiting: list[tuple[int, list[int]]], most: int) -> list[_Seat]:
        """The next prompts that one pass has room for, each with its reply's first token."""
        joined: list[_Seat] = []
        rows = 0
        while waiting and len(joined) < most and (not joined or rows + len(waiting[-1][1]) <= PREFILL_ROWS):
            index, tokens = waiting.pop()
            rows += len(tokens)
            cache = self.target.new_cache(self.length, slots=1)
            noise = Noise((self.seed + index) % 2**63)
            joined.append(_Seat(index, len(tokens), list(tokens), cache, noise))
        logits = self.verifier.prefill_all([(seat.cache, seat.tokens) for seat in joined])
        for seat, row in zip(joined, logits, strict=True):
            seat.tokens.append(self.sampler.pick(row, seat.noise, seat.start))
        return joined

    def _go_on(self, seats: Sequence[_Seat]) -> None:
        """One more token for each, in one pass."""
        roots = [TokenTree.root(seat.tokens[-1]) for seat in seats]
        parts = [
            Verification(seat.cache, root, self.acceptance, seat.noise)
            for seat, root in zip(seats, roots, strict=True)
        ]
        for seat, outcome in zip(seats, self.verifier.verify_all(parts), strict=True):
            seat.tokens += outcome.tokens


def generate_replies(
    files: ModelFiles,
    engine: EngineOptions,
    device: torch.device,
    eos: frozenset[int],
    prompts: Sequence[list[int]],
    shards: Shards,
    length: int,
    options: GenerationOptions,
    progress: ProgressCallback | None = None,
) -> None:
    """Add to `shards` the replies to all prompts that it has none to yet, opening the target for it.

    Raises as `open_beside`; an interruption loses at most `SAVE_SECONDS` of work.
    """
    finished = set(shards.column("prompts").tolist())
    left = [(i, p) for i, p in enumerate(prompts) if i not in finished]
    if not left:
        return
    prefill_rows = max(PREFILL_ROWS, max(len(p) for _, p in left))

    def nbytes(sessions: int) -> int:
        kv = cache_bytes(files.config, length, 1, files.dtype)
        return sessions * kv + pass_bytes(files, padded(prefill_rows), 0) + KERNELS_BYTES

    wanted = min(MAX_SESSIONS, len(left))
    target, _, sessions = open_beside(
        files, engine, device, wanted, 1, nbytes, lambda sessions: prefill_rows, progress
    )
    unsaved: list[tuple[int, Sample]] = []
    saved = monotonic()

    def save() -> None:
        nonlocal saved
        if unsaved:
            shards.append([s for _, s in unsaved], prompts=[i for i, _ in unsaved])
            unsaved.clear()
        saved = monotonic()

    def done(index: int, sample: Sample) -> None:
        unsaved.append((index, sample))
        finished.add(index)
        if monotonic() - saved > SAVE_SECONDS:
            save()
        if progress is not None:
            progress(Progress("generate", len(finished), len(prompts), "replies"))

    try:
        Replies(target, eos, sessions, length, options).run(left, done)
    finally:
        save()  # also what a Ctrl-C leaves
        target.weights.close()
