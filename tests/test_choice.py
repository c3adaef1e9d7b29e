"""Which kernels multiply: measured once, remembered, and then the same for good."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edgespec.devices.probe import cpu_count
from edgespec.devices.rates import cache_folder, keep_first, recall, remember
from edgespec.kernels import compiled, trials
from edgespec.kernels.choice import (
    AMX,
    AVX2,
    AVX512,
    AVX512_BF16,
    AVX_VNNI,
    CHOSEN,
    FEWS,
    LEVELS,
    PLAIN,
    RARE,
    ROWS,
    TORCH,
    Choice,
    as_json,
    of_json,
)
from edgespec.kernels.low_bit import stored_row_bytes
from edgespec.kernels.matmul import linear, one_class
from edgespec.kernels.trials import measure  # the real one: tests have it replaced
from edgespec.runtimes.torch import choices
from tests.test_compiled import inputs, weights
from tests.test_half import BF16, in_places, normal

pytestmark = [
    pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable()),
    pytest.mark.usefixtures("best_level", "unchosen"),
]

DEMO = Path(__file__).resolve().parent.parent / "edgespec/demo_model"
ENCODINGS = tuple(compiled.FORMATS)
bf16_instructions = pytest.mark.skipif(
    not compiled.unavailable() and compiled.level() < AVX512_BF16, reason="no AVX-512 BF16 here"
)


@pytest.fixture
def unchosen() -> Iterator[None]:
    """Nothing is chosen, and what other tests have had chosen is again afterwards."""

    def by_features() -> None:
        library = compiled.library()
        assert library is not None
        CHOSEN.clear()
        for number in compiled.FORMATS.values():
            for place in range(len(ROWS) + 1):
                library.es_choose(number, place, 0)

    before = dict(CHOSEN)
    by_features()
    yield
    by_features()
    for encoding, choice in before.items():
        compiled.choose(encoding, choice)


def clock(seconds: Callable[[int, int, bool], float]) -> Callable[[Any], float]:
    """Instead of a clock: by rows, way or order, and whether that is an order."""

    def took(call: partial[Any]) -> float:
        x, _, key = call.args
        return seconds(len(x), key, call.func is trials._in_order)

    return took


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_whatever_competes_freely_has_the_same_bits(encoding: str) -> None:
    block, _ = weights(encoding, 37, 512)
    for rows in (*ROWS, 5, 7, 70):
        x = inputs(rows, 512).to(torch.float16 if encoding in PLAIN else torch.bfloat16)
        usual = compiled.linear(x, encoding, block.data, block.scale)
        for way in range(2 * compiled.level() + 2):
            tried = compiled.linear(x, encoding, block.data, block.scale, tried=way)
            assert torch.equal(tried, usual), (rows, way)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_way_is_tried_and_ties_go_by_features(encoding: str) -> None:
    for level in compiled.levels():
        compiled.level(level)
        found = measure(encoding, clock(lambda rows, key, order: 1e-3 * (1 + (key * 7 + rows) % 5 / 100)))
        assert replace(found, tried={}) == trials.by_features(encoding)
        few = {sum(rows <= most for rows in ROWS) for most in trials.REGISTERS.values()}
        assert all(len(times) in {1, 2, 3, *few, len(ROWS)} for times in found.tried.values())
        assert any(len(times) == len(ROWS) for times in found.tried.values())
        assert of_json(json.loads(json.dumps(as_json(found))), level) == found


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_fastest_is_taken_for_the_rows_that_it_is_fastest_for(encoding: str) -> None:
    if compiled.level() < AVX2 + 1:
        pytest.skip("one instruction set has nothing to compete with")
    second = AVX_VNNI if AVX_VNNI in compiled.levels() and encoding not in PLAIN else AVX2

    def seconds(rows: int, key: int, order: bool) -> float:
        return 1e-3 if order or (key // 2 == second) == (rows == 16) else 2e-3

    found = measure(encoding, clock(seconds))
    for rows, way, usual in zip(ROWS, found.ways, trials.by_features(encoding).ways, strict=True):
        assert way == (2 * second if rows == 16 else usual)
    assert "13-16 rows AVX2" in found.describe(encoding) or encoding in {"BF16", *RARE}


@pytest.mark.parametrize(("slower", "by_torch"), [(1.25, False), (1.4, True)])
@pytest.mark.parametrize("encoding", ["U8", "Q4_K", "BF16"])
@bf16_instructions
def test_other_bits_must_be_worth_it(encoding: str, slower: float, by_torch: bool) -> None:
    def seconds(rows: int, key: int, order: bool) -> float:
        return 1e-3 if key == TORCH else slower * 1e-3

    found = measure(encoding, clock(seconds))
    assert (found.order == TORCH) == by_torch
    assert found.few == (FEWS[1] if by_torch or (encoding == "BF16" and compiled.level() == AMX) else FEWS[0])
    assert ("torch" in found.describe(encoding)) == by_torch


@bf16_instructions
def test_a_prompt_of_few_rows_is_multiplied_as_a_trees_where_that_is_faster() -> None:
    def seconds(rows: int, key: int, order: bool) -> float:
        return 1.5e-3 if order and rows == trials.PROMPTS[0] else 1e-3

    found = measure("Q4_K", clock(seconds))
    assert found.order == compiled.usual_order("Q4_K")
    assert found.few == FEWS[1]
    assert compiled.few("Q4_K", torch.bfloat16) == FEWS[0]
    compiled.choose("Q4_K", found)
    assert compiled.few("Q4_K", torch.bfloat16) == FEWS[1]
    block, _ = weights("Q4_K", 40, 512)
    x = inputs(FEWS[1], 512)
    assert torch.equal(linear(x, block, exact=False), linear(x, block, exact=True))


@bf16_instructions
def test_an_order_that_was_chosen_is_every_rows() -> None:
    """bf16 as fp16 is multiplied: no other test's kernels, however many rows."""
    compiled.choose("BF16", replace(trials.by_features("BF16"), order=AVX512_BF16 - 1))
    w, x = normal(37, 513), inputs(70, 513)
    block = BF16.block(w)
    expected = in_places(x, block.data).bfloat16()
    for rows in (1, 2, 5, 16, 33, 70):
        assert torch.equal(linear(x[:rows], block, exact=True), expected[:rows])
    assert compiled.available("BF16")
    assert one_class("BF16", 513)


@pytest.mark.parametrize("encoding", ["I8", "U8", "Q4_K"])
def test_a_prompts_order_may_be_a_trees(encoding: str) -> None:
    """As where torch would multiply in fp32."""
    if compiled.level() < AVX2:
        pytest.skip("torch multiplies prompts here")
    compiled.choose(encoding, replace(trials.by_features(encoding), order=AVX2, few=FEWS[1]))
    block, _ = weights(encoding, 40, 512)
    x = inputs(2 * FEWS[1] + 44, 512)
    assert compiled.own_prompt(encoding, torch.bfloat16)
    assert torch.equal(linear(x, block, exact=False), linear(x, block, exact=True))


@bf16_instructions
def test_torch_multiplies_where_it_was_chosen() -> None:
    x = inputs(300, 512)
    for encoding in ("BF16", "Q4_K"):
        block, _ = weights(encoding, 40, 512)
        exact = linear(x, block, exact=True)
        compiled.choose(encoding, replace(trials.by_features(encoding), order=TORCH, few=FEWS[1]))
        assert compiled.available(encoding) == one_class(encoding, 512) == (encoding != "BF16")
        assert not compiled.own_prompt(encoding, torch.bfloat16)
        found = linear(x, block, exact=True)
        assert torch.allclose(found.float(), exact.float(), rtol=2**-7, atol=0.1)
        for rows in (1, 5, 33):
            assert torch.equal(linear(x[:rows], block, exact=True), found[:rows])


def test_a_choice_holds_as_long_as_the_process() -> None:
    first = trials.by_features("Q4_K")
    other = replace(first, ways=(2 * compiled.level(),) * len(ROWS))
    assert compiled.choose("Q4_K", first) == first
    assert compiled.choose("Q4_K", other) == first
    assert CHOSEN["Q4_K"] == first


# Remembered.


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured; each time something else would be the fastest."""
    asked = list[str]()

    def found(encoding: str) -> Choice:
        asked.append(encoding)
        usual = trials.by_features(encoding)
        return replace(usual, order=TORCH, few=FEWS[1], ways=(0,) * len(ROWS), tried={"x": (len(asked),)})

    monkeypatch.setattr(trials, "measure", found)
    return asked


def test_what_was_measured_is_remembered_until_something_changes(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = choices.choice("BF16")
    assert first.order == TORCH
    assert choices.choice("BF16") == first
    assert choices.choice("Q4_K") != first
    assert measured == ["BF16", "Q4_K"]
    assert choices.choice("BF16", fresh=True) != first
    again = choices.choice("BF16")
    assert again.tried == {"x": (3.0,)}
    monkeypatch.setattr(choices, "VERSION", -1)
    assert choices.choice("BF16") != again
    assert measured == ["BF16", "Q4_K", "BF16", "BF16"]
    monkeypatch.setattr("edgespec.devices.rates.cpu_name", lambda: "another")
    assert choices.choice("BF16").tried == {"x": (5.0,)}


@pytest.mark.parametrize(
    "damage",
    [
        {"ways": []},
        {"ways": [99] * len(ROWS)},
        {"ways": [-1] * len(ROWS)},
        {"ways": [True] * len(ROWS)},
        {"ways": "0000000"},
        {"order": 99},
        {"order": -2},
        {"order": 1.0},
        {"few": 33},
        {"few": None},
        {"tried": []},
        {"tried": {"x" * 1000: [1.0]}},
        {"tried": {"x": [float("nan")]}},
        {"tried": {"x": [1.0] * 100}},
        {"tried": {"x": 1.0}},
        {"tried": {str(i): [1.0] for i in range(1000)}},
        {"more": 1},
    ],
    ids=str,
)
def test_a_damaged_choice_is_measured_again(measured: list[str], damage: dict[str, Any]) -> None:
    found = choices.choice("U8")
    key = f"kernels U8 by {choices.kernels_name()}"
    remember(key, as_json(found) | damage)
    assert choices.choice("U8").tried == {"x": (2.0,)}
    assert choices.choice("U8").tried == {"x": (2.0,)}
    for whole in (None, [], 7, {}):
        remember(key, whole)
        choices.choice("U8")
    assert len(measured) == 2 + 4


def test_instructions_that_are_not_here_are_not_believed(measured: list[str]) -> None:
    if compiled.level() < AVX2:
        pytest.skip("the least there is")
    found = replace(choices.choice("Q8_0"), ways=(2 * compiled.level(),) * len(ROWS))
    assert of_json(as_json(found), compiled.level()) == found
    assert of_json(as_json(found), compiled.level() - 1) is None


def test_where_nothing_can_be_kept_bits_go_by_features(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file" / "cache"))
    for encoding in ENCODINGS:
        found, usual = choices.choice(encoding), trials.by_features(encoding)
        assert (found.order, found.few) == (usual.order, usual.few)
        assert found.ways == (0,) * len(ROWS)  # the bits are the same


def test_who_measures_second_takes_what_the_first_has_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = trials.by_features("BF16")
    other = replace(usual, tried={"x": (1.0,)})

    def late(encoding: str) -> Choice:
        remember(f"kernels BF16 by {choices.kernels_name()}", as_json(other))
        return usual

    monkeypatch.setattr(trials, "measure", late)
    assert choices.choice("BF16") == other


def test_processes_at_once_keep_one_value_and_lose_none() -> None:
    with ThreadPoolExecutor(4) as pool:  # nobody waits for longer than a second, on a busy disk either
        kept = [*pool.map(lambda i: keep_first("one", i, lambda value: type(value) is int), range(12))]
        assert len({*kept}) == 1
        assert recall("one") == kept[0]
        [*pool.map(lambda i: remember(f"own {i}", i), range(12))]
    assert [recall(f"own {i}") for i in range(12)] == [*range(12)]
    assert {path.name for path in cache_folder().iterdir()} == {"rates.json"}


def test_what_was_remembered_first_goes_when_the_file_is_full() -> None:
    words = "x" * 300_000
    for name in ("a", "b", "c"):
        remember(name, words)
    remember("a", "y" + words)
    remember("d", words)
    assert recall("b") is None, "the others are newer"
    assert [str(recall(name))[0] for name in "cad"] == ["x", "y", "x"]
    remember("all of it", "z" * 2**21)
    assert recall("d") is None
    remember("e", 1)
    assert recall("e") == 1


def test_a_folder_that_cannot_be_held_is_written_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("edgespec.devices.rates.held", refuse)
    assert keep_first("one", 1, lambda value: False) == 1
    assert recall("one") == 1


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_won_says_how_long_a_core_takes(encoding: str) -> None:
    """A winner need not have been tried with every number of rows."""
    gigabytes = trials.OUT * stored_row_bytes(encoding, trials.INNER) / 1e9
    for level in compiled.levels():
        compiled.level(level)
        found = measure(encoding, clock(lambda rows, key, order: 1e-6 * (100 * rows + 10 * key)))
        keys = dict(zip(ROWS, found.ways, strict=True))
        if encoding == "BF16" and not AVX2 <= found.order <= AVX512:
            keys = dict.fromkeys(trials.SHARED, found.order)
        expected = {rows: 1e-6 * (100 * rows + 10 * key) / gigabytes for rows, key in keys.items()}
        assert trials.core_seconds(encoding, found) == pytest.approx(expected)
    assert trials.core_seconds(encoding, trials.by_features(encoding)) == {}, "nothing was tried"


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((2, 4, 6, 8, 12, 16, 24, 32, 128), (2, 4, 8, 16, 64, 128, 1024)),
        ((2, 1, 3, 1, 1, 4, 4, 4, 4), (2, 2, 3, 4, 4, 4, 4)),  # never less for more rows
        ((2, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9), (2, 4, 8, 16, 64, 128, 1024)),  # one by one
        ((1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9), None),  # of no processor
        ((2,), None),
        ((), None),
    ],
)
def test_what_a_race_or_a_file_says_of_rows_is_bounded(
    times: tuple[float, ...], expected: tuple[float, ...] | None
) -> None:
    compiled.level(AVX2)
    usual = trials.by_features("U8")
    CHOSEN["U8"] = replace(usual, ways=(2,) * len(ROWS), tried={"AVX2": times} if times else {})
    found = choices.raced(stored_as("U8"))
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        gigabytes = trials.OUT * stored_row_bytes("U8", trials.INNER) / 1e9
        threads = min(torch.get_num_threads(), cpu_count())
        assert found.seconds["U8"] == pytest.approx(np.array(expected) * 1e-6 / gigabytes / threads)


def stored_as(encoding: str) -> Any:
    """A table whose only matrix is."""
    piece = SimpleNamespace(encoding=encoding)
    return SimpleNamespace(chunks=[SimpleNamespace(matrices=lambda: [(piece, None)])])


def test_who_has_no_kernels_hears_why_and_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choices.slow(stored_as("Q4_K")) == ""
    monkeypatch.setattr(choices, "unavailable", lambda: "they were not built")
    assert choices.slow(stored_as("BF16")) == ""
    for encoding, name in (("Q4_K", "Q4_K"), ("U8", "int4")):
        said = choices.slow(stored_as(encoding))
        assert said.startswith(f"{name}: ")
        assert "they were not built" in said
        assert choices.reasons(stored_as(encoding)) == [said]
        found = choices.raced(stored_as(encoding))
        assert found is not None
        one, *_, many = found.seconds[encoding]
        assert 1e-3 < one <= many, "10^9 bytes take longer than that"
    assert choices.raced(stored_as("BF16")) is None


def test_who_has_plain_c_alone_hears_it() -> None:
    compiled.level(0)
    assert choices.slow(stored_as("BF16")) == ""
    said = choices.slow(stored_as("Q4_K"))
    assert said.startswith("Q4_K: multiplied by plain C")
    assert LEVELS[1] in said


def test_installations_that_share_a_folder_keep_their_choices(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = choices.choice("U8")
    with monkeypatch.context() as patch:
        patch.setattr(choices, "kernels_name", lambda: "torch of another environment")
        choices.choice("U8")
    assert choices.choice("U8") == first
    assert len(measured) == 2


# In an engine.


def test_a_plan_knows_what_more_rows_took_in_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the controller begins with, by all threads: lines between and beyond what was tried."""
    import edgespec

    def raced(encoding: str) -> Choice:
        usual = trials.by_features(encoding)
        return replace(
            usual, order=AVX2, ways=(2,) * len(ROWS), tried={"AVX2": (1, 2, 3, 3, 5, 7, 9, 13, 61)}
        )

    monkeypatch.setattr(trials, "measure", raced)
    with edgespec.load(DEMO, memory="1GB", drafter="none", device="cpu", threads=2) as engine:
        found, stored = engine.plan.rates.raced, engine.plan.table.stored
        assert found is not None
        gigabytes = trials.OUT * stored_row_bytes("BF16", trials.INNER) / 1e9
        expected = np.array([1, 2, 3, 7, 29, 61, 509]) * 1e-6 / gigabytes / 2
        assert {*found.seconds} == {"BF16"}
        assert found.seconds["BF16"] == pytest.approx(expected)
        assert engine.plan.costs().by_rows[-1] >= expected[-1] * stored["BF16"] / 1e9


def test_a_command_says_what_is_slow_and_how_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.apps.common import open_engine
    from edgespec.config import EngineOptions

    notes = list[str]()
    terminal: Any = SimpleNamespace(busy=lambda text: None, progress=None, note=notes.append)
    options = EngineOptions(memory=10**9, drafter="none", device="cpu")
    with open_engine(DEMO, options, terminal):
        assert notes == []
    for reason, helps in (
        ("plain C", ""),
        ("no kernels", " (`edgespec pack MODEL -o DIR --precision bf16`)"),
    ):
        notes.clear()
        monkeypatch.setattr(choices, "slow", lambda table, reason=reason: reason)
        monkeypatch.setattr(compiled, "unavailable", lambda helps=helps: helps)
        with open_engine(DEMO, options, terminal) as engine:
            speed = f"{engine.plan.predicted_tokens_per_second:.2g} tokens/s"
        assert notes == [f"{reason}{helps}; expect {speed}"]


def test_an_engine_multiplies_and_says_what_was_chosen(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import edgespec

    def engine() -> edgespec.Engine:
        return edgespec.load(DEMO, memory="1GB", drafter="none", device="cpu")

    with engine() as first:
        assert "BF16: torch" in first.plan.reasons
        text = edgespec.generate(first, "Once", max_tokens=8).text
    assert measured == ["BF16"]
    with engine() as second:
        assert edgespec.generate(second, "Once", max_tokens=8).text == text
        assert second.plan.to_dict()["reasons"] == first.plan.reasons
    assert measured == ["BF16"]
