"""A MoA drafter on a client, whose target is on a server: `connect(url, drafter="moa", adapters=DIR)`.

Needs no torch."""

from __future__ import annotations

from pathlib import Path

from edgespec.drafters.moa_draft import MoaDrafter
from edgespec.drafters.model import DRAFT_ROWS
from edgespec.errors import OptionError
from edgespec.runtimes.formats.moa_client import read_client
from edgespec.runtimes.portable.moa import PortableMoa, PortableMoaDraft, Vectors


class ClientMoa:
    """An open one, shared by a client's conversations."""

    def __init__(self, directory: str) -> None:
        """Raises as `read_client`."""
        self.directory = directory
        self.manifest, tensors = read_client(Path(directory))
        self.moa = PortableMoa(self.manifest.config, tensors)

    @property
    def width(self) -> int:
        """Numbers of a token that it attends to."""
        return self.manifest.width

    @property
    def each(self) -> int:
        """Of one of a token's vectors."""
        return self.manifest.config.width

    def check(self, network: bytes, width: int, vocabulary: int, model: str) -> None:
        """Raises OptionError for a server that has not the other half."""
        ours = self.manifest
        if not network:
            raise OptionError(
                "the server says nothing that a MoA drafter could attend to; start it with client_adapters="
                f"ADAPTERS, from which {self.directory} was made"
            )
        if (network.hex(), width, vocabulary) != (ours.network, ours.width, ours.config.vocab_size):
            raise OptionError(
                f"adapters is {self.directory}, made for {ours.model}, and the server has the other half of "
                f"another network, for {model}; take that of its client_adapters",
                "adapters",
            )

    def drafter(self, vectors: Vectors, context: int) -> MoaDrafter:
        """For one conversation of so many positions."""
        draft = PortableMoaDraft(self.moa, self.manifest.sizes, vectors, context, DRAFT_ROWS)
        return MoaDrafter(draft, self.manifest.config.vocab_size)
