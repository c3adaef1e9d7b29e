"""SPD drafts: tracks that meet twice a step, in one process or several, to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.spd import PAPER, Link, ours
from benchmarks.spd import main as print_latency
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.drafters.beside import Beside
from edgespec.drafters.model import DRAFT_ROWS
from edgespec.drafters.streaming.drafter import STREAM_ROWS, StreamingDrafter
from edgespec.engine import Engine
from edgespec.errors import CorruptFileError, OptionError
from edgespec.models.asked import check_options
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.spd import AllHere, Spd, SpdShape
from edgespec.runtimes.torch.streaming_draft import StreamingDraft, conversation_bytes
from edgespec.runtimes.torch.track_group import TrackGroup
from edgespec.runtimes.torch.trained_files import parameter_bytes, save_module
from tests.covering import covering
from tests.drafted import REPLY, SAMPLED, load_with, two_turns, undrafted
from tests.machine import worker_bytes
from tests.streamings import drafted_logits, drafted_tree, random_streaming, run, write_spd
from tests.test_cascade import quiet_model
from tests.test_session import prompt_of
from tests.tiny import open_tiny, write_checkpoint

ROOT = Path(__file__).resolve().parent.parent
SHAPE = SpdShape(5, 2, 3, tracks=4)


class Counted(AllHere):
    meetings = 0

    def assemble(self, shards: torch.Tensor, width: int) -> torch.Tensor:
        self.meetings += 1
        assert shards.shape[-1] == width
        return shards


def module_of(path: Path, shape: SpdShape = SHAPE, meeting: Counted | None = None) -> Spd:
    target = open_tiny(path)
    module = Spd(target.config, shape, target.dtype, target.device, meeting)
    random_streaming(module)
    return module


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.06)])
@pytest.mark.parametrize(("layers", "second", "tracks"), [(2, 1, 1), (5, 3, 4), (3, 1, 8)])
def test_training_and_inference_agree(
    tmp_path: Path, dtype: str, tolerance: float, layers: int, second: int, tracks: int
) -> None:
    path = write_checkpoint(tmp_path / "m", torch_dtype=dtype)
    target, shape = open_tiny(path), SpdShape(layers, 2, second, tracks=tracks)
    module = module_of(path, shape)
    tokens = prompt_of(50)
    states = module(target.embed(tokens).clone()[None])[0]  # [1 + gamma, t, d]
    trained = target.head(states.flatten(0, 1).detach()).view(3, 50, -1).transpose(0, 1).numpy()
    draft = StreamingDraft(module, target, 100, 40, 8)
    for _ in draft.prefill(tokens[:40]):
        pass
    used = run(draft, tokens[40:46], [-1, *range(5)])
    assert np.abs(trained[40:46] - used).max() < tolerance * np.abs(trained).max()
    shapes = shape.parameters(target.config)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == shapes
    assert sum(p.nbytes for p in module.parameters()) == parameter_bytes(shapes, target.dtype.itemsize)
    element = target.dtype.itemsize
    assert draft.cache.nbytes == conversation_bytes(target.config, shape, 100, 40, 8, element)


def test_tracks_meet_at_the_ends_of_two_segments_alone(tmp_path: Path) -> None:
    """Within a segment no track sees another: shards of others may be anything."""
    path = write_checkpoint(tmp_path / "m")
    target = open_tiny(path)
    meeting = Counted(SHAPE.tracks)
    module = module_of(path, meeting=meeting)
    draft = StreamingDraft(module, target, 100, 40, 8)
    counts = drafted_logits(draft, lambda: meeting.meetings)["counts"]
    assert counts.tolist() == [2, 2, 2], "a block of a prompt, a tree and a token, with their streams"
    width, hidden = target.config.hidden_size // SHAPE.tracks, torch.randn(1, 7, target.config.hidden_size)
    other = hidden.clone()
    other[..., :width] += 1.0
    for index in range(SHAPE.layers):
        if index in (0, 2):  # a segment's first, which sees all that has met
            continue
        same = torch.isclose(module.train_layer(index, hidden, None), module.train_layer(index, other, None))
        assert same[..., width:].all(), index
        assert not same[..., :width].any(), index


def test_workers_take_two_collectives_a_step_and_draft_the_same_bits(tmp_path: Path) -> None:
    """Also after a prompt and a pass that were left in the middle; each has its own tracks' keys and values
    alone."""
    workers, path = 4, write_checkpoint(tmp_path / "m")
    module = module_of(path)
    save_module(path / "spd", "spd", SHAPE, module, describe_model(path), {}, module.norm.dtype)
    command = [sys.executable, "-m", "tests.spd_worker", str(path), str(workers)]
    led = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert led.returncode == 0, led.stderr
    assert led.stdout.startswith("4 workers have 1 of 4 tracks each")
    assert int(led.stdout.split()[-1]) > 50e6 * workers, "all of them hold torch"
    said: dict[str, NDArray[Any]] = dict(np.load(path / "said.npz"))
    drafts = [StreamingDraft(module, open_tiny(path), 100, DRAFT_ROWS, STREAM_ROWS) for _ in range(2)]
    expected = drafted_logits(drafts[0], lambda: 0) | drafted_tree(StreamingDrafter(drafts[1], 100))
    assert said["own"].tolist() == [0]
    assert said["counts"].tolist() == [2, 2, 2]
    for name in expected.keys() - {"counts"}:
        assert np.array_equal(said[name], expected[name]), name
    assert workers * said["cached"] == drafts[0].cache.nbytes
    counted = [file.read_text() for file in path.glob("collectives-*")]
    assert len(counted) == workers
    assert len(set(counted)) == 1, "each takes part in the same"
    assert set(counted[0][1:]) == {"r"}, "all-reduces, once they have met"
    assert len(counted[0]) % 2 == 0, "two a step, behind the two by which they meet and are ready"


def test_workers_have_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 3)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: 2)
    with pytest.raises(OptionError, match="3 workers cannot share 4 tracks"):
        TrackGroup(4)
    assert list(TrackGroup(6).own) == [4, 5]


# --- in use -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = quiet_model(tmp_path_factory.mktemp("model") / "m", torch_dtype="bfloat16")
    write_spd(path, "exits")
    return path


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[float, list[int]]:
    return undrafted(model)


@pytest.fixture(scope="module")
def several(model: Path) -> Iterator[Engine]:
    with load_with(model, "spd", model / "spd-exits", schedule="ssd", draft_worker=2) as engine:
        yield engine


def test_two_processes_draft(model: Path, several: Engine, plain: dict[float, list[int]]) -> None:
    """What they take is in the plan, and in the peak."""
    planned = several.plan.owners
    (worker,) = several.resident
    assert isinstance(worker, Beside)
    assert worker.placement == "2 workers have 1 of 2 tracks each"
    assert planned["draft worker"] == planned["draft worker 2"]
    for options in (REPLY, SAMPLED):
        with several.new_session(300, Fixed(TreeBudget(16, 6, 2))) as session:
            said, stats = two_turns(session, options)
        assert said == plain[options.temperature]
        assert stats[0].undrafted is None
        assert sum(s.accepted for s in stats) > 5
    most = 2 * worker_bytes() + planned["drafter"]
    assert planned["draft worker"] < worker.outside < 1.1 * most
    assert several.peak_memory() > worker.outside


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_worker_of_several_is_killed_in_mid_draft(
    model: Path, several: Engine, plain: dict[float, list[int]]
) -> None:
    """The target goes on alone, and none of them stays."""
    (worker,) = several.resident
    assert isinstance(worker, Beside)
    leader = worker.worker._process.pid
    (follower,) = children(leader)
    with several.new_session(300, Fixed(TreeBudget(16, 6, 2))) as session:
        said: list[int] = []
        for response in session.generate(prompt_of(50), REPLY):
            said += [] if response.token is None else [response.token]
            if len(said) == 3:
                os.kill(follower, signal.SIGKILL)
    assert said == plain[0.0][: len(said)]
    assert len(said) == REPLY.max_tokens
    assert "a worker of the drafter's tracks is gone" in response.stats.undrafted
    assert not children(leader)
    assert worker.gone


def children(parent: int) -> list[int]:
    """Processes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.parent.name))
    return found


def test_so_many_workers_cannot_share_the_tracks(model: Path) -> None:
    with pytest.raises(OptionError, match="draft_worker is 3: 3 workers cannot share 2 tracks; take 1 or 2"):
        load_with(model, "spd", model / "spd-exits", draft_worker=3)


@pytest.mark.parametrize(
    ("schedule", "options"), covering(("serial", "ssd", "mirror"), {"sampled": SAMPLED, "greedy": REPLY})
)
def test_the_text_is_the_targets(
    model: Path, plain: dict[float, list[int]], schedule: str, options: GenerationOptions
) -> None:
    with load_with(model, "spd", model / "spd-exits", schedule=schedule) as engine:
        assert engine.drafters == ("spd",)
        assert engine.schedule == schedule
        with engine.new_session(300, Fixed(TreeBudget(16, 6, 2))) as session:
            said, stats = two_turns(session, options)
        assert said == plain[options.temperature]
        assert sum(s.drafted for s in stats) > len(said)
        assert sum(s.accepted for s in stats) > 0


def test_what_cannot_be_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"needs what was trained.*train_spd\(model="):
        check_options(EngineOptions(drafter="spd"))
    made = write_spd(model, out=tmp_path / "made")
    sound = json.loads((made / "adapter.json").read_text())
    for shape in ({"stream_layers": 2}, {"tracks": 3}, {"tracks": 0}, {"tracks": 4}, {"tracks": 10**9}):
        changed = sound | {"shape": sound["shape"] | shape}
        (made / "adapter.json").write_text(json.dumps(changed))
        with pytest.raises(CorruptFileError):
            load_with(model, "spd", made)


# --- the latency model ------------------------------------------------------------------------------------


def test_the_latency_model_is_the_papers() -> None:
    """Appendix C, by hand."""
    link = Link(alpha=1e-4, beta=1e-9)
    assert link.all_reduce(1000, 8) == pytest.approx(3e-4 + 1e-6)
    assert link.all_reduce(1000, 1) == 0
    assert PAPER.words(4, 8) == 4 * 256, "F.2: 256 a shard"
    assert PAPER.syncs(4, 8, link) == pytest.approx(2 * (3e-4 + 1024e-9))
    assert PAPER.per_layer(4, 8, link) == pytest.approx(32 * (3e-4 + 1024e-9))
    assert PAPER.step(4, 2, link, 1e11) == pytest.approx(0.006 + PAPER.syncs(4, 2, link))
    deeper = replace(PAPER, layers=64)
    assert deeper.syncs(4, 8, link) == PAPER.syncs(4, 8, link), "two, however many layers"


@pytest.mark.parametrize("tracks", [1, 2, 4])
def test_the_latency_model_counts_what_a_worker_has(tmp_path: Path, tracks: int) -> None:
    path = write_checkpoint(tmp_path / "m", torch_dtype="bfloat16")
    target, shape = open_tiny(path), SpdShape(4, 2, 2, tracks=tracks)
    module = Spd(target.config, shape, target.dtype, target.device)
    draft = ours(target.config, shape, tracks)
    held = sum(p.nbytes for p in module.parameters())
    assert draft.sharded == sum(p.nbytes for p in module.tracks.parameters())
    assert draft.shared == held - draft.sharded + target.config.hidden_size * target.config.vocab_size * 2
    assert draft.words(3, tracks) == 3 * target.config.hidden_size


def test_the_latency_table_has_a_row_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["spd", "--workers", "1,8"])
    print_latency()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.count("|") > 5]
    assert sum("the paper's" in line for line in lines) == 2
    assert sum("demo_model" in line for line in lines) == 2
