"""The Python API: open a model, reply to a prompt, also from asyncio. docs/api.md shows it in use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from edgespec.arguments import check_engine, check_progress, given_options
from edgespec.config import EngineOptions, GenerationOptions, refuse_idle
from edgespec.engine import Engine
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.progress import ProgressCallback
from edgespec.response import InThread, Response, whole
from edgespec.serving.many import converse, one_turn
from edgespec.session import Session
from edgespec.text.prompt import Prompt
from edgespec.tuning.measure import check_measuring, measure_model
from edgespec.tuning.profile import read_profile
from edgespec.tuning.result import Tuning
from edgespec.tuning.tune import tune_model
from edgespec.values import with_keywords

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgespec.split.client import RemoteEngine


class EngineKeywords(TypedDict, total=False):
    """The fields of EngineOptions, for type checkers (which cannot derive them; a test compares)."""

    memory: str | float | None  # "8GB", or bytes
    context: int | None
    precision: str | None
    batch: int
    resident_layers: int | None
    device: str
    device_memory: str | float | None
    threads: int | None
    drafter: str
    draft_model: str | Path | None
    draft_engine: str | None
    draft_worker: int | None
    draft_server: str | None
    draft_key_file: str | Path | None
    draft_ca: str | Path | None
    adapters: str | Path | None
    client_adapters: str | Path | None
    tree_nodes: int
    offline: bool
    schedule: str
    fan_out: str
    fan_out_budget: int
    fallback: str
    exit_layer: int | None
    verifier_layers: int | None
    kappa: int


class GenerationKeywords(TypedDict, total=False):
    """The fields of GenerationOptions, for type checkers."""

    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | list[str] | tuple[str, ...]
    ignore_eos: bool
    acceptance: str | None


def load(
    model: str | Path,
    *,
    progress: ProgressCallback | None = None,
    profile: str | Path | None = None,
    **options: Unpack[EngineKeywords],
) -> Engine:
    """Open a model: a Hugging Face directory or hub id, a GGUF file, or a packed directory.

    options: the fields of EngineOptions; sizes as "8GB" or bytes. The environment and edgespec.toml are not
        read: they are the command line's.
    profile: settings that `tune` has written, for what `options` leaves open. What does not hold for this
        model or machine is left out, which the plan's reasons say.

    Settings of the whole process change, and stay changed: threads hand over the interpreter every 0.5 ms
    (`sys.setswitchinterval`) once weights are streamed, or busy Python would hold up the readers; glibc
    gives freed blocks above 4 MiB back at once (`mallopt`), or they would stay in the process uncounted; and
    torch computes with `threads`, or else goes back to the number it has now in every pass, as the bits may
    depend on it. (Importing edgespec has set GOMP_SPINCOUNT; `edgespec/__init__.py` says why.)

    Raises OptionError for options that are unknown, malformed or do not go together, and what `Engine.load`
    raises.
    """
    if profile is None:
        return Engine.load(model, with_keywords(EngineOptions(), options), progress)
    found = read_profile(Path(profile), str(model))
    chosen = with_keywords(with_keywords(EngineOptions(), options), {**found.options, **options})
    engine = Engine.load(model, chosen, progress)
    engine.holdings.plan = replace(engine.plan, reasons=[*engine.plan.reasons, *found.notes])
    return engine


def tune(
    model: str | Path,
    *,
    dials: Sequence[str | float] = (),
    preset: str | None = None,
    measure: bool = False,
    prompts: Sequence[Prompt] = (),
    progress: ProgressCallback | None = None,
    **options: Unpack[EngineKeywords],
) -> Tuning:
    """Predict how fast a model would be, and recommend settings; nothing is loaded or downloaded.

    dials: sizes of memory to compare; () = the one that `memory` names, or usual ones that are free.
    preset: for another machine (`devices.presets`).
    measure: run the model first, for some minutes, with these `prompts` or some of our own, and set the
        predictions right by what that shows.
    options: fields of EngineOptions, which stay as they are.

    Raises as `edgespec.tuning.tune.tune_model`, and `edgespec.tuning.measure.measure_model`.
    """
    asked = with_keywords(EngineOptions(), options)
    check_measuring(measure, preset, prompts)
    notes = measure_model(str(model), asked, dials, prompts, progress) if measure else []
    found = tune_model(str(model), asked, dials, preset, progress)
    return replace(found, notes=(*notes, *found.notes))


def stream_generate(
    engine: Engine | RemoteEngine,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    progress: ProgressCallback | None = None,
    **overrides: Unpack[GenerationKeywords],
) -> Iterator[Response]:
    """Reply to `prompt`, one Response a token, in a session of its own.

    prompt: text to continue, chat messages ({"role": ..., "content": ...}, formatted by the model's
        template), or token ids, in a list or an array.
    overrides: fields of GenerationOptions, such as max_tokens=100, temperature=0.7.

    Raises OptionError for an empty prompt or malformed options, ContextError when it would not fit.
    """
    return _replies(*_begin(engine, prompt, options, progress, overrides))


def generate(
    engine: Engine | RemoteEngine,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    progress: ProgressCallback | None = None,
    **overrides: Unpack[GenerationKeywords],
) -> Response:
    """The whole reply of `stream_generate` as one Response, with all its text and tokens."""
    return whole(stream_generate(engine, prompt, options, progress=progress, **overrides))


def generate_batch(
    engine: Engine,
    prompts: Iterable[Prompt],
    options: GenerationOptions | None = None,
    *,
    progress: ProgressCallback | None = None,
    **overrides: Unpack[GenerationKeywords],
) -> Iterator[tuple[int, Response | EdgeSpecError]]:
    """Reply to many prompts in shared passes: (the prompt's place, the whole reply), each as it ends.

    As many at a time as the engine has room for: load it with batch=. Each reply is what `generate` would
    give; a prompt that cannot be replied to has its error in the reply's place, and the others go on.
    `progress` gets the number of prompts done, after each pass. Leaving the loop ends what is under way.

    Raises OptionError for malformed options, BudgetError when open sessions hold the engine's memory.
    """
    check_engine(engine)
    if not hasattr(engine, "room_for"):
        raise OptionError(
            "many prompts share passes where the weights are; over a connection, give each a session and a "
            "thread of its own"
        )
    check_progress(progress)
    options = with_keywords(given_options(options, GenerationOptions), overrides)
    refuse_idle(options, overrides)
    asked = ((place, one_turn(engine, prompt, options), 1) for place, prompt in enumerate(prompts))
    return (
        (ended.key, ended.replies[0] if ended.error is None else ended.error)
        for ended in converse(engine, asked, progress)
    )


def astream_generate(
    engine: Engine | RemoteEngine,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    progress: ProgressCallback | None = None,
    **overrides: Unpack[GenerationKeywords],
) -> AsyncIterator[Response]:
    """`stream_generate` for asyncio: passes run in a thread of their own, and the loop goes on meanwhile.

    Cancelling the task ends the reply as `Session.cancel` does, and leaving the loop at once; an iterator
    that is held in a name has an `aclose`. `progress` is called in that thread.
    """
    session, replies = _begin(engine, prompt, options, progress, overrides)
    return InThread(_replies(session, replies), session.cancel)


async def agenerate(
    engine: Engine | RemoteEngine,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    progress: ProgressCallback | None = None,
    **overrides: Unpack[GenerationKeywords],
) -> Response:
    """`generate` for asyncio; see `astream_generate`."""
    stream = astream_generate(engine, prompt, options, progress=progress, **overrides)
    return whole([response async for response in stream])


def _begin(
    engine: Engine | RemoteEngine,
    prompt: Prompt,
    options: GenerationOptions | None,
    progress: ProgressCallback | None,
    overrides: Mapping[str, Any],
) -> tuple[Session, Iterator[Response]]:
    """A session of its own and its reply, checked but not begun."""
    check_engine(engine)
    check_progress(progress)
    options = with_keywords(given_options(options, GenerationOptions), overrides)
    refuse_idle(options, overrides)
    tokens = engine.encode(prompt)
    session = engine.new_session()
    try:
        return session, session.generate(tokens, options, progress)
    except BaseException:
        session.close()
        raise


def _replies(session: Session, replies: Iterator[Response]) -> Generator[Response, None, None]:
    try:
        yield from replies
    finally:
        session.close()
