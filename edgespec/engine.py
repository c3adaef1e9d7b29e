"""The engine: one model's weights under one memory dial, shared by any number of sessions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import torch

from edgespec.config import EngineOptions
from edgespec.control.controller import Adaptive
from edgespec.control.handover import HandOver, speedup, without_drafter
from edgespec.core.decode import Schedule
from edgespec.devices.allocator import return_freed_memory
from edgespec.devices.machine import Machine
from edgespec.devices.probe import peak_memory
from edgespec.drafters.choose import choose_drafters
from edgespec.drafters.combined import without_models
from edgespec.drafters.model import DRAFT_ROWS
from edgespec.drafters.resident import Resident, find_resident
from edgespec.errors import BudgetError, DeviceError, OptionError
from edgespec.models.hub import resolve_model
from edgespec.offload.plan.plan import Plan
from edgespec.planning import plan_engine
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.torch.kv_cache import overlay_positions
from edgespec.runtimes.torch.open import open_target
from edgespec.runtimes.torch.plan import measure_machine
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights
from edgespec.schedules.make import make_controller, make_schedule
from edgespec.schedules.serial import Serial
from edgespec.session import Session
from edgespec.text.prompt import Prompt, encode_prompt
from edgespec.text.tokenizer import Tokenizer, load_tokenizer


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
        target: TorchTarget[Weights],
        resident: Sequence[Resident] = (),
    ) -> None:
        self.files = files
        self.tokenizer = tokenizer
        self.plan = plan
        self.options = options
        self.target = target
        self.resident = list(resident)  # drafters
        opened = ["ngram", *(r.name for r in resident)]
        self.drafters = tuple(member for member in _members(options) if member in opened)
        # With layers pinned as the user said, drafters keep their memory.
        keeps = not resident or options.resident_layers is not None
        self._without_drafter = after = None if keeps else without_drafter(plan)
        self.controller = make_controller(plan, resident)
        self._handover = HandOver(speedup(plan, after) if after else 1.0)
        self.eos = frozenset(files.config.eos) | frozenset(tokenizer.eos)
        self.one_pass = threading.Lock()  # sessions may reply in threads of their own; passes take turns
        self._positions_held = self._sessions = 0
        self._finalizer = weakref.finalize(self, target.weights.close)

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
        options = options or EngineOptions()
        check_drafting(options)
        device = choose_device(options)
        path = resolve_model(str(model), progress)
        files = describe_model(path, options.precision)
        tokenizer = load_tokenizer(files, path)
        named = resolve_model(options.draft_model, progress) if options.draft_model else None
        adapters = Path(options.adapters) if options.adapters else None
        drafting = find_resident(options.drafter, _members(options), files, named, tokenizer, adapters)
        if progress is not None:  # disk, memory and matmuls: seconds at the first start, then remembered
            progress(Progress("probe", 0, 1, "steps"))
        machine = machine or measure_machine(files, device)
        plan = plan_engine(files, options, machine, device, drafting)
        extra, done = drafting.nbytes(plan), 0

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if progress is not None:
                progress(Progress("load", done, plan.pinned_bytes + extra, "bytes"))

        target = open_target(files, plan, machine.read_settings, advance, device)
        try:
            resident = drafting.open(files, plan, target, advance)
            return Engine(files, tokenizer, plan, options, target, resident)
        except BaseException:
            target.weights.close()
            raise

    def new_session(self, context: int | None = None) -> Session:
        """A conversation of up to `context` positions (default: all that the plan gave to KV and is free).

        Raises BudgetError when other sessions hold the KV memory.
        """
        with self.one_pass:  # while memory changes hands, nobody may begin to draft
            return self._new_session(context)

    def _new_session(self, context: int | None) -> Session:
        free = self.plan.context - self._positions_held
        wanted = free if context is None else context
        if wanted > free or free <= 0:
            raise BudgetError(
                f"a session of {max(wanted, 1)} positions does not fit: the plan has KV memory for "
                f"{self.plan.context} positions and open sessions hold {self._positions_held}; close one, or "
                "load with a larger context",
                self.plan.owners,
                self.plan.dial,
                self.plan.dial,
            )
        # Every session needs room for a pass's uncommitted rows, and its drafts'; the plan has those of one.
        rows = DRAFT_ROWS if "model" in self.drafters else TREE_ROWS
        if self.plan.owners.get("draft overlay"):
            rows += overlay_positions(TREE_ROWS)
        held = wanted + (rows if self._positions_held else 0)
        cache = self.target.new_cache(wanted)
        self._handover.forgive()
        session = Session(self, cache, make_schedule(self, cache))
        self._positions_held += held
        self._sessions += 1
        session.released = weakref.finalize(session, self._release, held)
        return session

    def _release(self, positions: int) -> None:
        self._positions_held -= positions
        self._sessions -= 1

    def learn(self, schedule: Schedule) -> None:
        """A reply is over: the next session begins with what it taught."""
        if isinstance(schedule, Serial) and isinstance(schedule.controller, Adaptive):
            self.controller = schedule.controller

    def reconsider(self, session: Session, tokens: int, check: Callable[[], None]) -> None:
        """After a cycle that gave `tokens`: when drafting with what takes memory loses for good, and no other
        session needs it, give that memory to pinned layers. `check` raises Cancelled; the next cycle then
        goes on with it."""
        after, schedule = self._without_drafter, session.schedule
        if after is None or not isinstance(schedule, Serial) or schedule.took is None:
            return
        with self.one_pass:
            if self._handover.record(tokens, schedule.took) and self._sessions == 1:
                self._hand_over(schedule, after, check)

    def _hand_over(self, schedule: Serial, after: Plan, check: Callable[[], None]) -> None:
        schedule.drafter = without_models(schedule.drafter)
        while self.resident:
            self.resident.pop().close()
        return_freed_memory()
        weights = self.target.weights
        held = weights.pinned.keys() | weights.on_device.keys()
        more = (c for c in after.table.chunks if c.index in after.pinned - held)
        weights.pin(more, progress=lambda nbytes: check())
        self.plan, self._without_drafter = after, None

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of text, of chat messages (by the model's template), or of ids as they are."""
        return encode_prompt(self.tokenizer, prompt)

    @property
    def bytes_read(self) -> int:
        """Bytes read from flash so far."""
        return self.target.weights.bytes_read

    def peak_memory(self) -> int:
        """Bytes this process has used at most: what the dial caps (`devices.probe.peak_memory`)."""
        return peak_memory()

    def close(self) -> None:
        """Stop reading and free the weights. Sessions of this engine cannot be used any more."""
        self._finalizer()
        for resident in self.resident:
            resident.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def choose_device(options: EngineOptions) -> torch.device:
    """The device that computes.

    Raises DeviceError when it is missing, OptionError for device memory without a discrete accelerator.
    """
    available = torch.cuda.is_available()
    name = "cpu" if options.device == "auto" else options.device  # CUDA only when asked: docs/architecture.md
    if name not in ("cpu", "cuda"):
        raise DeviceError(f"device {options.device!r} is unknown; choose auto, cpu or cuda")
    if name == "cuda" and not available:
        raise DeviceError("no CUDA device is available to this build of torch; use --device cpu")
    discrete = name == "cuda" and not torch.cuda.get_device_properties(0).is_integrated
    if options.device_memory is not None and not discrete:
        raise OptionError("device_memory applies to a discrete accelerator; here one dial, memory, is all")
    return torch.device(name)


def _members(options: EngineOptions) -> tuple[str, ...]:
    if options.tree_nodes == 1 and options.drafter == "auto":
        return ()
    return choose_drafters(options.drafter, options.draft_model, options.schedule, options.adapters)


def check_drafting(options: EngineOptions) -> None:
    """Raises OptionError for drafters and schedules that are unknown, lack something, or do not fit."""
    _members(options)
    if options.tree_nodes > TREE_ROWS:
        raise OptionError(
            f"tree_nodes is {options.tree_nodes}, but the ledger gives every KV cache room for trees of at "
            f"most {TREE_ROWS} nodes"
        )
