"""The demo model's data, its tokenizer and batches, the small Llama, and the trainer's resume."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jinja2.sandbox
import pytest
import torch
from tokenizers import Tokenizer

from edgespec.demo_model.recipe import (
    arithmetic,
    batches,
    calendar,
    facts,
    lists,
    smalltalk,
    stories,
    text,
)
from edgespec.demo_model.recipe import evaluate as evaluation
from edgespec.demo_model.recipe import tokenizer as demo_tokenizer
from edgespec.demo_model.recipe import train as trainer
from edgespec.demo_model.recipe import unknown as unknowns
from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import HELD_OUT, Draw, Exchange, Split, is_held_out
from edgespec.demo_model.recipe.muon import orthogonalise
from edgespec.demo_model.recipe.system import DIRECTED, directed
from edgespec.demo_model.recipe.system_words import INSTRUCTIONS
from edgespec.errors import CorruptFileError, EdgeSpecError, OptionError
from edgespec.training import llama
from edgespec.training.log import LOG, read_log
from edgespec.training.trainer import CHECKPOINT

TINY = llama.LlamaConfig(
    vocab_size=demo_tokenizer.VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return demo_tokenizer.train(seed=4)


def _talks(count: int, split: Split = Split()) -> list[list[Exchange]]:  # noqa: B008 (frozen)
    return [conversation(f"test {i}", split) for i in range(count)]


def test_the_same_seed_gives_the_same_text_in_another_process() -> None:
    code = (
        "from edgespec.demo_model.recipe.dialogue import conversation\n"
        "print([conversation(f'p {i}') for i in range(40)])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
    assert conversation("a") != conversation("b")


def _equations(text: str) -> list[tuple[str, str]]:
    return re.findall(r"((?:-?\d+ [-+*/] )+\d+) = (-?\d+(?: remainder \d+)?)", text)


def test_every_step_of_every_calculation_is_true() -> None:
    checked = 0
    for exchange in (e for talk in _talks(5000) for e in talk):
        for left, right in _equations(exchange.reply):
            a, *rest = left.split()
            value = int(a)
            remainder = ""
            for sign, operand in zip(rest[::2], rest[1::2], strict=True):
                n = int(operand)
                if sign == "/":
                    value, left_over = divmod(value, n)
                    remainder = f" remainder {left_over}" if left_over else ""
                else:
                    value = {"+": value + n, "-": value - n, "*": value * n}[sign]
            assert f"{value}{remainder}" == right, exchange
            checked += 1
    assert checked > 3000


@pytest.mark.parametrize(("a", "b"), [(478, 365), (999, 999), (5, 995), (7, 8), (0, 12), (100, 1)])
def test_columns_of_a_sum_spell_its_digits(a: int, b: int) -> None:
    reply = arithmetic.add(a, b)
    assert reply.endswith(f"{a} + {b} = {a + b}.")
    if max(a, b) > 9:
        columns = [right for _, right in _equations(reply)[:-1]]
        assert int(columns[-1] + "".join(c[-1] for c in reversed(columns[:-1]))) == a + b


@pytest.mark.parametrize(("a", "b"), [(43, 17), (500, 1), (17, 43), (100, 100), (3, 9), (902, 813)])
def test_subtraction_borrows(a: int, b: int) -> None:
    assert arithmetic.subtract(a, b).endswith(f"{a} - {b} = {a - b}.")


def test_lists_are_sorted_and_reversed_as_asked() -> None:
    seen = 0
    for i in range(800):
        for e in lists.number_list(Draw(f"n {i}"))[:1]:
            if "ort" in e.user or "rder" in e.user:
                numbers = [int(n) for n in re.findall(r"\d+", e.user)]
                assert e.reply == "Sorted: " + ", ".join(map(str, sorted(numbers)))
                seen += 1
    assert seen > 100
    assert lists.count(["a", "b"]) == "1 a, 2 b. The list has 2 items."


def test_dates_agree_with_the_calendar() -> None:
    import datetime

    for i in range(400):
        e = calendar.date_question(Draw(f"d {i}"))[0]
        match = re.search(r"[Aa]fter (\d+) (\w+) comes (\d+) (\w+)\.", e.reply)
        if match:
            first = datetime.datetime.strptime(f"{match[1]} {match[2]} 2023", "%d %B %Y")
            following = first + datetime.timedelta(days=1)
            assert f"{following.day} {following:%B}" == f"{match[3]} {match[4]}"


def test_held_out_arguments_and_phrasings_never_occur_in_training() -> None:
    trained = {e.user.lower() for talk in _talks(4000) for e in talk}
    for i in range(300):
        for part in (arithmetic.calculation, lists.word_list, lists.number_list):
            assert part(Draw(f"h {i}", HELD_OUT))[0].user.lower() not in trained
    # A held-out sum occurs in training with no phrasing at all.
    for talk in _talks(4000):
        for e in talk:
            match = re.search(r"(\d+) \+ (\d+) = \d+\.$", e.reply)
            if match and e.category == "arithmetic" and "ouble" not in e.user and "wice" not in e.user:
                pair = (int(match[1]), int(match[2]))
                assert pair[0] == pair[1] or not is_held_out(f"add {pair}"), e


def _tables(module: object) -> dict[str, tuple[str, ...]]:
    return {k: v for k, v in vars(module).items() if k.startswith("_") and isinstance(v, tuple)}


def test_no_phrasing_is_both_seen_and_unseen() -> None:
    pairs = 0
    for module in (arithmetic, calendar, lists, smalltalk, stories, unknowns, facts):
        tables = _tables(module)
        for name, unseen in tables.items():
            if name.endswith("_UNSEEN") and isinstance(unseen[0], str):
                assert not set(unseen) & set(tables[name.removesuffix("_UNSEEN")]), name
                pairs += 1
    rows = [(s, u) for _, s, u in (*smalltalk.INTENTS, *facts.SINGLES)]
    rows += list(INSTRUCTIONS.values())
    rows += [(r.seen, r.unseen) for r in facts.RELATIONS.values()] + [
        (s, u) for s, u, _ in stories._QUESTIONS
    ]
    everything = {text.lower().rstrip(".!?") for seen, _ in rows for text in seen}
    for seen, unseen in rows:
        assert not set(seen) & set(unseen)
        assert not everything & {text.lower().rstrip(".!?") for text in unseen}, unseen
        pairs += 1
    assert pairs > 60


def test_the_name_asked_for_is_the_last_one_told() -> None:
    asked = 0
    for talk in _talks(4000):
        name = None
        for e in talk:
            if e.reply.startswith("Nice to meet you, "):
                name = e.reply.removeprefix("Nice to meet you, ").rstrip("!")
            elif e.reply.startswith("Your name is") or e.reply == smalltalk.UNTOLD:
                assert e.reply == (f"Your name is {name}." if name else smalltalk.UNTOLD)
                asked += 1
    assert asked > 30


def test_questions_about_a_story_follow_from_its_text() -> None:
    told = stories.tell(Draw("s"), "fox", "Mira", "forest")
    assert "fox named Mira" in told.text
    assert told.treasure in told.text
    assert 60 <= len(told.text.split()) <= 150
    assert f"{told.helper} named {told.helper_name}" in told.text


def test_digits_are_single_tokens_and_text_survives(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("47 + 385").tokens == ["4", "7", "Ġ+", "Ġ", "3", "8", "5"]
    for talk in _talks(50):
        for e in talk:
            assert tokenizer.decode(tokenizer.encode(e.reply).ids) == e.reply
    assert tokenizer.decode(tokenizer.encode("Grüße, 世界 🙂").ids) == "Grüße, 世界 🙂"


def test_encoding_is_what_the_chat_template_renders(tokenizer: Tokenizer, tmp_path: Path) -> None:
    demo_tokenizer.save(tokenizer, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    template = jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(config["chat_template"])
    pairs = [(talk, None) for talk in _talks(20)]
    pairs += [(talk, prompt.text) for prompt, talk in (directed(f"test {i}") for i in range(20))]
    for talk, system in pairs:
        messages = [{"role": "system", "content": system}] if system else []
        messages += [
            m
            for e in talk
            for m in ({"role": "user", "content": e.user}, {"role": "assistant", "content": e.reply})
        ]
        text = template.render(messages=messages, bos_token=config["bos_token"], add_generation_prompt=False)
        ids, written = demo_tokenizer.encode(tokenizer, talk, system)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids
        replies = "".join(e.reply + demo_tokenizer.END for e in talk)
        assert (
            tokenizer.decode([i for i, w in zip(ids, written, strict=True) if w], skip_special_tokens=False)
            == replies
        )


@pytest.mark.parametrize("step", [0, batches.LONG_EVERY - 1])
def test_a_batch_is_a_function_of_seed_and_step(tokenizer: Tokenizer, step: int) -> None:
    one, two = batches.batch(tokenizer, 4, step), batches.batch(tokenizer, 4, step)
    assert torch.equal(one.inputs, two.inputs)
    assert not torch.equal(one.inputs, batches.batch(tokenizer, 5, step).inputs)
    assert 0 <= batches.TOKENS - one.inputs.numel() < batches.LONG
    assert one.inputs.shape[1] == (batches.LONG if step else batches.SHORT)
    assert (one.documents >= 0).float().mean() > 0.85, "packing wastes the batch"
    starts = one.inputs == demo_tokenizer.BOS_ID
    assert torch.equal(starts, (one.positions == 0) & (one.documents >= 0))
    assert (one.weights[one.documents < 0] == 0).all()


def test_the_beginning_of_a_reply_weighs_most(tokenizer: Tokenizer) -> None:
    b = batches.batch(tokenizer, 4, 0)
    starts = (b.inputs == demo_tokenizer.ASSISTANT_ID).nonzero().tolist()
    assert len(starts) > 20
    for row, at in starts:
        reply = [*b.targets[row, at:].tolist(), demo_tokenizer.END_ID]  # a long one may be cut off
        length = min(reply.index(demo_tokenizer.END_ID) + 1, len(reply) - 1)
        first = min(length, batches.BEGINNING)
        assert (b.weights[row, at : at + first] == batches.BEGINNING_WEIGHT).all()
        assert (b.weights[row, at + first : at + length] == 1).all()
        assert b.weights[row, at - 1] == torch.tensor(batches.USER_WEIGHT)


def test_packed_conversations_do_not_see_each_other(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = llama.Llama(TINY)
    b = batches.batch(tokenizer, 4, 0)
    packed = model(b.inputs[:2], b.positions[:2], b.mask(torch.float32)[:2])
    second = (b.documents[0] == 1).nonzero().flatten()
    alone = model(b.inputs[:1, second])
    torch.testing.assert_close(packed[0, second], alone[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_saved_model_gives_transformers_the_same_logits(tmp_path: Path, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    from dataclasses import replace

    model = llama.Llama(replace(TINY, tie_word_embeddings=tied, vocab_size=97))
    for p in model.parameters():  # no norm weight of 1, no tiny logits: a swapped or missing tensor shows
        torch.nn.init.uniform_(p, -0.3, 0.5)
    llama.save(model, tmp_path, torch.float32)
    oracle = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    tokens = torch.randint(0, 97, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), oracle(tokens).logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(llama.load(tmp_path)(tokens), model(tokens))
    assert oracle.generation_config.eos_token_id == TINY.eos_token_id


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="not a model"):
        llama.load(tmp_path)
    llama.save(llama.Llama(TINY), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(CorruptFileError, match="do not fit"):
        llama.load(tmp_path)
    with pytest.raises(OptionError, match="evenly"):
        llama.LlamaConfig(10, 8, 8, 1, 4, 3, 2)
    with pytest.raises(OptionError, match="odd"):
        llama.LlamaConfig(10, 8, 8, 1, 4, 2, 3)


def test_orthogonalise_brings_singular_values_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 24, 64)).float())
    assert values.min() > 0.5
    assert values.max() < 1.4


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    monkeypatch.setattr(trainer, "train", partial(trainer.train, shape=lambda _: TINY))
    monkeypatch.setattr(trainer.demo_tokenizer, "train", lambda seed: tokenizer)
    monkeypatch.setattr(batches, "TOKENS", 768)
    monkeypatch.setattr(batches, "MISSES", 4)


@pytest.mark.usefixtures("small")
def test_a_resumed_run_is_bit_exact(tmp_path: Path) -> None:
    whole = trainer.train(tmp_path / "whole", 4, steps=9, decay=4)
    trainer.train(tmp_path / "parts", 4, steps=9, decay=4, stop_after=5)
    parts = trainer.train(tmp_path / "parts", 4, steps=9, decay=4)
    for name, p in whole.state_dict().items():
        assert torch.equal(p, parts.state_dict()[name]), name
    losses = [[x["loss"]["text"] for x in read_log(tmp_path / name / LOG)] for name in ("whole", "parts")]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0], "training does not lower the loss"


@pytest.mark.usefixtures("small")
def test_a_run_begins_with_the_weights_of_the_model_it_goes_on_from(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    first = llama.Llama(TINY)
    llama.save(first, tmp_path / "first")
    demo_tokenizer.save(tokenizer, tmp_path / "first")
    on = trainer.train(tmp_path / "on", 4, steps=1, decay=1, first=tmp_path / "first", rate=0.0)
    anew = trainer.train(tmp_path / "anew", 4, steps=1, decay=1, rate=0.0)
    for name, p in on.state_dict().items():
        assert torch.equal(p, first.state_dict()[name].bfloat16()), name
    assert not torch.equal(on.state_dict()["lm_head.weight"], anew.state_dict()["lm_head.weight"])
    with pytest.raises(CorruptFileError, match="not a model"):
        trainer.train(tmp_path / "none", 4, steps=1, decay=1, first=tmp_path / "on")


@pytest.mark.usefixtures("small")
def test_another_seed_does_not_continue_a_run(tmp_path: Path) -> None:
    trainer.train(tmp_path, 4, steps=5, decay=1, stop_after=1)
    with pytest.raises(EdgeSpecError, match="seed = 4, not 5"):
        trainer.train(tmp_path, 5, steps=5, decay=1)


@pytest.mark.usefixtures("small")
def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.train(tmp_path, 4, steps=5, decay=1, stop_after=2)
    before = (tmp_path / CHECKPOINT).read_bytes()
    monkeypatch.setattr(
        trainer, "loss_function", lambda model: lambda *a: torch.tensor(float("nan"), requires_grad=True)
    )
    with pytest.raises(EdgeSpecError, match="loss of text is nan at step 3"):
        trainer.train(tmp_path, 4, steps=5, decay=1)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_grading_counts_exactly_what_greedy_decoding_would_answer(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = llama.Llama(TINY).eval()
    question = "What is 2 + 2?"
    said = evaluation.reply(model, tokenizer, [(question, None)], limit=8)
    # A random model never ends its reply; teach it to by comparing with what it says itself.
    right = Exchange(question, said.removesuffix(" ..."), "x")
    wrong = Exchange(question, "4", "x")
    scores, misses = evaluation.grade(model, tokenizer, [[right], [wrong]])
    assert scores["x"].total == 2
    for miss in misses:
        assert miss.chosen != demo_tokenizer.END
    assert {m.position for m in misses if m.reply == "4"} == {0}
    table = evaluation.table({"both": scores})
    assert "| x |" in table
    assert "of 2" in table


def test_conversations_are_written_as_training_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "demo.jsonl"
    monkeypatch.setattr("sys.argv", ["text", str(file), "--conversations", "20"])
    text.main()
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 20
    for i, line in enumerate(lines):
        talk = conversation(f"text 0 {i}")
        if i % DIRECTED == 0:
            prompt, talk = directed(f"text 0 {i}")
            assert line["messages"].pop(0) == {"role": "system", "content": prompt.text}
        said = [turn["content"] for turn in line["messages"]]
        assert said == [t for e in talk for t in (e.user, e.reply)]
        assert [turn["role"] for turn in line["messages"]] == ["user", "assistant"] * (len(said) // 2)
    assert text.messages("text 0 0") != text.messages("text 0 0", HELD_OUT)
