"""A draft model in a GGUF file that llama.cpp runs, in a process of its own: are its tokens the target's,
what does it need? No torch."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path

from edgespec.drafters.beside import Beside
from edgespec.drafters.channel import Load
from edgespec.drafters.model import PASS_ROWS
from edgespec.drafters.opened import Opened
from edgespec.drafters.process import Program, command
from edgespec.drafters.resident import Found, Resident, Search
from edgespec.drafters.vocabulary import check_vocabulary
from edgespec.drafters.worker import run
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.progress import LoadCallback
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.llama_cpp.draft import LlamaCppDraft
from edgespec.runtimes.llama_cpp.files import read_gguf_draft
from edgespec.runtimes.llama_cpp.model import LlamaCppModel
from edgespec.runtimes.target import Target
from edgespec.text.tokenizer import Tokenizer

# A process without torch before it has a model, and what llama.cpp takes to read one (measured, Linux,
# 0.3.36: 55 and 65 MB).
WORKER_BYTES = 130 * 10**6
INSTEAD = "leave draft_engine= out to draft with torch, if that runs the file"


def find(search: Search, found: dict[str, Found]) -> GGUFFiles:
    """The GGUF file that is named.

    Raises ModelError as `read_gguf_draft`, TokenizerError when its tokens are not the target's.
    """
    assert search.worker is not None
    return GGUFFiles(search.given["draft_model"], search.tokenizer, search.worker)


class GGUFFiles:
    """A GGUF file, checked. See `drafters.resident.Found`."""

    def __init__(self, path: Path, tokenizer: Tokenizer, threads: int) -> None:
        """`tokenizer` is the target's. Raises as `find`."""
        self.files, self.threads = read_gguf_draft(path), threads
        target = tokenizer.backend.get_vocab(with_added_tokens=True)
        fillers = self.files.fillers - target.keys()
        own = {token: number for token, number in self.files.ids.items() if token not in fillers}
        check_vocabulary(target, own, str(path))

    @property
    def extras(self) -> Extras:
        return Extras({"drafter": self.nbytes, "draft worker": lambda context: WORKER_BYTES})

    def nbytes(self, context: int) -> int:
        """Bytes of the open model with one conversation of `context` positions."""
        return self.files.weights + self.files.context_bytes(context, PASS_ROWS)

    def unused(self, plan: Plan) -> str | None:
        return None

    def reads(self, plan: Plan) -> int:
        return self.files.weights

    def further_rows(self, target: ModelConfig) -> int:
        """See `drafters.resident.Resident.rows`: every conversation has a llama.cpp context of its own, with
        buffers that may take more than its cache."""
        position = self.files.cell_bytes + target.kv_bytes(1, 2)
        return ceil(self.files.further_bytes(PASS_ROWS) / position)

    def resident(self, target: Target, plan: Plan, progress: LoadCallback) -> Resident:
        """Raises as `process.Worker`."""
        rows = self.further_rows(target.config)
        program = Program(command("edgespec.drafters.llama_cpp_model:main"), INSTEAD, asserts=True)
        load = Load(str(self.files.path.resolve()), self.threads)
        return Beside(load, self.files.weights, rows, progress, program)


def llama_cpp_model(load: Load, progress: Callable[[int], None]) -> Opened:
    """A GGUF file, run by llama.cpp; see `drafters.opened.OpenModel`. Raises as `read_gguf_draft` and
    `LlamaCppModel`."""
    model = LlamaCppModel(read_gguf_draft(Path(load.model)), load.threads, progress)
    return Opened(lambda capacity: LlamaCppDraft(model, capacity))


def main() -> None:
    """What the worker process runs."""
    run(llama_cpp_model)
