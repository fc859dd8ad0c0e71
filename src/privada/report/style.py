"""How the page looks: two sets of colours, and one sheet of style."""

LIGHT = {
    "page": "#fbfbf8",
    "surface": "#ffffff",
    "text": "#1a1e23",
    "soft": "#565e68",
    "line": "#e3e4df",
    "accent": "#005f96",
    "accent-soft": "#e3eef5",
    "quiet": "#a9b6c0",
    "cut": "#c9ccc8",
    "alarm": "#a8201a",
    "on-alarm": "#ffffff",
    "series-0": "#0072b2",
    "series-1": "#d55e00",
    "series-2": "#00835f",
    "series-3": "#b0578a",
    "series-4": "#946600",
    "series-5": "#5b626c",
    "series-6": "#000000",
}
DARK = {
    "page": "#111417",
    "surface": "#181c20",
    "text": "#e9ebed",
    "soft": "#a4adb6",
    "line": "#2b3137",
    "accent": "#6cbdf0",
    "accent-soft": "#1b3040",
    "quiet": "#4f5b66",
    "cut": "#000000",
    "alarm": "#8f1d18",
    "on-alarm": "#ffffff",
    "series-0": "#56b4e9",
    "series-1": "#f28e4b",
    "series-2": "#35c99c",
    "series-3": "#e39cc4",
    "series-4": "#e6b23c",
    "series-5": "#a9b1ba",
    "series-6": "#ffffff",
}

_SHEET = """
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 400 1rem/1.6 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "Liberation Sans",
    Arial, sans-serif;
  font-variant-numeric: tabular-nums lining-nums; overflow-wrap: break-word;
}
header, main, footer { max-width: 62rem; margin: 0 auto; padding: 0 2rem; }
header { display: flex; align-items: center; justify-content: space-between; padding-top: 1.5rem; }
h1, .words, .big dd {
  font-family: Charter, "Bitstream Charter", "Iowan Old Style", Georgia, "Liberation Serif", serif;
}
h1 { font-weight: 400; font-size: 2.6rem; line-height: 1.15; letter-spacing: -.01em; margin: 0; }
h2 { font-weight: 600; font-size: 1.3rem; line-height: 1.3; margin: 0 0 .5rem; }
h3 { font-weight: 600; font-size: 1rem; margin: 2rem 0 .25rem; }
p { margin: 0 0 1rem; max-width: 44rem; }
a { color: var(--accent); }
sup { font-size: .65em; line-height: 0; }
.brand { margin: 0; font-weight: 600; letter-spacing: .02em; }
.brand span { color: var(--soft); font-weight: 400; }
.title { padding: 3.5rem 0 2.5rem; }
.under, .note, figcaption { color: var(--soft); }
.under { margin: .75rem 0 0; }
.note, figcaption { font-size: .9rem; }
.skip { position: absolute; left: -999rem; }
.skip:focus { left: 1rem; top: 1rem; padding: .5rem 1rem; background: var(--surface); z-index: 9; }
button {
  font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
}
#theme {
  font-size: .9rem; padding: .35rem .9rem; border: 1px solid var(--line); border-radius: 2rem;
  background: var(--surface);
}
#theme:hover { border-color: var(--accent); color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
nav ul {
  list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; padding: 0; margin: 0;
}
nav { padding: 1rem 0; font-size: .9rem; border-top: 1px solid var(--line); }
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
section { padding: 2.75rem 0; border-top: 1px solid var(--line); }
.banner {
  background: var(--alarm); color: var(--on-alarm); padding: 1.1rem 1.4rem; border-radius: .5rem;
  margin: 0 0 2rem;
}
.banner p { margin: 0; max-width: none; }
.banner strong { display: block; font-size: 1.15rem; }
.caution { border-left: 3px solid var(--accent); padding: .1rem 0 .1rem 1rem; margin: 1.5rem 0 0; }
.promise { border: 0; padding: 0 0 2.75rem; }
.promise h2 { margin-bottom: 1.25rem; }
.lead { display: grid; grid-template-columns: auto 1fr; gap: 1rem 4rem; align-items: start; }
.big { display: flex; flex-direction: column; gap: 1.25rem; margin: 0; min-width: 10rem; }
.big dt { color: var(--soft); font-size: .9rem; }
.big dd { margin: 0; font-size: 3.6rem; line-height: 1.05; color: var(--accent); }
.big div + div dd { font-size: 2.1rem; }
.none .big dd { color: var(--soft); }
.words { font-size: 1.3rem; line-height: 1.55; margin: 0; }
dl.facts {
  display: grid; grid-template-columns: 10rem 1fr; gap: .45rem 1.5rem; margin: 2.25rem 0 0;
  font-size: .95rem;
}
dl.facts dt { color: var(--soft); }
dl.facts dd { margin: 0; min-width: 0; }
.bar {
  height: 1.1rem; border-radius: .55rem; background: var(--accent-soft); overflow: hidden;
  margin: 1.25rem 0 .6rem;
}
.bar, mark, .key::before { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.bar span { display: block; height: 100%; background: var(--accent); }
.ends { display: flex; justify-content: space-between; gap: 1rem; margin: 0; max-width: none; }
.ends b { font-weight: 600; }
.account + .account { margin-top: 2.5rem; }
.scroll {  /* a shadow where a narrow screen cuts a table off: it moves with the table */
  overflow-x: auto; margin: 1rem 0 0;
  background:
    linear-gradient(to right, var(--page) 40%, transparent) left / 2.5rem 100%,
    linear-gradient(to left, var(--page) 40%, transparent) right / 2.5rem 100%,
    linear-gradient(to right, var(--cut), transparent) left / .8rem 100%,
    linear-gradient(to left, var(--cut), transparent) right / .8rem 100%;
  background-attachment: local, local, scroll, scroll; background-repeat: no-repeat;
}
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
caption { text-align: left; color: var(--soft); font-size: .9rem; padding: 0 0 .5rem; }
th, td { text-align: left; vertical-align: top; padding: .5rem 1.25rem .5rem 0; }
th:last-child, td:last-child { padding-right: 0; }
thead th {
  font-weight: 500; color: var(--soft); font-size: .85rem; border-bottom: 1px solid var(--line);
  vertical-align: bottom;
}
tbody th { font-weight: 500; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tfoot > tr > * { border-top: 2px solid var(--line); font-weight: 600; }
.number { text-align: right; white-space: nowrap; }
td.wide { min-width: 16rem; }
time, time span, .whole { white-space: nowrap; }
.narrow { max-width: 30rem; }
.after { margin-top: 1rem; }
.key { display: inline-block; position: relative; padding-left: 1.2rem; }
.key::before {
  content: ""; position: absolute; left: 0; top: .45em; width: .65rem; height: .65rem;
  border-radius: 50%; background: var(--of);
}
mark {
  background: var(--accent-soft); color: inherit; border-radius: .25rem; padding: .1rem .4rem;
}
th button { font-weight: inherit; color: inherit; }
th button::after { content: " ↕"; opacity: .6; }
th[aria-sort=ascending] button::after { content: " ↑"; opacity: 1; }
th[aria-sort=descending] button::after { content: " ↓"; opacity: 1; }
figure { margin: 1.5rem 0 0; min-width: 0; }
figure h3 { margin: 0; }
.chart { display: none; width: 100%; margin-top: .5rem; }
.charts .chart { display: block; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 2rem; }
.columns { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem 3.5rem; }
.columns h3 { margin-top: .5rem; }
.columns ul { padding-left: 1.1rem; margin: .5rem 0 0; }
.columns li { margin-bottom: .6rem; }
details { margin: 1.25rem 0 0; }
summary { cursor: pointer; color: var(--accent); width: fit-content; }
pre {
  font: .82rem/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  background: var(--surface); border: 1px solid var(--line); border-radius: .5rem;
  padding: 1.25rem 1.5rem; margin: 1rem 0 0; white-space: pre-wrap;
}
footer { color: var(--soft); font-size: .85rem; padding-top: 1.5rem; padding-bottom: 3rem; }
@media (max-width: 44rem) {
  header, main, footer { padding-left: 1.15rem; padding-right: 1.15rem; }
  h1 { font-size: 2rem; }
  .title { padding: 2.25rem 0 1.75rem; }
  section { padding: 2rem 0; }
  .lead, .pair, .columns { grid-template-columns: minmax(0, 1fr); }
  .lead { gap: 1.5rem; }
  .big { flex-direction: row; gap: 2.5rem; align-items: baseline; }
  .big dd { font-size: 3rem; }
  .words { font-size: 1.15rem; }
  dl.facts { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dl.facts dd { margin-bottom: .7rem; }
  tbody th { min-width: 7.5rem; }
  thead .number { white-space: normal; }
}
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
@page { margin: 16mm 15mm; }
@media print {
  html { font-size: 10pt; }
  header, main, footer { max-width: none; padding-left: 0; padding-right: 0; }
  #theme, nav, .skip, .numbers:not([open]), .modebar-container { display: none !important; }
  .title { padding: 1.5rem 0; }
  section { padding: 1.5rem 0; }
  .promise { padding-top: 0; }
  h2, h3, caption, summary { break-after: avoid; }
  figure, tr, li, .bar, .lead, .banner { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; background: none; }
  table { font-size: .85rem; }
  th, td { padding-right: .8rem; }
  td.wide { min-width: 0; overflow-wrap: anywhere; }
  td time { white-space: normal; }
  .banner { border: 2px solid var(--alarm); background: none; color: var(--alarm); }
  pre { border: 0; padding: 0; background: none; font-size: .78rem; }
  th button::after { content: none !important; }
}
"""


def _variables(colours: dict[str, str], scheme: str) -> str:
    listed = " ".join(f"--{name}: {value};" for name, value in colours.items())
    return f"{{ color-scheme: {scheme}; {listed} }}"


def sheet() -> str:
    """Return the style: light or dark as the system says, or as the reader chose; paper is light.

    Example:
        >>> from privada.report.style import LIGHT, sheet
        >>> LIGHT["accent"] in sheet()
        True
    """
    light, dark = _variables(LIGHT, "light"), _variables(DARK, "dark")
    paper = _variables({**LIGHT, "page": "#ffffff", "soft": "#474e57"}, "light")
    return (
        f":root {light}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {dark} }}\n"
        f":root[data-theme=dark] {dark}\n"
        f"{_SHEET}"
        f"@media print {{ :root, :root[data-theme], :root:not([data-theme=light]) {paper} }}\n"
        f":root[data-printing][data-printing] {paper}\n"
    )
