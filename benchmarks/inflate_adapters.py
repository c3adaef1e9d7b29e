"""Enlarge a small model's cascade adapters with it, so that the big model drafts what the small one does.

    python benchmarks/inflate_adapters.py edgespec/demo_model ADAPTERS models/7b-inflated models/7b-adapters

An adapter is an attention block and two norms, so `inflate.py`'s construction fits it. A small model's layers
lie evenly in the big one's depth, and an adapter behind m of n layers lies behind about m L / n of L: the
residual stream there is the one behind the m-th real layer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common  # noqa: F401 (puts this checkout on the path)
from inflate import Inflation, Source
from shapes import SHAPES, Shape, get_shape
from torch import Tensor

from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.adapter import Adapter
from edgespec.runtimes.torch.adapter_files import Role, describe_adapters, save_adapters


def inflate_adapters(small: Path, adapters: Path, big: Path, shape: Shape, out: Path) -> None:
    """Write the adapters of the model `small` for `big`, its inflation to `shape` at any
    precision, to `out`."""
    files, target = describe_model(small), describe_model(big)
    inflation = Inflation(Source(small), shape)
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


def enlarged(inflation: Inflation, name: str, parameter: Tensor) -> Tensor:
    """One parameter of an adapter, in the big model's shape."""
    if parameter.dim() == 1:
        return inflation.norm(parameter, before_head=name == "norm")
    matrix = inflation.projection(name, parameter)
    return matrix.block(0, len(matrix.rows.places))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("small", type=Path, help="the small model")
    parser.add_argument("adapters", type=Path, help="its adapters")
    parser.add_argument("big", type=Path, help="its inflation")
    parser.add_argument("out", type=Path, help="directory to write")
    parser.add_argument("--shape", choices=SHAPES, default="7b", help="of the inflation")
    args = parser.parse_args()
    inflate_adapters(args.small, args.adapters, args.big, get_shape(args.shape), args.out)
    print(f"{args.out}: adapters of {args.adapters} for {args.big}")


if __name__ == "__main__":
    main()
