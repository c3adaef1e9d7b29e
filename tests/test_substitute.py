"""The substitute: a low-bit copy beside the target, in memory only where the target is streamed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.drafters.low_bit import OVERLAY_ROWS
from edgespec.drafters.substitute import Substitute, SubstituteDrafter
from edgespec.engine import Engine
from edgespec.errors import CorruptFileError, OptionError, StorageError
from edgespec.kernels.quantize import dequantize_int4, quantize_int4
from edgespec.models.packing import pack_model, verify_store
from edgespec.offload.chunk_store import open_store
from edgespec.response import Stats
from edgespec.schedules.serial import Serial
from tests.covering import covering
from tests.machine import DISK, given
from tests.test_session import prompt_of, write_model

REPLY = GenerationOptions(max_tokens=60)
SAMPLED = GenerationOptions(max_tokens=60, temperature=0.9, top_p=0.95, seed=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture(scope="module")
def packed(model: Path) -> Path:
    out = model.parent / "packed"
    pack_model(str(model), out, substitute="int4")
    return out


def reply(engine: Engine, options: GenerationOptions, budget: TreeBudget) -> tuple[list[int], Stats]:
    """Two turns, drafting as told: the tokens of both, and the second's stats."""
    engine.eos = frozenset()
    session = engine.new_session(300)
    assert isinstance(session.schedule, Serial)
    session.schedule.controller = Fixed(budget)
    first = [r.token for r in session.generate(prompt_of(70), options)]
    last = list(session.generate([*prompt_of(70), *first, *prompt_of(9, 1)], options))
    session.close()
    assert last[-1].stats is not None
    return [t for t in (*first, *(r.token for r in last)) if t is not None], last[-1].stats


def plain(path: Path, options: GenerationOptions) -> list[int]:
    with edgespec.load(path, memory="2GB", context=300, drafter="none", resident_layers=1) as engine:
        engine.eos = frozenset()
        session = engine.new_session(300)
        first = [r.token for r in session.generate(prompt_of(70), options)]
        last = [r.token for r in session.generate([*prompt_of(70), *first, *prompt_of(9, 1)], options)]
        return [t for t in (*first, *last) if t is not None]


@pytest.mark.parametrize(
    ("options", "budget"),
    covering(
        {"greedy": REPLY, "sampled": SAMPLED},
        {"tree": TreeBudget(64, 12, 12), "chain": TreeBudget(6, 5, 5)},
    ),
)
def test_it_changes_the_speed_and_not_the_text(
    packed: Path, options: GenerationOptions, budget: TreeBudget
) -> None:
    with edgespec.load(packed, memory="2GB", context=300, drafter="substitute", resident_layers=1) as engine:
        tokens, stats = reply(engine, options, budget)
    assert tokens == plain(packed, options)
    assert stats.accepted > 0


def test_ratio_takes_its_drawn_chains(packed: Path) -> None:
    options = GenerationOptions(max_tokens=40, temperature=0.8, acceptance="ratio")
    with edgespec.load(packed, memory="2GB", context=300, drafter="substitute", resident_layers=1) as engine:
        tokens, stats = reply(engine, options, TreeBudget(8, 6, 6))
    assert len(tokens) == 80
    assert stats.accepted > 0


@pytest.fixture
def slow_memory() -> Iterator[None]:
    """Reading pinned layers in every step then costs more than streaming them: 1 MB/s beside 1 GB/s."""
    with given(memory_gbps=1e-3, disk=DISK):
        yield


@pytest.mark.usefixtures("slow_memory")
def test_where_memory_is_slow_the_copy_stands_for_all(packed: Path) -> None:
    with edgespec.load(packed, memory="2GB", context=300, drafter="substitute", resident_layers=1) as engine:
        (substitute,) = engine.resident
        assert isinstance(substitute, Substitute)
        blocks = [b for found in substitute.weights.blocks.values() for b in found]
        assert all(b.scale is not None for b in blocks)
        low = sum(b.data.nbytes + b.scale.nbytes for b in blocks if b.scale is not None)
        assert engine.plan.owners["substitute"] == low
        assert "the low-bit copy alone" in engine.plan.reasons[-1]
        tokens, stats = reply(engine, REPLY, TreeBudget(6, 5, 5))
    assert tokens == plain(packed, REPLY)
    assert stats.accepted > 0


def test_a_copy_of_the_streamed_rows_alone_is_in_memory(packed: Path) -> None:
    """What is pinned serves as it is; the rest is the stored low-bit rows; the ledger has their bytes."""
    with edgespec.load(packed, memory="2GB", context=300, drafter="substitute", resident_layers=1) as engine:
        (substitute,) = engine.resident
        weights = substitute.weights
        target = engine.target.weights
        low = 0
        for name, blocks in weights.blocks.items():
            assert sum(b.rows for b in blocks) == sum(piece.shape[0] for _, piece, _ in target.blocks[name])
            shares = all(target.resident.get((name, p.row)) is not None for _, p, _ in target.blocks[name])
            assert shares == all(b.scale is None for b in blocks)
            low += sum(b.data.nbytes + b.scale.nbytes for b in blocks if b.scale is not None)
        assert engine.plan.owners["substitute"] == low > 0
        assert any(name.startswith("model.layers.0.") for name in weights.blocks)


def test_its_numbers_are_the_quantised_weights(packed: Path, model: Path) -> None:
    from tests.models import read_tensors

    source = read_tensors(model)
    with edgespec.load(packed, memory="2GB", context=300, drafter="substitute", resident_layers=1) as engine:
        weights = engine.resident[0].weights
        x = torch.randn(3, engine.config.hidden_size, generator=torch.Generator().manual_seed(0))
        x = x.to(weights.dtype)
        for name in ("model.layers.0.mlp.up_proj", "model.layers.2.mlp.up_proj", "lm_head"):
            w = source[f"{name}.weight"].float()
            if not name.startswith("model.layers.0."):
                w = dequantize_int4(*quantize_int4(w), torch.float32, w.shape[1])
            expected = x.float() @ w.T
            [got] = weights.linear((name,), x, True)
            assert torch.allclose(got.float(), expected, rtol=0.02, atol=0.02)


def test_nothing_streamed_needs_no_substitute(packed: Path) -> None:
    with edgespec.load(packed, memory="2GB", context=300, drafter="substitute") as engine:
        assert engine.resident == []
        assert engine.plan.owners["substitute"] == 0
        assert engine.drafters == ()


def test_auto_takes_it_when_it_is_there(packed: Path, model: Path) -> None:
    with edgespec.load(packed, memory="2GB", context=300, resident_layers=1) as engine:
        assert engine.drafters == ("ngram", "substitute")
    with edgespec.load(model, memory="2GB", context=300, resident_layers=1) as engine:
        assert engine.drafters == ("ngram",)


def test_a_copy_elsewhere_serves_a_checkpoint_in_place(model: Path, packed: Path) -> None:
    copy = packed / "substitute"
    with edgespec.load(model, memory="2GB", context=300, resident_layers=1, draft_model=copy) as engine:
        assert engine.drafters == ("ngram", "substitute")
    options = {"memory": "2GB", "context": 300, "resident_layers": 1, "draft_model": copy}
    with edgespec.load(model, drafter="substitute", **options) as engine:  # type: ignore[arg-type]
        tokens, stats = reply(engine, REPLY, TreeBudget(24, 8, 8))
    assert tokens == plain(model, REPLY)
    assert stats.accepted > 0


def test_the_copy_can_be_added_later(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    pack_model(str(model), out)
    before = (out / "target-00001-of-00001.safetensors").stat().st_mtime_ns
    with pytest.raises(
        OptionError, match=re.escape(f"pack_model(model='{model}', out='{out}', substitute='int4')")
    ):
        edgespec.load(out, memory="2GB", drafter="substitute", resident_layers=1)
    pack_model(str(model), out, substitute="int8")
    assert (out / "target-00001-of-00001.safetensors").stat().st_mtime_ns == before
    assert open_store(out / "substitute").table.precision == "int8"
    with edgespec.load(out, memory="2GB", drafter="substitute", resident_layers=1) as engine:
        assert engine.drafters == ("substitute",)


def test_a_model_that_is_int4_already_needs_no_copy(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    pack_model(str(model), out, precision="int4")
    with pytest.raises(OptionError, match="none that is smaller"):
        edgespec.load(out, memory="2GB", drafter="substitute", resident_layers=1)
    with pytest.raises(OptionError, match=r"cannot stand in for them; leave substitute= out$"):
        pack_model(str(model), out, substitute="int4")
    assert not (out / "substitute").exists()
    # One that is there all the same, and of no use, is left alone.
    pack_model(str(model), out / "substitute", precision="int4")
    with edgespec.load(out, memory="2GB", resident_layers=1) as engine:
        assert engine.drafters == ("ngram",)
        assert "not smaller" in engine.plan.reasons[-1]
    with pytest.raises(OptionError, match="not smaller"):
        edgespec.load(out, memory="2GB", drafter="substitute", resident_layers=1)


def test_verify_reads_the_copy_too(model: Path, tmp_path: Path) -> None:
    pack_model(str(model), tmp_path / "p", substitute="int4")
    verify_store(tmp_path / "p")
    weights = tmp_path / "p/substitute/target-00001-of-00001.safetensors"
    data = bytearray(weights.read_bytes())
    chunk = open_store(tmp_path / "p/substitute").table.chunks[-1]
    data[chunk.offset + 5] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CorruptFileError, match="checksum"):
        verify_store(tmp_path / "p")
    with pytest.raises(CorruptFileError):
        edgespec.load(tmp_path / "p", memory="2GB", drafter="substitute", resident_layers=1)


def test_refusals(model: Path, packed: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="precision='int4'"):
        edgespec.load(model, memory="2GB", drafter="substitute", resident_layers=1)
    other = write_model(tmp_path / "other", seed=5)
    with pytest.raises(OptionError, match="is not a packed low-bit copy"):
        edgespec.load(packed, memory="2GB", drafter="substitute", draft_model=other)
    with pytest.raises(OptionError, match="holds another model"):
        pack_model(str(other), packed, substitute="int4")
    with pytest.raises(OptionError, match="leave precision= out"):
        pack_model(str(model), packed, precision="int8", substitute="int4")
    with pytest.raises(OptionError, match="substitute 'int3' is unknown; did you mean int8"):
        pack_model(str(model), tmp_path / "x", substitute="int3")
    with pytest.raises(OptionError, match=r"cannot stand in .* out, or try int4"):
        pack_model(str(model), tmp_path / "x", precision="int4", substitute="int8")
    with pytest.raises(OptionError, match="holds a packed model already"):
        pack_model(str(model), packed, substitute="int4")
    assert not (tmp_path / "x").exists()


def test_room_for_both_is_checked_before_anything_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil
    from collections import namedtuple

    pack_model(str(model), tmp_path / "alone")
    size = sum(f.stat().st_size for f in (tmp_path / "alone").iterdir())
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, size + 2**20))
    with pytest.raises(StorageError, match="free"):
        pack_model(str(model), tmp_path / "both", substitute="int4")
    assert not (tmp_path / "both").exists()


def test_a_fork_writes_behind_the_prefix_only(packed: Path) -> None:
    with edgespec.load(packed, memory="2GB", context=300, drafter="substitute", resident_layers=1) as engine:
        engine.eos = frozenset()
        session = engine.new_session(200)
        assert isinstance(session.schedule, Serial)
        list(session.generate(prompt_of(40), GenerationOptions(max_tokens=2)))
        cache = session.cache
        before = [t.clone() for layer in range(engine.config.layers) for t in cache.view(layer)]
        drafter = session.schedule.drafter
        assert isinstance(drafter, SubstituteDrafter)
        assert drafter.forest.free_rows == OVERLAY_ROWS, "all that the plan has memory for"
        from edgespec.drafters.base import Root

        drafting = drafter.start([Root((5,)), Root((5, 9))], TreeBudget(20, 6, 6))
        while drafting.step():
            pass
        assert len(drafting.tree(1)) > 1
        assert len(cache.parents) == 0
        after = [t for layer in range(engine.config.layers) for t in cache.view(layer)]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert np.isfinite(drafting.tree(0).logprobs[1:]).all()
