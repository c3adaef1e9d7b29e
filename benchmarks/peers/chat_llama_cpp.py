"""A conversation with llama.cpp: each line of stdin is the token ids of a message, in the template's frame.

The answer is a line of the reply's ids, each written as it is decoded; greedy. The file is mapped and used in
place, or with `--repack` (run_llama_cpp.py) copied, and keys and values of what was said before are kept.
"""

from __future__ import annotations

import argparse
import sys

import llama_cpp
import numpy as np
from arm import THREADS, numbers
from run_llama_cpp import load

BATCH = 512  # tokens of a prompt at a time, its default


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, required=True, help="most of a reply")
    parser.add_argument("--end", type=int, required=True, help="id of the token that ends a reply")
    parser.add_argument("--context", type=int, required=True, help="positions")
    parser.add_argument("--repack", action="store_true")
    args = parser.parse_args()

    model = load(args.model, args.repack)
    context_params = llama_cpp.llama_context_default_params()
    context_params.n_ctx = args.context
    context_params.n_batch = context_params.n_ubatch = BATCH
    context_params.n_threads = context_params.n_threads_batch = THREADS
    context = llama_cpp.llama_init_from_model(model, context_params)
    if not context:
        sys.exit("llama.cpp could not make a context")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def decode(ids: list[int]) -> int:
        for at in range(0, len(ids), BATCH):
            part = ids[at : at + BATCH]
            given = (llama_cpp.llama_token * len(part))(*part)
            if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(given, len(part))) != 0:
                sys.exit("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        return int(np.ctypeslib.as_array(logits, (vocab,)).argmax())

    pending: list[int] = []  # what the context lacks of the last reply
    for line in sys.stdin:
        token = decode([*pending, *numbers(line)])
        for said in range(1, args.tokens + 1):
            ended = token == args.end or said == args.tokens
            print(token, end="\n" if ended else " ", flush=True)
            if ended:
                break
            token = decode([token])
        pending = [token] if token == args.end else [token, args.end]


if __name__ == "__main__":
    main()
