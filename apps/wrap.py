"""Word wrap for text that arrives in pieces, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

RESET = "\x1b[0m"


class Wrap:
    """Breaks lines between words. A word is written as it comes; when it grows past the edge, it is taken
    away and begins the next line.

    The last column stays free: a terminal's cursor behind a full line stands in two places at once.

    Attributes:
        column: cells that the last line has.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self.column = 0
        self._width = width
        self._word: list[tuple[str, str]] = []  # its characters on the last line, with their styles
        self._cells = 0  # of the word

    def push(self, text: str, style: str = "") -> str:
        """What to write for `text`; `style` is an escape sequence."""
        from rich.cells import cell_len  # not for --help

        out: list[tuple[str, str]] = []
        edge = max(2, self._width() - 1)
        for character in text:
            if character == "\n":
                self._new_line(out)
                continue
            if character in " \t":
                cells = 8 - self.column % 8 if character == "\t" else 1
                self._end_word()
                if self.column + cells > edge:
                    self._new_line(out)  # which stands for the space
                    continue
            else:
                cells = cell_len(character)
                if self.column + cells > edge:
                    self._break(out)
                if cells == 2:  # one may break a line before and behind what is written without spaces
                    self._end_word()
                else:
                    self._word.append((character, style))
                    self._cells += cells
            out.append((character, style))
            self.column += cells
        return _written(out)

    def _break(self, out: list[tuple[str, str]]) -> None:
        """The next character is past the edge."""
        word, cells = self._word, self._cells
        if not 0 < cells < self.column:  # nothing to take away, or the word fills the line
            self._new_line(out)
            return
        out.append((f"\x1b[{cells}D\x1b[K", ""))
        self._new_line(out)
        out += word
        self._word, self._cells, self.column = word, cells, cells

    def _new_line(self, out: list[tuple[str, str]]) -> None:
        out.append(("\n", ""))
        self.column = 0
        self._end_word()

    def _end_word(self) -> None:
        self._word, self._cells = [], 0


def _written(pieces: Iterable[tuple[str, str]]) -> str:
    text, now = "", ""
    for piece, style in pieces:
        if style != now:
            text += (RESET if now else "") + style
            now = style
        text += piece
    return text + (RESET if now else "")
