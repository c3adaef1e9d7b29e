"""What the server serves: a model that is being loaded, is there, or could not be."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import TypeVar

from edgespec.apps.server.problems import Problem, again
from edgespec.config import GenerationOptions
from edgespec.drafters.remote.host import DraftHost
from edgespec.engine import Engine
from edgespec.errors import Cancelled
from edgespec.progress import Progress, ProgressCallback
from edgespec.serving.scheduler import Scheduler

LOADING = 5  # seconds after which a client may ask again

M = TypeVar("M", bound=Engine | DraftHost)


@dataclass
class Service:
    """model: the name under which it is served, and `source` as the user wrote it. default: how replies are
    made where a request says nothing. keys: digests of those that are let in; () = everybody is.

    Attributes:
        scheduler: None until the model is there.
        error: why it is not, or no more.
        ended: called, in another thread, when there is an error.
    """

    model: str
    source: str
    default: GenerationOptions
    keys: Sequence[bytes] = ()
    ended: Callable[[], None] = lambda: None
    scheduler: Scheduler | None = None
    error: BaseException | None = None
    drafts: DraftHost | None = None  # in the scheduler's place, where it drafts for targets elsewhere
    created: int = field(default_factory=lambda: int(time()))
    stopping: bool = False
    _loader: threading.Thread | None = None

    def load(
        self,
        load: Callable[[ProgressCallback], M],
        progress: ProgressCallback,
        ready: Callable[[M], None],
    ) -> None:
        """Load the model in a thread; `ready` is told there when it can be used."""

        def report(progressed: Progress) -> None:
            if self.stopping:
                raise Cancelled("loading was stopped")
            progress(progressed)

        def work() -> None:
            try:
                found = load(report)
                if isinstance(found, DraftHost):
                    self.drafts = found
                else:
                    self.scheduler = Scheduler(found, failing=self._failing)
                ready(found)
            except BaseException as error:
                self.error = error
                self.ended()

        self._loader = threading.Thread(target=work, name="edgespec loader", daemon=True)
        self._loader.start()

    def _failing(self) -> None:
        assert self.scheduler is not None
        self.error = self.scheduler.failed
        self.ended()

    def stop(self, patience: float) -> None:
        """Refuse new requests; replies under way have so many seconds to end."""
        self.stopping = True
        if self.scheduler is not None:
            self.scheduler.close(patience)

    def close(self) -> None:
        self.stop(0)
        if self._loader is not None:
            self._loader.join()
        if self.scheduler is not None:
            self.scheduler.close()
            with suppress(Exception):  # it ends anyway
                self.scheduler.engine.close()

    def ready(self) -> Scheduler:
        """Raises Problem while there is nobody to reply."""
        self._check(self.scheduler)
        assert self.scheduler is not None
        return self.scheduler

    def ready_to_draft(self) -> DraftHost:
        """Raises Problem while there is nobody to draft."""
        self._check(self.drafts)
        assert self.drafts is not None
        return self.drafts

    def _check(self, found: object | None) -> None:
        if found is None or self.stopping:
            what = "the server stops" if self.stopping else "the model is being loaded"
            raise Problem(503, what, code="stopping" if self.stopping else "loading", headers=again(LOADING))

    def lets_in(self, given: str) -> bool:
        """Whether this is one of the keys; the time it takes tells nothing of them."""
        digest = digest_of(given.encode("utf-8", "surrogateescape"))
        return sum(hmac.compare_digest(digest, key) for key in self.keys) > 0  # all are compared


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
