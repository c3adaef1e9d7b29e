"""One HTML page of what tuning has found: nothing is loaded with it, and no script runs in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.apps.tune_charts import colour_of, owners_of, owners_svg, speeds_svg
from edgespec.apps.tune_cycle import cycle_svg, cycle_words
from edgespec.apps.tune_files import written
from edgespec.apps.tune_style import STYLE
from edgespec.apps.tune_words import (
    HEADS,
    MEASURED_HEADS,
    cells_of,
    command,
    commands,
    context_note,
    how,
    lossy_line,
    lossy_setting,
    machine_line,
    measured_lines,
    model_line,
    notes_of,
    preset_figures,
    speed_of,
)
from edgespec.config import EngineOptions
from edgespec.values import count_of, format_bytes, format_seconds, two_digits

if TYPE_CHECKING:
    from edgespec.tuning.result import Row, Tuning

# Even what is not escaped could neither run nor load anything.
POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)


def write_page(found: Tuning, engine: EngineOptions, path: Path) -> None:
    """Raises StorageError."""
    page = page_of(found, engine).encode("utf-8", "replace")  # names that are no text have lone surrogates
    with written(path) as temporary:
        temporary.write_bytes(page)


def page_of(found: Tuning, engine: EngineOptions) -> str:
    """The page. What comes from elsewhere (names, paths, headers) is escaped where it is put in."""
    name = escape(found.model)
    sections = [
        _recommended(found, engine),
        f'<div class="pair">{_speeds(found)}{_shares(found.rows)}</div>',
        _owners(found.rows),
        _dials(found, engine),
        _cycle(found),
        *_more_ways(found, engine),
        *_measured(found),
        _section("The machine", _machine(found)),
    ]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            POLICY,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name} – edgespec tune</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
            f'<header><p class="dim">edgespec tune</p><h1>{name}</h1>',
            f'<p class="dim">{escape(model_line(found))}; {escape(machine_line(found))}</p></header>',
            *sections,
            f'<p class="dim">Predicted from headers{_and_what(found)}. In brackets is '
            "where a speed should lie in four of five cases.</p>",
            "</main>\n</body>\n</html>\n",
        ]
    )


def _cycle(found: Tuning) -> str:
    """Of the recommended setting."""
    best = found.recommended
    lines = "".join(f"<li>{escape(line)}</li>" for line in cycle_words(best))
    said = f"{how(best)}, in {format_bytes(best.dial)}: {best.tokens_per_cycle:.1f} tokens a cycle"
    return _section(
        "A cycle, as it is predicted",
        f'<p class="dim">{escape(said)}</p><figure>{cycle_svg(best)}</figure><ul class="dim">{lines}</ul>',
    )


def _and_what(found: Tuning) -> str:
    runs = sum(one.replies for one in found.compared)
    return (
        f", the machine's rates and what {count_of(runs, 'run')} showed"
        if runs
        else " and the machine's rates; nothing was run"
    )


def _measured(found: Tuning) -> list[str]:
    """Predicted beside measured, where something was run."""
    if not found.compared:
        return []
    lines = [_line(MEASURED_HEADS, cells) for cells in measured_lines(found.compared)]
    said = (
        "<b>memory</b>: from the least to the largest dial whose passes read as much. <b>in its 80 %</b>: "
        "replies whose speed lay between the bounds that were stated before."
    )
    body = f'{_cards(MEASURED_HEADS, lines)}<p class="dim">{said}</p>'
    return [_section("Predicted beside measured, tokens/s", body)]


def _cards(heads: Sequence[str], lines: Iterable[str]) -> str:
    """A table, whose lines become blocks on smaller screens."""
    shown = "".join(f'<th scope="col"{_text(head)}>{escape(head)}</th>' for head in heads)
    return (
        f'<div class="wide"><table class="cards"><thead><tr>{shown}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _line(heads: Sequence[str], cells: Sequence[str], kind: str = "") -> str:
    """Cells that are all there are, one under each head, or two: then the second has the rest of the line."""
    first, *rest = cells
    if len(cells) == len(heads):
        shown = "".join(
            f'<td{_text(head)} data-head="{escape(head)}">{_words(head, cell)}</td>'
            for head, cell in zip(heads[1:], rest, strict=True)
        )
    else:
        shown = f'<td class="text" colspan="{len(heads) - 1}">{escape(rest[0])}</td>'
    return f'<tr{kind}><th scope="row" data-head="{escape(heads[0])}">{escape(first)}</th>{shown}</tr>'


def _words(head: str, cell: str) -> str:
    return escape(cell) if _text(head) else _figure(cell)


def _figure(cell: str) -> str:
    """A figure and its interval, "(0.2-0.5)": each in one line, their own where both have no room."""
    figure, bracket, rest = cell.partition(" (")
    parts = [figure, bracket[1:] + rest] if bracket else [figure]
    lines = " ".join(f'<span class="line">{escape(part)}</span>' for part in parts)
    return f"<span>{lines}</span>" if cell else ""


def _text(head: str) -> str:
    return ' class="text"' if head in ("memory", "with") else ""


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}\n</section>"


def _machine(found: Tuning) -> str:
    """What it was predicted for, a preset's figures with their sources."""
    if found.preset is None:
        from edgespec.devices.probe import cpu_name

        texts = [machine_line(found), f"{cpu_name()}, {count_of(found.machine.cores, 'core')}"]
        return _paragraphs([*texts, *notes_of(found)])
    preset = found.preset
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="text">{escape(value)}</td>'
        f'<td class="text dim">{escape(source)}</td></tr>'
        for name, value, source in preset_figures(preset)
    )
    return f"{_paragraphs([preset.label, *notes_of(found)])}<table><tbody>{lines}</tbody></table>"


def _paragraphs(texts: Iterable[str]) -> str:
    return "\n".join(f"<p>{escape(text)}</p>" for text in texts)


def _recommended(found: Tuning, engine: EngineOptions) -> str:
    best = found.recommended
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in found.reasons)
    first = format_seconds(best.first_token.middle)
    return _section(
        "Recommended",
        f'<p class="speed">{two_digits(best.speed.middle)} <small>tokens/s</small></p>'
        f'<p class="dim">in four of five cases between {two_digits(best.speed.low)} and '
        f"{two_digits(best.speed.high)}; {escape(how(best))}, in {escape(format_bytes(best.dial))}; first "
        f"token after a prompt of 500: {escape(first)}</p>"
        f"<code>{escape(command(found, best, engine))}</code><ul>{reasons}</ul>",
    )


def _speeds(found: Tuning) -> str:
    keys = [("best", "●", "best, with its 80 %"), ("plain", "●", "plain decoding")]
    if any(row.best is None for row in found.rows):
        keys.append(("never", "×", "does not run"))
    caption = "".join(
        f'<span class="key"><b class="{kind}">{sign}</b> {said}</span> ' for kind, sign, said in keys
    )
    return _section(
        "Tokens a second by memory",
        f"<figure>{speeds_svg(found.rows)}<figcaption>{caption}</figcaption></figure>",
    )


def _shares(rows: Sequence[Row]) -> str:
    said = "Shares of each dial by owner: every bar is a whole dial; the bytes stand below."
    return _section(
        "Where the memory goes",
        f"<figure>{owners_svg(rows)}<figcaption>{said}</figcaption></figure>",
    )


def _owners(rows: Sequence[Row]) -> str:
    dials = [format_bytes(row.dial) for row in rows if row.best is not None]
    lines = []
    for n, (owner, sizes) in enumerate(owners_of(rows).items()):
        cells = "".join(
            f'<td data-head="{escape(dial)}">{escape(format_bytes(size)) if size else "-"}</td>'
            for dial, size in zip(dials, sizes, strict=True)
        )
        swatch = f'<span class="swatch {colour_of(n, owner)}"></span>'
        lines.append(f'<tr><th scope="row">{swatch}{escape(owner)}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{escape(dial)}</th>' for dial in dials)
    return _section(
        "Bytes by owner",
        f'<div class="wide"><table class="owners"><thead><tr><th class="text">owner</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>",
    )


def _dials(found: Tuning, engine: EngineOptions) -> str:
    """Every dial, and what one more gigabyte buys."""
    lines = [
        _line(HEADS, cells_of(row), ' class="chosen"' if row.best is found.recommended else "")
        for row in found.rows
    ]
    said = (
        "<b>+1 GB</b>: what one more gigabyte would buy. <b>500 tokens</b>: time to the first token after "
        "such a prompt. <b>context</b>: positions that prompts and replies of a conversation may have."
    )
    note = context_note(found, engine)
    more = "" if note is None else f'<p class="dim">{escape(note)}</p>'
    return _section("The dials", f'{_cards(HEADS, lines)}<p class="dim">{said}</p>{more}')


def _more_ways(found: Tuning, engine: EngineOptions) -> list[str]:
    """The front, and what would be faster once something is packed."""
    sections = []
    if found.front_tells:
        lines = "".join(
            f'<tr><th scope="row">{escape(format_bytes(s.dial))}</th><td>{_figure(speed_of(s.speed))}</td>'
            f'<td class="text">{escape(how(s))}</td></tr>'
            for s in found.front
        )
        heads = '<tr><th class="text">memory</th><th>tokens/s</th><th class="text">with</th></tr>'
        table = f'<table class="front"><thead>{heads}</thead><tbody>{lines}</tbody></table>'
        sections.append(_section("The dials at which more memory buys speed", table))
    if found.later is not None:
        body = f"<p>{escape(speed_of(found.later.speed))} tokens/s, with the same output.</p>"
        body += _codes(commands(found, found.later, engine))
        sections.append(_section("Faster still, once a low-bit copy is packed", body))
    lossy = lossy_setting(found)
    if lossy is not None:
        body = _paragraphs([lossy_line(lossy)]) + _codes(commands(found, lossy, engine))
        sections.append(_section("At another precision", body))
    return sections


def _codes(texts: Iterable[str]) -> str:
    return "".join(f"<code>{escape(text)}</code>" for text in texts)
