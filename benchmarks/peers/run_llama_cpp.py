"""Plain greedy decoding by llama.cpp through llama-cpp-python's low-level parameters.

`--repack` keeps llama.cpp's default, which copies the weights into buffers laid out for the CPU's matrix
instructions; without it the mapped file is used in place, the only way a model larger than memory runs.
"""

from __future__ import annotations

import sys

import llama_cpp
import numpy as np
from arm import CONTEXT, THREADS, Clock, arguments


def load(path: str, repack: bool) -> llama_cpp.llama_model_p:
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP
    params.use_extra_bufts = repack
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"llama.cpp could not load {path}")
    return model


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repack", action="store_true")
    args = parser.parse_args()

    clock = Clock()
    model = load(args.model, args.repack)
    context_params = llama_cpp.llama_context_default_params()
    context_params.n_ctx = context_params.n_batch = context_params.n_ubatch = CONTEXT
    context_params.n_threads = context_params.n_threads_batch = THREADS
    context = llama_cpp.llama_init_from_model(model, context_params)
    if not context:
        sys.exit("llama.cpp could not make a context")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    pending = args.prompt_ids
    while len(clock.tokens) < args.tokens:
        ids = (llama_cpp.llama_token * len(pending))(*pending)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, len(pending))) != 0:
            sys.exit("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        best = int(np.ctypeslib.as_array(logits, (vocab,)).argmax())
        clock.token(best)
        pending = [best]
    clock.report()


if __name__ == "__main__":
    main()
