"""A small model opened to draft for targets elsewhere, with memory for so many conversations."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.config import EngineOptions
from edgespec.devices.arithmetic import Arithmetic
from edgespec.devices.probe import cpu_count, memory_available, memory_total, process_memory
from edgespec.drafters.channel import Load
from edgespec.drafters.model import DRAFT_ROWS
from edgespec.drafters.remote.host import DraftHost
from edgespec.drafters.remote.wire import MOST_POSITIONS
from edgespec.drafters.vocabulary import vocabulary_digest
from edgespec.drafters.worker import torch_model
from edgespec.models.hub import resolve_model
from edgespec.offload.plan.fill import check_dial, headroom_of, smallest_dial
from edgespec.offload.plan.ledger import HEADROOM, Ledger
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.needs import cache_bytes, resident_bytes
from edgespec.text.tokenizer import load_tokenizer
from edgespec.values import count_of

MEANT = frozenset({"memory", "context", "threads", "offline", "batch"})  # options that a drafter goes by
DEFAULT_CONTEXT = 8192
DEFAULT_SEATS = 4  # where that many have room


def open_host(
    name: str, model: str, options: EngineOptions, progress: ProgressCallback | None = None
) -> DraftHost:
    """Read a model's weights, to draft for `options.batch` conversations at once (0 = as many as have room,
    up to `DEFAULT_SEATS`) of `options.context` positions. name: by which it is served.

    Raises ModelError, OptionError and BudgetError before any weight is read; StorageError and
    CorruptFileError while reading.
    """
    path = resolve_model(model, progress, options.offline)
    files = describe_model(path)
    tokenizer = load_tokenizer(files, path)
    from edgespec.runtimes.torch.machine import arithmetic  # torch: seconds, after what is refused without it

    how = arithmetic()
    positions = min(options.context or DEFAULT_CONTEXT, files.config.max_context, MOST_POSITIONS)
    own = process_memory().current
    dial = options.memory or own + memory_available()
    check_dial(dial, memory_total())
    seats = options.batch or DEFAULT_SEATS
    while (book := _ledger(files, how, dial, own, positions, seats)).free < 0:
        if options.batch or seats == 1:
            book.require(
                smallest_dial(book), f" with {count_of(seats, 'conversation')} of {positions} positions."
            )
            break
        seats -= 1
    opened = torch_model(Load(str(path), options.threads or cpu_count()), _reporting(files, progress))
    vocabulary = vocabulary_digest(tokenizer.backend.get_vocab(with_added_tokens=True))
    nbytes = files.table.nbytes
    return DraftHost(opened, name, vocabulary, files.config.vocab_size, positions, seats, nbytes)


def _ledger(files: ModelFiles, how: Arithmetic, dial: int, own: int, positions: int, seats: int) -> Ledger:
    further = cache_bytes(files.config, positions, DRAFT_ROWS, files.dtype.itemsize) * (seats - 1)
    owners = {
        "interpreter and libraries": own,
        HEADROOM: headroom_of(dial),
        "model, activations, one conversation": resident_bytes(files, positions, DRAFT_ROWS, how),
        "further conversations": further,
    }
    return Ledger(dial, owners)


def _reporting(files: ModelFiles, progress: ProgressCallback | None) -> Callable[[int], None]:
    done = 0

    def report(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(Progress("load", done, files.table.nbytes, "bytes"))

    return report
