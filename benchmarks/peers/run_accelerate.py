"""Plain greedy decoding by transformers with accelerate's disk offload.

Without `--memory` every layer is on disk (`disk_offload`); with it, `max_memory` keeps in memory what fits
in that many bytes less a reserve for the interpreter, one layer in flight and activations.
"""

from __future__ import annotations

import tempfile

import torch
from arm import THREADS, Clock, arguments
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

RESERVE = 1_500_000_000


class Stamp(BaseStreamer):  # type: ignore[misc]
    """Hands each new token to the clock; the first call is the prompt."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.prompt_seen = clock, False

    def put(self, value: torch.Tensor) -> None:
        if self.prompt_seen:
            self.clock.token(int(value.flatten()[-1]))
        self.prompt_seen = True

    def end(self) -> None:
        pass


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--memory", type=int, help="bytes the process may use")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    prompt = torch.tensor([args.prompt_ids])
    clock = Clock()
    placement: dict[str, object] = {"device_map": {"": "disk"}}
    if args.memory is not None:
        placement = {"device_map": "auto", "max_memory": {"cpu": max(args.memory - RESERVE, 0)}}
    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.bfloat16, offload_folder=folder, offload_state_dict=False, **placement
        )
        with torch.no_grad():
            model.generate(prompt, max_new_tokens=args.tokens, do_sample=False, streamer=Stamp(clock))
    clock.report()


if __name__ == "__main__":
    main()
