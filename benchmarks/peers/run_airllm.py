"""Plain greedy decoding by AirLLM on the CPU. Its first run splits the model into one file a layer."""

from __future__ import annotations

import sys

import torch
from airllm import AutoModel
from arm import Clock, arguments


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--split-to", required=True, help="where AirLLM keeps its copy of the model")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prompt = torch.tensor([[int(i) for i in args.prompt_ids.split(",")]])
    clock = Clock()
    model = AutoModel.from_pretrained(args.model, device="cpu", layer_shards_saving_path=args.split_to)
    if args.tokens == 0:  # only split
        return
    ids = prompt
    with torch.no_grad():
        cache = None
        while len(clock.tokens) < args.tokens:
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            ids = out.logits[:, -1:].argmax(-1)
            clock.token(int(ids))
    clock.report(split_to=args.split_to, prefetching=True, cached=cache is not None)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
