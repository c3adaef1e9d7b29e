"""How a Mixture-of-Attentions drafter follows a conversation, wherever its network runs. Needs no torch."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from edgespec.drafters.model import ModelDrafter


class MoaDrafter(ModelDrafter):
    """See `drafters.base.Drafter`."""

    def trunk(self) -> Generator[None, None, Sequence[int]]:
        """Nothing: committed tokens follow from their embeddings, which costs no pass."""
        if self.tail:
            yield from self._follow()
        return self.tail
