"""Many replies at once: tokens a second of all together, with drafts and without, by how many they are.

    python -m benchmarks.batches [MODEL] --memory SIZE --batch 1,4,16,64 --drafters none,ngram --tokens 64

Every arm answers the same prompts, as many as its batch, greedily, and its texts are compared with the first
arm's. Of drafts are told

    accepted   tokens a tree gives beside its own one (mean accepted length), a
    nodes      of a tree beside its root, k
    kappa      a * l_d / k (SpecFormer's Equation 5; l_d: the depth of the trees that have drafts): of a
               chain, which has as many nodes as levels, it is a
    rows       of a pass without blocks of prompts

all of them as means over trees (rows: passes), those without drafts among them, as the pass may have room for
none. The last column is the speed over the same batch without drafts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import fmean
from time import perf_counter
from typing import Any

import edgespec
from benchmarks.serving import QUESTIONS
from edgespec.apps.common import demo_model
from edgespec.core.batch import Part, Verification


@dataclass
class Seen:
    """Of the passes of a run: trees that were verified, and rows."""

    accepted: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, parts: Sequence[Part]) -> None:
        trees = [part for part in parts if isinstance(part, Verification) and part.outcome is not None]
        for part in trees:
            assert part.outcome is not None
            self.accepted.append(part.outcome.accepted)
            self.nodes.append(len(part.tree) - 1)
            if self.nodes[-1]:
                self.depths.append(int(part.tree.depths.max()))
        if len(trees) == len(parts):
            self.rows.append(sum(map(len, trees)))

    @property
    def kappa(self) -> float:
        """Equation 5; 0 without drafts."""
        return fmean(self.accepted) * fmean(self.depths) / fmean(self.nodes) if self.depths else 0.0


def run(model: str, batch: int, drafter: str, tokens: int, options: dict[str, Any]) -> dict[str, Any]:
    """One arm, in an engine of its own."""
    prompts = list(islice(cycle(QUESTIONS), batch))
    with edgespec.load(model, batch=batch, drafter=drafter, **options) as engine:
        answer(engine, prompts, 4)  # what is measured at the first use
        seen, compute = Seen(), engine.verifier.compute

        def computing(parts: Sequence[Part]) -> Sequence[Part]:
            taken = compute(parts)
            seen.add(taken)
            return taken

        engine.verifier.compute = computing  # type: ignore[method-assign]
        began = perf_counter()
        texts = answer(engine, prompts, tokens)
        seconds = perf_counter() - began
    return {
        "batch": batch,
        "drafter": drafter,
        "tokens_per_second": sum(map(len, texts)) / seconds,
        "accepted": fmean(seen.accepted),
        "nodes": fmean(seen.nodes),
        "kappa": seen.kappa,
        "rows": fmean(seen.rows),
        "texts": texts,
    }


def answer(engine: edgespec.Engine, prompts: Sequence[str], tokens: int) -> list[list[int]]:
    said: dict[int, list[int]] = {}
    for place, reply in edgespec.generate_batch(engine, prompts, max_tokens=tokens, ignore_eos=True):
        if isinstance(reply, edgespec.EdgeSpecError):
            raise reply
        said[place] = reply.tokens
    return [said[place] for place in range(len(prompts))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default=str(demo_model()))
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", default="1,4,16,64")
    parser.add_argument("--drafters", default="none,ngram")
    parser.add_argument("--draft-model")
    parser.add_argument("--tokens", type=int, default=64)
    asked = parser.parse_args()
    options = {"memory": asked.memory, "context": asked.context}
    print("| batch | drafter | tokens/s | accepted | nodes | kappa | rows | over none |\n" + "|---" * 8 + "|")
    for batch in map(int, asked.batch.split(",")):
        first: dict[str, Any] | None = None
        for drafter in asked.drafters.split(","):
            files = {"draft_model": asked.draft_model} if "model" in drafter else {}
            row = run(asked.model, batch, drafter, asked.tokens, options | files)
            texts = row.pop("texts")
            first = first or row | {"texts": texts}
            if texts != first["texts"]:
                raise SystemExit(f"batch {batch}: {drafter} says something else than {first['drafter']}")
            row["over"] = row["tokens_per_second"] / first["tokens_per_second"]
            print(
                f"| {batch} | {drafter} | {row['tokens_per_second']:.4g} | {row['accepted']:.2f} | "
                f"{row['nodes']:.2f} | {row['kappa']:.2f} | {row['rows']:.1f} | {row['over']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
