"""The target's own replies as training data: many conversations in one pass, resumable.

A streamed target reads its layers once a pass, so the passes carry as many conversations as the ledger has KV
memory for, and new ones join as others end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import torch

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.core.acceptance import make_acceptance
from edgespec.core.batch import Part
from edgespec.core.batcher import Batcher
from edgespec.core.decode import Chooser, Decoding
from edgespec.core.passes import LocalVerifier
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.verify import Verifier
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.needs import cache_bytes
from edgespec.runtimes.formats.passes import scratch_bytes
from edgespec.runtimes.torch.machine import arithmetic
from edgespec.schedules.serial import Plain
from edgespec.training.corpus import Sample
from edgespec.training.data import Shards, padded
from edgespec.training.target import KERNELS_BYTES, open_beside, pass_bytes

MAX_SESSIONS = 4 * TREE_ROWS  # streamed passes then compute about as long as they read
SAVE_SECONDS = 60.0


class _Reply:
    """See `core.batcher.Member`."""

    def __init__(self, index: int, decoding: Decoding, eos: frozenset[int]) -> None:
        self.index, self.decoding, self.eos = index, decoding, eos
        self.tokens = list(decoding.prompt)
        self.ask = decoding.ask

    def answer(self, part: Part) -> bool:
        cycle = self.decoding.answer(part)
        if cycle is not None:
            self.tokens += cycle.outcome.tokens
        elif self.decoding.root >= 0:
            self.tokens.append(self.decoding.root)
        most = len(self.decoding.prompt) + self.decoding.limit
        return self.decoding.root not in self.eos and len(self.tokens) < most


class Replies:
    """Replies to many prompts at once: `done(prompt index, sample)` as each ends."""

    def __init__(
        self,
        verifier: Verifier[Any],
        eos: frozenset[int],
        sessions: int,
        length: int,
        options: GenerationOptions,
    ) -> None:
        """length: of prompt and reply together, in tokens; a reply ends there, or with a token of `eos`."""
        self.verifier, self.eos = verifier, eos
        self.sessions, self.length = sessions, length
        self.options = options

    def run(self, prompts: Sequence[tuple[int, list[int]]], done: Callable[[int, Sample], None]) -> None:
        """`prompts`: (index, tokens); each shorter than `length`."""
        waiting, batcher = deque(prompts), Batcher[_Reply](self.verifier)
        while waiting or len(batcher):
            while waiting and len(batcher) < self.sessions:
                batcher.join(self._reply(*waiting.popleft()))
            for reply, error in batcher.step():
                if error is not None:
                    raise error
                done(reply.index, Sample.behind(reply.tokens, len(reply.decoding.prompt)))

    def _reply(self, index: int, prompt: list[int]) -> _Reply:
        noise = Noise((self.options.seed + index) % 2**63)
        chooser = Chooser(Sampler(self.options), noise, make_acceptance(None, self.options))
        seat = self.verifier.new_seat(self.length, slots=1)
        limit = self.length - len(prompt)
        return _Reply(index, Decoding(self.verifier, seat, prompt, chooser, Plain(), limit), self.eos)


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

    def rows(sessions: int) -> int:
        return 2 * PREFILL_ROWS + sessions  # blocks of prompts beside all who go on

    how = arithmetic()

    def nbytes(sessions: int) -> int:
        kv = cache_bytes(files.config, length, 1, files.element)
        logits = max(0, sessions - TREE_ROWS) * files.config.vocab_size * (files.element + 4)
        # Of the kernels' room, which the plan has for one conversation's.
        more = scratch_bytes(files, how, max(sessions, TREE_ROWS)) - scratch_bytes(files, how)
        return sessions * kv + pass_bytes(files, padded(rows(sessions)), 0) + logits + more + KERNELS_BYTES

    wanted = min(MAX_SESSIONS, len(left))
    target, _, sessions = open_beside(
        files, engine, device, wanted, 1, nbytes, rows, progress, lambda sessions: max(sessions, TREE_ROWS)
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
        Replies(LocalVerifier(target), eos, sessions, length, options).run(left, done)
    finally:
        save()  # also what a Ctrl-C leaves
        target.weights.close()
