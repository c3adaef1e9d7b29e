"""Which model was exported, and whether it is still that. Needs no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from edgespec.errors import Call, ModelError
from edgespec.runtimes.formats.describe import describe_model

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,64}$")]
_RELATIVE = r"^([^/\\:\0][^\\:\0]*)?$"  # no share, drive or root: what a stranger names is looked at
Relative = Annotated[str, msgspec.Meta(max_length=4096, pattern=_RELATIVE)]


def model_digest(path: Path) -> str | None:
    """See `formats.describe.ModelFiles`. Raises as `describe_model`."""
    return describe_model(path).digest


class SourceRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What was exported, and its digest then.

    path: from the export's directory; "" where they have no folder in common but the root: an export that is
    given away tells nobody where its maker keeps models.
    """

    path: Relative
    digest: Digest

    @staticmethod
    def of(path: Path, out: Path, digest: str) -> SourceRecord:
        """Of the model at `path`, exported to `out`."""
        source, there, found = os.path.abspath(path), os.path.abspath(out), ""
        try:
            common = os.path.commonpath([source, there])
        except ValueError:  # two drives
            common = os.path.sep
        if os.path.dirname(common) != common:
            found = Path(os.path.relpath(source, there)).as_posix()
        return SourceRecord(found if re.fullmatch(_RELATIVE, found) else "", digest)

    def where(self, out: Path) -> Path | None:
        """What was exported to `out`, if it is still there."""
        path = Path(os.path.normpath(out / self.path))
        return path if self.path and path.exists() else None

    def again(self, out: Path) -> Call:
        """What exports the model in `out` anew; there is no room for it there."""
        return Call("export_model", {"model": str(self.where(out) or "MODEL"), "out": "DIR"})

    def check(self, out: Path, again: Call, digest_of: Callable[[Path], str | None] = model_digest) -> None:
        """Raises ModelError, with the call that exports anew, where what was exported to `out` is here, and
        has another digest now."""
        try:
            path = self.where(out)
            now = (digest_of(path) if path else None) or self.digest
        except (ModelError, OSError, ValueError):
            return  # it is none any more
        if now != self.digest:
            raise ModelError(
                f"{out} was exported from {path}, which has changed since (digest {now}, then "
                f"{self.digest}); export it again, to another directory",
                hint=again,
            )
