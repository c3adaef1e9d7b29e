"""The MoA drafter in engines: it never changes the text, follows whatever becomes of a conversation, and has
its memory in the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.drafters.moa import MoaDrafter, MoaResident
from edgespec.engine import Engine
from edgespec.errors import BudgetError, Cancelled, CorruptFileError, ModelError, OptionError
from edgespec.response import Response, Stats
from edgespec.runtimes.formats.trained import trained_kind
from edgespec.runtimes.torch.moa_draft import MoaDraft, MoaPass, pass_bytes
from edgespec.session import Session
from tests.covering import covering
from tests.moa import write_moa
from tests.sessions import in_threads, tokens_of
from tests.test_cascade import quiet_model
from tests.test_session import prompt_of
from tests.test_ssd_engine import waiting

LAYERS = 5
REPLY = GenerationOptions(max_tokens=16, ignore_eos=True)
SAMPLED = GenerationOptions(max_tokens=16, ignore_eos=True, temperature=0.9, top_p=0.95, seed=7)
BUDGET = TreeBudget(16, 5, 5)
PLACES: dict[str, dict[str, Any]] = {
    "resident": {"schedule": "serial"},
    "streamed, serial": {"schedule": "serial", "resident_layers": 1},
    "streamed, ssd": {"schedule": "ssd", "resident_layers": 1},
    "streamed, mirror": {"schedule": "mirror", "resident_layers": 1},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one precision: others are `test_schedule_identity`'s."""
    folder = tmp_path_factory.mktemp("model")
    path = quiet_model(folder / "m", torch_dtype="bfloat16", max_position_embeddings=2048)
    write_moa(path, folder / "moa")
    write_moa(path, folder / "through", target_layers=2)
    return path


def load(model: Path, drafter: str = "moa", **options: Any) -> Engine:
    if "moa" in drafter:
        options["adapters"] = model.parent / "moa"
    engine = edgespec.load(model, drafter=drafter, **{"memory": "2GB", "context": 300, **options})
    engine.eos = frozenset()  # random models end at random
    return engine


def say(session: Session, prompt: list[int], options: GenerationOptions = REPLY) -> tuple[list[int], Stats]:
    responses = list(session.generate(prompt, options))
    assert responses[-1].stats is not None
    return tokens_of(responses), responses[-1].stats


def three_turns(session: Session, options: GenerationOptions) -> tuple[list[int], list[Stats]]:
    """The second prompt goes on from the first reply, the third from the middle of it."""
    first, one = say(session, prompt_of(50), options)
    second, two = say(session, [*prompt_of(50), *first, *prompt_of(9, 1)], options)
    third, three = say(session, [*prompt_of(50), *first[:10], *prompt_of(4, 2)], options)
    return first + second + third, [one, two, three]


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[GenerationOptions, list[int]]:
    with load(model, "none") as engine:
        texts = {}
        for options in (REPLY, SAMPLED):
            with engine.new_session() as session:
                texts[options] = three_turns(session, options)[0]
            assert len(set(texts[options])) > 5, "a text that repeats itself tests nothing"
        return texts


def test_drafts_go_through_the_targets_last_layers(
    model: Path, plain: dict[GenerationOptions, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLI = 2. It never drafts worse than what stops before these layers, which is right less often here."""
    through = {"adapters": model.parent / "through"}
    with edgespec.load(model, drafter="moa", memory="2GB", context=300, **through) as engine:
        engine.eos = frozenset()
        (resident,) = engine.resident
        assert resident.nbytes > sum(c.nbytes for c in engine.plan.table.chunks if c.layer >= LAYERS - 2)
        for options in (REPLY, SAMPLED):
            with engine.new_session(controller=Fixed(BUDGET)) as session:
                tokens, stats = three_turns(session, options)
                assert tokens == plain[options]
                assert sum(s.accepted for s in stats) > 4
        draft = resident.drafter(engine.target.new_cache(300), 160).runtime
        there = (
            sum(p.nbytes for p in resident.module.parameters()) + draft.tokens.nbytes + draft.memory.nbytes
        )
        passing = pass_bytes(engine.config, resident.module.sizes, MoaDrafter.ahead_width, 2)
        assert engine.plan.owners["drafter"] == there + passing + draft.tail.overlay.nbytes


def test_a_target_that_streams_is_not_drafted_through(model: Path) -> None:
    options = {"memory": "2GB", "context": 300, "resident_layers": 1, "adapters": model.parent / "through"}
    with pytest.raises(
        OptionError, match=r"last 2 layers in every pass \(target_layers\), and the target streams"
    ):
        edgespec.load(model, drafter="moa", **options)
    with edgespec.load(model, drafter="auto", **options) as engine:
        assert engine.drafters == ("ngram",)
        assert any("the target streams" in reason for reason in engine.plan.reasons)


def test_the_last_layers_stay_when_the_dial_does_not(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller dial may make the target stream, but for what drafts go through."""
    with edgespec.load(
        model, drafter="moa", memory="2GB", context=300, adapters=model.parent / "through"
    ) as engine:
        engine.eos = frozenset()
        must = {c.index for c in engine.plan.table.chunks if c.layer >= LAYERS - 2}
        with engine.new_session(controller=Fixed(BUDGET)) as session, waiting(monkeypatch, lambda: 4):
            before, _ = say(session, prompt_of(30))
            with pytest.raises(BudgetError) as refused:
                engine.set_memory("1MB")
            chunks = {c.index: c.read_bytes for c in engine.plan.table.chunks}
            assert refused.value.owners["pinned weights"] == sum(chunks[index] for index in must)
            after, _ = say(session, prompt_of(30))
        assert after == before


@pytest.mark.parametrize(("options", "place"), covering({"sampled": SAMPLED, "greedy": REPLY}, list(PLACES)))
def test_the_text_is_the_targets_own(
    model: Path,
    plain: dict[GenerationOptions, list[int]],
    options: GenerationOptions,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hides = place in ("streamed, ssd", "streamed, mirror")
    with load(model, **PLACES[place]) as engine, waiting(monkeypatch, lambda: 2):
        assert (engine.plan.bytes_per_pass > 0) == (place != "resident")
        with engine.new_session(controller=Fixed(BUDGET)) as session:
            tokens, stats = three_turns(session, options)
            assert tokens == plain[options]
        assert sum(s.drafted for s in stats) > len(tokens)
        assert sum(s.accepted for s in stats) > 4
        assert (sum(s.drafted_while_verifying for s in stats) > 20) == hides
        assert (sum(s.cache_hits for s in stats) > 0) == hides


@pytest.mark.parametrize("drafter", ["auto", "moa", "ngram+moa"])
def test_the_controller_drives_it(model: Path, drafter: str) -> None:
    with load(model, "none") as engine, engine.new_session() as session:
        plain = three_turns(session, REPLY)[0]
    with load(model, drafter, adapters=model.parent / "moa") as engine:
        assert engine.drafters == (("moa",) if drafter == "moa" else ("ngram", "moa"))
        with engine.new_session() as session:
            assert three_turns(session, REPLY)[0] == plain


def test_drawn_chains_are_accepted_by_their_ratio(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the distribution stays is `test_lossless`'s; here that it draws, and before the outcome."""
    drawn = GenerationOptions(max_tokens=24, ignore_eos=True, temperature=0.8, seed=3, acceptance="ratio")
    for place in ("resident", "streamed, ssd"):
        with (
            load(model, **PLACES[place]) as engine,
            engine.new_session(controller=Fixed(BUDGET)) as session,
            waiting(monkeypatch, lambda: 4),
        ):
            _, stats = say(session, prompt_of(30), drawn)
            assert stats.accepted > 2
            assert (stats.drafted_while_verifying > 0) == (place == "streamed, ssd")


def test_drafts_see_all_that_is_committed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each pass of drafting the memory is the conversation's, to its last committed token."""
    known: list[tuple[int, int, int]] = []
    output = MoaPass._to_memory

    def look(self: MoaPass) -> torch.Tensor:
        draft = self.draft
        known.append((draft.memory.length, draft.source.length, draft.length))
        return output(self)

    monkeypatch.setattr(MoaPass, "_to_memory", look)
    with load(model) as engine, engine.new_session(controller=Fixed(BUDGET)) as session:
        three_turns(session, REPLY)
    assert len(known) > 20
    assert all(memory == committed == followed for memory, committed, followed in known)


@pytest.mark.parametrize("error", [KeyboardInterrupt, Cancelled])
def test_interrupted_anywhere_it_goes_on(
    model: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Within the prompt's memory, a draft's attentions, its head; before a pass and within the target's."""
    options = GenerationOptions(max_tokens=8, ignore_eos=True)
    left = 0  # parts of drafting before the next error

    def counted(work: Callable[..., bool]) -> Callable[..., bool]:
        def run(*arguments: Any) -> bool:
            nonlocal left
            left -= 1
            if left == 0:
                raise error("now")
            return work(*arguments)

        return run

    monkeypatch.setattr(MoaPass, "advance", counted(MoaPass.advance))
    monkeypatch.setattr(MoaDraft, "remember", counted(MoaDraft.remember))
    with load(model, "none") as engine, engine.new_session() as session:
        expected = say(session, prompt_of(60), options)[0]
    with load(model, **PLACES["streamed, ssd"]) as engine, waiting(monkeypatch, lambda: 4):
        for at in range(1, 60, 14):
            with engine.new_session(controller=Fixed(BUDGET)) as session:
                left = at
                with suppress(error):
                    list(session.generate(prompt_of(60), options))
                assert left <= 0
                assert say(session, prompt_of(60), options)[0] == expected


def test_sessions_each_have_their_own_memory(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, longer = [prompt_of(n, seed=n) for n in (20, 33, 7)], replace(REPLY, max_tokens=16)
    with load(model, "none") as engine:
        plain = [edgespec.generate(engine, prompt, longer).tokens for prompt in prompts]
    with (
        load(model, **PLACES["streamed, ssd"] | {"context": 1400}) as engine,
        waiting(monkeypatch, lambda: 8),
    ):
        opened = [engine.new_session(100, Fixed(BUDGET)) for _ in prompts]
        found: list[list[Response]] = in_threads(
            [
                partial(lambda s, p: list(s.generate(p, longer)), *job)
                for job in zip(opened, prompts, strict=True)
            ]
        )
        assert [tokens_of(responses) for responses in found] == plain
        assert all(responses[-1].stats.cache_hits > 0 for responses in found)


# --- what goes wrong --------------------------------------------------------------------------------------


def changed(model: Path, out: Path, manifest: dict[str, Any] | None = None, **tensors: torch.Tensor) -> Path:
    """The drafter with other numbers in its manifest's shape, or other tensors; without its checksum."""
    out.mkdir()
    raw = json.loads((model.parent / "moa" / "adapter.json").read_text())
    raw["shape"] |= manifest or {}
    del raw["digest"]
    (out / "adapter.json").write_text(json.dumps(raw))
    kept = load_file(model.parent / "moa" / "moa.safetensors")
    save_file(kept | tensors, out / "moa.safetensors")
    return out


def test_nan_ends_its_drafting_and_not_the_reply(model: Path, tmp_path: Path) -> None:
    name = "over_layers.v_proj"
    weight = load_file(model.parent / "moa" / "moa.safetensors")[name].clone()
    weight[0, 0] = torch.nan
    with load(model, "none") as engine:
        plain = edgespec.generate(engine, prompt_of(30), REPLY).tokens
    damaged = changed(model, tmp_path / "nan", **{name: weight})
    with edgespec.load(model, drafter="moa", adapters=damaged, memory="2GB", context=300) as engine:
        engine.eos = frozenset()
        with engine.new_session(controller=Fixed(BUDGET)) as session:
            assert say(session, prompt_of(30))[0] == plain
            assert session.schedule.damaged


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"kv_heads": [2, 3, 2]}, "3 heads of keys cannot serve"),
        ({"kv_heads": [2, 2]}, "is not a sound manifest"),
        ({"mlp": [10, 20, 2**40]}, "cannot be 1099511627776 wide"),
        ({"mlp": [10, 20, -1]}, "cannot be -1 wide"),
        ({"mlp": [96, 8, 111]}, "the target asks for"),
        ({"layer_attention": False}, "does not hold what"),
        ({"experts": 8}, "is not a sound manifest"),
    ],
)
def test_hostile_sizes_are_refused(model: Path, tmp_path: Path, manifest: dict[str, Any], said: str) -> None:
    adapters = changed(model, tmp_path / "bad", manifest)
    with pytest.raises(CorruptFileError, match=said):
        edgespec.load(model, drafter="moa", adapters=adapters, memory="2GB")


def test_it_is_known_by_its_directory(model: Path, tmp_path: Path) -> None:
    assert trained_kind(model.parent / "moa") == "moa"
    with pytest.raises(ModelError, match=r"is of drafter moa, not cascade; use drafter=moa"):
        edgespec.load(model, drafter="cascade", adapters=model.parent / "moa", memory="2GB")
    with pytest.raises(ModelError, match="does not exist"):
        edgespec.load(model, drafter="moa", adapters=tmp_path / "gone", memory="2GB")
    other = quiet_model(tmp_path / "other", torch_dtype="bfloat16", seed=8)
    with pytest.raises(ModelError, match="were trained for"):
        edgespec.load(other, drafter="moa", adapters=model.parent / "moa", memory="2GB")


# --- memory -----------------------------------------------------------------------------------------------


def test_its_memory_is_in_the_ledger(model: Path) -> None:
    with load(model, **PLACES["streamed, ssd"]) as engine:
        (resident,) = engine.resident
        assert isinstance(resident, MoaResident)
        drafter = resident.drafter(engine.target.new_cache(300), 160)
        assert isinstance(drafter, MoaDrafter)
        draft = drafter.runtime
        assert isinstance(draft, MoaDraft)
        there = (
            sum(p.nbytes for p in resident.module.parameters()) + draft.tokens.nbytes + draft.memory.nbytes
        )
        passing = pass_bytes(engine.config, resident.module.sizes, MoaDrafter.ahead_width, 2)
        assert engine.plan.owners["drafter"] == there + passing
        assert engine.plan.owners["drawn drafts"] > 0


def test_the_head_stays_in_memory(model: Path) -> None:
    with pytest.raises(BudgetError, match="with the head pinned for the MoA drafter"):
        load(model, memory="1MB")
    with load(model, "none", resident_layers=1) as engine:
        assert {c.layer for c in engine.plan.streamed} == set(range(1, LAYERS + 1))
    with load(model, resident_layers=1) as engine:
        assert {c.layer for c in engine.plan.streamed} == set(range(1, LAYERS))
