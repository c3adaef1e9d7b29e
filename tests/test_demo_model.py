"""The bundled demo model and its adapters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.demo_model.recipe import abilities
from edgespec.demo_model.recipe import evaluate as evaluation
from edgespec.demo_model.recipe import tokenizer as demo_tokenizer
from edgespec.demo_model.recipe.average import average
from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import HELD_OUT
from edgespec.demo_model.recipe.product_questions import QUESTIONS
from edgespec.errors import OptionError
from edgespec.schedules.serial import Serial
from edgespec.training import llama

BUNDLED = Path(llama.__file__).parents[1] / "demo_model"


def test_the_bundled_model_is_small_complete_and_greets() -> None:
    assert sum(f.stat().st_size for f in BUNDLED.rglob("*") if f.is_file()) <= 20_000_000
    config = json.loads((BUNDLED / "config.json").read_text())
    generation = json.loads((BUNDLED / "generation_config.json").read_text())
    template = json.loads((BUNDLED / "tokenizer_config.json").read_text())["chat_template"]
    assert config["torch_dtype"] == "bfloat16"
    assert config["max_position_embeddings"] >= 1024
    assert generation["eos_token_id"] == demo_tokenizer.END_ID
    assert template == demo_tokenizer.TEMPLATE
    model, tokenizer = llama.load(BUNDLED), Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert evaluation.reply(model, tokenizer, [("Hello!", None)], limit=20) == "Hello! How can I help you?"


def test_it_knows_its_domain_and_when_it_does_not_know() -> None:
    model, tokenizer = llama.load(BUNDLED), Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    talks = [conversation(f"held-out test {i}", HELD_OUT) for i in range(80)]
    scores, _ = evaluation.grade(model, tokenizer, talks)
    total = sum(score.total for score in scores.values())
    assert total > 120
    assert sum(score.right for score in scores.values()) > 0.85 * total  # 90 % of many more
    unknown = scores["unknown"]
    assert unknown.total >= 8
    assert unknown.right >= 0.9 * unknown.total


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_it_knows_its_product(step: int) -> None:
    """Every fourth question to it, or all."""
    asked = QUESTIONS[::step]
    model, tokenizer = llama.load(BUNDLED), Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    wrong = abilities.product(model, tokenizer, asked)
    assert len(wrong) <= 0.05 * len(asked), wrong


@pytest.mark.parametrize("count", [16, pytest.param(40, marks=pytest.mark.slow)])
def test_late_turns_are_answered_as_well_as_early_ones(count: int) -> None:
    model, tokenizer = llama.load(BUNDLED), Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    right = abilities.by_turn(model, tokenizer, count)
    assert sum(right[-3:]) / 3 > sum(right[:3]) / 3 - 0.04
    assert min(right) > 0.8


def test_in_a_chat_it_knows_commands_and_obeys_the_system_prompt() -> None:
    with edgespec.load(BUNDLED, memory="2GB", drafter="none") as engine:
        right = 0
        with edgespec.Chat(engine, context=512) as chat:
            for text, asked in QUESTIONS[::40]:
                right += asked.right("".join(r.text for r in chat.stream(text, max_tokens=80)))
        assert right >= len(QUESTIONS[::40]) - 1
        for system, obeyed in (
            ("You are a pirate.", lambda reply: reply.startswith("Arr! ")),
            ("Answer in capital letters.", lambda reply: reply == reply.upper()),
            ("Always end with over.", lambda reply: reply.endswith(" Over.")),
        ):
            with edgespec.Chat(engine, system=system, context=256) as chat:
                said = "".join(r.text for r in chat.stream("What does /undo do?", max_tokens=60))
                assert obeyed(said), said
                if said != said.upper():  # in capitals it knows little (demo_model/README.md)
                    assert "/undo" in said


def test_models_of_one_run_are_averaged(tmp_path: Path) -> None:
    model, other = llama.load(BUNDLED), llama.load(BUNDLED)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(2)
    llama.save(other, tmp_path)
    for share in (0.0, 0.25, 1.0):
        mean = average(BUNDLED, tmp_path, share)
        for a, b, c in zip(model.parameters(), other.parameters(), mean.parameters(), strict=True):
            assert torch.equal(c, ((1 - share) * a.float() + share * b.float()).bfloat16())
    with pytest.raises(OptionError, match=r"share=1\.5"):
        average(BUNDLED, tmp_path, 1.5)


def test_its_adapters_draft_what_it_says() -> None:
    adapters = str(BUNDLED / "cascade")
    question = "<|begin|><|user|>Tell me a short story about a dragon.<|end|><|assistant|>"
    told: list[list[int | None]] = []
    for options in ({"drafter": "none"}, {"drafter": "cascade", "adapters": adapters, "resident_layers": 5}):
        with edgespec.load(BUNDLED, memory="2GB", **options) as engine:
            session = engine.new_session()
            if isinstance(session.schedule, Serial):  # not whatever pays on this machine now
                session.schedule.controller = Fixed(TreeBudget(32, 8, 5))
            replies = list(session.generate(engine.encode(question), GenerationOptions(max_tokens=60)))
            session.close()
        told.append([r.token for r in replies if r.token is not None])
    assert told[0] == told[1]
    stats = replies[-1].stats
    assert stats is not None
    assert stats.bytes_read > 0
    assert stats.tokens_per_cycle > 2, "trained adapters, not any"


def test_its_adapters_are_for_no_other_precision() -> None:
    with pytest.raises(OptionError, match="precision"):
        edgespec.load(
            BUNDLED, memory="2GB", precision="int8", drafter="cascade", adapters=str(BUNDLED / "cascade")
        )
