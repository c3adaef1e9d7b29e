"""`edgespec train cascade`: adapters for a model, so that its first layers can draft for it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import edgespec
from edgespec.apps import common, interrupts, options
from edgespec.apps.examples import CASCADE, TRAIN
from edgespec.apps.progress import format_seconds
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions
from edgespec.errors import MissingExtraError, OptionError
from edgespec.values import format_bytes

if TYPE_CHECKING:
    from edgespec.training.trainer import Report

QUIET_SECONDS = 60.0  # between two lines when nobody watches a terminal

train = typer.Typer(name="train", help="Train drafters for a model of yours.", epilog=TRAIN)


@train.callback(invoke_without_command=True)
def _train(context: typer.Context) -> None:
    """Train drafters for a model of yours."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _flag(*names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


@train.command(epilog=CASCADE)
@options.takes(("memory", "device", "device_memory", "threads", "precision", "offline"))
def cascade(
    model: options.Model,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="TEXT", help="A .txt or .jsonl file, or a directory of them."),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Where adapters, checkpoint and log go.")
    ],
    draft_layers: Annotated[
        int | None,
        _flag("--draft-layers", metavar="N", help="Layers of the draft. Default: about 3/32 of them."),
    ] = None,
    verify_layers: Annotated[
        str | None,
        _flag(
            "--verify-layers",
            metavar="N,...",
            help="Layers of the shallow verifier; several train an adapter each. Default: about 15/32.",
        ),
    ] = None,
    steps: Annotated[int | None, _flag("--steps", metavar="N", help="Default: 2000.")] = None,
    loss: Annotated[
        str | None,
        _flag(
            "--loss",
            metavar="NAME",
            help="reduced (the target's likeliest tokens) or full. Default: reduced.",
        ),
    ] = None,
    top_k: Annotated[
        int | None, _flag("--top-k", metavar="K", help="Tokens of the reduced loss. Default: 20.")
    ] = None,
    generate: Annotated[
        int | None,
        _flag("--generate", metavar="N", help="Learn from N replies of the model itself; TEXT has prompts."),
    ] = None,
    temperature: Annotated[
        float | None, _flag("--temperature", metavar="T", help="Of those replies. Default: 0, greedy.")
    ] = None,
    held_out: Annotated[
        Path | None,
        _flag("--held-out", metavar="TEXT", help="Text to measure on. Default: the last 5 % of the data."),
    ] = None,
    first: Annotated[
        Path | None,
        _flag("--from", metavar="DIR", help="Adapters to begin with, of the same depths. Default: anew."),
    ] = None,
    length: Annotated[
        int | None, _flag("--length", metavar="TOKENS", help="Longest sequence. Default: 1024.")
    ] = None,
    batch_tokens: Annotated[
        int | None, _flag("--batch-tokens", metavar="N", help="Tokens of a step, about. Default: 8192.")
    ] = None,
    rate: Annotated[
        float | None, _flag("--rate", metavar="R", help="Learning rate. Default: 0.25 / the model's width.")
    ] = None,
    seed: Annotated[int | None, _flag("--seed", metavar="N", help="Default: 0.")] = None,
    *,
    engine: EngineOptions,
) -> None:
    """Train a cascade's adapters for MODEL. Interrupted, the same command goes on where it stopped."""
    wanted: dict[str, Any] = {
        "draft_layers": draft_layers,
        "verify_layers": None if verify_layers is None else _depths(verify_layers),
        "steps": steps,
        "loss": loss,
        "top_k": top_k,
        "generate": generate,
        "temperature": temperature,
        "length": length,
        "batch_tokens": batch_tokens,
        "rate": rate,
        "seed": seed,
    }
    with Terminal() as terminal:
        terminal.busy("starting")
        common.check_source(model)
        if os.environ.get("GOMP_SPINCOUNT") == edgespec.SPINS:  # as edgespec has set it, not the user
            os.environ["GOMP_SPINCOUNT"] = edgespec.TRAINING_SPINS
        with interrupts.imports():
            from edgespec.devices.probe import peak_memory
            from edgespec.engine import check_options
            from edgespec.models.hub import resolve_model
            from edgespec.models.loading import choose_device
            from edgespec.runtimes.formats.describe import describe_model
            from edgespec.text.tokenizer import load_tokenizer
            from edgespec.training.cascade import CascadeOptions, choose_depths, train_cascade
            from edgespec.training.workers import Workers

        check_options(engine)
        chosen = CascadeOptions(**{k: v for k, v in wanted.items() if v is not None})
        path = resolve_model(model, terminal.progress, engine.offline)
        files = describe_model(path, engine.precision)
        depths = choose_depths(files.config.layers, chosen)
        terminal.note("adapters: " + ", ".join(f"{role} after layer {depth}" for role, depth in depths))
        watch = _Watch(terminal)
        try:
            train_cascade(
                files,
                load_tokenizer(files, path),
                data,
                out,
                chosen,
                engine,
                choose_device(engine),
                held_out=held_out,
                first=first,
                report=watch,
                progress=terminal.progress,
            )
        except KeyboardInterrupt:
            terminal.note(f"stopped; the same command goes on from the last checkpoint in {out}")
            raise typer.Exit(130) from None
        finally:
            if watch.last is not None or not Workers.several():
                _plot(terminal, out)
        if watch.last is None:
            if not Workers.several():
                terminal.note(f"{out} is finished; more --steps make the run longer")
            return
        speed = watch.last.tokens / watch.last.seconds if watch.last.seconds else 0.0
        terminal.result(
            f"{out}: {watch.last.step} steps, {watch.last.tokens} tokens in "
            f"{format_seconds(watch.last.seconds)} ({speed:.0f} tokens/s), "
            f"peak memory {format_bytes(peak_memory())}"
        )


def _plot(terminal: Terminal, out: Path) -> None:
    """Curves of whatever was logged, however the run ended."""
    from edgespec.training.plots import CURVES, plot_log
    from edgespec.training.trainer import LOG

    log = out / "run" / LOG
    if log.is_file():
        try:
            plot_log(log, out / CURVES)
        except MissingExtraError as error:
            terminal.note(str(error))


def _depths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--verify-layers: {text!r} is not a list of numbers; write 15 or 9,15") from None


class _Watch:
    """Says how training goes: each step on the progress line, each evaluation as a line that stays."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.last: Report | None = None
        self._said = time.monotonic()

    def __call__(self, report: Report) -> None:
        self.last = report
        losses = ", ".join(f"{name} {value:.3f}" for name, value in report.losses.items())
        now = time.monotonic()
        if report.held_out is not None:
            lines = [f"step {report.step}/{report.steps}" + (f" · loss {losses}" if losses else "")]
            for name, found in report.held_out.items():
                positions = " ".join(f"{p:.2f}" for p in found["positions"])
                lines.append(
                    f"  {name:>10}: held-out loss {found['loss']:.3f}, agrees {found['agreement']:.1%}, "
                    f"by draft position {positions}, {found['accepted']:.2f} tokens a cycle"
                )
            self.terminal.note("\n".join(lines))
            self._said = now
            return
        text = (
            f"step {report.step}/{report.steps} · loss {losses} · {report.tokens_per_second:.0f} tokens/s · "
            f"{format_seconds(report.seconds_left)} left"
        )
        self.terminal.busy(text)
        if not sys.stderr.isatty() and now - self._said >= QUIET_SECONDS:
            self.terminal.note(text)
            self._said = now
