"""Plain greedy decoding by AirLLM on the CPU. Its first run splits the model into one file a layer."""

from __future__ import annotations

import torch
from airllm import AutoModel
from arm import THREADS, Clock, arguments


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--split-to", required=True, help="where AirLLM keeps its copy of the model")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    clock = Clock()
    model = AutoModel.from_pretrained(args.model, device="cpu", layer_shards_saving_path=args.split_to)
    if args.tokens == 0:  # only split
        return
    ids = torch.tensor([args.prompt_ids])
    with torch.no_grad():
        cache = None
        while len(clock.tokens) < args.tokens:
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            ids = out.logits[:, -1:].argmax(-1)
            clock.token(int(ids))
    clock.report()


if __name__ == "__main__":
    main()
