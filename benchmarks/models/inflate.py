"""Enlarge a small trained Llama-style model to a big shape without changing what it computes.

    python -m benchmarks.models.inflate edgespec/demo_model models/7b-inflated --shape 7b
    python -m benchmarks.models.inflate edgespec/demo_model models/7b-inflated --shape 7b \\
        --adapters edgespec/demo_model/cascade models/7b-adapters

With --adapters what was trained for the small model, a cascade's adapters or a streaming drafter, is written
for the inflated one instead.

How, and why nothing is changed by it: `inflation.py`. A streaming drafter keeps its number of layers; they
get the big model's width, and MLPs as much wider as its own.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from msgspec import structs
from torch import Tensor

from benchmarks.models.checkpoint import made_whole, write_checkpoint
from benchmarks.models.enlarge import FILLED, SILENT, Matrix, Spread
from benchmarks.models.inflation import Inflation, Source
from benchmarks.models.shapes import SHAPES, Shape, get_shape
from edgespec.kernels.low_bit import GROUP
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.trained import trained_kind
from edgespec.runtimes.torch.adapter import Adapter
from edgespec.runtimes.torch.adapter_files import Role, describe_adapters, save_adapters
from edgespec.runtimes.torch.streaming import KIND, Streaming, StreamingShape, streaming_shapes
from edgespec.runtimes.torch.trained_files import describe_module, save_module

BESIDE = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")


def inflate(source: Path, directory: Path, shape: Shape, seed: int = 0) -> None:
    """Write the big model to `directory`; it appears there only when it is complete.

    Raises SystemExit when the shapes do not go together, or the disk is too full.
    """
    inflation = Inflation(Source(source), shape, seed)

    def make(partial: Path) -> None:
        partial.mkdir()
        write_checkpoint(partial, shape, inflation.config(), inflation.tensor)
        for beside in BESIDE:
            if (source / beside).exists():
                shutil.copy(source / beside, partial / beside)

    made_whole(directory, inflation.dtype.itemsize * shape.parameters(), make)


def inflate_trained(small: Path, trained: Path, big: Path, shape: Shape, out: Path) -> None:
    """Write what was trained for the model `small` for `big`, its inflation to `shape` at any precision, to
    `out`.

    Raises as `describe_adapters` or `describe_module`.
    """
    files, target, inflation = describe_model(small), describe_model(big), Inflation(Source(small), shape)
    write = _inflate_streaming if trained_kind(trained) == KIND else _inflate_adapters
    write(inflation, trained, files, target, out)


def _inflate_adapters(
    inflation: Inflation, adapters: Path, files: ModelFiles, target: ModelFiles, out: Path
) -> None:
    found: list[tuple[Role, Adapter, dict[str, object]]] = []
    for file in describe_adapters(adapters, files):
        small_one = file.open(files.config, inflation.dtype)
        last = next(layer for layer, own in inflation.layers.items() if own == file.depth - 1)
        depth = max(last + 1, file.depth * target.config.layers // files.config.layers)
        adapter = Adapter(target.config, depth, inflation.dtype).requires_grad_(False)
        for name, parameter in small_one.named_parameters():
            getattr(adapter, name).copy_(enlarged(inflation, name, parameter.detach()))
        found.append((file.role, adapter, {**file.training, "inflated from depth": file.depth}))
    save_adapters(out, target, found, inflation.dtype)


def _inflate_streaming(
    inflation: Inflation, trained: Path, files: ModelFiles, target: ModelFiles, out: Path
) -> None:
    found = describe_module(trained, KIND, StreamingShape, streaming_shapes, files)
    small_one = Streaming(files.config, found.shape, inflation.dtype)
    found.read(small_one)
    narrow, wide = files.config.intermediate_size, target.config.intermediate_size
    mlp = found.shape.mlp or narrow
    shape = structs.replace(found.shape, mlp=-(-mlp * wide // narrow // GROUP) * GROUP)
    module = Streaming(target.config, shape, inflation.dtype).requires_grad_(False)
    for name, parameter in module.named_parameters():
        ours = small_one.get_parameter(name)
        if name == "stream_proj":
            parameter.copy_(_between_states(inflation, ours))
        elif name == "stream_bias":
            parameter.zero_()[:, : ours.shape[1]] = ours
        else:
            parameter.copy_(enlarged(inflation, name, ours, (mlp, shape.mlp or wide)))
    save_module(out, KIND, shape, module, target, found.training, inflation.dtype)


def _between_states(inflation: Inflation, weights: Tensor) -> Tensor:
    """A matrix that makes a residual state of another, no norm between: added channels stay 0, and the
    guards as they are."""
    channels = (inflation.small.hidden_size, inflation.big.hidden)
    read, written = Spread.first(*channels, FILLED), Spread.first(*channels, SILENT)
    whole = Matrix(weights, written, read, inflation.generator).whole()
    if inflation.guard:
        whole[:, -2:] = 0
        whole[-2:] = torch.eye(channels[1], dtype=whole.dtype)[-2:]
    return whole


def enlarged(
    inflation: Inflation, name: str, parameter: Tensor, neurons: tuple[int, int] | None = None
) -> Tensor:
    """One parameter of what was trained, in the big model's shape; `neurons`: see `Inflation.projection`."""
    if parameter.dim() == 1:
        return inflation.norm(parameter, before_head=name == "norm")
    return inflation.projection(name.split(".")[-1], parameter, neurons=neurons).whole()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", type=Path, help="Hugging Face directory of the small model")
    parser.add_argument(
        "directory", type=Path, help="the inflated one: to write, or, with --adapters, written"
    )
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument(
        "--adapters",
        type=Path,
        nargs=2,
        metavar=("SMALL", "OUT"),
        help="what was trained for the small model; where to write",
    )
    args = parser.parse_args()
    shape = get_shape(args.shape)
    if args.adapters:
        adapters, out = args.adapters
        inflate_trained(args.source, adapters, args.directory, shape, out)
        print(f"{out}: {adapters} for {args.directory}")
        return
    if args.directory.exists():
        raise SystemExit(f"{args.directory} exists; remove it or choose another place")
    inflate(args.source, args.directory, shape)


if __name__ == "__main__":
    main()
