"""The benchmarks' own tools: made models are sound checkpoints, cgroup files are read right, figures are."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import math
import os
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest

if not (Path(__file__).resolve().parents[1] / "benchmarks").is_dir():
    pytest.skip("benchmarks/ is not part of an installed package", allow_module_level=True)

from benchmarks import (
    bills,
    common,
    held_out,
    hits,
    laws,
    peers,
    regret,
    tables,
    tau,
)
from benchmarks.held_out import repetition
from benchmarks.laws import hidden
from benchmarks.models import checkpoint, make_model, repeat_layers, tokenizer
from benchmarks.models.shapes import Shape, get_shape
from benchmarks.tables import Report, Store
from benchmarks.worker import Worker
from edgespec.apps.common import demo_model
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Overlap
from edgespec.core.tree import TokenTree
from tests.moa import write_moa
from tests.test_imports import circles, imported_modules
from tests.test_session import prompt_of, write_model

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TINY = Shape(layers=3, hidden=64, ffn=160, heads=4, kv_heads=2, vocab=300, head_dim=16, context=128)


def scripts() -> list[Path]:
    return sorted(file for file in BENCHMARKS.rglob("*.py") if file.parent.name != "peers")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "tiny"
    make_model.make_model(directory, TINY)
    return directory


def test_made_model_runs_in_transformers(tiny: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny)
    ids = AutoTokenizer.from_pretrained(tiny)("a test", return_tensors="pt").input_ids
    assert ids[0, 0] == 1  # BOS
    with torch.no_grad():
        logits = model(ids).logits
    assert logits.shape == (1, ids.shape[1], TINY.vocab)
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.01  # not all the same
    assert sum(p.numel() for p in model.parameters()) == TINY.parameters()


def test_no_two_tensors_are_alike(tiny: Path) -> None:
    from safetensors.torch import load_file

    tensors = load_file(tiny / "model.safetensors")
    seen = {t.flatten()[:64].float().numpy().tobytes() for t in tensors.values() if t.dim() == 2}
    assert len(seen) == sum(t.dim() == 2 for t in tensors.values())


def test_shards_are_bounded_and_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import safe_open

    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 100_000)
    make_model.make_model(tmp_path / "m", TINY)
    files = sorted((tmp_path / "m").glob("*.safetensors"))
    assert len(files) > 2
    assert all(file.stat().st_size < 110_000 for file in files)
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == {name for name, _ in TINY.matrices()}
    for file in files:
        with safe_open(file, "np") as f:
            assert set(f.keys()) == {name for name, where in index.items() if where == file.name}


def test_a_failed_write_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"the beginning")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        make_model.make_model(tmp_path / "m", TINY)
    assert not (tmp_path / "m").exists()


def test_tokenizer_covers_every_byte(tiny: Path) -> None:
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    assert made.get_vocab_size() == TINY.vocab
    text = "né\n\t the ß 🙂\x00"
    assert made.decode(made.encode(text).ids[1:]) == text
    assert tokenizer.byte_characters()[0x20] == "Ġ"


def test_unknown_shape_names_the_known() -> None:
    with pytest.raises(SystemExit, match="7b"):
        get_shape("8b")


def test_every_peer_has_a_command(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = argparse.Namespace(
        model=tiny,
        story=False,
        draft=tiny,
        copy=tiny,
        gguf=peers.GGUF,
        arms="",
        peer_python="python",
        tokens=2,
    )
    monkeypatch.setattr(peers.Peers, "gguf", lambda self, model, kind: Path(f"{model}-{kind}.gguf"))
    found = peers.Peers(args)
    args.story = True  # whose text the tiny model's tokenizer does not have
    arms = found.known()
    used = {found.command(name, 10**9)[1].name for name in arms if not name.startswith("edgespec")}
    assert used == {file.name for file in peers.PEERS.glob("run_*.py")}
    assert {peers.kind_of(name) for name in arms} == set(peers.GGUF)
    gguf = [name for name in arms if str(found.weights(name)).endswith("F16.gguf")]
    own = [name for name in gguf if not name.startswith(("llama.cpp F16", "neurostream F16"))]
    assert (own, len(gguf)) == (["edgespec F16, GGUF"], 6)


def test_arms_take_turns() -> None:
    order: list[str] = []

    def arm(name: str) -> common.Row:
        order.append(name)
        return {"name": name}

    results = common.interleave({"a": lambda: arm("a"), "b": lambda: arm("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [len(rows) for rows in results.values()] == [3, 3]


def test_figures_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.median_ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == 3.0
    assert tables.spread([3.0, 1.0, 2.0]) == "2.00 (1.00–3.00)"
    report = tables.Report("T", raw={"x": [1]})
    report.add({"a": 1, "b": 2})
    with pytest.raises(ValueError, match="1 cells"):
        report.add({"a": "only one"})
    report.finish(tmp_path / "r.json")
    assert "| a | b |\n|---|---|\n| 1 | 2 |" in capsys.readouterr().out
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["table"] == [{"a": "1", "b": "2"}]
    assert saved["machine"]["cores"] >= 1


def test_repeated_layer_names() -> None:
    assert (
        repeat_layers.renamed("model.layers.3.mlp.up_proj.weight", 8) == "model.layers.11.mlp.up_proj.weight"
    )
    assert repeat_layers.renamed("model.norm.weight", 8) == "model.norm.weight"


def test_measurements_survive(tmp_path: Path) -> None:
    file = tmp_path / "results" / "x.json"

    def fails() -> common.Row:
        raise RuntimeError("the dial is too small")

    store = Store(file)
    assert store.get("a", lambda: {"seconds": 3}) == {"seconds": 3}
    assert store.get("b", fails) == {"error": "the dial is too small"}
    again = Store(file)
    assert again.get("a", fails) == {"seconds": 3}  # not measured twice
    assert again.get("b", lambda: {"seconds": 4}) == {"seconds": 4}  # but a failure is tried again
    Report("of them").finish(again.table)
    assert Store(file).rows == {"a": {"seconds": 3}, "b": {"seconds": 4}}


def test_repetition() -> None:
    assert repetition([1, 2, 3, 4, 5], [9, 8, 7, 6]) == 0
    assert repetition([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]) == 2 / 5  # the n-grams across the border are new
    assert repetition([7], []) == 0


def start(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str | Path | int) -> None:
    """Run a script's `main` in this process."""
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *map(str, arguments)])
    monkeypatch.setattr(common.signal, "signal", lambda *_: None)  # this process has handlers of its own
    importlib.import_module(f"benchmarks.{script}").main()


def mains() -> list[str]:
    """The scripts that people start; other programs start the others."""
    found = (file for file in scripts() if "def main" in file.read_text(encoding="utf-8"))
    names = [".".join(file.relative_to(BENCHMARKS).with_suffix("").parts) for file in found]
    return [
        name
        for name in names
        if name not in ("engine_process", "soak_process", "dial_process", "validation_process")
    ]


@pytest.mark.parametrize("script", mains())
def test_every_script_has_help(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        start(monkeypatch, script, "--help")
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out


def test_tokens_per_cycle_of_the_demo_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole run: a reply of the target's, then drafts for the same prompt, in processes of their own."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "0")  # waiting threads leave the cores to the other tests
    demo = BENCHMARKS.parent / "edgespec" / "demo_model"
    write_moa(demo, tmp_path / "untrained")
    options = ["--adapters", demo / "cascade", "--trained", tmp_path / "untrained", "--steps", 3]
    options += ["--arms", "kangaroo,untrained", "--base", "kangaroo"]
    start(
        monkeypatch,
        "acceptance",
        "--small",
        demo,
        *options,
        "--at",
        3,
        "--prompts",
        1,
        "--json",
        tmp_path / "r",
    )
    measured = json.loads((tmp_path / "r").read_text())["measured"]["tokens/kangaroo/0/3"]
    assert 1 <= measured["tau"] <= 4
    assert f"| kangaroo |  | {measured['tau']:.2f} | 1.00 (1.00–1.00) |" in (out := capsys.readouterr().out)
    assert "| untrained |  | " in out
    assert "0 of 2 replies differ" in out


def test_rates_of_a_resident_model(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "0")
    small = ["--rounds", 1, "--blocks", 1, "--tokens", 3, "--raw", "8MB", "--json", tmp_path / "r"]
    start(monkeypatch, "decoding", "--model", tiny, "--dials", "2GB", *small)
    (row,) = json.loads((tmp_path / "r").read_text())["raw"][str(2 * 10**9)]
    assert (row["streamed"], row["planned"], row["blocks"][0]["cycles"]) == (0, 0, 1)
    assert row["blocks"][0]["read_rate"] > 0
    assert "| 2 GB | 0 B |" in capsys.readouterr().out


class Canned:
    """In place of `benchmarks.worker.Worker`: cycles of three tokens and 2 s, and but for hits 1 s of
    drafting; plain decoding's have one, in 1.6 s."""

    loaded: ClassVar[common.Row] = {"plan": {}}
    wrong: ClassVar[dict[str, int]] = {}  # by schedule: the place of another token
    asked: ClassVar[list[common.Row]] = []  # modes of replies, and the engine's drafter

    def __init__(self, model: Path, dial: int, drafter: str, schedule: str = "", **options: Any) -> None:
        self.drafter, self.schedule, self.options = drafter, schedule, options

    def __enter__(self) -> Canned:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, prompt: list[int], tokens: int, mode: common.Row, **more: Any) -> common.Row:
        plain = self.drafter == "none" and mode["kind"] == "own"
        self.asked.append({**self.options, **mode, "drafter": self.drafter})
        schedule = self.schedule
        said = [(prompt[-1] + i) % 50 for i in range(min(more.get("cycles", 30), 30) + 1)]
        if (place := self.wrong.get(schedule)) is not None and len(said) > place:
            said[place] += 1
        hits = [[None, True, True, False][i % 4] if schedule == "ssd" else None for i in range(10)]
        cycles = [
            {"seconds": 1.7, "draft": 0.0, "verify": 1.6, "tokens": 1, "nodes": 1, "hit": None}
            if plain
            else {"seconds": 2 + late, "draft": late, "verify": 2, "tokens": 3, "nodes": 9, "hit": hit}
            for hit, late in [(hit, 0.0 if hit else 1.0) for hit in hits]
        ]
        cycles = [{**cycle, "found": 4} for cycle in cycles]
        overlap = {"cache_hits": hits.count(True), "cache_misses": hits.count(False)}
        overlap["drafted_while_verifying"] = 40
        return {"tokens": said, "cycles": cycles, "peak_memory": 10**9, "overlap": overlap}


def test_a_hit_stands_beside_a_pass_that_reads_as_much() -> None:
    """What flash reads while serial drafts, a ring at most, its pass need not wait for."""

    def cycle(draft: float, verify: float, hit: bool | None = None) -> common.Row:
        return {"draft": draft, "verify": verify, "nodes": 6, "hit": hit}

    hits = [cycle(0.0, 2.1, True), cycle(0.1, 2.0, True)]
    plan = {"owners": {"ring": 100}, "bytes_per_pass": 1000}
    plain = [{"cycles": [{**cycle(0.0, 2.0), "nodes": 1}]}]
    for draft, serial, expected in [(0.3, 1.9, "1.00"), (0.1, 2.0, "1.00"), (0.3, 2.1, "0.91")]:
        first = [{"replies": [{"cycles": [cycle(draft, serial)]}], "plan": plan}]
        assert hidden(hits, first, plain) == (f"{2.1 / serial:.2f}", expected)
    resident = [{"replies": [{"cycles": [cycle(0.3, 2.0)]}], "plan": {**plan, "bytes_per_pass": 0}}]
    assert hidden(hits, resident, plain) == ("1.05", "1.05")
    assert hidden([cycle(0.3, 2.0, False)], resident, plain) == ("", "")


def test_schedules_stand_beside_what_they_should_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = BENCHMARKS.parent / "edgespec" / "demo_model"
    monkeypatch.setattr("benchmarks.schedules.open_worker", Canned)
    monkeypatch.setattr("benchmarks.schedules.compile_checkout", lambda: None)

    def table(file: str, *more: str | int, **wrong: int) -> dict[str, dict[str, str]]:
        monkeypatch.setattr(Canned, "wrong", wrong)
        monkeypatch.setattr(Canned, "asked", [])
        sizes = "--dials", "8GB", "--rounds", 2, "--prompts", 2, "--json", tmp_path / file
        models = "--small", demo, "--target", demo, "--draft", demo
        start(monkeypatch, "schedules", *models, *sizes, "--arms", "serial 4,serial,ssd", *more)
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        columns, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return {row[0]: dict(zip(columns, row, strict=True)) for row in rows}

    right = table("right")
    assert {row["same text"] for row in right.values()} == {"yes"}
    serial, ssd = right["serial"], right["ssd"]
    # 3 tokens in 3 s, of which the pass takes 2; of plain passes it would be 3 / 1.6.
    assert [serial[n][:5] for n in ("tokens/s", "Theorem 7", "promised")] == ["1.000", "1.000", "1.875"]
    assert serial["measured / Theorem 7"][:4] == "1.00"
    # Of ten cycles five were hits, and two misses, which waited for 1 s.
    law = 3 / (5 / 7 + 2 / 7 * (1 + 1 / 2)) / 2
    assert ssd["hits"] == "71%"
    alone = "a hit / its pass alone", "its pass from an empty ring"
    assert [[row[name] for name in alone] for row in (serial, ssd)] == [["", ""], ["1.00", "1.00"]]
    assert float(ssd["Theorem 7"].split()[0]) == pytest.approx(law, abs=1e-3)
    assert ssd["promised"] == serial["promised"]
    assert ssd["measured / promised"][:4] == f"{30 / 25 / 1.875:.2f}"
    assert [serial[n][:4] for n in ("drafting", "× first arm", "Corollary 9")] == ["33%", "1.00", ""]
    # Serial drafts for 1 / 2 of a pass; a miss is always followed by a hit, a hit in half of the cases.
    assert [ssd[n] for n in ("Equation 1", "Corollary 9")] == ["67%", "1.07–1.50"]
    assert {row["Equation 10"] for row in right.values()} == {""}
    spoke = {"replies": [{"exit": {"law_seconds": 3.0, "measured_seconds": 4.0}}] * 2}
    assert laws.equation_10([spoke, {"replies": [{}]}]) == "0.75"
    assert ssd["after a miss"] == "the drafter, to a batch of 1.9"
    assert ssd["× first arm"][:4] == "1.20"
    assert [serial[n] for n in ("hidden", "found")] == ["", ""]
    assert [ssd[n] for n in ("hidden", "found")] == ["50%", "4.0"]  # half of its cycles draft
    beside = table("beside", "--worker", "--nodes", 9, "--resident-layers", 4)
    assert beside == right, "the same arms, and the same figures of them"
    big = [asked for asked in Canned.asked if "cores" in asked]  # not the small model, asked what it says
    assert len(big) == 2 * (1 + 3 * (2 + 1)), "a reply of each drafting process is said before"
    assert len({tuple(asked["cores"]) for asked in big}) == 1
    assert {(asked["threads"], asked["resident_layers"]) for asked in big} == {(1, 4)}
    assert {asked["nodes"] for asked in big if asked["kind"] == "fixed"} == {9}
    assert {asked.get("draft_worker") for asked in big if asked["drafter"] == "model"} == {1}
    wrong = table("other", ssd=20)
    assert wrong["serial"]["same text"] == "yes"
    assert wrong["ssd"]["same text"] == "round 1, reply 1: other from token 21 on"
    plain = table("plain", serial=4, ssd=4)  # plain decoding is none of these schedules' words
    expected = "round 1, reply 1: other than plain from token 5 on"
    assert {row["same text"] for row in plain.values()} == {expected}


def test_bills_of_a_big_model() -> None:
    """Rows are computed while flash is read, and what is left of that are waits."""
    bill = bills.Bill(plain=3.0, node=0.01, step=0.1, compute=1.0, row=0.1, late=0.4, slower=0.2)
    assert [bill.waits(rows) for rows in (1, 11, 21, 64)] == [5, 2, 0, 0]
    outcome = Outcome(np.array([0]), (5,))
    for rows, ahead, took in ((1, 0, 3.0), (11, 0, 3.1), (11, 4, 3.3), (31, 0, 4.3)):
        tree = TokenTree.chain(list(range(rows)))
        billed = bill.of(Cycle(7, tree, outcome, 9.0, 9.0, overlap=Overlap(passes=ahead)))
        assert (billed.draft_seconds, billed.verify_seconds) == pytest.approx((0.7, took))
    assert bill.prior.passes(np.array([1.0, 64.0])) == pytest.approx([3.0, 7.3])


def import_graph() -> dict[str, set[str]]:
    """Which of the benchmarks' modules each of them imports."""
    files = {".".join(f.relative_to(BENCHMARKS.parent).with_suffix("").parts): f for f in scripts()}
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        names = [part for name in imported_modules(file) for part in (name, name.rpartition(".")[0])]
        graph[module] = files.keys() & names
    return graph


def test_what_the_tuner_says_stands_beside_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables, of what is in the results file already; nothing runs again."""

    def replied(seconds: float, predicted: float, after: bool = False) -> common.Row:
        said = [0.8 * predicted, predicted, 1.25 * predicted]
        row = {"after measuring": after, "raw": [2.0, 2.2], "predicted": said, "predicted cycle": 0.5}
        return {**row, "cycles": 10, "tokens": 20, "seconds": seconds}

    plain = {"replies": [replied(5.0, 4.0), replied(5.0, 4.0)]}  # cycles of 0.5 s, 4 tokens/s
    slow = {"replies": [replied(6.0, 4.0)]}
    drafted = {"replies": [replied(8.0, 4.0), replied(5.0, 3.0, after=True)]}
    held = {"dial": 900 * 10**6, "peak": 850 * 10**6, "fits": False}
    held |= {"owners": {"ring": [100.0, 100.0], "conversation": [108.0, 100.0]}, "total": [790e6, 800e6]}
    small = {"predicted": 650 * 10**6, "found": 640 * 10**6}
    measured: common.Row = {
        "rates": {"rates": "{}"},
        "speed/0.5b-inflated 900 MB none": plain,
        "speed/0.5b-inflated 900 MB none, 0.5 GB/s": slow,
        "speed/0.5b-inflated 1000 MB ngram": drafted,
        "memory/0.5b-inflated 900 MB 512 positions": held,
        "smallest/0.5b-inflated": small,
    }
    for key in list(measured)[1:]:
        what, _, only = key.partition("/")
        file = tmp_path / f"{only.replace('/', ' ')}.json"
        file.write_text(json.dumps({"measured": {**measured, key: measured[key]}}))
        rows = [name for name in measured if name.startswith(f"{what}/") and only in name]
        monkeypatch.setattr(Store, "get", lambda self, key, *job: self.rows.get(key, {"error": "not run"}))
        monkeypatch.setattr("benchmarks.validation.require_throttle", lambda path: None)
        start(
            monkeypatch, "validation", "--what", what, "--only", only, "--throttle", "0.5GB", "--json", file
        )
        table = json.loads(file.with_stem(f"{file.stem}-{what}").read_text())["table"]
        assert len(table) == len(rows)
    out = capsys.readouterr().out
    assert (
        "| 0.5b-inflated 900 MB none | 2.10 | 0.500 | 0.500 | +0.0% | 4.00 (3.20–5.00) | 4.00 |  |  |  |"
        in out
    )
    assert "| 0.5b-inflated 900 MB none, 0.5 GB/s | 2.10 | 0.500 | 0.600 | -16.7% |" in out
    assert "Plain tokens/s within 15%: 1 of 2" in out
    assert "| 4.00 (3.20–5.00) | 2.50 | 3.00 | 4.00 | -25.0% |" in out
    assert "in the interval that was stated: 0 of 1" in out
    assert "other prompts: tokens/s within 15%: 0 of 1" in out
    assert "Owners of 8 MB or more within 5%: 1 of 2" in out
    assert "Totals within 3%: 1 of 1" in out
    assert "| 0.5b-inflated | 650 MB | 640 MB | +1.6% |" in out


def test_regret_is_of_the_same_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three seconds a setting's step: what the tuner names is half as fast as the best of the search."""

    def timed(worker: object, prompt: list[int], arm: regret.Arm) -> common.Row:
        fast = arm.drafter == "substitute" and arm.nodes == 16
        return {"tokens": 40, "seconds": 1.0 if fast else 2.0}

    said = {"drafter": "ngram", "schedule": "serial", "copy": "", "nodes": 8, "steps": 0}
    monkeypatch.setattr(regret, "timed", timed)
    monkeypatch.setattr(regret, "stories", lambda model, count: [[1]] * count)
    monkeypatch.setattr(regret.Search, "open", lambda self, arm: nullcontext())
    monkeypatch.setattr(regret.Search, "recommended", lambda self: {"tune": {"arm": said}})
    start(monkeypatch, "regret", "--model", tmp_path, "--json", tmp_path / "r.json")
    out = capsys.readouterr().out
    assert "| ngram serial, 8 nodes, 0 steps | 20.00 (20.00–20.00) | 20.00 | tune | 2.00 (2.00–2.00) |" in out
    assert "| ngram serial, own controller | 20.00 (20.00–20.00) | nan | tune, own controller | 2.00" in out
    assert len(json.loads((tmp_path / "r-table.json").read_text())["table"]) == regret.BEST + 2
    measured = json.loads((tmp_path / "r.json").read_text())["measured"]
    searched = [name for key, row in measured.items() if key.startswith("search/") for name in row["speeds"]]
    assert len(searched) == len(set(searched)) >= 60


def test_hits_by_fan_out() -> None:
    """Shares, their power law, and two policies over the same prompts."""
    law = [1 - 0.9 * f**-0.5 for f in hits.FAN_OUTS]
    assert hits.power(law) == pytest.approx((0.5, 0.9))
    assert all(map(math.isnan, hits.power([1.0] * len(law))))  # nothing was missed
    ranks = [(True, 0), (False, 2), (True, 16), (False, 7)]
    assert hits.hit_rates(ranks) == [0.25, 0.25, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75]
    reply = {"tokens": 60, "cycles": 10, "passes": 40, "lookups": 9, "hits": 3, "ranks": ranks}
    better = {"replies": [{**reply, "hits": 6, "passes": 20}] * 4}
    found = hits.compared(better, {"replies": [reply] * 4}, price=0.05)
    assert found == {"hits": "+0.333 (+0.333–+0.333)", "speed": "1.091 (1.091–1.091)"}
    report = hits.curves({"T=0": {"replies": [{**reply, "ranks": [*ranks, *ranks]}]}})
    assert [row["outcomes"] for row in report.rows] == ["after hits (4)", "after misses (4)", "all (8)"]
    cells = [cell for column, cell in report.rows[-1].items() if column.startswith("F=")]
    assert cells == [f"{rate:.3f}" for rate in hits.hit_rates(ranks)]


def test_no_scripts_import_one_another_in_a_circle() -> None:
    graph = import_graph()
    assert "benchmarks.worker" in graph["benchmarks.arms"]
    assert not circles(graph)


# What scripts make themselves, and may fill in.
OWN = {"self", "usage", "process", "matrix", "tokenizer", "sys", "figures", "side", "made"}


def poked(source: str) -> list[str]:
    """Attributes of others' objects that a script assigns to."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if not (isinstance(node.value, ast.Name) and node.value.id in OWN):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            found.append(ast.unparse(node))
    return found


def test_scripts_measure_the_engine_as_it_is() -> None:
    """Nothing of an engine's, a session's or a target's is replaced: what is timed is what users run. But for
    an accelerator that is not here, in whose place something has to be."""
    found = {file.name: poked(file.read_text(encoding="utf-8")) for file in scripts()}
    replaced = {poke.split(".")[0] for poke in found.pop("stand_in.py")}
    assert replaced == {"kind", "setattr(self"}, "its process alone"
    assert {name: pokes for name, pokes in found.items() if pokes} == {}
    changes = "model.run = f; session.schedule.controller.record = f; self.engine.eos = (); self.a = 1"
    assert poked(changes) == ["model.run", "session.schedule.controller.record", "self.engine.eos"]
    assert poked("setattr(target, 'run', f); del engine.plan") == ["setattr(target, 'run', f)", "engine.plan"]


def test_trees_of_as_many_nodes_as_asked_for() -> None:
    model, found = demo_model(), {}
    asked = held_out.prompts(model, 2)
    for passes, directory in ((0, None), (1, model / "cascade"), (4, model / "cascade")):
        budget = TreeBudget(5, 4, passes) if passes else None
        with tau.load(model, "1GB", 256, directory) as engine:
            found[passes] = tau.answer(engine, asked, 12, budget)
    for said, _, _ in found.values():
        assert said == found[0][0]
    plain, one, four = (counts.sum(0).tolist() for _, counts, _ in found.values())
    assert plain[0] == plain[1]  # a token a cycle
    assert plain[1] > one[1] > four[1] > 0
    assert 1 < one[0] / one[1] < four[0] / four[1] <= 5
    for passes, (_, counts, drafts) in found.items():
        assert drafts.cycles == counts.sum(0)[1]
        assert drafts.passes <= passes * drafts.cycles
        assert drafts.k <= 4


def test_replies_at_once_by_drafter_and_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.batches.compile_checkout", lambda: None)
    drafters = ["--drafters", demo_model() / "cascade", "--nodes", "4", "--tokens", 8]
    small = ["--batch", "1,2", "--prompts", 2, "--rounds", 1, "--json", tmp_path / "r"]
    start(monkeypatch, "batches", *drafters, *small)
    out = capsys.readouterr().out
    rows = json.loads((tmp_path / "r").read_text())["table"]
    assert [(row["batch"], row["drafter"], row["nodes"]) for row in rows] == [
        ("1", "none", ""), ("1", "cascade", "4"), ("2", "none", ""),
    ]  # fmt: skip
    assert [row["tokens a cycle"] for row in rows if row["drafter"] == "none"] == ["1.00", "1.00"]
    assert 1 < float(rows[1]["tokens a cycle"]) <= 5
    assert "batch 2, " in out
    assert "the cascade drafts for one conversation at a time" in out


def test_pinned_arms_share_two_cores(tmp_path: Path) -> None:
    """The target's process is on the first, its worker on the second; the text is the engine's."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("a target and a worker need two cores")
    model = write_model(tmp_path / "m")
    job = {"prompt": prompt_of(20), "tokens": 12, "ignore_eos": True}
    said = []
    for drafter, more in (("none", {}), ("model", {"draft_model": model, "draft_worker": 1})):
        options = {"context": 200, "threads": 1, "cores": cores, **more}
        mode = {"kind": "fixed", "steps": [3], "nodes": 9} if more else {"kind": "own"}
        with Worker(model, 8 * 10**9, drafter, **options) as worker:
            said.append(worker.run(**job, mode=mode)["tokens"])
            held = [psutil.Process(worker.process.pid), *psutil.Process(worker.process.pid).children()]
            assert [set(process.cpu_affinity()) for process in held] == [{core} for core in cores][
                : len(held)
            ]
    assert said[0] == said[1]
    assert len(held) == 2


@pytest.mark.parametrize(
    ("name", "arm"),
    [("moa-0", "moa"), ("moa-12", "moa"), ("spec-nopos", "spec-nopos"), ("7", "7"), ("-3", "-3")],
)
def test_trainings_of_other_seeds_are_one_arm(name: str, arm: str) -> None:
    assert tau.arm(name) == arm


def test_tokens_a_cycle_of_all_prompts_and_trainings_together() -> None:
    even, odd = np.array([[30, 10], [30, 10]]), np.array([[10, 10], [50, 10]] * 8)
    assert tau.pooled([even]) == tau.pooled([odd]) == 3.0
    assert tau.pooled([even, 2 * even, even + np.array([0, 30])]) == pytest.approx(240 / 140)
    assert tau.over([even], [even]) == "1.00 (1.00–1.00)"
    middle, low, high = map(float, re.findall(r"[\d.]+", tau.over([odd], [np.array([[30, 10]] * 16)])))
    assert 0.4 < low < middle == 1.0 < high < 1.6


def test_other_trainings_widen_what_is_known() -> None:
    """One training that is twice as good, and draws of prompts that are all alike."""
    trainings = [np.array([[20, 10]] * 4), np.array([[40, 10]] * 4)]
    drawn = np.zeros((200, 4), dtype=np.int64)
    assert {*tau.redrawn(trainings, drawn).tolist()} == {2.0, 3.0, 4.0}
    assert {*tau.redrawn(trainings[:1], drawn).tolist()} == {2.0}
