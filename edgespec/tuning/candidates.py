"""Who could draft for a model: what is there, what was asked for, and what packing would add."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from edgespec.config import EngineOptions
from edgespec.devices.arithmetic import Arithmetic
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.low_bit import AHEAD_ROWS, copy_extras
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.model_memory import model_extras
from edgespec.drafters.vocabulary import check_vocabulary
from edgespec.errors import Call, OptionError, TokenizerError
from edgespec.offload.chunk_store import is_store
from edgespec.offload.pack.layout import LOW_BIT
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.packed import SUBSTITUTE
from edgespec.text.tokenizer import load_tokenizer
from edgespec.tuning.acceptance import PRIORS
from edgespec.tuning.candidate import NGRAM, PLAIN, Candidate, Stored
from edgespec.tuning.subject import Subject, low_bit_bytes, open_subject

PADDED = 0.01  # of a vocabulary: models of one family pad theirs to different sizes


def find_candidates(
    subject: Subject, options: EngineOptions, how: Arithmetic, stack: ExitStack
) -> list[Candidate]:
    """Ways of drafting for a model that the options leave open, plain decoding first. What `stack` holds must
    stay open while they are used.

    `how`: see `devices.machine.Machine`. Under drafter `auto` a low-bit copy that is not there is one of
    them, where a model can have one. Raises OptionError for what is asked for and not there, and what opening
    a model raises.
    """
    members = choose_drafters(options)
    found = list[Candidate]()
    prepares = options.schedule != "serial"
    copy = _copy(subject, options, stack) if {"substitute", "model", "cascade"} & {*members} else None
    joined = {"cascade", "substitute"} <= {*members}
    if "substitute" in members and not joined:
        if copy is not None:
            found.append(substitute(subject, copy.precision, prepares, _named(options, copy)))
        elif options.drafter != "auto":
            raise OptionError(
                f"{subject.name} has no low-bit copy to draft with; pack one, or use drafter=auto"
            )
        elif options.draft_model is None and (made := _would_be(subject, prepares)) is not None:
            found.append(made)
    if "model" in members and copy is None and options.draft_model is not None:
        draft = stack.enter_context(open_subject(options.draft_model, options.offline))
        _check_vocabularies(subject, draft)
        found.append(draft_model(draft, options, how))
    if "cascade" in members and options.adapters is not None:
        from edgespec.tuning.cascade import cascade_with_copy, find_cascade_candidates  # torch: seconds

        wanted = options.verifier_layers
        if not joined:
            found += find_cascade_candidates(subject, options.adapters, wanted)
        if joined or (options.drafter == "auto" and copy is not None):
            found.append(cascade_with_copy(subject, options.adapters, options.draft_model, wanted))
        if copy is not None and not joined and "substitute" not in members and options.drafter == "auto":
            found.append(substitute(subject, copy.precision, prepares, {}))  # what the adapters compete with
    for kind in ("moa", "eagle", "specformer", "streaming", "spd"):
        if kind in members and options.adapters is not None:
            from edgespec.tuning.trained import find_trained  # torch: seconds

            found.append(find_trained(subject, kind, options.adapters, prepares))
    if "ngram" in members:  # its branches are free beside any other's
        found = [replace(c, drafter=f"ngram+{c.drafter}", members=("ngram", *c.members)) for c in found]
    if "ngram" in members and (options.drafter == "auto" or not found):
        found.insert(0, NGRAM)
    return [PLAIN, *found]


def _copy(subject: Subject, options: EngineOptions, stack: ExitStack) -> Subject | None:
    """The low-bit copy of a model that there is: the one that is named, or what was packed with it."""
    path = subject.files.path / SUBSTITUTE
    if options.draft_model is not None:
        path = Path(options.draft_model).expanduser()
    if not is_store(path):
        return None
    copy = stack.enter_context(open_subject(str(path)))
    return copy if copy.files.digest == subject.files.digest and copy.precision in LOW_BIT else None


def _named(options: EngineOptions, copy: Subject) -> dict[str, str]:
    return {} if options.draft_model is None else {"draft_model": copy.name}


def _would_be(subject: Subject, prepares: bool) -> Candidate | None:
    """The int4 copy that packing would make, where it is smaller than the weights."""
    if low_bit_total(subject, "int4") >= subject.files.table.nbytes or subject.packed:
        return None
    name = subject.name
    if subject.order is None:  # packed already: the copy is added to it
        call = Call("pack_model", {"model": subject.files.source, "out": name, "substitute": "int4"})
        return substitute(subject, "int4", prepares, {}, (call,))
    call = Call("pack_model", {"model": name, "out": "low", "precision": "int4"})
    return substitute(subject, "int4", prepares, {"draft_model": "low"}, (call,))


def low_bit_total(subject: Subject, precision: str) -> int:
    return sum(low_bit_bytes(chunk, precision) for chunk in subject.files.table.chunks)


def substitute(
    subject: Subject,
    precision: str,
    prepares: bool,
    files: Mapping[str, str],
    before: tuple[Call, ...] = (),
) -> Candidate:
    """A copy of this precision as the drafter: a step reads it, and what it does not stand for as it is."""
    sizes = {chunk.index: low_bit_bytes(chunk, precision) for chunk in subject.files.table.chunks}
    config, element = subject.files.config, subject.files.element
    extras = copy_extras(lambda chunk: sizes[chunk.index], config, element, prepares)

    def reads(plan: Plan) -> Stored:
        stored = {LOW_BIT[precision]: sum(sizes[index] for index in plan.copied)}
        for chunk in plan.table.chunks:
            if chunk.index not in plan.copied:
                for piece, _ in chunk.matrices():
                    stored[piece.encoding] = stored.get(piece.encoding, 0) + piece.nbytes
        return stored

    prior = PRIORS["substitute"]
    layers = subject.files.config.layers
    return Candidate(
        "substitute",
        ("substitute",),
        extras,
        reads,
        layers,
        lambda plan: prior,
        files,
        before,
        rows=prior.width,
        ahead_rows=AHEAD_ROWS,
    )


def _check_vocabularies(target: Subject, draft: Subject) -> None:
    """As loading would, where both are here; of what is not, by size, which in one family differs by a few
    rows. Raises TokenizerError."""
    if target.here and draft.here:
        own, other = (load_tokenizer(one.files, one.files.path).backend for one in (target, draft))
        check_vocabulary(
            own.get_vocab(with_added_tokens=True), other.get_vocab(with_added_tokens=True), draft.name
        )
        return
    tokens, others = target.files.config.vocab_size, draft.files.config.vocab_size
    if abs(tokens - others) > PADDED * tokens:
        raise TokenizerError(
            f"the draft model {draft.name} has another tokenizer: a vocabulary of {others}, and the target's "
            f"has {tokens}; use a smaller model of the target's own family, or drafter=ngram"
        )


def draft_model(draft: Subject, options: EngineOptions, how: Arithmetic) -> Candidate:
    """Another model: all of it is in memory, and read in every step."""
    files = draft.files
    extras = model_extras(files, how, options.draft_worker is not None, options.schedule != "serial")
    stored, prior = files.table.stored, PRIORS["model"]
    return Candidate(
        "model",
        ("model",),
        extras,
        lambda plan: stored,
        files.config.layers,
        lambda plan: prior,
        {"draft_model": draft.name},
        rows=prior.width,
        ahead_rows=ModelDrafter.ahead_width,
        reads_prompt=options.draft_worker is None,  # else while the target does
    )
