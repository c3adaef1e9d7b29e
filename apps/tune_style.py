"""How the page of a tuning looks: on a phone as on a desk, by day and by night."""

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1b1f24; --dim: #5b6470;
  --line: #d9dde3; --accent: #1f6fd6; --band: #1f6fd633; --plain: #8a6d1d; --never: #c62f2f; --code:
  #eef1f5; --headroom: #c3c9d1; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1d2126; --text: #e6e9ed; --dim:
  #9aa4b1; --line: #363c45; --accent: #6aa9ff; --band: #6aa9ff38; --plain: #d9b54a; --never: #ff7b72;
  --code: #14171b; --headroom: #59616c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 16px; display: grid; gap: 16px;
  grid-template-columns: minmax(0, 1fr); }
header, section { min-width: 0; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 4px 0; overflow-wrap: anywhere; unicode-bidi:
  isolate; }
h2 { font-size: 1.05rem; margin: 0 0 10px; }
p { margin: 6px 0; }
ul { margin: 10px 0 0; padding-left: 20px; }
li { margin: 4px 0; }
p, li, td { overflow-wrap: anywhere; }
.dim, figcaption { color: var(--dim); font-size: .9rem; }
.speed { font-size: 2.2rem; font-weight: 650; line-height: 1.1; }
.speed small { font-size: 1rem; font-weight: 400; }
code { display: block; background: var(--code); border: 1px solid var(--line); border-radius: 6px;
  margin: 8px 0; padding: 10px 12px; font: .9rem/1.45 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; user-select: all; -webkit-user-select: all; unicode-bidi: isolate; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { color: var(--dim); font-weight: 500; font-size: .85rem; }
th, td { text-align: right; padding: 6px 8px; border-bottom: 1px solid var(--line); vertical-align: top;
  }
tbody tr:last-child > * { border-bottom: 0; }
.text, tbody th { text-align: left; }
tbody th { color: var(--text); font-size: 1rem; font-weight: 400; }
.chosen > * { background: var(--band); }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 8px;
  border: 1px solid transparent; }
.owners td, .cards th, .line { white-space: nowrap; }
.cards td { overflow-wrap: normal; }
.cards thead th { white-space: normal; }
.cards .text { overflow-wrap: anywhere; }
.front .text { overflow-wrap: break-word; }
.front { max-width: 620px; }
.owners th:first-child { position: sticky; left: 0; min-width: 9.5em; background: var(--card); }
figure { margin: 0; }
figcaption { margin-top: 8px; }
svg { display: block; width: 100%; max-width: 620px; margin: 0 auto; }
svg text { fill: var(--dim); font: 14px system-ui, sans-serif; }
.grid { stroke: var(--line); }
path { fill: none; }
.band { fill: var(--band); }
path.best { stroke: var(--accent); stroke-width: 2.5; }
circle.best { fill: var(--accent); }
path.plain { stroke: var(--plain); stroke-width: 2; stroke-dasharray: 6 4; }
circle.plain { fill: var(--plain); }
.range { stroke: var(--accent); stroke-width: 1.5; }
.never { stroke: var(--never); stroke-width: 2; }
.key { white-space: nowrap; margin-right: 14px; }
.key b { font-weight: 650; }
.key .best { color: var(--accent); }
.key .plain { color: var(--plain); }
.key .never { color: var(--never); }
.o0 { fill: #3f7fd0; background: #3f7fd0 }
.o1 { fill: #e0872f; background: #e0872f }
.o2 { fill: #3fa06b; background: #3fa06b }
.o3 { fill: #a864c4; background: #a864c4 }
.o4 { fill: #d2506a; background: #d2506a }
.o5 { fill: #2fa3ad; background: #2fa3ad }
.o6 { fill: #b79a2c; background: #b79a2c }
.o7 { fill: #8a6450; background: #8a6450 }
.headroom { fill: var(--headroom); background: var(--headroom) }
.free { fill: var(--card); stroke: var(--line); background: var(--card); border-color: var(--line) }
.pair { display: grid; gap: 16px; grid-template-columns: minmax(0, 1fr); }
@media (min-width: 900px) { .pair { grid-template-columns: 1fr 1fr; } }
@media (min-width: 1120px) { .cards td.text { min-width: 9em; } }
/* On smaller screens a line of a table becomes a block of its own, and an owner's one of a few columns. */
@media (max-width: 1119px) {
  .owners thead { display: none; }
  .owners tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(84px, 1fr)); padding: 8px 0;
    border-bottom: 1px solid var(--line); }
  .owners tbody tr:last-child { border-bottom: 0; }
  .owners th:first-child { position: static; grid-column: 1 / -1; }
  .owners tr > * { border: 0; padding: 2px 0; text-align: left; }
  .owners td::before { content: attr(data-head); display: block; color: var(--dim); font-size: .85rem; }
  .cards thead { display: none; }
  .cards tr { display: block; padding: 8px; border-bottom: 1px solid var(--line); }
  .cards tr.chosen { background: var(--band); }
  .cards tbody tr:last-child { border-bottom: 0; }
  .cards tr > * { display: flex; justify-content: space-between; gap: 16px; border: 0; padding: 2px 0;
    text-align: right; background: none; }
  .cards tr > *::before { content: attr(data-head); color: var(--dim); font-size: .9rem; flex: none; }
  .cards td[colspan] { justify-content: start; text-align: left; }
  .cards td[colspan]::before { content: none; }
  .cards td:empty { display: none; }
  .cards th { font-weight: 650; }
}
"""
