"""Word wrap: what a terminal shows after pieces of text, at any width."""

from __future__ import annotations

import random
import re

import pytest

from edgespec.apps.wrap import Wrap


def screen(written: str) -> list[str]:
    """The lines of a terminal that is never full: characters, newlines, cursor left, erase to the end."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[^\x1b]", written):
        if part == "\n":
            lines.append("")
            column = 0
        elif part.endswith("D") and part.startswith("\x1b"):
            column -= int(part[2:-1])
            assert column > 0, "a word that fills the line stays"
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif part.startswith("\x1b"):
            continue
        else:
            assert column == len(lines[-1])
            lines[-1] += part
            column += 1
    return lines


def wrapped(text: str, width: int, seed: int = 0) -> list[str]:
    """The screen after `text` has come in random pieces."""
    wrap, written, dice = Wrap(lambda: width), "", random.Random(seed)
    while text:
        cut = dice.randint(1, 6)
        written += wrap.push(text[:cut])
        text = text[cut:]
    lines = screen(written)
    assert wrap.column == len(lines[-1])
    return lines


def test_lines_break_between_words() -> None:
    assert wrapped("Lars followed a narrow path", 16) == ["Lars followed a", "narrow path"]
    assert wrapped("one two", 8) == ["one two"]
    assert wrapped("one twos", 8) == ["one ", "twos"]
    assert wrapped("a\n\nb c\n", 80) == ["a", "", "b c", ""]


def test_a_word_longer_than_a_line_is_cut() -> None:
    assert wrapped("abcdefghij", 5) == ["abcd", "efgh", "ij"]
    assert wrapped("x abcdefghij", 5) == ["x ", "abcd", "efgh", "ij"]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_and_no_line_is_too_long(seed: int) -> None:
    dice = random.Random(seed)
    words = ["".join(dice.choices("abc", k=dice.randint(1, 12))) for _ in range(60)]
    text = "".join(word + dice.choice(["  ", " ", " ", "\n"]) for word in words)
    width = dice.randint(4, 30)
    lines = wrapped(text, width, seed)
    assert max(map(len, lines)) < width
    assert "".join(lines).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    if width > 14:
        assert " ".join(lines).split() == text.split()


def test_wide_characters_break_anywhere() -> None:
    wrap = Wrap(lambda: 8)
    assert wrap.push("日本語のテキスト") == "日本語\nのテキ\nスト"
    assert wrap.column == 4


def test_a_style_moves_with_its_word() -> None:
    wrap, red = Wrap(lambda: 8), "\x1b[31m"
    assert wrap.push("one ") + wrap.push("tw", red) == "one \x1b[31mtw\x1b[0m"
    assert wrap.push("os") == "o\x1b[3D\x1b[K\n\x1b[31mtw\x1b[0mos"


def test_a_terminal_that_grows_or_shrinks() -> None:
    width = [10]
    wrap = Wrap(lambda: width[0])
    wrap.push("aaaa ")
    width[0] = 7
    assert wrap.push("bb") == "b\x1b[1D\x1b[K\nbb"
    width[0] = 1
    assert wrap.push("c") == "\nc"
