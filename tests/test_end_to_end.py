"""The commands with the real engine and a tiny random model: prompt in, text out, and ways to go wrong."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import edgespec
from edgespec.apps import main
from tests.tiny import write_checkpoint

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[..., "tuple[int, str, str]"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_model(path: Path) -> Path:
    """A random model whose tokens are bytes, with a chat template."""
    write_checkpoint(path, vocab_size=256)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: id for id, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str | Path, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def reply(out: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(out)
    return result


def test_the_command_says_what_the_library_says(run: Run, model: Path) -> None:
    with edgespec.load(model) as engine:
        expected = edgespec.generate(engine, "Once", max_tokens=24)
    code, out, _ = run("generate", model, "-p", "Once", "--max-tokens", "24", "--json")
    assert code == 0
    assert reply(out)["tokens"] == expected.tokens
    assert reply(out)["text"] == expected.text
    assert run("generate", model, "-p", "Once", "--max-tokens", "24")[1] == expected.text + "\n"


def test_streamed_replies_are_resident_ones(run: Run, model: Path) -> None:
    flags = ["generate", model, "-p", "Once", "--max-tokens", "24", "--json", "--drafter", "none"]
    resident, streamed = reply(run(*flags)[1]), reply(run(*flags, "--resident-layers", "0")[1])
    assert streamed["tokens"] == resident["tokens"]
    assert resident["stats"]["bytes_per_token"] <= 8192, "an embedding row at most"
    assert streamed["stats"]["bytes_per_token"] >= streamed["stats"]["plan"]["streamed_bytes"]
    assert streamed["stats"]["read_gbps"] > 0
    assert streamed["stats"]["cycles"] == 24


def test_drafting_changes_the_speed_only(run: Run, model: Path) -> None:
    flags = ["generate", model, "-p", "Once", "--max-tokens", "48", "--json"]
    plain = reply(run(*flags, "--drafter", "none")[1])
    drafted = reply(run(*flags, "--drafter", "ngram")[1])
    own = reply(run(*flags, "--drafter", "model", "--draft-model", model)[1])
    assert drafted["tokens"] == own["tokens"] == plain["tokens"]
    assert plain["stats"]["drafted"] == 0
    assert own["stats"]["accepted"] > 0
    assert own["stats"]["cycles"] < plain["stats"]["cycles"] == 48


def test_a_drafter_with_nothing_to_do_is_named(run: Run, model: Path, tmp_path: Path) -> None:
    assert run("pack", model, "-o", tmp_path / "p", "--substitute", "int4")[0] == 0
    flags = ["generate", tmp_path / "p", "-p", "Once", "--max-tokens", "4", "--memory", "2GB"]
    assert "substitute will not draft: nothing streams" in run(*flags, "--drafter", "substitute")[2]
    assert "will not draft" not in run(*flags)[2]


def test_the_next_turn_of_a_chat_computes_only_what_is_new(run: Run, model: Path) -> None:
    turns = json.dumps({"turns": ["hello", "and then?"]})
    _, out, _ = run("generate", model, "--max-tokens", "8", "--json", stdin=turns)
    first, second = map(json.loads, out.splitlines())
    computed = first["stats"]["prompt_tokens"] + first["stats"]["reply_tokens"]
    assert second["stats"]["reused_tokens"] == computed - 1, "all but the last token, which no pass has seen"


def test_chat_through_pipes(run: Run, model: Path) -> None:
    code, out, err = run("chat", model, "--max-tokens", "5", "--memory", "4GB", stdin="hello\n/show\nagain\n")
    assert code == 0
    assert out.count("\n") >= 2
    assert err.count("of 4 GB") == 2
    assert "memory 4 GB · context 512" in err


def test_a_line_that_is_not_utf8_is_refused_and_the_chat_goes_on(model: Path) -> None:
    flags = ["--max-tokens", "5", "--memory", "4GB", "--no-stats", "--temperature", "0"]
    command = [sys.executable, "-m", "edgespec.apps.start", "chat", str(model), *flags]

    def chat(lines: bytes) -> tuple[int, bytes, bytes]:
        done = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    plain, mixed = chat("h\u00e9llo\n".encode()), chat(b"h\xe9llo\n" + "h\u00e9llo\n".encode())
    assert plain[0] == 0
    assert mixed[:2] == (1, plain[1]), "the other line is answered as if it were alone"
    assert mixed[2].count(b"error: ") == 1
    assert b"error: the text holds bytes that are not UTF-8; convert it first\n" in mixed[2]


def test_pack_verify_and_run(run: Run, model: Path) -> None:
    assert run("pack", model, "-o", "packed")[0] == 0
    assert run("pack", "--verify", "packed")[0] == 0
    flags = ["-p", "Once", "--max-tokens", "16"]
    assert run("generate", "packed", *flags)[1] == run("generate", model, *flags)[1]
    code, _, err = run("pack", model, "-o", "packed")
    assert code == 2
    assert "holds a packed model already" in err


def test_verify_finds_a_changed_byte(run: Run, model: Path) -> None:
    run("pack", model, "-o", "packed", "--precision", "int8")
    (weights,) = Path("packed").glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    code, out, err = run("pack", "--verify", "packed")
    assert code == 1
    assert out == ""
    assert weights.name in err
    assert "chunk" in err


def test_bench(run: Run, model: Path) -> None:
    code, out, _ = run("bench", model, "-p", "40", "-n", "8", "-r", "2", "--resident-layers", "0", "--json")
    assert code == 0
    pp, tg = json.loads(out)["tests"]
    assert (pp["test"], tg["test"]) == ("pp40", "tg8")
    assert min(pp["samples"] + tg["samples"]) > 0
    assert 0 < pp["bytes_per_token"] < tg["bytes_per_token"], "a prompt's tokens share passes"


def test_bench_sweeps_in_processes_of_their_own(run: Run, model: Path) -> None:
    asked = ["--drafter", "none,ngram", "--schedule", "serial,mirror", "-p", "0", "-n", "30", "-d", "16"]
    code, out, err = run("bench", model, *asked, "-r", "2", "--cold", "--resident-layers", "0", "-o", "jsonl")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["drafter"], row["schedule"], row["test"]) for row in rows] == [
        ("none", "serial", "tg30 @ d16"),
        ("ngram", "serial", "tg30 @ d16"),
        ("ngram", "mirror", "tg30 @ d16"),
    ]
    for row in rows:
        assert row["cold"]
        assert len(row["samples"]) == 2
        assert min(row["load_seconds"], row["bytes_per_token"], *row["samples"]) > 0
        assert row["bytes_per_token"] * row["tokens_per_cycle"] == pytest.approx(row["weight_bytes"], rel=0.2)
        positions = row["acceptance_by_position"]
        assert not positions or row["drafter"] == "ngram"  # whether n-grams pay here is measured
        assert all(0 <= share <= 1 for share in positions)
    assert "6 of 6: drafter ngram, schedule mirror, tg30 @ d16" in err


# Bad input


def rewrite_config(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def truncate(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


def claim_a_huge_header(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + data[8:])


def overlap_tensors(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    first, second = [name for name in header if name.endswith(("k_proj.weight", "v_proj.weight"))][:2]
    header[second]["data_offsets"] = header[first]["data_offsets"]
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors"),
        (lambda path: (path / "config.json").unlink(), "config.json"),
        (lambda path: (path / "config.json").write_text("{"), "config.json"),
        (lambda path: (path / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (truncate, "model.safetensors"),
        (claim_a_huge_header, "model.safetensors"),
        (overlap_tensors, "overlap"),
        (lambda path: rewrite_config(path, architectures=["MambaForCausalLM"]), "MambaForCausalLM"),
        (lambda path: rewrite_config(path, quantization_config={"quant_method": "awq"}), "awq"),
        (lambda path: rewrite_config(path, hidden_size=2**40), "hidden_size"),
        (lambda path: rewrite_config(path, vocab_size=100), "100"),
        (lambda path: rewrite_config(path, num_hidden_layers=9), "layers.3"),
    ],
    ids=[
        "no-weights",
        "no-config",
        "bad-config",
        "no-tokenizer",
        "bad-tokenizer",
        "truncated",
        "huge-header",
        "overlap",
        "architecture",
        "quantised",
        "absurd-size",
        "vocabulary",
        "layers",
    ],
)
def test_a_damaged_model_is_one_clear_message(
    run: Run, tmp_path: Path, damage: Callable[[Path], None], part: str
) -> None:
    path = write_model(tmp_path / "damaged")
    damage(path)
    code, out, err = run("generate", path, "-p", "x")
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert part in err


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["no/such/model", "-p", "x"], 1, "no/such/model"),
        (["MODEL", "-p", "x", "--memory", "50MB"], 1, "smallest dial that works"),
        (["MODEL", "-p", "x", "--context", "513"], 2, "512"),
        (["MODEL", "-p", "x", "--resident-layers", "4"], 2, "the model has 3 layers"),
        (["MODEL", "-p", "x", "--device", "warp"], 2, "--device 'warp' is unknown"),
        (["MODEL", "-p", "x", "--device", "cpu", "--device-memory", "1GB"], 2, "device"),
        (["MODEL", "-p", "x", "--max-tokens", "600"], 1, "512"),
        (["MODEL", "-p", "word " * 200], 1, "the prompt has 1000 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(
    run: Run, model: Path, arguments: list[str], code: int, part: str
) -> None:
    result = run("generate", *[str(model) if a == "MODEL" else a for a in arguments])
    assert (result[0], result[1]) == (code, "")
    assert part in result[2]
    assert result[2].startswith("error: ")
