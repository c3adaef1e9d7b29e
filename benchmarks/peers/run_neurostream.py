"""Plain greedy decoding by neurostream from a GGUF file.

Its `mem_budget` bounds what is read at a time, and `ram_budget` what stays in memory: what the dial leaves
beside a reserve for the interpreter, those reads, activations and weights made fp32. It knows Qwen3 and not
Llama, which is the same without norms of heads, under other names, with neighbours rotated as pairs.
"""

from __future__ import annotations

import torch
from arm import THREADS, Clock, arguments
from neurostream import NeuroStream
from neurostream.format.gguf import GGUFFile
from neurostream.model import qwen3

READS = 256_000_000  # bytes under way
RESERVE = 1_200_000_000


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [heads, n, d], cos and sin: [n, d], whose halves are the same."""
    half = x.shape[-1] // 2
    cos, sin = cos[:, :half], sin[:, :half]
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def take_llama() -> None:
    parse = GGUFFile._parse

    def renamed(file: GGUFFile) -> None:
        parse(file)
        if file.arch() == "llama":
            file.metadata = {key.replace("llama.", "qwen3.", 1): v for key, v in file.metadata.items()}
            file.metadata["general.architecture"] = "qwen3"

    GGUFFile._parse = renamed
    qwen3.apply_rope = rotate_pairs


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--memory", type=int, required=True, help="bytes the process may use")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    take_llama()
    clock = Clock()
    resident = max(args.memory - READS - RESERVE, 0)
    with NeuroStream.load(args.model, mem_budget=READS, ram_budget=resident, device="cpu") as engine:
        cache = qwen3.KVCache(engine.cfg.n_layer)
        pending = args.prompt_ids
        with torch.no_grad():
            while len(clock.tokens) < args.tokens:
                logits = engine.model.forward(torch.tensor(pending), cache, start_pos=cache.length)
                pending = [int(logits[-1].argmax())]
                clock.token(pending[0])
    clock.report()


if __name__ == "__main__":
    main()
