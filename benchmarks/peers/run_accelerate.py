"""Greedy decoding by transformers with accelerate's disk offload, plain or with its assisted generation.

Without `--memory` every layer is on disk (`disk_offload`); with it, `max_memory` keeps in memory what fits
in that many bytes less a reserve for the interpreter, one layer in flight and activations. Drafts come from
a small model in memory (`assistant_model`), or from the text so far (`prompt_lookup_num_tokens`); the
embedding is then in memory, too, as assisted generation asks it for the model's device.
"""

from __future__ import annotations

import tempfile

import torch
from arm import THREADS, Clock, arguments
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

RESERVE = 1_500_000_000
MEMORY = ("model.embed_tokens", "model.rotary_emb")  # where drafts are verified; a tied head is the first
DISK = ("model.layers", "model.norm")
LOOKED_UP = 8  # tokens proposed a pass by prompt lookup, which has no default


class Stamp(BaseStreamer):  # type: ignore[misc]
    """Hands each new token to the clock; the first call is the prompt, others may bring several."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.prompt_seen = clock, False

    def put(self, value: torch.Tensor) -> None:
        for token in value.flatten().tolist() if self.prompt_seen else []:
            self.clock.token(token)
        self.prompt_seen = True

    def end(self) -> None:
        pass


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--memory", type=int, help="bytes the process may use")
    parser.add_argument("--draft-model", help="a small model with the same tokenizer")
    parser.add_argument("--prompt-lookup", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    prompt = torch.tensor([args.prompt_ids])
    clock = Clock()
    placement: dict[str, object] = {"device_map": {"": "disk"}}
    if args.draft_model or args.prompt_lookup:
        head = "cpu" if AutoConfig.from_pretrained(args.model).tie_word_embeddings else "disk"
        held, read = dict.fromkeys(MEMORY, "cpu"), dict.fromkeys(DISK, "disk")
        placement = {"device_map": {**held, **read, "lm_head": head}}
    if args.memory is not None:
        placement = {"device_map": "auto", "max_memory": {"cpu": max(args.memory - RESERVE, 0)}}
    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.bfloat16, offload_folder=folder, offload_state_dict=False, **placement
        )
        drafts: dict[str, object] = {}
        if args.draft_model:
            small = AutoModelForCausalLM.from_pretrained(args.draft_model, dtype=torch.bfloat16)
            drafts = {"assistant_model": small}
        elif args.prompt_lookup:
            drafts = {"prompt_lookup_num_tokens": LOOKED_UP}
        asked = {"max_new_tokens": args.tokens, "do_sample": False, "streamer": Stamp(clock)}
        with torch.no_grad():
            model.generate(prompt, **asked, **drafts)
    clock.report()


if __name__ == "__main__":
    main()
