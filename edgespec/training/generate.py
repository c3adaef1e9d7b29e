"""The target's own replies as training data: many conversations in one pass, resumable.

A streamed target reads its layers once a pass, so the passes carry as many conversations as the ledger has KV
memory for, and new ones join as others end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import torch

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.core.acceptance import make_acceptance
from edgespec.core.passes import LocalVerifier
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.tree import TokenTree
from edgespec.core.verify import Verifier
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.base import TREE_ROWS, Seat
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.needs import cache_bytes
from edgespec.training.corpus import Sample
from edgespec.training.data import Shards, padded
from edgespec.training.target import KERNELS_BYTES, open_beside, pass_bytes

MAX_SESSIONS = TREE_ROWS  # rows that the ledger has logits for
PREFILL_ROWS = 1024  # of the prompts that join in one pass
SAVE_SECONDS = 60.0


@dataclass
class _Reply:
    prompt: int  # its index
    start: int  # its length
    tokens: list[int]  # of both
    seat: Seat
    noise: Noise = field(repr=False)


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
        self.verifier = verifier
        self.eos = eos
        self.sessions = sessions
        self.length = length
        self.sampler, self.seed = Sampler(options), options.seed
        self.acceptance = make_acceptance(None, options)

    def run(self, prompts: Sequence[tuple[int, list[int]]], done: Callable[[int, Sample], None]) -> None:
        """`prompts`: (index, tokens); each shorter than `length`."""
        waiting = list(reversed(prompts))
        active: list[_Reply] = []
        while waiting or active:
            if waiting and (not active or (self.sessions - len(active)) * 4 >= self.sessions):
                active += self._join(waiting, self.sessions - len(active))
            else:
                self._go_on(active)
            for reply in active:
                if self._ended(reply):
                    done(reply.prompt, Sample.behind(reply.tokens, reply.start))
            active = [reply for reply in active if not self._ended(reply)]

    def _ended(self, reply: _Reply) -> bool:
        return reply.tokens[-1] in self.eos or len(reply.tokens) >= self.length

    def _join(self, waiting: list[tuple[int, list[int]]], most: int) -> list[_Reply]:
        """The next prompts that one pass has room for, each with its reply's first token."""
        joined: list[_Reply] = []
        rows = 0
        while waiting and len(joined) < most and (not joined or rows + len(waiting[-1][1]) <= PREFILL_ROWS):
            index, tokens = waiting.pop()
            rows += len(tokens)
            seat = self.verifier.new_seat(self.length, slots=1)
            noise = Noise((self.seed + index) % 2**63)
            joined.append(_Reply(index, len(tokens), list(tokens), seat, noise))
        logits = self.verifier.prefill([(reply.seat, reply.tokens) for reply in joined])
        for reply, row in zip(joined, logits, strict=True):
            reply.tokens.append(self.sampler.pick(row, reply.noise, reply.start))
        return joined

    def _go_on(self, replies: Sequence[_Reply]) -> None:
        """One more token for each, in one pass."""
        trees = [(reply.seat, TokenTree.root(reply.tokens[-1]), reply.noise) for reply in replies]
        outcomes = self.verifier.verify(trees, self.acceptance)
        for reply, outcome in zip(replies, outcomes, strict=True):
            reply.tokens += outcome.tokens


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
        kv = cache_bytes(files.config, length, 1, files.element)
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
        Replies(LocalVerifier(target), eos, sessions, length, options).run(left, done)
    finally:
        save()  # also what a Ctrl-C leaves
        target.weights.close()
