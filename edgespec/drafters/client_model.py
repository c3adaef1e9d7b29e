"""A draft model on a client, whose target is on a server: `connect(url, draft_model=DIR)`, where DIR is what
`export` made for ONNX Runtime. It runs in the client's own process, which has nothing else to compute.

Needs no torch."""

from __future__ import annotations

from pathlib import Path

from edgespec.config import EngineOptions
from edgespec.devices.probe import cpu_count
from edgespec.drafters.engines import with_engine
from edgespec.drafters.exported_model import check_tokens
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.onnx_model import open_onnx
from edgespec.errors import Call, OptionError
from edgespec.runtimes.formats.exported import is_exported
from edgespec.runtimes.onnx.directory import open_exported
from edgespec.runtimes.onnx.providers import find_provider
from edgespec.text.tokenizer import Tokenizer


class ClientModel:
    """One that a client's conversations share; reads no weights until `open`."""

    def __init__(self, path: Path | None, options: EngineOptions) -> None:
        """path: where what the options name is; None = it is a model on the hub. Raises OptionError for one
        that was not exported, or for another engine; and as `open_exported` and `find_provider`."""
        if path is None or not is_exported(path):
            named = str(options.draft_model)
            raise OptionError(
                f"draft_model is {named}, which was not exported, and a client drafts without torch; export "
                "it, where torch is, and name DIR",
                hint=Call("export_model", {"model": named, "out": "DIR"}),
            )
        engine = with_engine(options, {"draft_model": path}).draft_engine or ""
        name, _, provider = engine.partition(":")
        if name != "onnx":
            raise OptionError(
                f"{path} was exported for {name}, and a client drafts with onnx; export it for that"
            )
        self.provider = provider or "cpu"
        find_provider(self.provider)
        self.exported, self.threads = open_exported(path), options.threads or cpu_count()

    def open(self, tokenizer: Tokenizer) -> None:
        """Read its weights, to draft for a target with this tokenizer. Raises TokenizerError when its tokens
        are others, and as `OnnxModel`."""
        check_tokens(self.exported, tokenizer)
        self._opened = open_onnx(self.exported, self.provider, self.threads)

    def drafter(self, context: int, vocabulary: int) -> ModelDrafter:
        """For one conversation of so many positions, with a target of so many tokens; where static shapes
        have room for fewer positions, it drafts no further."""
        return self._opened.drafter(context, vocabulary)
