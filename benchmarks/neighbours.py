"""How much of its speed is left beside busy neighbours: of a small model in memory, a streamed one, training.

    python -m benchmarks.neighbours [--what small,training] --memory 8GB

A neighbour is a loop of one thread, in this cgroup. `of quiet` is over the first number of neighbours.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.common import Row, arguments, environment, interleave, names, numbers
from benchmarks.models.make_model import ensure_model
from benchmarks.tables import Report, ratio, spread
from benchmarks.worker import Worker, per_cycle
from edgespec.apps.common import demo_model
from edgespec.devices.probe import cpu_count
from edgespec.values import parse_bytes

SMALL_BYTES = 10**9  # the dial of the small model
SETTLE_SECONDS = 0.5  # until the system has shared out the cores
TOKENS = {"small": 60, "streamed": 6}  # of a reply
STEPS, BATCH = 40, (16, 192)  # of training, a measurement; rows and tokens of a step


def beside(count: int, measure: Callable[[], Row]) -> Row:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(SETTLE_SECONDS)
        return measure()
    finally:
        for process in busy:
            process.kill()
            process.wait()


def reply(worker: Worker, tokens: int) -> Row:
    return {"rate": 1 / per_cycle(worker.reply(tokens))["cycle_seconds"]}


@contextmanager
def trainer() -> Iterator[Callable[[], Row]]:
    """Training in a process of its own, some steps for each call."""
    command = [sys.executable, "-m", "benchmarks.neighbours", "train"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment()) as process:
        ask, answers = process.stdin, process.stdout
        assert ask is not None
        assert answers is not None

        def measure() -> Row:
            print(file=ask, flush=True)
            return {"rate": float(answers.readline())}

        yield measure
        ask.close()


def train() -> None:
    """The child's side: the demo model's shape and optimizer, on random tokens."""
    import torch
    from tokenizers import Tokenizer

    from edgespec.demo_model.recipe.batches import Batch
    from edgespec.demo_model.recipe.muon import Muon
    from edgespec.demo_model.recipe.train import RATE, loss_function, model_config
    from edgespec.kernels.cpu import matmul_dtype
    from edgespec.training.data import Numbered
    from edgespec.training.llama import Llama
    from edgespec.training.threads import LATE
    from edgespec.training.trainer import Loss, Settings, Trainer

    config = model_config(Tokenizer.from_file(str(demo_model() / "tokenizer.json")))
    arithmetic = matmul_dtype(torch.bfloat16)  # as the recipe computes
    model = Llama(config).to(arithmetic)
    ids, ones = torch.randint(config.vocab_size, BATCH), torch.ones(BATCH)
    batch = Batch(ids, ids, ones, torch.arange(BATCH[1]).expand(BATCH), torch.zeros(BATCH))
    loss_of = loss_function(model)

    def loss(_: torch.nn.Module, b: Batch) -> Loss:
        total = loss_of(b.inputs, b.targets, b.weights, b.positions, b.mask(arithmetic))
        return Loss({"text": total}, b.inputs.numel(), b.inputs.numel())

    optimizer = Muon(dict(model.named_parameters()))
    with tempfile.TemporaryDirectory() as out:
        steps, settings = Numbered(lambda step: [batch]), Settings(10**6, RATE)
        training = Trainer(model, steps, loss, settings, Path(out), optimizer=optimizer)
        for _ in sys.stdin:
            training.run(lambda line: None, stop_after=training.step + LATE)  # until it has its threads
            before = training.tokens, training.spent
            training.run(lambda line: None, stop_after=training.step + STEPS)
            tokens, seconds = training.tokens - before[0], training.spent - before[1]
            print(tokens / seconds, flush=True)  # with the steps that tried another number of threads


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--what", type=names, default="small,streamed,training")
    parser.add_argument("--neighbours", type=numbers, default="0,1,2")
    parser.add_argument("--streamed", type=Path, help="default: the 7b shape")
    parser.add_argument("--memory", type=parse_bytes, default="3GB", help="of the streamed model")
    args = parser.parse_args()
    arms: dict[tuple[str, int], Callable[[], Row]] = {}
    with ExitStack() as opened:
        for what in args.what:
            if what == "training":
                measure = opened.enter_context(trainer())
            else:
                model = demo_model() if what == "small" else args.streamed or ensure_model("7b")
                dial = SMALL_BYTES if what == "small" else args.memory
                measure = partial(reply, opened.enter_context(Worker(model, dial)), TOKENS[what])
            measure()  # the first one loads what is loaded late
            for count in args.neighbours:
                arms[what, count] = partial(beside, count, measure)
        found = interleave({f"{what} {count}": arm for (what, count), arm in arms.items()}, args.rounds)
    report = Report(f"Beside busy processes, {cpu_count()} CPUs", raw=dict(found))
    for what, count in arms:
        mine, quiet = (
            [row["rate"] for row in found[f"{what} {number}"]] for number in (count, args.neighbours[0])
        )
        cells = {"what": what, "neighbours": count, "tokens/s": spread(mine, 1)}
        report.add({**cells, "of quiet": ratio(mine, quiet)})
    report.finish(args.json)


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
