"""The engine: one model's weights under one memory dial, shared by any number of sessions."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from edgespec.arguments import check_progress, given_options
from edgespec.config import EngineOptions
from edgespec.control.knowledge import Knowledge
from edgespec.core.passes import LocalVerifier
from edgespec.core.pool import Pool
from edgespec.core.schedule import Controller, Place, Schedule
from edgespec.core.trace import Cycle, Trace
from edgespec.devices.allocator import Holes
from edgespec.devices.machine import Machine
from edgespec.devices.probe import memory_total
from edgespec.drafters.base import Drafter
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.kinds import kinds_of
from edgespec.drafters.resident import Exits, Remembering, Resident, Search
from edgespec.errors import ClosedError, OptionError
from edgespec.models.asked import check_options, with_files
from edgespec.models.holdings import Holdings
from edgespec.models.hub import resolve_model
from edgespec.offload.plan.fill import check_dial
from edgespec.offload.plan.plan import Plan
from edgespec.offload.plan.replan import at_dial
from edgespec.progress import ProgressCallback
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.target import Target
from edgespec.schedules.kinds import check_model, choose_schedule, make_controller, make_schedule
from edgespec.session import Session
from edgespec.text.prompt import Prompt, encode_prompt
from edgespec.text.tokenizer import Tokenizer, load_tokenizer
from edgespec.values import format_bytes, options_of

ON_GPU = "memory is fixed where a GPU computes; load the model again with another memory="


class Engine:
    """Owns a model's weights, its plan and its ledger; sessions own the conversations.

    Use `Engine.load` (or `edgespec.load`). A context manager; `close` stops the readers and frees memory.
    """

    def __init__(
        self,
        files: ModelFiles,
        tokenizer: Tokenizer,
        plan: Plan,
        options: EngineOptions,
        target: Target,
        resident: Sequence[Resident] = (),
        exits: Exits | None = None,
        memory: Remembering | None = None,
    ) -> None:
        self.files, self.tokenizer, tokenizer.room = files, tokenizer, plan.context
        self.options = options
        self.target = target
        self.memory = memory  # for clients' drafters
        members = choose_drafters(options)
        opened = [kind.name for kind in kinds_of(members) if kind.make]
        opened += [r.name for r in resident]
        self.drafters = tuple(member for member in members if member in opened)
        # With layers pinned as the user said, drafters keep their memory.
        as_asked = options.resident_layers is not None
        self.holdings = Holdings(target, plan, resident, exits, as_asked)
        self._choose_schedule()
        self._knowledge = Knowledge.of(files.digest, options, plan.dial)
        # Of the latest that has learned, in this process or in one before.
        self.controller: Controller = (learned := self._knowledge.recall(make_controller(plan, resident)))
        self.eos = frozenset(files.config.eos) | frozenset(tokenizer.eos)
        self.verifier = LocalVerifier(target, learned.allotter)
        self.closed = False
        self._holes = Holes()
        self._sessions = weakref.WeakValueDictionary[int, Session]()  # by number
        self._opened = 0
        self.pool = Pool(plan.context, plan.sequences, self._rows_apart)
        self._finalizer = weakref.finalize(self, target.weights.close)

    @property
    def plan(self) -> Plan:
        return self.holdings.plan

    @property
    def resident(self) -> list[Resident]:
        """Drafters that are open."""
        return self.holdings.resident

    def _choose_schedule(self) -> None:
        free = self.plan.streamed_bytes > 0 or self.options.drafts_apart  # to draft while it verifies
        free = free and self.plan.sequences == 1
        self.schedule = choose_schedule(self.options.schedule, self.drafters, free)

    def __repr__(self) -> str:
        about = f"{self.files.path.name} in {format_bytes(self.plan.dial)}, context {self.plan.context}"
        return f"<Engine of {about}{', closed' if self.closed else ''}>"

    @property
    def config(self) -> ModelConfig:
        return self.files.config

    @staticmethod
    def load(
        model: str | Path,
        options: EngineOptions | None = None,
        progress: ProgressCallback | None = None,
        machine: Machine | None = None,
    ) -> Engine:
        """Open a model under a memory dial.

        model: a Hugging Face directory or hub id, a GGUF file, or a packed directory.
        machine: what the plan goes by; None = this one as it is now.

        Raises ModelError, BudgetError and OptionError before any weight is read; StorageError and
        CorruptFileError while reading.
        """
        options = given_options(options, EngineOptions)
        check_progress(progress)
        check_options(options)
        path = resolve_model(str(model), progress, options.offline)
        files = describe_model(path, options.precision)
        check_model(options, files.config)
        tokenizer = load_tokenizer(files, path)
        options, given = with_files(options, progress)
        members = choose_drafters(options)
        prepares = choose_schedule(options.schedule, members, free=options.batch == 1) != "serial"
        search = Search(options.drafter, members, files, tokenizer, given, worker=options.draft_worker)
        several, layers, engine = options.batch != 1, options.verifier_layers, options.draft_engine or "torch"
        search = replace(search, prepares=prepares, several=several, verifier_layers=layers, engine=engine)
        from edgespec.models.loading import load_model  # torch: seconds, after what is refused without it

        plan, target, resident, exits, memory = load_model(search, options, progress, machine)
        try:
            return Engine(files, tokenizer, plan, options, target, resident, exits, memory)
        except BaseException:
            target.weights.close()
            raise

    def new_session(
        self,
        context: int | None = None,
        controller: Controller | None = None,
        trace: Trace | None = None,
        held: int | None = None,
    ) -> Session:
        """A conversation of up to `context` positions (default: all that the plan gave to KV and is free).

        controller: decides how much is drafted; None = an adaptive one, which begins with what the
            conversations before have learned. trace: who hears of its cycles and layers. held: positions that
            it has memory for at first, where it `may_grow`; `hold` changes that (None: all of them).

        Raises OptionError for a context that is no number of positions, BudgetError when other sessions hold
        the KV memory, ClosedError when the engine is closed, BusyError within a pass (a callback asks).
        """
        context = options_of(EngineOptions)["context"].typed(context)
        with self.verifier.turn:  # while memory changes hands, nobody may begin to draft
            if self.closed:
                raise ClosedError("the engine was closed; load the model again")
            return self._new_session(context, controller or self.controller.successor(), trace, held)

    def _rows_apart(self) -> int:
        """Uncommitted rows that a session beyond those planned for needs room for."""
        if self.plan.sequences > 1 and not self.resident:
            return 0  # trees lie where the rest of the reply will be
        return TREE_ROWS + sum(resident.rows for resident in self.resident)

    @property
    def may_grow(self) -> bool:
        """Sessions may begin with fewer positions than they may need. Drafters have memory by what those hold
        at first."""
        return self.plan.sequences > 1 and self.target.grows and not self.resident

    def hold(self, session: Session, positions: int) -> None:
        """Give a session, between its passes, memory for so many positions, up to its context. Raises
        BudgetError when they are not free."""
        wanted = self.pool.of(positions)
        with self.verifier.turn:
            if wanted > self.pool.free + self.pool.share(session.number):
                raise self.pool.full(f"a session of {positions} positions", self.plan)
            cache: Any = session.cache  # of our own verifier: a KVCache
            cache.hold(positions)
            self.pool.take(session.number, wanted)

    def room_for(self, context: int) -> bool:
        """Whether another session of so many positions would fit now, and have its rows in every pass."""
        most = self.plan.sequences if self.plan.sequences > 1 else self.target.judged_rows
        there = sum(not session.closed for session in self._open_sessions())
        return self.pool.of(context) <= self.pool.free and there < most

    def _new_session(
        self, context: int | None, controller: Controller, trace: Trace | None, held: int | None
    ) -> Session:
        free = min(self.pool.free - self.pool.of(0), self.plan.context)  # beside rows of its own
        wanted = held or context or free
        if wanted > free or free <= 0:
            asked = f"a session of {wanted} positions" if held or context else "another session"
            raise self.pool.full(asked, self.plan)
        context = context or (self.plan.context if held else wanted)
        slots = 0 if self.plan.sequences > 1 else None
        cache = self.verifier.new_seat(wanted, slots, None if held is None else context)
        drafters: list[Drafter] = [kind.make() for kind in kinds_of(self.drafters) if kind.make is not None]
        drafters += [resident.drafter(cache, self.config.vocab_size) for resident in self.resident]
        exits = self.holdings.exits if self.resident else None
        place = Place(self.target, exits.exit(cache) if exits else None)
        self.holdings.handover.begin_anew()
        schedule = make_schedule(self.schedule, self.options, drafters, controller, place)
        self._opened += 1
        release = functools.partial(self.pool.release, self._opened)
        session = Session(self, cache, schedule, release, trace, context)
        session.number = self._opened
        self.pool.take(session.number, self.pool.of(wanted))
        self._sessions[session.number] = session
        return session

    def _open_sessions(self) -> list[Session]:
        found = [reference() for reference in self._sessions.valuerefs()]
        return [session for session in found if session is not None]

    def learn(self, schedule: Schedule) -> None:
        """A reply is over: the next session begins with what it taught."""
        if (lesson := schedule.lesson()) is not None:
            self.controller = lesson
            self._knowledge.keep(lesson)
        self._holes.look()
        if self.closed:
            self.close()

    def after_cycle(self, schedule: Schedule, cycle: Cycle, check: Callable[[], None]) -> None:
        """When drafting with what takes memory loses for good or is gone, and no other session needs it, give
        that memory to pinned layers. `check` raises Cancelled; the next cycle then goes on with it."""
        self._holes.look()
        if not self.holdings.concerns(cycle):
            return
        with self.verifier.turn:
            check()
            losing = self.holdings.losing(cycle)
            if losing and sum(not session.closed for session in self._open_sessions()) == 1:
                self.holdings.hand_over(schedule, check)

    def set_memory(self, memory: str | float) -> None:
        """Another dial from now on, "6GB" or bytes: between two passes, and in the middle of replies, whose
        text stays what it is.

        What a smaller dial has no room for goes back to the system before this returns, after one cycle at
        most. A larger one pins what streams by in the next pass. Context and drafters stay.

        Raises OptionError for no size, for more memory than there is, and on a GPU; BudgetError, with the
        smallest dial, when what is open does not fit; ClosedError; BusyError within a pass (a callback asks).
        After any error, DeviceError and StorageError among them, the dial is what it was.
        """
        dial = options_of(EngineOptions)["memory"].typed(memory)
        if dial is None or self.options.device == "cuda":
            raise OptionError(ON_GPU if dial else "memory is None; name a size, such as 6GB", "memory")
        check_dial(dial, memory_total())
        with self.verifier.first():
            if self.closed:
                raise ClosedError("the engine was closed; load the model again")
            plan = at_dial(self.plan, dial, self.holdings.as_asked)
            self.holdings.move(plan, self._give_back)
            self._knowledge.stop()
            self._choose_schedule()

    def _give_back(self, reason: str) -> None:
        for session in self._open_sessions():
            if not session.closed:  # else it has no schedule any more
                session.schedule.give_back(reason)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of text, of chat messages (by the model's template), or of ids as they are."""
        return encode_prompt(self.tokenizer, prompt)

    @property
    def dial(self) -> int:
        """Bytes that the whole process may use."""
        return self.plan.dial

    @property
    def bytes_read(self) -> int:
        """Bytes read from flash so far."""
        return self.target.weights.bytes_read

    def peak_memory(self) -> int:
        """Bytes this process has used at most: what the dial caps. A draft worker's are among them."""
        return self.holdings.peak_memory()

    def close(self) -> None:
        """End all replies as cancelled, stop reading and free the weights. Sessions of this engine cannot be
        used any more."""
        self.closed = True
        for session in self._open_sessions():
            session.cancel()
        if self.verifier.inside():
            return  # `learn` goes on with it, when the reply that has called this has ended
        with self.verifier.turn:
            self._finalizer()
            self.holdings.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
