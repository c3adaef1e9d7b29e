"""Many replies at once: tokens a second of all together, with drafts and without, by how many they are.

    python -m benchmarks.batches [MODEL] --memory SIZE --batch 1,4,16,64 --drafters none,ngram --tokens 64

Every arm answers the same prompts, as many as its batch, greedily, and its texts are compared with the first
arm's. Of drafts are told

    accepted   tokens a tree gives beside its own one (mean accepted length), a
    nodes      of a tree beside its root, k, which is r2
    kappa      a * l_d / k, and r1, a / p: SpecFormer's measures, as `edgespec bench` has them
               (`apps/bench_drafts.py`)
    rows       of a pass without blocks of prompts; rho is where passes become bound by arithmetic, by what
               matmuls take here: measured first, where nobody has

all of them as means over trees, those without drafts among them. `over none` is the speed over the same batch
without drafts. With --matmuls, which takes as long again, each pass's matmuls are done once more behind it,
prompts' among them, and `of matmuls` is the speed over what they alone would allow.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import fmean
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import edgespec
from benchmarks.serving import QUESTIONS
from edgespec.apps.bench_drafts import Drafts
from edgespec.apps.common import demo_model
from edgespec.config import GenerationOptions
from edgespec.core.batch import Part
from edgespec.core.batcher import Batcher
from edgespec.core.schedule import Controller
from edgespec.core.trace import Cycle, Trace
from edgespec.runtimes.torch.matmuls import matmuls as measure_matmuls


@dataclass
class Seen:
    """The cycles of a run: trees as they were verified."""

    cycles: list[Cycle] = field(default_factory=list)

    def drafts(self) -> Drafts:
        drafts = Drafts()
        for one in self.cycles:
            drafts.add(one)
        return drafts

    @property
    def rows(self) -> float:
        """Of a pass; each tree of it counts."""
        rows = [len(c.tree) + c.outcome.beside for c in self.cycles if not c.outcome.prompts]
        return fmean(rows) if rows else 0.0


class Matmuls:
    """Of a run, done again without all else: by its engine's weights, with activations of the same shapes."""

    def __init__(self, engine: edgespec.Engine) -> None:
        self.weights, self.seconds = engine.target.weights, 0.0
        self._calls: list[tuple[Any, ...]] = []  # names, shape and type of x, exact, apart
        self._linear = self.weights.linear

    def __enter__(self) -> Matmuls:
        def linear(names: Any, x: Tensor, exact: bool, observer: Any = None, apart: Any = ()) -> Any:
            self._calls.append((names, x.shape, x.dtype, exact, apart))
            return self._linear(names, x, exact, observer, apart)

        self.weights.linear = linear  # type: ignore[method-assign]
        return self

    def __exit__(self, *exception: object) -> None:
        del self.weights.linear

    @torch.inference_mode()
    def again(self) -> None:
        """Those since the last time."""
        calls, self._calls = self._calls, []
        inputs = {(shape, dtype): torch.ones(shape, dtype=dtype) for _, shape, dtype, _, _ in calls}
        began = perf_counter()
        for names, shape, dtype, exact, apart in calls:
            self._linear(names, inputs[shape, dtype], exact, None, apart)
        self.seconds += perf_counter() - began
        self.weights.release()


class Answer:
    """A prompt's reply among others'; see `core.batcher.Member`."""

    def __init__(
        self,
        engine: edgespec.Engine,
        tokens: list[int],
        options: GenerationOptions,
        seen: Seen,
        controller: Controller | None = None,
        room: int = 0,
    ) -> None:
        """room: positions beyond the reply's end, for trees of a size that nobody adapts."""
        held = len(tokens) + (options.max_tokens or 0) + room
        self.session = engine.new_session(held, controller, Trace(cycle=seen.cycles.append))
        self.reply = self.session.new_reply(tokens, options)
        self.tokens: list[int] = []

    def ask(self) -> Part:
        return self.session.ask(self.reply)

    def answer(self, part: Part) -> bool:
        said = self.session.answer(self.reply, part)
        self.tokens += [response.token for response in said if response.token is not None]
        if self.reply.writer.finished:
            self.session.end(self.reply)
            self.session.close()
        return not self.reply.writer.finished


def run(
    model: str,
    batch: int,
    drafter: str,
    prompt: int | None,
    tokens: int,
    matmuls: bool,
    options: dict[str, Any],
) -> dict[str, Any]:
    """One arm, in an engine of its own. prompt: tokens that each question is repeated to; None = as it is.
    matmuls: do them again alone."""
    with edgespec.load(model, batch=batch, drafter=drafter, **options) as engine:
        prompts = [engine.encode(question) for question in islice(cycle(QUESTIONS), batch)]
        if prompt is not None:
            prompts = [list(islice(cycle(one), prompt)) for one in prompts]
        answer(engine, prompts, 4, Seen())  # what is measured at the first use
        seen = Seen()
        with Matmuls(engine) if matmuls else nullcontext() as alone:
            began = perf_counter()
            texts = answer(engine, prompts, tokens, seen, alone)
            seconds = perf_counter() - began - (alone.seconds if alone else 0.0)
        step, whole = sum(resident.nbytes for resident in engine.resident), engine.plan.table.nbytes
        drafts, rho = seen.drafts(), engine.plan.costs().redundancy
    measured: dict[str, Any] = {"accepted": drafts.a, "nodes": drafts.k, "rows": seen.rows, "rho": rho}
    measured |= {
        "kappa": drafts.kappa or 0.0,
        "r1": drafts.r1(step, whole) or 0.0,
        "alone": alone and alone.seconds / seconds,
    }
    return {"tokens_per_second": sum(map(len, texts)) / seconds, "texts": texts} | measured


def answer(
    engine: edgespec.Engine,
    prompts: Sequence[list[int]],
    tokens: int,
    seen: Seen,
    alone: Matmuls | None = None,
) -> list[list[int]]:
    options = GenerationOptions(max_tokens=tokens, ignore_eos=True)
    answers = [Answer(engine, engine.encode(prompt), options, seen) for prompt in prompts]
    batcher = Batcher[Answer](engine.verifier)
    for each in answers:
        batcher.join(each)
    while len(batcher):
        for _, error in batcher.step():
            if error is not None:
                raise error
        if alone is not None:
            alone.again()
    return [each.tokens for each in answers]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default=str(demo_model()))
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", default="1,4,16,64")
    parser.add_argument("--drafters", default="none,ngram")
    parser.add_argument("--draft-model")
    parser.add_argument("--prompt", type=int, help="tokens; None: the questions as they are")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--matmuls", action="store_true", help="compare with the run's matmuls alone")
    asked = parser.parse_args()
    options = {"memory": asked.memory, "context": asked.context}
    measure_matmuls()
    heads = "batch | drafter | tokens/s | accepted | nodes | kappa | r1 | rows | rho | over none | of matmuls"
    print(f"| {heads} |\n" + "|---" * 11 + "|")
    for batch in map(int, asked.batch.split(",")):
        first: dict[str, Any] | None = None
        for drafter in asked.drafters.split(","):
            files = {"draft_model": asked.draft_model} if "model" in drafter else {}
            row = run(asked.model, batch, drafter, asked.prompt, asked.tokens, asked.matmuls, options | files)
            texts = row.pop("texts")
            first = first or row | {"texts": texts}
            if texts != first["texts"]:
                raise SystemExit(f"batch {batch}: {drafter} says something else than without")
            alone = "" if row["alone"] is None else f"{row['alone']:.2f}"
            row["over"] = row["tokens_per_second"] / first["tokens_per_second"]
            print(
                f"| {batch} | {drafter} | {row['tokens_per_second']:.4g} | {row['accepted']:.2f} | "
                f"{row['nodes']:.2f} | {row['kappa']:.2f} | {row['r1']:.2f} | {row['rows']:.1f} | "
                f"{row['rho'] or 0:.1f} | {row['over']:.2f} | {alone} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
