"""From text on disk to token shards: the text as it is, or the target's own replies to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import OptionError
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.text.tokenizer import Tokenizer
from edgespec.training.corpus import corpus_digest, passages, prompts, text_files, text_samples
from edgespec.training.data import Shards
from edgespec.training.generate import generate_replies

OPENING = 32  # tokens of plain text that the target continues when it makes its own data


@dataclass(frozen=True)
class Making:
    """What is made of a text."""

    length: int  # tokens of a sequence
    generate: int  # replies of the target itself, instead of the text as it is; 0 = the text
    temperature: float  # of those replies
    seed: int  # of the choice of prompts, and of those replies


class DataMaker:
    """Writes the token shards of one source of text, unless they are there."""

    def __init__(
        self,
        files: ModelFiles,
        tokenizer: Tokenizer,
        making: Making,
        engine: EngineOptions,
        device: torch.device,
        progress: ProgressCallback | None,
    ) -> None:
        self.files, self.tokenizer, self.making = files, tokenizer, making
        self.engine, self.device, self.progress = engine, device, progress
        self.length = min(making.length, files.config.max_context)

    def check(self, path: Path) -> None:
        """Raises OptionError for text that cannot be read to its end: before replies take days to make."""
        for _ in passages(text_files(path)):
            pass

    def __call__(self, path: Path, directory: Path, most: int | None = None) -> None:
        """`most`: sequences of generated replies that will do."""
        found = text_files(path)
        o = self.making if most is None else replace(self.making, generate=min(self.making.generate, most))
        source = {"text": corpus_digest(found), "target": self.files.digest, "length": self.length}
        if o.generate:
            source |= {"generate": o.generate, "temperature": o.temperature, "seed": o.seed}
        shards = Shards(directory)
        if shards.begin(source):
            return
        if o.generate:
            asked = list(self._prompts(found, o.generate))
            eos = frozenset(self.files.config.eos) | frozenset(self.tokenizer.eos)
            sampling = GenerationOptions(temperature=o.temperature, seed=o.seed)
            generate_replies(
                self.files,
                self.engine,
                self.device,
                eos,
                asked,
                shards,
                self.length,
                sampling,
                self.progress,
            )
        else:
            self._write_text(found, shards)
        if not shards.paths():
            shards.forget()
            unusable = f" or no prompts of at most {self.length // 2} tokens" if o.generate else ""
            raise OptionError(f"{path} has no text to train on{unusable}")
        shards.finish(source)

    def _write_text(self, found: list[Path], shards: Shards) -> None:
        shards.clear()  # cheaper to make again than to go on with
        samples = (s for p in passages(found) for s in text_samples(p, self.tokenizer, self.length))
        try:
            shards.write_all(samples)
        except OptionError:
            shards.forget()  # the text will be mended, and is then another
            raise

    def _prompts(self, found: list[Path], most: int) -> Iterator[list[int]]:
        """At most so many of the data's prompts, chosen at random, in the data's order."""
        longest = max(1, self.length // 2)
        every = [
            prompt
            for passage in passages(found)
            for prompt in prompts(passage, self.tokenizer, longest, min(OPENING, longest))
        ]
        chosen = np.random.default_rng(self.making.seed).permutation(len(every))[:most]
        return (every[i] for i in sorted(chosen.tolist()))
