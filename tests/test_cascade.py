"""The cascade: text that does not depend on it, caches that follow the target, flash that is left alone."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.drafters.cascade.drafter import CascadeDrafter
from edgespec.drafters.cascade.files import Cascade
from edgespec.drafters.cascade.variant import VARIANTS, Variant
from edgespec.drafters.combined import Combined
from edgespec.drafters.ngram import NGram
from edgespec.engine import Engine
from edgespec.errors import Cancelled
from edgespec.models.packing import pack_model
from edgespec.response import Response, Stats
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch import target
from edgespec.runtimes.torch.adapter import Adapter
from edgespec.runtimes.torch.adapter_files import MANIFEST, save_adapters
from edgespec.runtimes.torch.whole_layer import whole_layers
from edgespec.schedules.serial import Serial
from edgespec.session import Session
from tests import drafted
from tests.covering import covering
from tests.drafted import TYPES, Resting, deaf_positions
from tests.test_session import prompt_of, write_model

LAYERS, DRAFT, VERIFY = 5, 1, 3
REPLY = GenerationOptions(max_tokens=20)
SAMPLED = GenerationOptions(max_tokens=20, temperature=0.9, top_p=0.95, seed=3)
ALWAYS = {name: replace(v, stop=0.0) for name, v in VARIANTS.items()}  # never give up early


def quiet_model(path: Path, **changes: Any) -> Path:
    """A random model whose layers change little, so that its early exits are often right."""
    from safetensors.torch import load_file, save_file

    write_model(path, **{"num_hidden_layers": LAYERS, **changes})
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= 0.07
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def train(path: Path, kind: str, depths: tuple[int, ...] = (DRAFT, 2, VERIFY)) -> Path:
    """Adapters for a model: "random", or "exits" (its own early exits). The first depth is the draft's."""
    from safetensors.torch import load_file

    files = describe_model(path)
    norm = load_file(path / "model.safetensors")["model.norm.weight"]
    made = []
    for depth in depths:
        generator = torch.Generator().manual_seed(depth)
        adapter = Adapter(files.config, depth, files.dtype)
        with torch.no_grad():
            adapter.initialise(norm, generator)
            if kind == "random":
                for parameter in adapter.parameters():
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(noise / noise.shape[-1] ** 0.5 if noise.dim() == 2 else 1 + noise / 4)
        made.append(("draft" if depth == depths[0] else "verify", adapter, {}))
    save_adapters(path / kind, files, made, files.dtype)  # type: ignore[arg-type]
    return path / kind


@pytest.fixture(scope="module", params=TYPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = quiet_model(tmp_path_factory.mktemp("model") / "m", torch_dtype=request.param)
    train(path, "random")
    train(path, "exits")
    pack_model(str(path), path.parent / "low", precision="int4")
    return path


def load(model: Path, adapters: str = "exits", **options: Any) -> Engine:
    settings: dict[str, Any] = {"memory": "2GB", "context": 300, "resident_layers": VERIFY}
    settings |= {"drafter": "cascade"} | options
    if settings["drafter"] not in ("none", "ngram"):
        settings["adapters"] = model / adapters
    engine = edgespec.load(model, **settings)
    engine.eos = frozenset()  # random models end at random
    return engine


@pytest.fixture(scope="module")
def engines(model: Path) -> Iterator[dict[str, Engine]]:
    found = {
        "random": load(model, "random"),
        "exits": load(model, "exits"),
        "substitute": load(model, drafter="cascade+substitute", draft_model=model.parent / "low"),
    }
    yield found
    for engine in found.values():
        engine.close()


def conversation(
    engine: Engine, variant: Variant, budget: TreeBudget, ngram: bool = False, context: int = 300
) -> tuple[Session, CascadeDrafter]:
    session = engine.new_session(context)
    (cascade,) = engine.resident
    assert isinstance(cascade, Cascade)
    drafter = cascade.drafter(session.cache, variant=variant)
    session.schedule = Serial(Combined([NGram(), drafter]) if ngram else drafter, Fixed(budget), 64)
    return session, drafter


def say(session: Session, prompt: list[int], options: GenerationOptions) -> tuple[list[int], Stats]:
    tokens, last = [], Response("")
    for last in session.generate(prompt, options):
        if last.token is not None:
            tokens.append(last.token)
    assert last.stats is not None
    return tokens, last.stats


def two_turns(session: Session, options: GenerationOptions) -> tuple[list[int], list[Stats]]:
    """The second prompt shares the first turn."""
    first, stats = say(session, prompt_of(50), options)
    second, more = say(session, [*prompt_of(50), *first, *prompt_of(9, 1)], options)
    return first + second, [stats, more]


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[GenerationOptions, list[int]]:
    with load(model, drafter="none") as engine:
        texts = {}
        for options in (REPLY, SAMPLED):
            session = engine.new_session()
            texts[options] = two_turns(session, options)[0]
            session.close()
            assert len(set(texts[options])) > 5, "a text that repeats itself tests nothing"
        return texts


def test_it_also_hears_passes_behind_which_nothing_is_drafted(engines: dict[str, Engine]) -> None:
    """It would have to compute them again."""
    with load(engines["exits"].files.path, drafter="none") as engine, engine.new_session() as undrafted:
        expected = drafted.two_turns(undrafted, drafted.REPLY)[0]
    session, drafter = conversation(engines["exits"], ALWAYS["tree"], BUDGETS["tree"])
    session.schedule = Serial(drafter, Resting(BUDGETS["tree"]), 64)
    with session:
        assert not deaf_positions(engines["exits"], session, expected)


BUDGETS = {"chain": TreeBudget(12, 5, 5), "tree": TreeBudget(32, 8, 8)}


@pytest.mark.parametrize(
    ("model", "kind", "options"),
    covering(
        ("float32", "bfloat16"),
        ("random", "exits", "substitute"),
        {"sampled": SAMPLED, "greedy": REPLY},
    ),
    indirect=["model"],
    scope="module",
)
def test_no_variant_changes_the_text(
    engines: dict[str, Engine],
    plain: dict[GenerationOptions, list[int]],
    kind: str,
    options: GenerationOptions,
) -> None:
    accepted = {}
    names = tuple(ALWAYS) if kind == "exits" and options is REPLY else ("chain", "tree")
    for name in names:
        chain = ALWAYS[name].branch == 1
        session, _ = conversation(engines[kind], ALWAYS[name], BUDGETS["chain" if chain else "tree"])
        tokens, stats = two_turns(session, options)
        session.close()
        assert tokens == plain[options], name
        assert sum(s.drafted for s in stats) > len(tokens) / 2, name
        accepted[name] = sum(s.accepted for s in stats)
    if kind != "random" and options is REPLY:
        assert min(accepted.values()) > 3, accepted
    if len(names) > 2:  # the shallow verifier adds to what the same draft gives alone
        assert accepted["chain"] > accepted["kangaroo"]
        assert accepted["tree"] > accepted["kangaroo-tree"]


def test_ngrams_join_its_tree(engines: dict[str, Engine], plain: dict[GenerationOptions, list[int]]) -> None:
    session, _ = conversation(engines["exits"], ALWAYS["tree"], TreeBudget(24, 5, 5), ngram=True)
    assert two_turns(session, REPLY)[0] == plain[REPLY]
    session.close()


@pytest.mark.parametrize("drafter", ["auto", "cascade", "ngram+cascade"])
def test_the_controller_drives_it(
    model: Path, plain: dict[GenerationOptions, list[int]], drafter: str
) -> None:
    with load(model, drafter=drafter) as engine:
        assert engine.drafters == (("cascade",) if drafter == "cascade" else ("ngram", "cascade"))
        session = engine.new_session()
        tokens, _ = two_turns(session, REPLY)
        assert tokens == plain[REPLY]
        assert isinstance(session.schedule, Serial)
        assert session.schedule.drafter.passes.stop > 10


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one precision, for what does not depend on it."""
    path = quiet_model(tmp_path_factory.mktemp("one") / "m", torch_dtype="bfloat16")
    train(path, "random")
    train(path, "exits")
    return path


@pytest.fixture(scope="module")
def engine(one: Path) -> Iterator[Engine]:
    with load(one) as engine:
        yield engine


def test_drafting_reads_no_flash_and_a_cycle_each_streamed_byte_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamer = engine.target.weights.streamer
    assert streamer is not None
    acquire, taken = streamer.acquire, []
    monkeypatch.setattr(streamer, "acquire", lambda chunk, wait: taken.append(chunk) or acquire(chunk, wait))
    session, _ = conversation(engine, ALWAYS["tree"], BUDGETS["tree"])
    drafting: list[int] = []
    draft = session.schedule.next_tree

    def next_tree(root: int) -> Any:
        before = len(taken)
        tree = draft(root)
        drafting.append(len(taken) - before)
        if session.schedule.left == 1:  # nothing is drafted for a reply's last token
            assert len(tree) == 1
            return tree
        assert tree.computed is not None
        assert (tree.starts > 0).sum() > 1
        return tree

    monkeypatch.setattr(session.schedule, "next_tree", next_tree)
    _, stats = say(session, prompt_of(50), REPLY)
    assert set(drafting) == {0}
    streamed = engine.plan.streamed
    assert {c.layer for c in streamed} == {VERIFY, VERIFY + 1}
    assert sum(c.read_bytes for c in taken) == stats.cycles * engine.plan.bytes_per_pass
    session.close()


def test_sessions_take_turns(engine: Engine) -> None:
    """Two conversations of one engine, token by token: each says what it says alone."""

    def talk(seed: int) -> Iterator[int]:
        session, _ = conversation(engine, ALWAYS["tree"], TreeBudget(20, 6, 6), context=110)
        yield from (r.token for r in session.generate(prompt_of(40, seed), REPLY) if r.token is not None)
        session.close()

    alone = [list(talk(seed)) for seed in (4, 5)]
    assert [list(column) for column in zip(*zip(talk(4), talk(5), strict=True), strict=True)] == alone
    texts: dict[int, list[int]] = {}
    threads = [threading.Thread(target=lambda s=s: texts.update({s: list(talk(s))})) for s in (4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [texts[4], texts[5]] == alone


@pytest.mark.parametrize("error", [KeyboardInterrupt, Cancelled])
def test_interrupted_anywhere_it_goes_on_as_plain_decoding_would(
    one: Path, engine: Engine, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(one, drafter="none") as other:
        session = other.new_session()
        say(session, prompt_of(50), REPLY)
        expected = say(session, prompt_of(50), REPLY)[0]  # its last prompt token in a block of its own
    weights = engine.target.weights
    linear, seen = weights.linear, set()
    session, drafter = conversation(engine, ALWAYS["tree"], TreeBudget(24, 6, 6))
    say(session, prompt_of(50), GenerationOptions(max_tokens=1))
    for moment in range(1, 80, 7):
        count = 0

        def count_on(name: str) -> None:
            nonlocal count
            count += 1
            if count == 27 + moment:  # noqa: B023 - the loop waits for the reply; 27: the prompt's pass
                seen.add(stage(drafter, name))
                raise error("stop")

        def failing(names: tuple[str, ...], *args: Any, **kwargs: Any) -> Any:
            count_on(names[0])
            return linear(names, *args, **kwargs)

        def failing_layers(layers: Iterable[int], *args: Any) -> Any:
            layers = [*layers]
            count_on(f"model.layers.{layers[0]}.")
            return whole_layers(layers, *args)

        weights.linear = failing  # type: ignore[method-assign]
        monkeypatch.setattr(target, "whole_layers", failing_layers)
        said: list[int | None] = []
        try:
            said.extend(response.token for response in session.generate(prompt_of(50), REPLY))
        except KeyboardInterrupt:
            pass
        finally:
            del weights.linear
            monkeypatch.setattr(target, "whole_layers", whole_layers)
        said = [token for token in said if token is not None]
        assert said == expected[: len(said)]
        assert session.cache.length == len(session.tokens)
        assert len(session.cache.parents) == 0
    assert seen == {"draft", "shallow", "final"}
    assert say(session, prompt_of(50), REPLY)[0] == expected
    session.close()


def stage(drafter: CascadeDrafter, name: str) -> str:
    """Where a cycle is, by the matrix that is asked for next."""
    layer = int(name.split(".")[2]) if name.startswith("model.layers.") else LAYERS
    if drafter.forest is not None and len(drafter.cache.parents) == 0:
        return "draft" if layer < DRAFT or layer == LAYERS else "shallow"
    return "final"


@pytest.mark.parametrize("which", ["draft", "verify", "substitute"])
def test_a_damaged_adapter_drafts_no_more(
    model: Path, plain: dict[GenerationOptions, list[int]], which: str
) -> None:
    """What is not a number ends drafting, and is told."""
    copy = {"drafter": "cascade+substitute", "draft_model": model.parent / "low"}
    with load(model, **copy if which == "substitute" else {}) as engine:
        (cascade,) = engine.resident
        assert isinstance(cascade, Cascade)
        if cascade.substitute is None:
            getattr(cascade, which).o_proj.data[:] = torch.nan
        else:
            for blocks in cascade.substitute.weights.blocks.values():
                for block in blocks:
                    if block.scale is not None:
                        block.scale.fill_(torch.nan)
        session, _ = conversation(engine, ALWAYS["tree"], TreeBudget(8, 6, 6))
        tokens, stats = say(session, prompt_of(50), REPLY)
        assert tokens == plain[REPLY][: len(tokens)]
        assert len(tokens) == REPLY.max_tokens
        assert stats.drafter_damaged
        for kv in (session.cache.k, session.cache.v):
            assert torch.isfinite(kv).all()


def test_a_verifier_that_knows_no_better_is_not_asked(model: Path, tmp_path: Path) -> None:
    adapters = shutil.copytree(model / "random", tmp_path / "adapters")
    manifest = json.loads((adapters / MANIFEST).read_text())
    for adapter, agreement in zip(manifest["adapters"], (0.7, 0.6, 0.8), strict=True):
        adapter["training"]["held_out"] = {"agreement": agreement}
    (adapters / MANIFEST).write_text(json.dumps(manifest))
    for depth, variant in ((2, "kangaroo-tree"), (3, "tree")):
        with load(model, resident_layers=depth, adapters=str(adapters)) as engine:
            (cascade,) = engine.resident
            assert isinstance(cascade, Cascade)
            assert cascade.variant is VARIANTS[variant]
            assert len(list(engine.new_session().generate(prompt_of(20), REPLY))) >= 20


@pytest.mark.parametrize("acceptance", ["ratio", "typical"])
def test_it_serves_the_other_acceptances(engine: Engine, acceptance: str) -> None:
    options = GenerationOptions(max_tokens=20, temperature=0.8, acceptance=acceptance)
    session, _ = conversation(engine, ALWAYS["tree"], TreeBudget(8, 6, 6))
    tokens, stats = two_turns(session, options)
    assert len(tokens) == 40
    assert sum(s.accepted for s in stats) > 3
    session.close()
