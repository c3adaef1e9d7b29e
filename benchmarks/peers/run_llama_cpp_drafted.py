"""Greedy decoding by llama.cpp with drafts, through llama-cpp-python's own interface for them.

`Llama(draft_model=...)` takes whatever proposes tokens. The package has prompt lookup
(`LlamaPromptLookupDecoding`); a draft model is a second `Llama` behind the same interface, here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import llama_cpp
import numpy as np
from arm import CONTEXT, THREADS, Clock, arguments
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from numpy.typing import NDArray

DRAFTED = 8  # tokens proposed a pass
SETTINGS = {"n_ctx": CONTEXT, "n_threads": THREADS, "n_threads_batch": THREADS, "verbose": False}


class SmallModel(LlamaDraftModel):  # type: ignore[misc]
    """Greedy continuations by a small model in memory, which reuses what it has computed."""

    def __init__(self, path: str) -> None:
        self.model = llama_cpp.Llama(path, **SETTINGS)

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        drafted = islice(self.model.generate(input_ids.tolist(), temp=0.0), DRAFTED)
        return np.array(list(drafted), dtype=np.intc)


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
    args = parser.parse_args()
    draft: LlamaDraftModel = LlamaPromptLookupDecoding(num_pred_tokens=DRAFTED)
    if args.draft_model:
        draft = SmallModel(args.draft_model)
    weights_in_place()
    clock = Clock()
    model = llama_cpp.Llama(args.model, draft_model=draft, **SETTINGS)
    for token in islice(model.generate(args.prompt_ids, temp=0.0), args.tokens):
        clock.token(token)
    clock.report()


if __name__ == "__main__":
    main()
