"""The Python API: open a model, reply to a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from edgespec.config import EngineOptions, GenerationOptions, parse_bytes
from edgespec.engine import Engine, Prompt
from edgespec.errors import OptionError
from edgespec.progress import ProgressCallback
from edgespec.response import Response
from edgespec.runtimes.torch.open import TREE_ROWS


def load(
    model: str | Path,
    *,
    memory: str | int | None = None,
    device: str = "auto",
    device_memory: str | int | None = None,
    context: int | None = None,
    precision: str | None = None,
    resident_layers: int | None = None,
    drafter: str = "auto",
    draft_model: str | Path | None = None,
    adapters: str | Path | None = None,
    schedule: str = "serial",
    tree_nodes: int = TREE_ROWS,
    progress: ProgressCallback | None = None,
) -> Engine:
    """`Engine.load` with the options spelt out; sizes as "8GB" or bytes. Raises what that raises.

    Two settings of the whole process change, and stay changed: threads hand over the interpreter every 0.5 ms
    (`sys.setswitchinterval`) once weights are streamed, or busy Python would hold up the readers; and glibc
    gives freed blocks above 4 MiB back at once (`mallopt`), or they would stay in the process uncounted.
    """
    options = EngineOptions(
        memory=None if memory is None else parse_bytes(memory),
        device=device,
        device_memory=None if device_memory is None else parse_bytes(device_memory),
        context=context,
        precision=precision,
        resident_layers=resident_layers,
        drafter=drafter,
        draft_model=None if draft_model is None else str(draft_model),
        adapters=None if adapters is None else str(adapters),
        schedule=schedule,
        tree_nodes=tree_nodes,
    )
    return Engine.load(model, options, progress)


def stream_generate(
    engine: Engine,
    prompt: Prompt,
    options: GenerationOptions | None = None,
    *,
    progress: ProgressCallback | None = None,
    **overrides: Any,
) -> Iterator[Response]:
    """Reply to one prompt in a session of its own, token by token.

    prompt: text (completed as it is), token ids, or chat messages ({"role": ..., "content": ...}).
    overrides: fields of GenerationOptions, e.g. max_tokens=100, temperature=0.7.

    Raises OptionError for unknown or malformed options, ContextError when it would not fit.
    """
    options = with_overrides(options, overrides)
    tokens = engine.encode(prompt)
    session = engine.new_session()
    try:
        replies = session.generate(tokens, options, progress)
    except BaseException:
        session.close()
        raise

    def run() -> Iterator[Response]:
        try:
            yield from replies
        finally:
            session.close()

    return run()


def generate(
    engine: Engine, prompt: Prompt, options: GenerationOptions | None = None, **overrides: Any
) -> Response:
    """The whole reply of `stream_generate` as one Response, with all its text and tokens."""
    texts, tokens, last = [], [], Response("")
    for last in stream_generate(engine, prompt, options, **overrides):
        texts.append(last.text)
        if last.token is not None:
            tokens.append(last.token)
    return replace(last, text="".join(texts), tokens=tokens)


def with_overrides(options: GenerationOptions | None, overrides: dict[str, Any]) -> GenerationOptions:
    try:
        return replace(options or GenerationOptions(), **overrides)
    except TypeError:
        known = ", ".join(f.name for f in fields(GenerationOptions))
        unknown = ", ".join(sorted(set(overrides) - {f.name for f in fields(GenerationOptions)}))
        raise OptionError(f"unknown generation option {unknown}; known are {known}") from None
