"""A deep model from a shallow packed one: its layers again and again, each byte on disk once.

    python -m benchmarks.models.repeat_layers 70b --distinct 4   # 16 GB of disk while it is made, 8 GB after

The weight files get one hard link for each repetition, and the manifest's chunk table names another
repetition's tensors in each. To whatever reads the store it is an 80-layer model of 138 GB; its text is
nonsense, as with all random weights, but bytes, shapes and arithmetic are those of the real size.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from benchmarks.common import pack
from benchmarks.models.make_model import ensure_model
from benchmarks.models.shapes import SHAPES, get_shape, models_dir


def renamed(name: str, shift: int) -> str:
    """model.layers.3.x -> model.layers.{3 + shift}.x."""
    return re.sub(r"^model\.layers\.(\d+)\.", lambda m: f"model.layers.{int(m[1]) + shift}.", name)


def repeat_layers(source: Path, target: Path, layers: int) -> None:
    """Write `target`, a packed directory of `layers` layers, over the files of `source`, one with fewer."""
    manifest: dict[str, Any] = json.loads((source / "manifest.json").read_text())
    weights = manifest["sets"]["target"]
    depth, files = weights["layers"], manifest["files"]
    if layers % depth:
        raise SystemExit(f"{layers} layers are not a multiple of the {depth} in {source}")
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    chunks: list[Any] = []
    small = [record for record in weights["small"] if not record["tensor"].startswith("model.layers.")]
    linked: list[Any] = []
    for copy in range(layers // depth):
        shift, first = copy * depth, copy * len(files)
        for file in files:
            name = file["name"] if copy == 0 else f"{copy:03}-{file['name']}"
            os.link(source / file["name"], partial / name)
            linked.append({**file, "name": name})
        for chunk in weights["chunks"]:
            if chunk["layer"] < depth:
                pieces = [{**piece, "tensor": renamed(piece["tensor"], shift)} for piece in chunk["pieces"]]
                place = {"layer": chunk["layer"] + shift, "file": chunk["file"] + first}
                chunks.append({**chunk, **place, "pieces": pieces})
        for record in weights["small"]:
            if record["tensor"].startswith("model.layers."):
                place = {"tensor": renamed(record["tensor"], shift), "file": record["file"] + first}
                small.append({**record, **place})
    head = [{**chunk, "layer": layers} for chunk in weights["chunks"] if chunk["layer"] == depth]
    chunks += head
    weights.update(chunks=chunks, small=small, layers=layers)
    manifest["sets"] = {"target": weights}
    manifest["files"] = linked
    manifest["config"]["layers"] = layers
    (partial / "manifest.json").write_text(json.dumps(manifest))
    for name in manifest["beside"]:
        shutil.copy(source / name, partial / name)
    if "config.json" in manifest["beside"]:
        config = {**json.loads((partial / "config.json").read_text()), "num_hidden_layers": layers}
        (partial / "config.json").write_text(json.dumps(config, indent=1))
    partial.rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--distinct", type=int, default=4, help="layers that are on disk")
    args = parser.parse_args()
    target = models_dir() / f"{args.shape}-packed-{args.distinct}-repeated"
    if not target.exists():
        source = ensure_model(args.shape, args.distinct)
        packed = pack(source, models_dir() / f"{args.shape}-{args.distinct}layers-packed")
        repeat_layers(packed, target, get_shape(args.shape).layers)
        shutil.rmtree(packed)  # the links keep the data
    print(target)


if __name__ == "__main__":
    main()
