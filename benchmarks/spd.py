"""What should the tracks of an SPD draft cost, by the number of workers? Mirror-SD's latency model.

    python -m benchmarks.spd --model edgespec/demo_model --alpha 5e-5 --gbits 120

Nothing is measured: these are the equations of the paper's Appendix C, with the link, the memory and the
target that are given. Two drafts: the paper's (F.2: 0.6 billion parameters, 16 layers, 8 shards of 256), and
what `train spd` makes of MODEL by default, in as many tracks as workers.

    words        of a collective: B S H / G in the paper, of a worker's own shard; in `track_group.py` B S H,
                 as each worker sends the whole state with its own shards in it
    two syncs    T_draft-step^comm = 2 T_allreduce(M; G), and T_allreduce = alpha log2 G + beta M
    per layer    what Megatron's two collectives a layer would take instead
    step         u + s: the weights that a worker reads, over its bandwidth, and the two syncs
    window       J = ceil(gamma / eta) steps, T_draft^gen
    hidden       of it, behind the target's layers after the early exit
    T_Mirror     Equations 10 and 14, without rendezvous; over SD: T_SD / T_Mirror, of the same drafts
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from math import ceil, log2
from pathlib import Path

from benchmarks.common import numbers
from benchmarks.tables import Report
from edgespec.apps.common import demo_model
from edgespec.control.overlap import Mirrored
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.spd import SpdShape
from edgespec.runtimes.torch.trained_files import parameter_bytes
from edgespec.training.options import SpdOptions
from edgespec.training.spd import SpdRecipe

ELEMENT = 2  # bytes of a word, bf16


@dataclass(frozen=True)
class Link:
    """Between workers. alpha: seconds a hop. beta: seconds a word."""

    alpha: float
    beta: float

    def all_reduce(self, words: float, workers: int) -> float:
        """Appendix C: T_allreduce(M; G) = alpha log G + beta M seconds; one worker has nobody to meet."""
        return self.alpha * log2(workers) + self.beta * words if workers > 1 else 0.0


@dataclass(frozen=True)
class Draft:
    """width: H_D. sharded, shared: bytes of weights that tracks share out, and that each worker reads.
    whole: collectives are of the whole state, not of a worker's shard."""

    layers: int
    width: int
    sharded: int
    shared: int = 0
    whole: bool = False

    def words(self, rows: int, workers: int) -> float:
        """Of a collective, for so many rows (B S): M_D."""
        return rows * self.width / (1 if self.whole else workers)

    def syncs(self, rows: int, workers: int, link: Link) -> float:
        """Seconds of a step's two, however many layers (Appendix C, T_draft-step^comm)."""
        return 2 * link.all_reduce(self.words(rows, workers), workers)

    def per_layer(self, rows: int, workers: int, link: Link) -> float:
        """Seconds of two collectives a layer, as the target's (Appendix C, T_target^comm)."""
        return self.layers * self.syncs(rows, workers, link)

    def step(self, rows: int, workers: int, link: Link, bandwidth: float) -> float:
        """Seconds u + s: reading weights, at so many bytes a second, and synchronisation."""
        reading = (self.sharded / workers + self.shared) / bandwidth
        return reading + self.syncs(rows, workers, link)


PAPER = Draft(layers=16, width=2048, sharded=600_000_000 * ELEMENT)


def ours(config: ModelConfig, shape: SpdShape, workers: int) -> Draft:
    """In as many tracks as workers: norms, streams and the target's head are each worker's."""
    whole = SpdShape(shape.layers, shape.streams, shape.stream_layers, shape.mlp, tracks=workers)
    shapes = whole.parameters(config)
    tracks = {name: size for name, size in shapes.items() if name.startswith("tracks.")}
    sharded = parameter_bytes(tracks, ELEMENT)
    head = config.hidden_size * config.vocab_size * ELEMENT
    shared = parameter_bytes(shapes, ELEMENT) - sharded + head
    return Draft(shape.layers, config.hidden_size, sharded, shared, whole=True)


def row(name: str, draft: Draft, workers: int, args: argparse.Namespace) -> dict[str, str]:
    link = Link(args.alpha, ELEMENT * 8 / (args.gbits * 1e9))
    step = draft.step(args.rows, workers, link, args.bandwidth * 1e9)
    window = ceil(args.window / args.emitted) * step
    law = Mirrored(args.target / 2, args.target / 2, window)
    return {
        "draft": name,
        "G": str(workers),
        "words": f"{draft.words(args.rows, workers):.0f}",
        "two syncs, µs": f"{draft.syncs(args.rows, workers, link) * 1e6:.1f}",
        "per layer, µs": f"{draft.per_layer(args.rows, workers, link) * 1e6:.1f}",
        "step, ms": f"{step * 1e3:.3f}",
        "window, ms": f"{window * 1e3:.2f}",
        "hidden": f"{min(window, law.behind) / window:.0%}",
        "T_Mirror, ms": f"{law.step * 1e3:.1f}",
        "over SD": f"{law.serial / law.step:.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=demo_model())
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--alpha", type=float, default=5e-5, help="seconds of a hop; the paper says none")
    parser.add_argument("--gbits", type=float, default=120.0, help="of a link a second; F.1: Thunderbolt 5")
    parser.add_argument("--bandwidth", type=float, default=100.0, help="GB/s at which a worker reads weights")
    parser.add_argument("--rows", type=int, default=4, help="B S: rows of a step, with their streams")
    parser.add_argument("--window", type=int, default=7, help="gamma: tokens of a draft (section 4)")
    parser.add_argument("--emitted", type=float, default=2.0, help="eta: tokens of a step")
    parser.add_argument(
        "--target", type=float, default=0.04, help="seconds of a verification; half is behind"
    )
    parser.add_argument("--json", type=Path, help="where to keep the table")
    args = parser.parse_args()
    files = describe_model(args.model)
    shape = SpdRecipe(files, replace(SpdOptions(), tracks=1)).shape
    report = Report("Mirror-SD's latency model of SPD drafts")
    for workers in args.workers:
        report.add(row("the paper's", PAPER, workers, args))
    for workers in args.workers:
        report.add(row(f"of {args.model.name}", ours(files.config, shape, workers), workers, args))
    report.finish(args.json)


if __name__ == "__main__":
    main()
