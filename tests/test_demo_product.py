"""What the demo model is taught about EdgeSpec, the questions kept from it, and its system prompts."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import torch
import typer
from tokenizers import Tokenizer

from edgespec.apps import commands, main
from edgespec.demo_model.recipe import abilities, product_asked, product_questions
from edgespec.demo_model.recipe.batches import talk
from edgespec.demo_model.recipe.draw import HELD_OUT, Draw, Exchange
from edgespec.demo_model.recipe.frames import around, spelled
from edgespec.demo_model.recipe.product import TOPICS, answer, product_question, typed
from edgespec.demo_model.recipe.product_asked import Asked
from edgespec.demo_model.recipe.product_exam import DRAWN, EXAM
from edgespec.demo_model.recipe.product_names import SLOTS, filled
from edgespec.demo_model.recipe.product_questions import ASKED, QUESTIONS, is_held_out_question, normalised
from edgespec.demo_model.recipe.system import SystemPrompt, directed, prompt
from edgespec.demo_model.recipe.unknown import REPLY
from edgespec.kernels.choice import RARE
from edgespec.runtimes.config import ARCHITECTURES
from edgespec.runtimes.formats.gguf_file import BLOCKS
from edgespec.training import llama

BUNDLED = Path(llama.__file__).parents[1] / "demo_model"


def test_there_are_enough_questions_and_none_twice() -> None:
    assert len(QUESTIONS) >= 320
    assert len({normalised(text) for text, _ in QUESTIONS}) == len(QUESTIONS)


def test_the_exam_is_as_it_was_written() -> None:
    said = repr([(a.topic, a.needs, a.questions, a.may) for a in EXAM])
    frozen = "7fd7323d83a732a75a82fe5461d776e72a2bd228650f416f87c6e52bd5d0a1d1"
    assert hashlib.sha256(said.encode()).hexdigest() == frozen
    questions = {normalised(text) for asked in EXAM for text in asked.questions}
    assert len(questions) == 596
    assert questions >= DRAWN
    assert len(DRAWN) == 59
    for asked in EXAM:
        assert all(is_held_out_question(text) for text in asked.questions)
        assert not asked.right("")


def test_a_checker_takes_its_own_answer_and_hardly_another() -> None:
    others: dict[tuple[str, ...], int] = {}  # a checker that questions of two topics share counts once
    for asked in ASKED:
        assert asked.right(answer(asked.topic)), asked.topic
        assert not asked.right(REPLY), asked.topic
        assert not asked.right(""), asked.topic
        assert not asked.right(answer(asked.topic) + " Or use /nothing."), asked.topic
        taken = [
            name for name, t in TOPICS.items() if t.reply != answer(asked.topic) and asked.right(t.reply)
        ]
        assert len(taken) <= 4, (asked.topic, taken)
        others.setdefault((*asked.needs, asked.may), len(taken))
    assert sum(others.values()) <= 25, "of some 7000: answers to sibling questions"


def test_training_never_sees_a_held_out_question() -> None:
    about = 0
    for i in range(6000):
        for e in talk(f"leak {i}", i)[0]:
            about += e.category == "EdgeSpec"
            assert not is_held_out_question(e.user), e.user
    assert about > 2000


def test_a_held_out_question_is_known_however_it_is_typed() -> None:
    for i, (text, _) in enumerate(QUESTIONS):
        for opener in ("", "Please ", "Hey, ", "So, tell me: ", "Okay. Could you "):
            assert is_held_out_question(opener + text.upper().rstrip("?")), text
        for question in (Draw(f"opener {i}").question(text), Draw(f"opener {i}").request(text)):
            assert is_held_out_question(question), question
    assert not is_held_out_question("What is the capital of France?")


def test_questions_about_the_product_vary_and_have_its_answers() -> None:
    replies = {t.reply for t in TOPICS.values()} | {answer(f"memory of {n} GB") for n in range(1, 65)}
    drawn = [e for i in range(4000) for e in product_question(Draw(f"vary {i}"))]
    assert {e.reply for e in drawn} <= replies
    assert {t.reply for t in TOPICS.values()} <= {e.reply for e in drawn}
    assert len({normalised(e.user) for e in drawn}) > 0.75 * len(drawn)
    assert product_question(Draw("x", HELD_OUT))[0].user in dict(QUESTIONS)
    with pytest.raises(KeyError):
        answer("no such topic")


def test_it_names_no_command_or_flag_that_does_not_exist_and_every_slash_command() -> None:
    exist = {f"/{name}" for name in (*commands.COMMANDS, *commands.ALIASES)}
    todo = [typer.main.get_command(main.app)]
    while todo:
        command = todo.pop()
        todo += getattr(command, "commands", {}).values()
        exist |= {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    exist |= {"--help"}  # click's own
    named = {name for t in TOPICS.values() for name in product_asked.NAMED.findall(t.reply)}
    assert named <= exist
    since = {"/private"}  # came when the bundled model had been trained; the next one's topics have it
    assert {f"/{name}" for name in commands.COMMANDS} - since <= named
    assert not since & named
    assert {"chat", "generate", "pack", "bench", "train"} <= TOPICS.keys()


def test_it_says_that_exactly_those_models_run_which_do() -> None:
    families = {name.removesuffix("ForCausalLM").lower() for name in ARCHITECTURES}
    for topic in ("families", "family yes", "family no"):
        words = set(re.findall(r"[a-z]+[0-9]?", answer(topic).lower()))
        assert families <= words, topic
        assert not words & {"gemma", "phi", "mixtral", "falcon"}
    runs = re.compile("|".join(name.rstrip("0123456789") for name in families) + "|vicuna")
    for i in range(500):
        assert runs.search(SLOTS["known"](Draw(f"known {i}")).lower())
        assert not runs.search(SLOTS["other"](Draw(f"other {i}")).lower())
    quantised = {name for name in BLOCKS if name.startswith("Q")}
    for topic in ("gguf types", "gguf yes"):
        assert set(re.findall(r"Q\d_\w", answer(topic))) == quantised - RARE
    refused = set(re.findall(r"Q\d_[01K]", answer("gguf no").split("refused")[0]))
    assert refused
    assert not refused & quantised


def test_slots_are_filled_with_what_is_not_held_out_and_others_with_what_is() -> None:
    seen = {filled(Draw(f"s {i}"), "does it run {other}?") for i in range(600)}
    held_out = {filled(Draw(f"s {i}", HELD_OUT), "does it run {other}?") for i in range(600)}
    assert len(seen) > 100
    assert held_out
    assert not seen & held_out
    for i in range(300):
        assert "{" not in product_question(Draw(f"filled {i}"))[0].user.replace('{"', "")


def test_what_is_said_around_a_question_leaves_it_whole() -> None:
    texts = [around(Draw(f"a {i}"), "what does /stats do?") for i in range(400)]
    assert all("what does /stats do" in text for text in texts)
    assert 20 < sum(text != "what does /stats do?" for text in texts) < 100


def test_a_grammar_spells_each_of_its_alternatives() -> None:
    texts = {spelled(Draw(f"g {i}"), "[a|b [c|d]|] x [y|]?") for i in range(200)}
    assert texts == {"a x y?", "a x?", "b c x y?", "b c x?", "b d x y?", "b d x?", "x y?", "x?"}


def test_slips_of_the_finger_spare_what_is_to_be_typed() -> None:
    wrong = 0
    for i in range(400):
        text = typed(Draw(f"t {i}"), "what does /stats do with edgespec and --memory?")
        assert "/stats" in text
        assert "--memory" in text
        wrong += not text.lower().rstrip("?.!").endswith("what does /stats do with edgespec and --memory")
    assert 10 < wrong < 100


def test_the_exam_is_read_by_its_checkers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked("page", (r"--memory \d+gb",), ("how little?", "how much?"))
    said = iter(("Use --memory 3GB.", "Use --memory 3GB and --nothing."))
    monkeypatch.setattr(abilities, "reply", lambda *a, **k: next(said))
    shape = llama.LlamaConfig(8, 16, 32, 1, 2, 1, 8)
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    taken = abilities.exam(llama.Llama(shape), tokenizer, [asked])
    assert taken == {"how little?": True, "how much?": False}


def _prompts(count: int) -> list[SystemPrompt]:
    return [prompt(Draw(f"p {i}")) for i in range(count)]


def test_a_system_prompt_changes_replies_as_it_can_be_checked() -> None:
    plain = Exchange("Is water wet?", "Ice floats, is it odd.", "facts")
    kinds = set()
    for p in _prompts(400):
        kinds.add(p.kind)
        reply = p.rewrite(plain)
        assert reply is not None
        assert p.kept(reply), p
        if p.kind in ("plain", "name", "fact"):
            assert reply == plain.reply
        else:
            assert not p.kept("Water is wet. I think so"), p
        assert bool(p.facts) == (p.kind in ("name", "fact"))
    assert len(kinds) == 14


def test_a_directed_conversation_obeys_from_its_first_turn_or_from_a_later_one() -> None:
    late = changed = 0
    for i in range(600):
        chosen, exchanges = directed(f"d {i}")
        if chosen.facts or chosen.kind == "plain":
            continue
        kept = [chosen.kept(e.reply) for e in exchanges if e.category == "system prompts"]
        assert all(kept)
        late += exchanges[0].category != "system prompts"
        changed += len(kept)
    assert changed > 500
    assert late < 60
    assert directed("same")[1] == directed("same")[1]


def test_every_question_is_asked_once_at_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Exchange]] = []

    def note(model: object, tokenizer: object, talks: list[list[Exchange]]) -> list[object]:
        seen.extend(talks)
        return []

    monkeypatch.setattr(abilities, "graded", note)
    model, tokenizer = torch.nn.Module(), Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    assert abilities.by_turn(model, tokenizer, count=30) == [0.0] * 10  # type: ignore[arg-type]
    for turn in range(10):
        assert len({t[turn].user for t in seen}) == 30
    assert sum(t[0].user in dict(QUESTIONS) for t in seen) >= 12


def test_a_wrong_answer_is_counted_and_another_right_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(("Use --memory 3GB.", REPLY))
    monkeypatch.setattr(abilities, "reply", lambda *a, **k: next(said))
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    shape = llama.LlamaConfig(tokenizer.get_vocab_size(), 16, 32, 1, 2, 1, 8)
    asked = [q for q in product_questions.QUESTIONS if q[1].topic == "memory"][:2]
    wrong = abilities.product(llama.Llama(shape), tokenizer, asked)  # random weights: both are looked at
    assert wrong == [(asked[1][0], REPLY)]
