#include "train/report_page.h"

namespace hyperparallel::train {

const std::string_view kReportPage = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Training report</title>
<style>
:root { color-scheme: light dark; --page: #f6f6f3; --card: #ffffff; --ink: #1d1d1b; --muted: #6c6b65; --line: #e4e3de; --good: #17805a; --bad: #c23b32;
  --s0: #2a72d4; --s1: #dd6127; --s2: #168f68; --s3: #b8860b; --s4: #7657cc; --s5: #cc4a88; --s6: #4b7f1f; --s7: #5f6b78; }
@media (prefers-color-scheme: dark) { :root { --page: #151514; --card: #1f1f1e; --ink: #ecebe8; --muted: #9d9c95; --line: #353532; --good: #45c08f; --bad: #f0766c;
  --s0: #5b9df0; --s1: #f08a55; --s2: #3dbd91; --s3: #dcae3c; --s4: #a58bf0; --s5: #ee82b4; --s6: #8cc25a; --s7: #98a5b3; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 12px; }
.sub { color: var(--muted); margin: 4px 0 24px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.tile .label, .tile .note { color: var(--muted); font-size: 12.5px; }
.tile .value { font-size: 19px; font-weight: 600; line-height: 1.35; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; }
.charts .wide { grid-column: 1 / -1; }
.chart { position: relative; }
.head { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 12px; margin-bottom: 6px; }
.head h3 { font-size: 14.5px; margin: 0; overflow-wrap: anywhere; }
.head .unit, .legend { color: var(--muted); font-size: 12.5px; }
.head button { margin-left: auto; font: inherit; font-size: 12px; color: var(--muted); background: none; border: 1px solid var(--line); border-radius: 6px; padding: 0 8px; cursor: pointer; }
.head button[aria-pressed=true] { color: var(--ink); border-color: var(--muted); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; }
.legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px; vertical-align: middle; }
svg { display: block; width: 100%; overflow: visible; touch-action: pan-y; }
svg text { fill: var(--muted); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.tip { position: absolute; pointer-events: none; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 6px 10px; font-size: 12.5px;
  box-shadow: 0 4px 16px rgb(0 0 0 / 18%); white-space: nowrap; z-index: 2; font-variant-numeric: tabular-nums; }
.tip b { font-weight: 600; } .tip i { display: inline-block; width: 8px; height: 8px; border-radius: 50%; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; } th { color: var(--muted); font-weight: 500; font-size: 12.5px; }
td.n, th.n { text-align: right; white-space: nowrap; } td.fact { color: var(--muted); width: 34%; } td { overflow-wrap: anywhere; }
.bar { position: relative; height: 12px; margin-top: 5px; min-width: 90px; background: var(--line); border-radius: 3px; }
.bar span { position: absolute; inset: 0 auto 0 0; background: var(--s0); border-radius: 3px; }
.bar em { position: absolute; top: -4px; bottom: -4px; width: 2px; background: var(--ink); }
.examples { display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: 14px; }
.example { display: flex; flex-direction: column; gap: 8px; }
.pictures { display: flex; flex-wrap: wrap; gap: 6px; justify-content: center; background: var(--page); border-radius: 6px; padding: 8px; }
.pictures img { height: 128px; max-width: 100%; object-fit: contain; }
.pictures img.small { image-rendering: pixelated; }
.example .question { font-weight: 500; overflow-wrap: anywhere; } .answer { overflow-wrap: anywhere; font-size: 14px; }
.good { color: var(--good); } .bad { color: var(--bad); } .quiet { color: var(--muted); font-size: 12.5px; }
details summary { cursor: pointer; } pre { overflow-x: auto; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; margin: 10px 0 0; }
@media (max-width: 760px) { .charts { grid-template-columns: minmax(0, 1fr); } main { padding: 20px 12px 48px; } .bars { display: none; } }
@media print { .head button { display: none; } .card { break-inside: avoid; } }
</style>
</head>
<body>
<main id="main"><noscript>This page draws its curves with a script of its own; nothing is loaded from elsewhere. Please allow scripts.</noscript></main>
<script id="data" type="application/json">@REPORT_DATA@</script>
<script>
"use strict";
const report = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");

// Elements: make("p", {class: "x"}, "text", child, ...). Text is never read as HTML.
function make(tag, attributes, ...children) {
  const svg = ["svg", "path", "line", "text", "circle", "rect", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function number(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e7 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(+value.toPrecision(4));
}

function linearTicks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return ticks;
}
function logTicks(low, high) {
  const ticks = [], decades = Math.log10(high / low);
  const factors = decades > 4 ? [1] : decades > 1.5 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
  for (let p = Math.floor(Math.log10(low)); 10 ** p <= high; p++) for (const f of factors) if (f * 10 ** p >= low && f * 10 ** p <= high) ticks.push(f * 10 ** p);
  return ticks;
}

// Mean over a window about a fortieth of the run wide around each point, narrower towards the ends, so that it does not lag.
function smoothed(values) {
  const sums = [0], reach = Math.round(values.length / 80);
  for (const v of values) sums.push(sums[sums.length - 1] + v);
  return values.map((v, i) => { const r = Math.min(reach, i, values.length - 1 - i); return (sums[i + r + 1] - sums[i - r]) / (2 * r + 1); });
}

function color(chart, index) {
  if (chart.series.length <= 8) return `var(--s${index})`;
  return `hsl(${215 + 130 * index / (chart.series.length - 1)} 62% 55%)`;  // many layers: a ramp, early to late
}

function drawChart(card, chart) {
  const height = chart.wide ? 300 : 210, width = Math.max(260, card.clientWidth - 32), left = 56, right = 10, top = 8, bottom = 24;
  const dense = s => chart.smooth && s.y.length >= 60;
  const shown = chart.series.map(s => dense(s) ? smoothed(s.y) : s.y);
  // Range: all points, but of what is smoothed only the inner 99 % of the raw values, so that one spike does not flatten the rest.
  let values = shown.flat();
  chart.series.forEach(s => { const sorted = [...(s.lo || []), ...(s.hi || []), ...s.y].sort((a, b) => a - b), cut = dense(s) ? Math.floor(sorted.length * 0.005) : 0;
    values.push(sorted[cut], sorted[sorted.length - 1 - cut]); });
  const log = chart.log && values.some(v => v > 0);
  if (log) values = values.filter(v => v > 0);
  let yLow = Math.min(...values), yHigh = Math.max(...values);
  if (chart.zero && !log) yLow = Math.min(0, yLow);
  if (yLow === yHigh) { const pad = Math.abs(yLow) * 0.1 || 1; if (log) { yLow /= 2; yHigh *= 2; } else { yLow -= chart.zero ? 0 : pad; yHigh += pad; } }
  else if (log) { const pad = (yHigh / yLow) ** 0.04; yLow /= pad; yHigh *= pad; }
  else { const pad = (yHigh - yLow) * 0.04; yHigh += pad; if (!chart.zero) yLow -= pad; }
  const steps = chart.series.flatMap(s => [s.x[0], s.x[s.x.length - 1]]);
  let xLow = Math.min(...steps), xHigh = Math.max(...steps);
  if (xLow === xHigh) { xLow -= 1; xHigh += 1; }
  const px = x => left + (x - xLow) / (xHigh - xLow) * (width - left - right);
  const share = y => log ? Math.log(Math.max(y, yLow) / yLow) / Math.log(yHigh / yLow) : (y - yLow) / (yHigh - yLow);
  const py = y => height - bottom - Math.min(1.02, Math.max(-0.02, share(y))) * (height - top - bottom);
  const line = (xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(ys[i]).toFixed(1)}`).join("");

  const svg = make("svg", {height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.title});
  for (const y of log ? logTicks(yLow, yHigh) : linearTicks(yLow, yHigh, height / 45)) {
    svg.append(make("line", {x1: left, x2: width - right, y1: py(y), y2: py(y), stroke: "var(--line)"}), make("text", {x: left - 8, y: py(y) + 4, "text-anchor": "end"}, number(y)));
  }
  for (const x of linearTicks(xLow, xHigh, width / 85).filter(x => Number.isInteger(x) && x >= Math.min(...steps) && x <= Math.max(...steps))) {
    const nearEdge = px(x) > width - right - 24;
    svg.append(make("text", {x: nearEdge ? width - right : px(x), y: height - 6, "text-anchor": nearEdge ? "end" : "middle"}, x.toLocaleString("en-US")));
  }
  chart.series.forEach((s, index) => {
    const stroke = color(chart, index), many = s.y.length > 80;
    if (s.lo) svg.append(make("path", {d: line([...s.x, ...[...s.x].reverse()], [...s.hi, ...[...s.lo].reverse()]) + "Z", fill: stroke, opacity: chart.series.length > 3 ? 0.08 : 0.18}));
    else if (dense(s)) svg.append(make("path", {d: line(s.x, s.y), fill: "none", stroke, opacity: chart.series.length > 3 ? 0.12 : 0.3}));
    svg.append(make("path", {d: line(s.x, shown[index]), fill: "none", stroke, "stroke-width": 2, "stroke-linejoin": "round"}));
    if (!many && (s.y.length < 40)) s.x.forEach((x, i) => svg.append(make("circle", {cx: px(x), cy: py(s.y[i]), r: 3, fill: stroke})));
  });

  const cross = make("line", {y1: top, y2: height - bottom, stroke: "var(--muted)", "stroke-dasharray": "3 3", visibility: "hidden"}), tip = make("div", {class: "tip", hidden: ""});
  svg.append(cross);
  const hide = () => { cross.setAttribute("visibility", "hidden"); tip.hidden = true; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), at = xLow + ((event.clientX - box.left) * width / box.width - left) / (width - left - right) * (xHigh - xLow);
    const nearest = xs => { let low = 0, high = xs.length - 1; while (high - low > 1) { const mid = (low + high) >> 1; if (xs[mid] < at) low = mid; else high = mid; }
      return Math.abs(xs[low] - at) <= Math.abs(xs[high] - at) ? low : high; };
    const step = chart.series[0].x[nearest(chart.series[0].x)];
    tip.replaceChildren(make("b", {}, `step ${step.toLocaleString("en-US")}`));
    chart.series.forEach((s, index) => { const i = nearest(s.x), range = s.lo && s.lo[i] !== s.hi[i] ? ` (${number(s.lo[i])} to ${number(s.hi[i])})` : "";
      tip.append(make("div", {}, make("i", {style: `background:${color(chart, index)}`}), `${s.name}: ${number(s.y[i])}${range}${s.x[i] === step ? "" : " at " + s.x[i].toLocaleString("en-US")}`)); });
    cross.setAttribute("x1", px(step)); cross.setAttribute("x2", px(step)); cross.setAttribute("visibility", "visible");
    tip.hidden = false;
    const x = px(step) * box.width / width + 16, fits = x + 14 + tip.offsetWidth < card.clientWidth;
    tip.style.left = `${fits ? x + 14 : Math.max(4, x - 14 - tip.offsetWidth)}px`;
    tip.style.top = `${box.top - card.getBoundingClientRect().top + 8}px`;
  });
  card.querySelectorAll("svg, .tip").forEach(old => old.remove());
  card.append(svg, tip);
}

function chartCard(chart) {
  const head = make("div", {class: "head"}, make("h3", {}, chart.title));
  if (chart.unit) head.append(make("span", {class: "unit"}, chart.unit));
  if (chart.series.length > 1) {
    const legend = make("div", {class: "legend"}), entry = index => make("span", {}, make("i", {style: `background:${color(chart, index)}`}), chart.series[index].name);
    chart.series.length <= 8 ? chart.series.forEach((s, i) => legend.append(entry(i))) : legend.append(entry(0), "to", entry(chart.series.length - 1));
    head.append(legend);
  }
  const card = make("div", {class: "card chart" + (chart.wide ? " wide" : "")}, head);
  if (chart.series.some(s => s.y.some(y => y > 0))) {
    const button = make("button", {type: "button", "aria-pressed": String(!!chart.log)}, "log");
    button.addEventListener("click", () => { chart.log = !chart.log; button.setAttribute("aria-pressed", String(chart.log)); drawChart(card, chart); });
    head.append(button);
  }
  return card;
}

const percent = share => share === null ? "–" : `${(share * 100).toFixed(1)} %`;

function evalCard(evaluation) {
  const table = make("table", {}, make("tr", {}, make("th", {}, "answers"), make("th", {class: "n"}, "questions"), make("th", {class: "n"}, "exact match"),
    make("th", {class: "n"}, "majority answer"), make("th", {class: "bars"}, "")));
  for (const row of evaluation.rows) {
    const bar = make("div", {class: "bar"}, make("span", {style: `width:${(row.exact_match || 0) * 100}%`}));
    if (row.baseline !== null) bar.append(make("em", {style: `left:${row.baseline * 100}%`, title: "majority answer"}));
    table.append(make("tr", {}, make("td", {}, row.type), make("td", {class: "n"}, row.count === null ? "–" : row.count.toLocaleString("en-US")), make("td", {class: "n"}, percent(row.exact_match)),
      make("td", {class: "n"}, percent(row.baseline)), make("td", {class: "bars", style: "width:40%"}, bar)));
  }
  return make("div", {class: "card"}, table, make("div", {class: "quiet"}, "The mark on a bar is the baseline: always the most frequent answer of that split."));
}

function exampleCard(example) {
  const card = make("div", {class: "card example"});
  if (example.pictures.length) {
    const pictures = make("div", {class: "pictures"});
    for (const source of example.pictures) {
      const picture = make("img", {src: source, alt: ""});
      picture.addEventListener("load", () => picture.classList.toggle("small", picture.naturalHeight < 128));
      pictures.append(picture);
    }
    card.append(pictures);
  }
  card.append(make("div", {class: "question"}, example.question));
  card.append(make("div", {class: "answer " + (example.correct ? "good" : "bad")}, `${example.correct ? "✓" : "✗"} ${example.predicted || "(no answer)"}`));
  if (!example.correct) card.append(make("div", {class: "answer"}, `expected: ${example.expected}`));
  if (example.type) card.append(make("div", {class: "quiet"}, example.type));
  return card;
}

function section(title, ...children) { main.append(make("h2", {}, title), ...children); }

document.title = `${report.title} – training report`;
main.append(make("h1", {}, report.title), make("p", {class: "sub"}, `HyperParallel training report, made ${report.made}`));
main.append(make("div", {class: "tiles"}, ...report.tiles.map(t => make("div", {class: "card tile"}, make("div", {class: "label"}, t.label), make("div", {class: "value"}, t.value), make("div", {class: "note"}, t.note)))));
if (report.charts.length) {
  const cards = report.charts.map(chartCard);
  section("Curves", make("div", {class: "charts"}, ...cards));
  const draw = () => cards.forEach((card, i) => drawChart(card, report.charts[i]));
  draw();
  let waiting;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 100); });
} else section("Curves", make("p", {class: "quiet"}, "No step has been recorded yet."));
if (report.eval) section("Evaluation", evalCard(report.eval));
if (report.examples.length) section("Sample predictions", make("div", {class: "examples"}, ...report.examples.map(exampleCard)));
if (Object.keys(report.facts).length || report.config) {
  const card = make("div", {class: "card"});
  if (Object.keys(report.facts).length) card.append(make("table", {}, ...Object.entries(report.facts).map(([label, value]) => make("tr", {}, make("td", {class: "fact"}, label), make("td", {}, String(value))))));
  if (report.config) card.append(make("details", {}, make("summary", {}, "Configuration"), make("pre", {}, report.config)));
  section("Run", card);
}
</script>
</body>
</html>
)html";

}  // namespace hyperparallel::train
