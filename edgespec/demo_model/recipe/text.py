"""The demo model's conversations as a text file, for whatever else is to be trained on them.

    python -m edgespec.demo_model.recipe.text demo.jsonl --conversations 20000
    python -m edgespec.demo_model.recipe.text held-out.jsonl --conversations 300 --held-out

Each line is {"messages": [...]}, as `edgespec train` reads it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import HELD_OUT, TRAINING, Split
from edgespec.demo_model.recipe.system import DIRECTED, directed
from edgespec.devices.files import replacing


def messages(seed: str, split: Split = TRAINING, system: bool = False) -> list[dict[str, str]]:
    """One conversation, with roles; `system`: with a system prompt."""
    out = []
    if system:
        prompt, exchanges = directed(seed, split)
        out.append({"role": "system", "content": prompt.text})
    else:
        exchanges = conversation(seed, split)
    for exchange in exchanges:
        out.append({"role": "user", "content": exchange.user})
        out.append({"role": "assistant", "content": exchange.reply})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Write conversations of the demo model's kind.")
    parser.add_argument("file", type=Path, help="JSON lines to write")
    parser.add_argument("--conversations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="what the demo model was not trained on")
    options = parser.parse_args()
    split = HELD_OUT if options.held_out else TRAINING
    with replacing(options.file) as partial, partial.open("w", encoding="utf-8") as out:
        for i in range(options.conversations):
            line = {"messages": messages(f"text {options.seed} {i}", split, i % DIRECTED == 0)}
            out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
