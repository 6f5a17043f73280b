"""The style of a report page: one column of text width, figures that line up, light and dark."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfaf8; --ink: #1d2126; --soft: #565d66; --faint: #6b7179; --hair: #dfdcd6; --track: #efece6;
  --blue: #2f74c0; --teal: #0d7a6b; --gray: #888e96; --red: #c03b3b; --amber: #b7791a;
  --orange: #cf5f14; --brown: #6b4f3a; --good: #0d7a6b; --bad: #b3261e; --bad-page: #fdecea;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15171a; --ink: #e8e6e1; --soft: #adb2b9; --faint: #8f959d; --hair: #31353a; --track: #23262a;
    --blue: #639fe6; --teal: #3db79f; --gray: #757c85; --red: #ea7670; --amber: #d9a441;
    --orange: #f08b45; --brown: #c9ab94; --good: #3db79f; --bad: #f2968f; --bad-page: #38201f;
  }
}
* { box-sizing: border-box; margin: 0; padding: 0; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums lining-nums; overflow-wrap: anywhere;
}
main { max-width: 62rem; margin: 0 auto; padding: 3.5rem 2rem 5rem; }
ul { list-style: none; }
.eyebrow { color: var(--soft); font-size: .8rem; letter-spacing: .06em; text-transform: uppercase; }
h1 { font-size: clamp(1.6rem, 4.5vw, 2.3rem); font-weight: 650; letter-spacing: -.02em; line-height: 1.15;
  margin: .25rem 0 1.5rem; text-wrap: balance; }
h2, caption { font-size: 1.15rem; font-weight: 650; letter-spacing: -.01em; line-height: 1.3; text-align: left; }
.about { color: var(--soft); font-size: .9rem; max-width: 52rem; text-wrap: pretty; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: .4rem 2rem; }
.facts div { display: flex; gap: .75rem; align-items: baseline; min-width: 0; }
.facts dt { color: var(--soft); flex: none; min-width: 5.5rem; max-width: 50%; font-size: .9rem; }
.facts dd { min-width: 0; }
.headline { display: grid; grid-template-columns: repeat(3, 1fr); margin-top: 2.5rem;
  border-top: 1px solid var(--hair); }
.headline div { display: flex; flex-direction: column; padding: 1rem 0; border-bottom: 1px solid var(--hair); }
.headline dt { color: var(--soft); font-size: .9rem; }
.headline dd { font-size: 1.75rem; font-weight: 600; letter-spacing: -.02em; line-height: 1.2; }
.headline .zero dd { color: var(--faint); font-weight: 400; }
.accounting { margin: 1.5rem 0 0; padding-left: 1rem; border-left: 3px solid var(--good); }
.accounting p { font-weight: 600; }
.accounting li { color: var(--soft); font-size: .9rem; }
.accounting.wrong { border-color: var(--bad); background: var(--bad-page); padding: .75rem 1rem; }
.accounting.wrong p { color: var(--bad); }
.accounting.wrong li { color: var(--ink); }
.chart { margin-top: 3.5rem; }
.bars { margin-top: 1.25rem; display: grid; grid-template-columns: 13rem minmax(0, 1fr) max-content;
  column-gap: 1.5rem; }
/* The lines share the columns, so that all bars of a chart are measured by one length. */
.line {
  display: grid; grid-template-columns: subgrid; grid-column: 1 / -1;
  grid-template-rows: auto 1fr; row-gap: .3rem;
  padding: .7rem 0; border-top: 1px solid var(--hair); align-items: start;
}
.label { grid-column: 1; grid-row: 1 / span 2; line-height: 1.35; min-width: 0; }
.note { color: var(--soft); font-size: .85rem; display: block; }
.total { grid-column: 3; grid-row: 1; text-align: right; line-height: 1.35; font-weight: 600; }
.unit { color: var(--soft); font-weight: 400; font-size: .85rem; }
.track { grid-column: 2; grid-row: 1; padding-top: 3px; min-width: 0; }
.bar { display: block; background: var(--track); border-radius: 2px; overflow: hidden; }
.bar line { stroke: var(--page); stroke-width: 1.5px; }
.parts { grid-column: 2; grid-row: 2; display: flex; flex-wrap: wrap; gap: 0 1.1rem; min-width: 0;
  color: var(--soft); font-size: .85rem; line-height: 1.5; }
.parts b { color: var(--ink); font-weight: 500; }
.parts i { display: inline-block; width: .6rem; height: .6rem; border-radius: 2px; margin-right: .4rem; }
.empty { color: var(--soft); margin-top: 1rem; padding: .7rem 0; border-top: 1px solid var(--hair); }
.rows_clean, .inserted, .files_written { fill: var(--blue); background: var(--blue); }
.updated, .files_rewritten { fill: var(--teal); background: var(--teal); }
.skipped, .rows_filtered, .files_preserved { fill: var(--gray); background: var(--gray); }
.deleted { fill: var(--red); background: var(--red); }
.rows_deduplicated { fill: var(--amber); background: var(--amber); }
.rows_skipped_null { fill: var(--brown); background: var(--brown); }
.rows_quarantined { fill: var(--orange); background: var(--orange); }
.seconds { fill: var(--soft); background: var(--soft); }
.tables { margin-top: 4.5rem; padding-top: 1rem; border-top: 1px solid var(--ink); }
.tables > .about { margin-top: 2rem; }
table { width: 100%; border-collapse: collapse; margin-top: 2.25rem; font-size: .9rem; }
caption { padding-bottom: .5rem; }
th, td { text-align: left; vertical-align: baseline; font-weight: 400; padding: .45rem 0 .45rem 1.25rem;
  border-top: 1px solid var(--hair); }
th:first-child { padding-left: 0; min-width: 8rem; }
thead th { color: var(--soft); font-size: .85rem; border-top: 0; white-space: nowrap; }
tbody th { font-weight: 500; }
td.kind, td.state { white-space: nowrap; }
td.source { min-width: 7rem; }
.number { text-align: right; white-space: nowrap; }
td.zero { color: var(--faint); }
@media (max-width: 60rem) {
  main { padding: 2rem 1rem 3.5rem; }
  .headline { grid-template-columns: 1fr; }
  .headline div { flex-direction: row; justify-content: space-between; align-items: baseline; padding: .45rem 0; }
  .headline dd { font-size: 1.25rem; }
  .bars { grid-template-columns: minmax(0, 1fr) max-content; }
  .label { grid-column: 1; grid-row: 1; }
  .total { grid-column: 2; }
  .track { grid-column: 1 / -1; grid-row: 2; padding-top: 0; }
  .parts { grid-column: 1 / -1; grid-row: 3; }
  .line { grid-template-rows: auto auto auto; }
  table, tbody, caption { display: block; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
  tbody tr { display: grid; grid-template-columns: 1fr 1fr; column-gap: 1.5rem; padding: .6rem 0;
    border-top: 1px solid var(--hair); }
  tbody th, td { border: 0; padding: .1rem 0; min-width: 0; }
  tbody th, td:not(.number) { grid-column: 1 / -1; }
  td { display: flex; flex-wrap: wrap; justify-content: space-between; column-gap: .75rem; }
  td:not(.number) { flex-wrap: nowrap; justify-content: start; }
  td:not(.number)::before { min-width: 4rem; }
  td::before { content: attr(data-label); color: var(--soft); flex: none; }
}
@media print {
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  .line, tr { break-inside: avoid; }
  .bar, .parts i { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
