"""Which model was exported, and whether it is still that. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from edgespec.errors import Call, ModelError
from edgespec.runtimes.formats.describe import describe_model

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,64}$")]
Name = Annotated[str, msgspec.Meta(max_length=4096)]


class SourceRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The model that was exported, and its digest then; see `formats.describe.ModelFiles`."""

    path: Name
    digest: Digest

    def again(self, out: Path) -> Call:
        """What exports the model anew."""
        return Call("export_model", {"model": self.path[:300], "out": str(out)})

    def check(self, out: Path) -> None:
        """Raises ModelError where the model that was exported to `out` is here, and has changed since."""
        path = Path(self.path)
        try:
            now = describe_model(path).digest if path.exists() else self.digest
        except (ModelError, OSError):
            return  # no model any more
        if now != self.digest:
            raise ModelError(
                f"{out} was exported from {self.path[:300]}, which has changed since (digest {now}, then "
                f"{self.digest}); export it again, to another directory",
                hint=self.again(out),
            )
