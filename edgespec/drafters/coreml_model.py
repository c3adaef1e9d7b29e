"""A draft model that was exported for Core ML, in a process of its own. No torch."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path

from edgespec.drafters.channel import Load
from edgespec.drafters.exported_model import INSTEAD, ExportedFiles, slots_of
from edgespec.drafters.opened import Opened
from edgespec.drafters.process import Program, command
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.worker import run
from edgespec.errors import CorruptFileError
from edgespec.progress import LoadCallback
from edgespec.runtimes.coreml.directory import CoreMLExported, open_coreml
from edgespec.runtimes.coreml.model import CoreMLModel, Function, model_bytes, open_function
from edgespec.runtimes.coreml.placement import placement
from edgespec.runtimes.coreml.stateful import StatefulDraft
from edgespec.runtimes.exported.draft import ExportedDraft


def find(search: Search, found: dict[str, Found]) -> ExportedFiles:
    """The exported model that is named.

    Raises ModelError as `open_coreml`, TokenizerError when its tokens are not the target's.
    """
    assert search.worker is not None
    exported = _open(search.given["draft_model"])
    load = Load(str(exported.path.resolve()), search.worker)
    program = Program(command("edgespec.drafters.coreml_model:main"), INSTEAD)
    return ExportedFiles(exported, search.tokenizer, load, program, partial(model_bytes, exported))


def coreml_model(load: Load, progress: LoadCallback) -> Opened:
    """An exported model, run by Core ML; see `drafters.opened.OpenModel`. Raises as `open_coreml`,
    `CoreMLExported.check_weights` and `CoreMLModel`."""
    exported = _open(Path(load.model))
    exported.check_weights()
    progress(exported.nbytes)

    begun = count(1)

    def open_part(package: Path, name: str) -> Function:
        progress(0, (next(begun), len(exported.functions)))  # it is compiled, a first time for minutes
        return open_function(package, name)

    model = CoreMLModel(exported, open_part)
    progress(0)  # nothing is compiled any more
    draft = StatefulDraft if exported.manifest.kept else ExportedDraft
    return Opened(partial(draft, model, rows=slots_of(exported)), placement(model.layers))


def _open(path: Path) -> CoreMLExported:
    """Raises as `open_coreml`."""
    exported = open_coreml(path)
    if exported.shapes.handed < slots_of(exported):
        raise CorruptFileError(
            f"{path} hands over {exported.shapes.handed} positions, and drafts take {slots_of(exported)}; "
            "export again"
        )
    return exported


def main() -> None:
    """What the worker process runs."""
    run(coreml_model)
