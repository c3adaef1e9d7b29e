"""Text and conversations become sequences with BOS and an aligned mask; bad input is named."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import OptionError
from edgespec.text.tokenizer import Tokenizer
from edgespec.training import corpus
from edgespec.training.corpus import Sample, corpus_digest, passages, prompts, text_files, text_samples
from tests.models import make_tokenizer

BOS = 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(path)
    return Tokenizer.from_directory(path)


def jsonl(path: Path, entries: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(e) + "\n" for e in entries), encoding="utf-8")
    return path


TALK = [
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "Well."},
    {"role": "user", "content": "Good."},
    {"role": "assistant", "content": "Yes."},
]


def test_every_sequence_of_a_text_begins_with_bos_and_none_is_lost(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    text = "The quick brown fox.\nJumps over, naïvely.\n" * 9
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    samples = [s for p in passages(text_files(tmp_path)) for s in text_samples(p, tokenizer, 32)]
    assert len(samples) > 3
    assert all(s.tokens[0] == BOS and s == Sample.behind(s.tokens) and len(s.tokens) <= 32 for s in samples)
    assert tokenizer.decode([t for s in samples for t in s.tokens[1:]]) == text


def test_long_files_are_read_in_pieces_cut_at_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "TEXT_BYTES", 20)
    (tmp_path / "a.txt").write_text("one line\nanother line\nthird\n")
    found = [p.text for p in passages([tmp_path / "a.txt"])]
    assert found == ["one line\nanother line\n", "third\n"]


def test_of_a_conversation_the_replies_count(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (found,) = passages([jsonl(tmp_path / "a.jsonl", [{"messages": TALK}])])
    (sample,) = text_samples(found, tokenizer, 1000)
    assert sample.tokens[0] == BOS
    told = [tokenizer.decode(sample.tokens[start:stop]) for start, stop in sample.spans]
    assert ["Well." in told[0], "Good." in told[0], "Yes." in told[1]] == [True, False, True]
    (first, end), (second, _) = sample.spans
    # The template puts "assistant:" behind each part, so prompt and conversation differ from there on.
    assert tokenizer.apply_chat(TALK[:1])[:first] == sample.tokens[:first]
    (cut,) = text_samples(found, tokenizer, second)
    assert cut == Sample(sample.tokens[:second], ((first, end),))
    (cut,) = text_samples(found, tokenizer, end - 1)
    assert cut == Sample(sample.tokens[: end - 1], ((first, end - 1),))
    assert list(text_samples(found, tokenizer, first)) == []  # nothing left that counts


def test_prompts_of_each_kind(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"messages": TALK}, {"prompt": "Why?"}, {"text": "x" * 50}])
    asked = tokenizer.apply_chat(TALK[:3])
    talk, question, text = [list(prompts(p, tokenizer, len(asked), 8)) for p in passages([path])]
    assert talk == [asked]
    assert question == [tokenizer.apply_chat([{"role": "user", "content": "Why?"}])]
    assert len(text) == 1
    assert all(len(p) == 8 and p[0] == BOS for p in text)
    talk, question, text = [list(prompts(p, tokenizer, len(asked) - 1, 8)) for p in passages([path])]
    assert talk == []  # without its beginning it would be another prompt
    assert question
    assert text


def test_a_question_alone_is_nothing_to_learn_from(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (question,) = passages([jsonl(tmp_path / "a.jsonl", [{"prompt": "Why?"}])])
    with pytest.raises(OptionError, match="generate="):
        list(text_samples(question, tokenizer, 100))


def test_files_are_found_by_name_and_told_apart_by_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("c.txt", "b/a.jsonl", "skipped.pdf"):
        (tmp_path / name).write_text("{}")
    found = text_files(tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in found] == ["b/a.jsonl", "c.txt"]
    before = corpus_digest(found)
    (tmp_path / "c.txt").write_text("{ }")
    assert corpus_digest(found) != before


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="neither a file nor a directory"):
        text_files(tmp_path / "missing")
    with pytest.raises(OptionError, match=r"no \.txt or \.jsonl"):
        text_files(tmp_path)
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(OptionError, match=r"neither \.txt nor \.jsonl"):
        text_files(tmp_path / "a.pdf")


def test_undecodable_text_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\nbad \xe9\n")
    with pytest.raises(OptionError, match=r"a\.txt: line 2 is not UTF-8 \(byte 0xe9 at its place 4\)"):
        list(passages([tmp_path / "a.txt"]))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[" * 100_000,
        "3",
        "{}",
        '{"text": 3}',
        '{"text": "a", "prompt": "b"}',
        '{"messages": []}',
        '{"messages": [3]}',
        '{"messages": [{"role": "user"}]}',
    ],
)
def test_a_line_of_another_format_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "ok"}\n\n' + line + "\n")
    with pytest.raises(OptionError, match=r"a\.jsonl: line 3: "):
        list(passages([tmp_path / "a.jsonl"]))


def test_a_line_that_is_not_json_has_one_position(tmp_path: Path) -> None:
    """Not that of the parser as well, for whom every line is the first."""
    (tmp_path / "a.jsonl").write_text('{"text": "ok"}\n\n{"text": nothing}\n')
    with pytest.raises(OptionError) as caught:
        list(passages([tmp_path / "a.jsonl"]))
    _, _, fact = str(caught.value).partition("a.jsonl: ")
    assert fact.startswith("line 3: not JSON: ")
    assert re.findall(r"(\w+) (\d+)", fact) == [("line", "3"), ("character", "10")]


def test_a_line_beyond_all_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "LINE_BYTES", 100)
    (tmp_path / "a.txt").write_text("x" * 101)
    with pytest.raises(OptionError, match="line 1 is longer than 100 bytes"):
        list(passages([tmp_path / "a.txt"]))
