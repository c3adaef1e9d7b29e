"""A GGUF model that llama.cpp has open, shared by conversations. Needs no torch."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

from edgespec.errors import ModelError, UnsupportedModelError
from edgespec.runtimes.llama_cpp.files import SEQUENCES, STEP_ROWS, GGUFDraft
from edgespec.runtimes.llama_cpp.package import messages, runtime


class LlamaCppModel:
    """Its weights are in memory, and computed with on the CPU."""

    def __init__(
        self, files: GGUFDraft, threads: int = 1, progress: Callable[[int], None] = lambda nbytes: None
    ) -> None:
        """`progress` gets bytes read.

        Raises MissingExtraError, ModelError where llama.cpp refuses the file, UnsupportedModelError for a
        model that cannot draft: one that forgets nothing, or writes no text.
        """
        self.files, self.threads, self.library = files, threads, runtime()
        library, read = self.library, 0.0

        def tell(share: float, _: Any) -> bool:
            nonlocal read
            progress(int(files.weights * share) - int(files.weights * read))
            read = share
            return True

        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.load_mode = library.LLAMA_LOAD_MODE_DIRECT_IO  # page cache counts against the dial
        parameters.progress_callback = library.llama_progress_callback(tell)
        messages.clear()
        self.pointer = library.llama_model_load_from_file(str(files.path).encode(), parameters)
        if not self.pointer:
            raise ModelError(f"llama.cpp cannot open {files.path}: {_why()}")
        weakref.finalize(self, library.llama_model_free, self.pointer).atexit = False
        self._check()

    def _check(self) -> None:
        library, path = self.library, self.files.path
        for kind, words in (
            ("is_recurrent", "keeps a state that cannot go back"),
            ("is_hybrid", "keeps a state that cannot go back"),
            ("is_diffusion", "does not write from left to right"),
            ("has_encoder", "has an encoder"),
        ):
            if getattr(library, f"llama_model_{kind}")(self.pointer):
                raise UnsupportedModelError(f"{path} {words}, so it cannot draft; use another draft model")
        known = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self.pointer))
        if known > self.files.vocabulary:
            raise ModelError(
                f"{path} has {known} tokens by llama.cpp, and {self.files.vocabulary} in its matrix"
            )
        self.vocabulary = int(known)

    def new_context(self, context: int) -> LlamaCppContext:
        """For a conversation of `context` positions. Raises ModelError."""
        library = self.library
        parameters = library.llama_context_default_params()
        parameters.n_ctx = self.files.cells(context)
        parameters.n_batch = parameters.n_seq_max = SEQUENCES
        parameters.n_ubatch = STEP_ROWS
        parameters.n_threads = parameters.n_threads_batch = self.threads
        parameters.kv_unified = True  # sequences share what they have in common
        parameters.swa_full = True  # what left a window is needed again after going back
        parameters.offload_kqv = parameters.op_offload = False
        messages.clear()
        pointer = library.llama_init_from_model(self.pointer, parameters)
        if not pointer:
            raise ModelError(f"llama.cpp cannot run {self.files.path}: {_why()}")
        return LlamaCppContext(self, pointer)


class LlamaCppContext:
    """A conversation's cache in llama.cpp: cells, each of a position and of some sequences."""

    def __init__(self, model: LlamaCppModel, pointer: Any) -> None:
        self.model, self.pointer, self.library = model, pointer, model.library
        library = self.library
        self._memory = library.llama_get_memory(pointer)
        # The model, which the finalizer holds, outlives its contexts.
        weakref.finalize(self, lambda model: model.library.llama_free(pointer), model).atexit = False

    def run(self, tokens: list[int], positions: list[int], sequences: list[list[int]], logits: bool) -> Any:
        """One call: each row, at its position, sees what is of the first of its `sequences`, and is of all
        of them then. Returns the logits [n, V], in llama.cpp's memory until the next call, or None.

        Raises ModelError where llama.cpp fails."""
        whole, n = ctypes.c_int32, len(tokens)
        marks = [(whole * len(own))(*own) for own in sequences]
        batch = self.library.llama_batch(
            n_tokens=n,
            token=(whole * n)(*tokens),
            pos=(whole * n)(*positions),
            n_seq_id=(whole * n)(*map(len, sequences)),
            seq_id=(ctypes.POINTER(whole) * n)(*(ctypes.cast(m, ctypes.POINTER(whole)) for m in marks)),
            logits=(ctypes.c_int8 * n)(*[logits] * n),
        )
        messages.clear()
        code = self.library.llama_decode(self.pointer, batch)
        if code != 0:
            raise ModelError(f"llama.cpp cannot run {self.model.files.path}: {_why()} (code {code})")
        return self.library.llama_get_logits(self.pointer) if logits else None

    def copy(self, source: int, to: int, start: int) -> None:
        """What is of one sequence, from a position on, is of another, too."""
        self.library.llama_memory_seq_cp(self._memory, source, to, start, -1)

    def remove(self, sequence: int, start: int) -> None:
        """A sequence ends at this position; -1 = all do."""
        self.library.llama_memory_seq_rm(self._memory, sequence, start, -1)


def _why() -> str:
    return "; ".join(messages) or "it does not say why"
