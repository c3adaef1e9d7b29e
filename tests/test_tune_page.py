"""The page and the picture of `edgespec tune`: what they show, refuse, and how a browser sees the page."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from edgespec.apps import main, tune_page
from edgespec.apps.tune_charts import COLOURS, WIDTH, owners_of, owners_svg, places, speeds_svg, ticks_to
from edgespec.apps.tune_cycle import cycle_svg, cycle_words, lanes_of
from edgespec.apps.tune_files import check_files
from edgespec.apps.tune_page import page_of, write_page
from edgespec.config import EngineOptions
from edgespec.errors import OptionError
from edgespec.tuning.compare import compare
from edgespec.tuning.result import Tuning
from edgespec.tuning.tune import tune_model
from edgespec.values import two_digits as number
from tests.machine import GB
from tests.tuned import SEVEN, SEVENTY, config_only, trial

pytestmark = pytest.mark.usefixtures("tuned_machine")

HOSTILE = "<script>alert(1)</script> & \"x\" 'y' $\\frac{1}{$ <!--"


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """The command, in a folder where `m` is a model of 7B."""
    config_only(tmp_path / "m", SEVEN)
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main.run(["tune", *arguments])
        return code, *capsys.readouterr()

    return command


def tuned(path: Path, dials: list[str], config: dict[str, Any] = SEVEN, **options: Any) -> Tuning:
    return tune_model(config_only(path, config), EngineOptions(**options), dials)


class Page(HTMLParser):
    """Its tags and its text, each closed as it was opened; what may load or run something fails."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags = list[str]()
        self.open = list[str]()
        self.texts = list[str]()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "form"), tag
        for name, _ in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "href", "srcset", "style"), name
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


# What it shows.


def test_the_page_has_all_that_was_found(tmp_path: Path) -> None:
    found = tuned(tmp_path / "m", ["500MB", "2GB", "4GB", "8GB"])
    raw = page_of(found, EngineOptions())
    page = Page(raw)
    text = " ".join(page.texts)
    assert str(tmp_path / "m") in text
    for reason in found.reasons:
        assert reason in text
    assert f"edgespec chat {tmp_path / 'm'} --memory" in text
    assert number(found.recommended.speed.middle) in [text.strip() for text in page.texts]
    assert found.rows[0].refusal in page.texts
    assert "does not run" in text
    for owner in owners_of(found.rows):
        assert owner in page.texts
    for row in found.rows[1:]:
        assert row.more is not None
        assert f"{row.more - 1:+.0%}" in page.texts
    front = "The dials at which more memory buys speed"
    assert front not in page.texts  # they are all of the table's
    close = tuned(tmp_path / "close", ["4GB", "4.01GB", "8GB"])
    assert front in Page(page_of(close, EngineOptions())).texts
    assert "edgespec pack" in text  # what would be faster, once packed
    assert page.tags.count("svg") == 3
    assert raw.count('class="chosen"') == 1
    assert "http:" not in raw
    assert "https:" not in raw
    assert "url(" not in raw
    assert "default-src 'none'" in raw


def test_the_machine_is_named_with_its_sources(tmp_path: Path) -> None:
    path = config_only(tmp_path / "m", SEVEN)
    found = tune_model(path, EngineOptions(), ["4GB"], "raspberry-pi-5")
    assert found.preset is not None
    page = Page(page_of(found, EngineOptions()))
    for known in (found.preset.label, found.preset.flash.source, found.preset.gflops.source):
        assert known in page.texts
    assert page.tags.count("svg") == 3  # one dial has charts too


@pytest.mark.parametrize(
    "name", [HOSTILE.replace("/", "_"), "a\udcff\u202eb", "\N{SNOWMAN}" * 80], ids=["markup", "bytes", "long"]
)
def test_names_are_never_markup(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / name
    try:
        config_only(folder, SEVEN)
    except (OSError, UnicodeError):
        pytest.skip("this filesystem has no such names")
    (folder / "tokenizer_config.json").write_text(json.dumps({"name_or_path": HOSTILE}))
    monkeypatch.chdir(tmp_path)
    write_page(tune_model(name, EngineOptions(), ["4GB", "8GB"]), EngineOptions(), tmp_path / "out.html")
    raw = (tmp_path / "out.html").read_bytes().decode("utf-8")
    page = Page(raw)  # which refuses scripts
    shown = name.encode("utf-8", "replace").decode()
    assert shown in page.texts
    assert any(text.startswith("edgespec chat ") for text in page.texts)


def test_hostile_words_in_every_field_stay_text(tmp_path: Path) -> None:
    found = tuned(tmp_path / "m", ["500MB", "4GB", "8GB"])
    plan = found.recommended.plan
    ledger = replace(plan.ledger, owners={**plan.ledger.owners, HOSTILE: 10**8})
    best = replace(
        found.recommended, drafter=HOSTILE, schedule=HOSTILE, files={"draft_model": HOSTILE},
        plan=replace(plan, ledger=ledger),
    )  # fmt: skip
    rows = tuple(replace(row, best=best, refusal=row.refusal and HOSTILE) for row in found.rows)
    rows = (replace(rows[0], best=None), *rows[1:])
    hostile = replace(
        found, model=HOSTILE, precision=HOSTILE, reasons=(HOSTILE,), notes=(HOSTILE,), rows=rows,
        recommended=best, front=(best, best), later=best,
    )  # fmt: skip
    page = Page(page_of(hostile, EngineOptions()))
    assert sum("<script>" in text for text in page.texts) >= 12


# The charts.


def test_the_charts_are_what_was_predicted(tmp_path: Path) -> None:
    found = tuned(tmp_path / "m", ["500MB", "2GB", "4GB", "8GB"])
    speeds = ElementTree.fromstring(speeds_svg(found.rows))
    best = [c for c in speeds.iter("circle") if c.get("class") == "best"]
    plain = [c for c in speeds.iter("circle") if c.get("class") == "plain"]
    assert len(best) == len(plain) == 3
    assert len([p for p in speeds.iter("path") if p.get("class") == "never"]) == 1
    heights = [[float(c.get("cy", "")) for c in kind] for kind in (best, plain)]
    for quick, slow, row in zip(*heights, found.rows[1:], strict=True):
        assert row.best is not None
        assert row.plain is not None
        zero = next(float(t.get("y", "")) - 5 for t in speeds.iter("text") if t.text == "0")
        assert (zero - quick) / (zero - slow) == pytest.approx(
            row.best.speed.middle / row.plain.speed.middle, rel=0.01
        )
    bars = ElementTree.fromstring(owners_svg(found.rows))
    by_line: dict[str, list[tuple[float, float]]] = {}
    for rect in bars.iter("rect"):
        x, wide = float(rect.get("x", "")), float(rect.get("width", ""))
        by_line.setdefault(rect.get("y", ""), []).append((x, wide))
    assert len(by_line) == 3
    for pieces in by_line.values():  # each bar is full, and no owner lies upon another
        assert sum(wide for _, wide in pieces) == pytest.approx(WIDTH - pieces[0][0] - 2, abs=0.1)
        for (x, wide), (after, _) in pairwise(pieces):
            assert x + wide == pytest.approx(after, abs=0.02)


def test_every_byte_of_a_dial_has_its_owner_in_the_chart(tmp_path: Path) -> None:
    found = tuned(tmp_path / "m", ["4GB", "8GB"])
    owners = owners_of(found.rows)
    assert [sum(sizes[i] for sizes in owners.values()) for i in (0, 1)] == [4 * GB, 8 * GB]
    assert list(owners)[-2:] == ["headroom", "free"]
    assert not any("(" in owner for owner in owners)  # the same owner at all dials
    assert len(owners) <= COLOURS + 2


@pytest.mark.parametrize("dial", ["2GB", "8GB", "16GB"])
def test_the_cycle_that_is_drawn_is_the_one_that_was_predicted(tmp_path: Path, dial: str) -> None:
    small = SEVEN | {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}
    draft = config_only(tmp_path / "small", small)
    (row,) = tuned(tmp_path / "m", [dial], draft_model=draft).rows
    schedules = set()
    for setting in row.settings:
        lanes = lanes_of(setting)
        ends = max(bar[2] for bars in lanes.values() for bar in bars)
        if setting.schedule == "serial":
            assert ends == pytest.approx(setting.cycle_seconds)
        schedules.add(setting.schedule)
        assert ("flash" in lanes) == setting.streams
        assert ("drafting" in lanes) >= (setting.costs.step > 0), setting.drafter  # n-grams take no time
        assert setting.drafter != "none" or "drafting" not in lanes
        for bars in lanes.values():  # nobody does two things at a time
            assert all(begins < over for _, begins, over in bars)
            assert all(one[2] <= other[1] + 1e-9 for one, other in pairwise(sorted(bars, key=lambda b: b[1])))
        read = sum(over - begins for said, begins, over in lanes.get("flash", []))
        assert read == pytest.approx(setting.costs.io)
        drawing = ElementTree.fromstring(cycle_svg(setting))
        assert len(drawing.findall("rect")) == len(cycle_words(setting)) == sum(map(len, lanes.values()))
        for bar in drawing.findall("rect"):
            assert (
                0
                <= float(bar.attrib["x"])
                <= float(bar.attrib["x"]) + float(bar.attrib["width"])
                <= WIDTH + 1
            )
    assert {"serial", "ssd"} <= schedules


def test_a_short_cycle_is_told_in_milliseconds(tmp_path: Path) -> None:
    """Labels as 0.0025 would touch each other."""
    setting = tuned(tmp_path / "m", ["16GB"]).recommended
    assert not setting.streams
    for seconds, unit in ((0.0023, "ms"), (0.97, "ms"), (1.0, "seconds"), (251.0, "seconds")):
        costs = replace(
            setting.costs, compute=seconds, overhead=0.0, apart=0.0, by_rows=(), step=0.0, waiting_step=0.0
        )
        one = replace(setting, drafter="none", schedule="serial", tree_nodes=1, costs=costs)
        ends = max(bar[2] for bars in lanes_of(one).values() for bar in bars)
        assert ends == pytest.approx(seconds)
        texts = [text.text or "" for text in ElementTree.fromstring(cycle_svg(one)).iter("text")]
        assert unit in texts
        assert all(len(text) <= 4 for text in texts if text[0].isdigit()), texts
        (words,) = cycle_words(one)
        assert words.endswith(" ms") == (unit == "ms")
    assert "verifies 2.3 ms" in cycle_words(replace(one, costs=replace(costs, compute=0.0023)))[0]


@pytest.mark.parametrize("top", [0.0137, 0.04, 0.99, 1.0, 3.3, 251.0, 1e5])
def test_ticks_are_few_round_and_reach_the_top(top: float) -> None:
    ticks = ticks_to(top)
    assert ticks[0] == 0
    assert ticks[-1] >= top * (1 - 1e-9)
    assert ticks[-2] < top
    assert 3 <= len(ticks) <= 7
    assert all(len(f"{tick:g}".replace(".", "").strip("0")) <= 2 for tick in ticks)


def test_twice_the_memory_is_as_far_everywhere() -> None:
    assert places([2 * GB, 4 * GB, 8 * GB]) == pytest.approx([0, 0.5, 1])
    assert places([GB]) == [0.5]


def test_figures_have_two_digits_and_no_exponents() -> None:
    assert [number(x) for x in (0.0191, 1.44, 99.4, 99.6, 163.2, 12345)] == [
        "0.019", "1.4", "99", "100", "160", "12,000",
    ]  # fmt: skip


# Refusals, before any work.


def test_what_cannot_be_written_is_refused_before_any_work(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*_: Any) -> None:
        raise AssertionError("it began to work")

    monkeypatch.setattr("edgespec.tuning.tune.tune_model", no_work)
    before = (tmp_path / "m" / "config.json").read_bytes()
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "model-00002-of-00002.gguf").write_bytes(b"GGUF")
    (tmp_path / "link.html").symlink_to(tmp_path / "model.gguf")
    for arguments, said in (
        (("m", "--html", "gone/x.html"), "--html gone/x.html: there is no folder"),
        (("m", "--png", "gone/x.png"), "--png gone/x.png: there is no folder"),
        (("m", "-o", "gone/x.toml"), "--profile-out gone/x.toml: there is no folder"),
        (("m", "--html", "m"), "--html m is a folder"),
        (("m", "--html", "x", "--png", "./x"), "--png x is named for --html too"),
        (("m", "-o", "x", "--html", "m/../x"), "named for --profile-out too"),
        (("m", "--html", "m/config.json"), "would overwrite a file of m"),
        (("m", "--png", "m/config.json"), "would overwrite a file of m"),
        (("model.gguf", "--html", "model.gguf"), "would overwrite a file of model.gguf"),
        (("model.gguf", "--html", "link.html"), "would overwrite a file of model.gguf"),
        (("model.gguf", "--html", "model-00002-of-00002.gguf"), "would overwrite a file of model.gguf"),
        (
            ("m", "--draft-model", "model.gguf", "--html", "model.gguf"),
            "would overwrite a file of model.gguf",
        ),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), (arguments, err)
        assert said in err, (said, err)
    assert (tmp_path / "m" / "config.json").read_bytes() == before
    assert (tmp_path / "model.gguf").read_bytes() == b"GGUF"


def test_a_page_of_an_earlier_run_is_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "page.html").touch()
    check_files({"html": folder / "page.html", "png": folder / "new.png"}, str(folder), EngineOptions())
    (folder / "page").touch()
    with pytest.raises(OptionError, match="would overwrite"):
        check_files({"html": folder / "page", "png": None}, str(folder), EngineOptions())


def test_nobody_else_s_file_is_written_over(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    contents = {
        "other/config.json": b"{}",
        "other/model.safetensors": b"\0" * 9,
        "page.html": b"<!DOCTYPE html>\n<title>a page of theirs</title>",
        "photo.png": b"\x89PNG\r\n\x1a\n of theirs",
        "pyproject.toml": b"[project]\nformat = 1",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "link.html").symlink_to(tmp_path / "other" / "model.safetensors")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.html")
    for flag in ("-o", "--html", "--png"):
        for name in sorted({path.name for path in tmp_path.iterdir()} - {"m", "other"} | {*contents}):
            code, out, err = run("m", flag, name)
            assert (code, out) == (2, ""), (flag, name, err)
            assert f"{name} is there already" in err, err
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents
    # Nor is what tune wrote for another option; what it wrote for this one is.
    assert run("m", "--memory", "4GB", "-o", "p.toml", "--html", "x.html")[0] == 0
    assert run("m", "--memory", "8GB", "-o", "x.html")[0] == 2
    assert run("m", "--memory", "8GB", "--html", "p.toml")[0] == 2
    code, _, err = run("m", "--memory", "8GB", "-o", "p.toml", "--html", "x.html")
    assert code == 0, err
    assert "memory = 8000000000" in (tmp_path / "p.toml").read_text()
    (tmp_path / "empty").touch()  # as mktemp makes them
    assert run("m", "--memory", "8GB", "-o", "empty")[0] == 0


def test_what_fails_leaves_the_old_page(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("m", "--memory", "4GB", "--html", "x.html")[0] == 0
    before = (tmp_path / "x.html").read_bytes()

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    code, _, err = run("m", "--memory", "8GB", "--html", "x.html")
    assert code != 0
    assert "x.html cannot be written: No space left on device" in err
    assert (tmp_path / "x.html").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "x.html"]


def test_without_matplotlib_the_picture_is_refused_before_any_work(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, without_matplotlib: None
) -> None:
    code, out, err = run("m", "--memory", "4GB", "--html", "x.html", "--png", "x.png")
    assert code == 1
    assert not out
    assert "--png needs matplotlib: pip install 'edgespec[plot]'" in err
    assert not (tmp_path / "x.html").exists()
    assert run("m", "--memory", "4GB", "--html", "x.html")[0] == 0  # which needs none


# Pictures.


def pixels(path: Path) -> tuple[int, int, set[bytes]]:
    """Width, height, and the colours of a PNG of 8 bits a channel."""
    raw = path.read_bytes()
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, kind = struct.unpack(">IIBB", raw[16:26])
    assert depth == 8
    channels = {2: 3, 6: 4}[kind]
    at, data = 8, b""
    while at < len(raw):
        (size,) = struct.unpack(">I", raw[at : at + 4])
        if raw[at + 4 : at + 8] == b"IDAT":
            data += raw[at + 8 : at + 8 + size]
        at += 12 + size
    lines, stride = zlib.decompress(data), width * channels
    above, colours = bytearray(stride), set[bytes]()
    for y in range(height):
        start = y * (stride + 1)
        method, line = lines[start], bytearray(lines[start + 1 : start + 1 + stride])
        for i in range(stride):
            a, b = (line[i - channels] if i >= channels else 0), above[i]
            c = above[i - channels] if i >= channels else 0
            guess = min((a, b, c), key=lambda v: abs(a + b - c - v))
            line[i] = (line[i] + (0, a, b, (a + b) // 2, guess)[method]) & 255
        colours.update(bytes(line[i : i + 3]) for i in range(0, stride, channels))
        above = line
    return width, height, colours


def test_the_picture_shows_both_charts(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    config_only(tmp_path / HOSTILE.replace("/", "_"), SEVEN)
    code, _, err = run(HOSTILE.replace("/", "_"), "--memory", "500MB,4GB,8GB", "--png", "x.png")
    assert code == 0, err
    assert "written to x.png" in err
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "x.png").read_bytes()) > 20_000
    assert run("m", "--memory", "4GB", "--png", "x.png")[0] == 0


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(folder: Path, page: str, width: int, dark: bool, *more: str) -> str:
    """What Chromium prints of a page."""
    assert CHROMIUM is not None
    (folder / "page.html").write_text(page, encoding="utf-8")
    sandbox = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless=new", "--disable-gpu", "--hide-scrollbars", *sandbox),
            *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width},1400"),
            *(f"--blink-settings=preferredColorScheme={0 if dark else 1}", *more),
            (folder / "page.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


PROBE = """<script>onload = () => { const all = [...document.querySelectorAll('main *')];
  const wide = all.filter(e => !e.closest('.wide') && e.getBoundingClientRect().right > innerWidth + 1);
  parent.postMessage(JSON.stringify([innerWidth, document.documentElement.scrollWidth,
    wide.map(e => e.tagName + '.' + e.className), getComputedStyle(document.body).backgroundColor,
    document.querySelector('svg').getBoundingClientRect().height,
    [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1).length,
    // Texts of a chart that touch; and short cells that have more than a line.
    [...document.querySelectorAll('svg')].flatMap(svg => { const all = [...svg.querySelectorAll('text')];
      return all.flatMap((a, i) => all.slice(i + 1).filter(b => { const [p, q] =
        [a, b].map(e => e.getBoundingClientRect()); return p.left < q.right + 2 && q.left < p.right + 2 &&
        p.top < q.bottom && q.top < p.bottom }).map(b => a.textContent + '|' + b.textContent)) }),
    [...document.querySelectorAll('.cards td:not([colspan])')].filter(e => {
      const inside = document.createRange(); inside.selectNodeContents(e);
      return e.textContent.length < 14 && inside.getBoundingClientRect().height > 30 })
      .map(e => e.textContent)]), '*') }
  </script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_shows_it_on_phones_and_desks_by_day_and_by_night(tmp_path: Path) -> None:
    long = tmp_path / ("a_very_long_name_of_a_model_" * 5)
    found = tuned(long, ["500MB", "2GB", "4GB", "6GB", "8GB", "12GB", "16GB"], SEVENTY)
    runs = [
        trial(GB, 1_200_000_000), trial(GB, 2 * GB, predicted=1234.5),
        trial(GB, drafter="ngram+cascade+substitute", schedule="mirror"),
        trial(GB, drafter="model", files="/m/a"),
        trial(GB, drafter="model", files=f"/m/{'a_long_name_' * 5}"),
    ]  # fmt: skip
    found = replace(found, compared=compare(runs, found.rows[-1].settings))
    assert len(found.compared) == 4
    page = page_of(found, EngineOptions())
    probed = page.replace(tune_page.POLICY, PROBE)  # which lets no script run
    assert probed != page
    for width in (390, 700, 1119, 1120, 1280):
        shown = json.loads(probe(tmp_path, probed, width, dark=False))
        assert shown[:2] == [width, width], shown  # nothing is wider than the window
        assert shown[2] == []
        assert shown[3] == "rgb(246, 247, 249)"
        assert shown[4] > 150
        assert shown[5] == 0, f"a table is cut off at {width}"
        assert shown[6] == [], f"texts of a chart touch at {width}"
        assert shown[7] == [], f"short cells are broken at {width}"
    assert json.loads(probe(tmp_path, probed, 1200, dark=True))[3] == "rgb(20, 23, 27)"
    for dark, expected in ((False, b"\xf6\xf7\xf9"), (True, b"\x14\x17\x1b")):
        browse(tmp_path, page, 600, dark, f"--screenshot={tmp_path / 'shot.png'}")
        width, height, colours = pixels(tmp_path / "shot.png")
        assert (width, height) == (600, 1400)
        assert {expected, b"\x3f\x7f\xd0", b"\xe0\x87\x2f"} <= colours  # the page's, and two owners'
        assert len(colours) > 50


def probe(folder: Path, page: str, width: int, dark: bool) -> str:
    # In a frame, as a window of Chromium's own is never narrower than 500 pixels.
    frame = (
        "<title></title><script>onmessage = e => { document.title = e.data }</script>"
        f'<iframe width={width} height=1400 frameborder=0 srcdoc="{escape(page)}">'
    )
    dom = browse(folder, frame, 1300, dark, "--dump-dom", "--virtual-time-budget=2000")
    title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert title is not None
    return unescape(title[1])
