"""`edgespec train NAME`: drafters, each trained for one model. A command each; the rest is shared."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

import typer

import edgespec
from edgespec.apps import common, options
from edgespec.apps.examples import CASCADE, EAGLE, MOA, SPD, SPECFORMER, STREAMING, TRAIN
from edgespec.apps.help import Command, Group
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions
from edgespec.errors import MissingExtraError
from edgespec.training.options import (
    CascadeOptions,
    EagleOptions,
    MoaOptions,
    SpdOptions,
    SpecFormerOptions,
    StreamingOptions,
    TrainingOptions,
)
from edgespec.values import format_bytes, format_seconds

if TYPE_CHECKING:
    from edgespec.runtimes.formats.describe import ModelFiles
    from edgespec.training.trainer import Report

QUIET_SECONDS = 60.0  # between two lines when nobody watches a terminal

train = typer.Typer(name="train", help="Train drafters for a model of yours.", epilog=TRAIN, cls=Group)


@train.callback(invoke_without_command=True)
def _train(context: typer.Context) -> None:
    """Train drafters for a model of yours."""
    if context.invoked_subcommand is None:
        print(context.get_help())


ENGINE = ("memory", "device", "device_memory", "threads", "precision", "offline")
Data = Annotated[
    Path, typer.Option("--data", metavar="TEXT", help="A .txt or .jsonl file, or a directory of them.")
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", help="Where adapters, checkpoint and log go.")
]


@train.command(epilog=CASCADE, cls=Command)
@options.takes(engine=ENGINE)
def cascade(
    model: options.Model, data: Data, out: Out, *, chosen: CascadeOptions, engine: EngineOptions
) -> None:
    """Train a cascade's adapters for MODEL. Interrupted, the same command goes on where it stopped."""

    def shown(files: ModelFiles) -> str:
        from edgespec.training.cascade import choose_depths

        depths = choose_depths(files.config.layers, chosen)
        return "adapters: " + ", ".join(f"{role} after layer {depth}" for role, depth in depths)

    _run("edgespec.training.cascade:train_cascade", shown, model, data, out, chosen, engine)


@train.command(epilog=MOA, cls=Command)
@options.takes(engine=ENGINE)
def moa(model: options.Model, data: Data, out: Out, *, chosen: MoaOptions, engine: EngineOptions) -> None:
    """Train a Mixture-of-Attentions drafter for MODEL. Interrupted, the same command goes on where it
    stopped."""

    def shown(files: ModelFiles) -> str:
        from edgespec.runtimes.formats.moa_sizes import choose_sizes, parameters

        of = chosen.kv_heads, chosen.mlp, chosen.layer_attention, chosen.target_layers
        sizes = choose_sizes(files.config, *of)
        count = parameters(files.config, sizes)
        return f"drafter: {count:,} parameters, MLPs {', '.join(map(str, sizes.mlp))} wide"

    _run("edgespec.training.moa:train_moa", shown, model, data, out, chosen, engine)


@train.command(epilog=EAGLE, cls=Command)
@options.takes(engine=ENGINE)
def eagle(model: options.Model, data: Data, out: Out, *, chosen: EagleOptions, engine: EngineOptions) -> None:
    """Train an EAGLE drafter for MODEL. Interrupted, the same command goes on where it stopped."""

    def shown(files: ModelFiles) -> str:
        from edgespec.runtimes.torch.eagle import EagleShape, eagle_shapes

        return _size(eagle_shapes(files.config, EagleShape(chosen.mlp)))

    _run("edgespec.training.eagle:train_eagle", shown, model, data, out, chosen, engine)


@train.command(epilog=SPECFORMER, cls=Command)
@options.takes(engine=ENGINE)
def specformer(
    model: options.Model, data: Data, out: Out, *, chosen: SpecFormerOptions, engine: EngineOptions
) -> None:
    """Train a SpecFormer drafter for MODEL. Interrupted, the same command goes on where it stopped."""

    def shown(files: ModelFiles) -> str:
        from edgespec.runtimes.torch.specformer import specformer_shapes
        from edgespec.training.specformer import SpecFormerRecipe

        return _size(specformer_shapes(files.config, SpecFormerRecipe(files, chosen).shape))

    _run("edgespec.training.specformer:train_specformer", shown, model, data, out, chosen, engine)


@train.command(epilog=STREAMING, cls=Command)
@options.takes(engine=ENGINE)
def streaming(
    model: options.Model, data: Data, out: Out, *, chosen: StreamingOptions, engine: EngineOptions
) -> None:
    """Train a speculative streaming drafter for MODEL. Interrupted, the same command goes on where it
    stopped."""

    def shown(files: ModelFiles) -> str:
        from edgespec.runtimes.torch.streaming import streaming_shapes
        from edgespec.training.streaming import StreamingRecipe

        shape = StreamingRecipe(files, chosen).shape
        layers, through = shape.layers, shape.stream_layers
        streams = f"{shape.streams} streams through the last {through}" if shape.streams else "no streams"
        return f"{_size(streaming_shapes(files.config, shape))}, layers: {layers}, {streams}"

    _run("edgespec.training.streaming:train_streaming", shown, model, data, out, chosen, engine)


@train.command(epilog=SPD, cls=Command)
@options.takes(engine=ENGINE)
def spd(model: options.Model, data: Data, out: Out, *, chosen: SpdOptions, engine: EngineOptions) -> None:
    """Train an SPD drafter for MODEL: a streaming drafter in tracks that meet twice a step. Interrupted, the
    same command goes on where it stopped."""

    def shown(files: ModelFiles) -> str:
        from edgespec.training.spd import SpdRecipe

        shape = SpdRecipe(files, chosen).shape
        segments = f"{shape.layers - shape.stream_layers} and {shape.stream_layers}"
        size = _size(shape.parameters(files.config))
        return f"{size}, tracks: {shape.tracks}, layers: {segments}, streams: {shape.streams}"

    _run("edgespec.training.spd:train_spd", shown, model, data, out, chosen, engine)


def _size(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Of a module whose parameters have these shapes, in words."""
    return f"parameters: {sum(map(math.prod, shapes.values())):,}"


def _run(
    where: str,
    shown: Callable[[ModelFiles], str],
    model: str,
    data: Path,
    out: Path,
    chosen: TrainingOptions,
    engine: EngineOptions,
) -> None:
    """Train by the function that is at `where`; `shown`: what will be trained, for the user."""
    with Terminal() as terminal:
        terminal.busy("starting")
        common.check_source(model)
        if os.environ.get("GOMP_SPINCOUNT") == edgespec.SPINS:  # as edgespec has set it, not the user
            os.environ["GOMP_SPINCOUNT"] = edgespec.TRAINING_SPINS
        from edgespec.devices.probe import peak_memory
        from edgespec.models.asked import check_options
        from edgespec.models.hub import resolve_model
        from edgespec.runtimes.formats.describe import describe_model
        from edgespec.training.workers import Workers

        check_options(engine)
        path = resolve_model(model, terminal.progress, engine.offline)
        terminal.note(shown(describe_model(path, engine.precision)))
        watch = _TrainingProgress(terminal)
        try:
            resolve_name(where)(path, data, out, chosen, engine, report=watch, progress=terminal.progress)
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
    from edgespec.training.log import LOG
    from edgespec.training.plots import CURVES, plot_log

    log = out / "run" / LOG
    if log.is_file():
        try:
            plot_log(log, out / CURVES)
        except MissingExtraError as error:
            terminal.note(str(error))


class _TrainingProgress:
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
