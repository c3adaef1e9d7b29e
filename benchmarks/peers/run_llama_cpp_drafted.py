"""Greedy decoding by llama.cpp with drafts, through llama-cpp-python's own interface for them.

`Llama(draft_model=...)` takes whatever proposes tokens. The package has prompt lookup
(`LlamaPromptLookupDecoding`); a draft model is a second `Llama` behind the same interface, here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llama_cpp
import numpy as np
from arm import Clock, arguments
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from numpy.typing import NDArray


class SmallModel(LlamaDraftModel):  # type: ignore[misc]
    """Greedy continuations by a small model in memory, which reuses what it has computed."""

    def __init__(self, path: str, tokens: int, context: int, threads: int) -> None:
        self.model = llama_cpp.Llama(
            path, n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self.tokens = tokens

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        drafted = []
        for token in self.model.generate(input_ids.tolist(), temp=0.0):
            drafted.append(token)
            if len(drafted) == self.tokens:
                break
        return np.array(drafted, dtype=np.intc)


def weights_in_place() -> None:
    """Have `Llama` use the mapped file as it is, the only way that a model larger than memory runs."""
    defaults: Callable[[], Any] = llama_cpp.llama_cpp.llama_model_default_params

    def in_place() -> Any:
        params = defaults()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_cpp.llama_model_default_params = in_place


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--draft-model", help="GGUF of a small model; without one, prompt lookup")
    parser.add_argument("--draft-tokens", type=int, default=8, help="proposed a pass")
    parser.add_argument("--context", type=int, default=512)
    args = parser.parse_args()
    prompt = [int(i) for i in args.prompt_ids.split(",")]
    threads = {"n_threads": args.threads, "n_threads_batch": args.threads}

    draft: LlamaDraftModel = LlamaPromptLookupDecoding(num_pred_tokens=args.draft_tokens)
    if args.draft_model:
        draft = SmallModel(args.draft_model, args.draft_tokens, args.context, args.threads)
    weights_in_place()
    clock = Clock()
    model = llama_cpp.Llama(args.model, n_ctx=args.context, draft_model=draft, verbose=False, **threads)
    for token in model.generate(prompt, temp=0.0):
        clock.token(token)
        if len(clock.tokens) == args.tokens:
            break
    clock.report(draft=args.draft_model or "prompt lookup", draft_tokens=args.draft_tokens)


if __name__ == "__main__":
    main()
