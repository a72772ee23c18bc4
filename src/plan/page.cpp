#include "plan/page.h"

namespace hyperparallel::plan {

const std::string_view kPlanPage = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Plan</title>
<style>
:root { color-scheme: light dark; --page: #f6f6f3; --card: #ffffff; --ink: #1d1d1b; --muted: #6c6b65; --line: #e4e3de;
  --s0: #2a72d4; --s1: #dd6127; --s2: #168f68; --s3: #b8860b; --s4: #7657cc; --s5: #cc4a88; --s6: #4b7f1f; --s7: #5f6b78; }
@media (prefers-color-scheme: dark) { :root { --page: #151514; --card: #1f1f1e; --ink: #ecebe8; --muted: #9d9c95; --line: #353532;
  --s0: #5b9df0; --s1: #f08a55; --s2: #3dbd91; --s3: #dcae3c; --s4: #a58bf0; --s5: #ee82b4; --s6: #8cc25a; --s7: #98a5b3; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 4px; }
p { margin: 4px 0 12px; color: var(--muted); max-width: 100ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin-top: 16px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.label, .note { color: var(--muted); font-size: 12.5px; }
.value { font-size: 19px; font-weight: 600; line-height: 1.35; }
.buttons { display: flex; flex-wrap: wrap; gap: 6px; margin-bottom: 10px; align-items: center; }
button, select { font: inherit; font-size: 13px; color: var(--ink); background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 2px 10px; cursor: pointer; }
button[aria-pressed=true] { border-color: var(--ink); font-weight: 600; }
button:disabled { color: var(--muted); cursor: default; opacity: .6; }
.ranks { display: grid; gap: 3px; justify-content: start; }
.ranks div { height: 26px; min-width: 26px; border-radius: 4px; color: #fff; font-size: 11.5px; text-align: center; line-height: 26px; padding: 0 3px; font-variant-numeric: tabular-nums; cursor: default; opacity: .85; }
.ranks div.mate { outline: 2.5px solid var(--ink); opacity: 1; }
.ranks .gap { grid-column: 1 / -1; background: none; color: var(--muted); text-align: left; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; color: var(--muted); font-size: 12.5px; margin-bottom: 8px; }
.legend i { display: inline-block; width: 12px; height: 10px; border-radius: 2px; margin-right: 6px; }
svg { display: block; width: 100%; overflow: visible; }
svg text { fill: var(--muted); font-size: 11.5px; font-variant-numeric: tabular-nums; }
svg text.on { fill: #fff; }
svg .hit { cursor: pointer; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: middle; }
tr:last-child td { border-bottom: 0; } th { color: var(--muted); font-weight: 500; font-size: 12.5px; vertical-align: bottom; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.name { overflow-wrap: anywhere; }
td svg { width: 62px; }
.scroll { overflow-x: auto; }
.bar { display: flex; height: 16px; border-radius: 4px; overflow: hidden; background: var(--line); min-width: 120px; }
.bar span { display: block; min-width: 1px; }
#tip { position: fixed; pointer-events: none; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 6px 10px; font-size: 12.5px;
  box-shadow: 0 4px 16px rgb(0 0 0 / 18%); z-index: 2; white-space: pre-line; max-width: 420px; display: none; }
details { margin-top: 10px; } summary { cursor: pointer; color: var(--muted); }
</style>
</head>
<body>
<main id="main"><noscript>This page draws with a script of its own; nothing is loaded from elsewhere. Please allow scripts.</noscript></main>
<div id="tip"></div>
<script id="data" type="application/json">@PLAN_DATA@</script>
<script>
"use strict";
const plan = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main"), tip = document.getElementById("tip");

// Elements: make("p", {class: "x"}, "text", child, ...). Text is never read as HTML.
function make(tag, attributes, ...children) {
  const svg = ["svg", "path", "line", "text", "rect", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function explained(element, text) {
  element.addEventListener("mousemove", event => {
    tip.textContent = text;
    tip.style.display = "block";
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  });
  element.addEventListener("mouseleave", () => { tip.style.display = "none"; });
  return element;
}
function bytes(n) {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (n >= size) return (n / size).toPrecision(3) + " " + unit;
  return n + " B";
}
function count(n) {
  for (const [unit, size] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]]) if (n >= size) return (n / size).toPrecision(3) + " " + unit;
  return String(n);
}
const commas = n => n.toLocaleString("en");
const color = i => `var(--s${i % 8})`;
const volume = shape => shape.reduce((a, b) => a * b, 1);
function section(title, text) {
  main.append(make("h2", {}, title), make("p", {}, text));
  const card = make("div", {class: "card"});
  main.append(card);
  return card;
}
function legend(items) {
  return make("div", {class: "legend"}, ...items.map(([name, fill]) => make("span", {}, make("i", {style: `background:${fill}`}), name)));
}
function table(card, heads, rows) {
  const body = make("tbody", {}, ...rows.map(cells => make("tr", {}, ...cells.map((cell, i) =>
    make("td", {class: heads[i][1] || ""}, cell)))));
  card.append(make("div", {class: "scroll"}, make("table", {}, make("thead", {}, make("tr", {}, ...heads.map(([name, kind]) => make("th", {class: kind || ""}, name)))), body)));
}

// --- head ---
const memory = plan.memory.ranks, sum = list => list.reduce((a, b) => a + b, 0);
const fullest = memory.reduce((best, m, rank) => sum(m) > sum(memory[best]) ? rank : best, 0);
const emptiest = memory.reduce((best, m, rank) => sum(m) < sum(memory[best]) ? rank : best, 0);
const sent = sum(plan.collectives.map(c => c.bytes * c.times));
document.title = "Plan: " + plan.title;
main.append(make("h1", {}, "Plan: " + plan.title), make("div", {class: "tiles"}, ...[
  ["ranks", commas(plan.mesh.world), plan.mesh.axes.filter(a => a.size > 1 && ["dp", "cp", "tp", "ep"].includes(a.name)).map(a => `${a.name} ${a.size}`).join(" · ") || "one process"],
  ["parameters", count(plan.total), commas(plan.total)],
  ["kept by the fullest rank", bytes(sum(memory[fullest])), "parameters, gradients, optimizer"],
  ["at the peak of a step", bytes(sum(plan.memory.peak.map(p => p[2]))), "rank 0, predicted"],
  ["in collectives", bytes(sent), "a step, at the larger end of rank 0"],
].map(([label, value, note]) => make("div", {class: "card"}, make("div", {class: "label"}, label), make("div", {class: "value"}, value), make("div", {class: "note"}, note)))));

// --- mesh ---
const meaning = {
  dp: "Ranks of one colour work on different rows of the global batch.",
  cp: "Ranks of one colour share the tokens of one micro-batch: each has a part of the sequence.",
  tp: "Ranks of one colour see the same tokens and cut attention heads, output groups and vocabulary rows among them.",
  fsdp_replicate: "Ranks of one colour hold the same shards; their gradients are summed once a step.",
  fsdp_shard: "Ranks of one colour hold the shards of the same dense parameters: gathered before use, gradients reduced to their owners.",
  edp: "Ranks of one colour hold the shards of the same experts and the same Engram rows.",
  ep: "Ranks of one colour have all experts and Engram rows among them; tokens travel to the rank that has their expert.",
  sample: "Ranks of one colour work on the same micro-batch (cp x tp); its pictures are spread over them.",
};
function draw_mesh() {
  const card = section("Which rank is where", "A box is a rank, a row of boxes the ranks that work on one micro-batch. The same ranks are cut into groups along several axes: choose one to colour its groups, point at a rank to see its mates.");
  const mesh = plan.mesh, buttons = make("div", {class: "buttons"}), note = make("p", {}), grid = make("div", {class: "ranks"});
  const columns = mesh.row > 1 ? mesh.row : Math.min(16, mesh.world);
  grid.style.gridTemplateColumns = `repeat(${columns}, ${columns > 24 ? "26px" : "44px"})`;
  const cells = [];
  let last = -1;
  for (const r of mesh.ranks) {
    if (r.rank !== last + 1) grid.append(make("div", {class: "gap"}, `⋮ ${commas(r.rank - last - 1)} ranks alike`));
    last = r.rank;
    const cell = explained(make("div", {}, String(r.rank)), `rank ${r.rank}\n` + mesh.axes.map((a, i) => `${a.name} ${r.at[i]} of ${a.size}`).join("\n"));
    cell.addEventListener("mouseenter", () => mates(r));
    cells.push([cell, r]);
    grid.append(cell);
  }
  let axis = 0;
  function mates(of) { for (const [cell, r] of cells) cell.classList.toggle("mate", r.group[axis] === of.group[axis]); }
  function choose(i) {
    axis = i;
    const order = [...new Set(mesh.ranks.map(r => r.group[i]))];
    for (const [cell, r] of cells) cell.style.background = mesh.axes[i].size > 1 ? color(order.indexOf(r.group[i])) : "var(--s7)";
    [...buttons.children].forEach((b, j) => b.setAttribute("aria-pressed", j === i));
    note.textContent = meaning[mesh.axes[i].name] + (mesh.axes[i].size > 1 ? ` ${commas(mesh.world / mesh.axes[i].size)} groups of ${mesh.axes[i].size}` + (order.length > 8 ? "; colours repeat after eight." : ".") + " Outlined: the group of rank 0." : " Here every rank is alone.");
    mates(mesh.ranks[0]);
  }
  mesh.axes.forEach((a, i) => {
    const button = make("button", {}, `${a.name} ${a.size}`);
    button.addEventListener("click", () => choose(i));
    buttons.append(button);
  });
  card.append(buttons, note, grid);
  const first = ["tp", "ep", "cp", "fsdp_shard", "dp"].map(name => mesh.axes.findIndex(a => a.name === name)).find(i => mesh.axes[i].size > 1);
  choose(first === undefined ? 0 : first);
}

// --- who owns what ---
// A parameter as a rectangle: rows down, all else across. Pale: the whole; middle: what rank 0 computes with; dark: what it owns.
function picture(p) {
  const w = 56, h = 40, rows = p.shape[0] || 1, across = p.shape.length > 1 ? p.shape[1] : 1;
  const rect = (box, fill) => {
    const y = h * box.offset[0] / rows, high = Math.max(1.5, h * box.size[0] / rows);
    const x = p.shape.length > 1 ? w * box.offset[1] / across : 0, wide = p.shape.length > 1 ? Math.max(1.5, w * box.size[1] / across) : 10;
    return make("rect", {x, y: Math.min(y, h - 1.5), width: box.size.some(n => n === 0) ? 0 : wide, height: high, fill});
  };
  const whole = {offset: p.shape.map(() => 0), size: p.shape};
  return explained(make("svg", {viewBox: `0 0 ${w} ${h}`, height: h, style: "width:62px"},
    rect(whole, "var(--line)"), rect(p.computed, "color-mix(in srgb, var(--s0) 40%, var(--card))"), rect(p.owned, "var(--s0)")),
    `${p.name}\nwhole ${p.shape.join(" x ")}\nrank 0 computes with ${p.computed.size.join(" x ")} from ${p.computed.offset.join(", ")}\nand owns ${p.owned.size.join(" x ")} from ${p.owned.offset.join(", ")}`);
}
function draw_owners() {
  const card = section("Who owns what", "Parameters are cut twice: over tp or ep for computing (each rank of the axis works with its part), and that part once more into shards, of which each rank keeps master, gradient and optimizer state. Names with * stand for all layers; those that take most come first.");
  const parts = Object.entries(plan.parts);
  card.append(legend(parts.map(([name, n], i) => [`${name} ${count(n)}`, color(i)])));
  card.append(make("div", {class: "bar"}, ...parts.map(([name, n], i) => explained(make("span", {style: `width:${100 * n / plan.total}%;background:${color(i)}`}), `${name}: ${commas(n)} parameters`))));
  card.append(make("div", {style: "height:14px"}), legend([["whole parameter", "var(--line)"], ["rank 0 computes with", "color-mix(in srgb, var(--s0) 40%, var(--card))"], ["rank 0 owns", "var(--s0)"]]));
  const kept = p => p.count * volume(p.owned.size);
  const rows = [...plan.parameters].sort((a, b) => kept(b) - kept(a)).map(p => [
    picture(p), p.name, p.part, p.count > 1 ? `${p.count} x` : "", p.shape.join(" x "), p.role, p.cut || "not cut", p.shard || "whole on all",
    bytes(volume(p.owned.size) * 4), p.unit ? (p.trained ? p.summed || "shards alone" : "no gradient") : "no forward yet", p.update]);
  const heads = [["", ""], ["parameter", "name"], ["part"], ["layers", "n"], ["shape"], ["role"], ["cut"], ["shards"], ["rank 0 owns", "n"], ["gradient summed over"], ["update"]];
  const keep = 14;
  table(card, heads, rows.slice(0, keep));
  if (rows.length <= keep) return;
  const more = make("details", {}, make("summary", {}, `the other ${rows.length - keep} kinds`));
  card.append(more);
  table(more, heads, rows.slice(keep));
}

// --- time line ---
const events = plan.timeline.events.map(([name, kind, axis, lane, region, begin, end, size]) => ({name, kind, axis, lane, region, begin, end, size}));
const fills = {forward: "var(--s0)", recompute: "var(--s7)", backward: "var(--s1)", "all-gather": "var(--s2)", "reduce-scatter": "var(--s4)", "all-reduce": "var(--s5)", "all-to-all": "var(--s3)"};
// Segments that run one after another in one layer and one direction.
function runs_of() {
  const runs = [];
  for (const e of events) {
    if (e.lane !== "compute") continue;
    const direction = e.kind === "backward" || e.kind === "recompute" ? "backward" : "forward", now = runs[runs.length - 1];
    if (now && now.region === e.region && now.direction === direction) { now.end = e.end; now.segments.push(e); continue; }
    runs.push({region: e.region, direction, begin: e.begin, end: e.end, segments: [e]});
  }
  for (const run of runs) run.name = run.region < 0 ? run.segments[0].name + (run.segments.length > 1 ? " .. " + run.segments[run.segments.length - 1].name : "") : plan.timeline.regions[run.region];
  return runs;
}
function draw_timeline() {
  const few = plan.timeline.micro_batches;
  const card = section("The step in order", `What rank 0 does in ${few > 1 ? `one of ${few} micro-batches` : "its micro-batch"} of a step, from left to right. A plan knows no durations: every segment of computation has the same width. A collective lies from where it starts to where its result is waited for, so what is computed above it can hide it; a thin line is waited for at once. Height tells its bytes. Click into the picture to see a layer large.`);
  card.append(legend(Object.entries(fills)));
  const runs = runs_of(), last = Math.max(1, ...events.map(e => e.end)), w = 1140, left = 96, x = t => left + (w - left) * t / last;
  const lanes = {compute: [18, 30], critical: [62, 54], bulk: [130, 54]}, below = 198, deep = 60, h = below + deep + 20;
  const svg = make("svg", {viewBox: `0 0 ${w} ${h}`, height: h});
  for (const [lane, label, under] of [["compute", "computation", ""], ["critical", "values", "between segments"], ["bulk", "parameters,", "gradients"]]) {
    const [y, high] = lanes[lane];
    svg.append(make("text", {x: 0, y: y + 13}, label), make("text", {x: 0, y: y + 27}, under), make("line", {x1: left, x2: w, y1: y + high, y2: y + high, stroke: "var(--line)"}));
  }
  const largest = {};
  for (const e of events) largest[e.lane] = Math.max(largest[e.lane] || 1, e.size);
  for (const run of runs) for (const e of run.segments)
    svg.append(make("rect", {x: x(e.begin), y: lanes.compute[0] + (run.segments.length && runs.indexOf(run) % 2 ? 3 : 0), width: Math.max(.5, x(e.end) - x(e.begin)), height: 24, fill: fills[e.kind]}));
  let turn = events.find(e => e.kind === "backward");
  if (turn) svg.append(make("line", {x1: x(turn.begin), x2: x(turn.begin), y1: 8, y2: h - 14, stroke: "var(--muted)", "stroke-dasharray": "3 3"}),
    make("text", {x: x(turn.begin) - 6, y: 12, "text-anchor": "end"}, "forward"), make("text", {x: x(turn.begin) + 6, y: 12}, "backward"));
  for (const e of events) {
    if (e.lane === "compute") continue;
    const [y, high] = lanes[e.lane], tall = Math.max(2, high * Math.sqrt(e.size / largest[e.lane]));
    svg.append(explained(make("rect", {x: x(e.begin) - (e.end === e.begin ? 1 : 0), y: y + high - tall, width: Math.max(2, x(e.end) - x(e.begin)), height: tall, fill: fills[e.kind], "fill-opacity": .72}),
      `${e.name}\n${e.kind} over ${e.axis}, ${bytes(e.size)}`));
  }
  const curve = plan.memory.curve, top = Math.max(1, ...curve);
  svg.append(make("text", {x: 0, y: below + 13}, "memory"), make("text", {x: 0, y: below + 27}, `to ${bytes(top)}`), make("line", {x1: left, x2: w, y1: below + deep, y2: below + deep, stroke: "var(--line)"}));
  const height = n => below + deep - deep * n / top;
  svg.append(make("path", {d: `M${x(0)} ${below + deep}` + curve.map((n, t) => `L${x(t)} ${height(n)}L${x(t + 1)} ${height(n)}`).join("") + `L${x(curve.length)} ${below + deep}Z`, fill: "var(--s6)", "fill-opacity": .5}));
  curve.forEach((n, t) => svg.append(explained(make("rect", {x: x(t), y: below, width: Math.max(.5, x(1) - x(0)), height: deep, fill: "transparent"}), `${bytes(n)} at most`)));
  const frame = make("rect", {y: 6, height: h - 18, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5, rx: 3});
  svg.append(frame);
  let free = 0;
  for (const run of runs) {
    const text = run.name.replace("layers.", "layer ").replace("vision.blocks.", "block ").split(" .. ")[0].slice(0, 13);
    if (x(run.begin) < free || x(run.begin) > w - 50) continue;
    svg.append(make("text", {x: x(run.begin), y: h - 1}, text));
    free = x(run.begin) + Math.max(70, 7.5 * text.length);
  }
  card.append(make("div", {class: "scroll"}, svg));

  const choice = make("select", {}, ...runs.map((run, i) => make("option", {value: i}, `${run.name}, ${run.direction}`)));
  const back = make("button", {}, "earlier"), on = make("button", {}, "later"), detail = make("div", {class: "scroll"});
  card.append(make("div", {class: "buttons", style: "margin-top:16px"}, make("span", {class: "label"}, "large:"), choice, back, on), detail);
  function show(i) {
    choice.value = i;
    back.disabled = i === 0;
    on.disabled = i === runs.length - 1;
    frame.setAttribute("x", x(runs[i].begin) - 1);
    frame.setAttribute("width", Math.max(4, x(runs[i].end) - x(runs[i].begin) + 2));
    detail.replaceChildren(draw_run(runs[i]));
  }
  choice.addEventListener("change", () => show(Number(choice.value)));
  back.addEventListener("click", () => show(Number(choice.value) - 1));
  on.addEventListener("click", () => show(Number(choice.value) + 1));
  svg.addEventListener("click", event => {
    const box = svg.getBoundingClientRect(), t = ((event.clientX - box.left) * w / box.width - left) / (w - left) * last;
    const i = runs.findIndex(run => t >= run.begin && t < run.end);
    if (i >= 0) show(i);
  });
  const middle = runs.filter(run => run.direction === "forward" && run.region >= 0), most = Math.max(0, ...middle.map(run => run.segments.length));
  show(Math.max(0, runs.indexOf(middle.find(run => run.segments.length === most))));
}
// One layer: its segments side by side, and below them what is sent, each on a line of its own.
function draw_run(run) {
  const inside = events.filter(e => e.lane !== "compute" && e.end >= run.begin && e.begin <= run.end && !(e.end === run.begin && e.begin < run.begin) && !(e.begin === run.end && e.end > run.end));
  const w = 1140, left = 10, wide = (w - 2 * left) / (run.end - run.begin), x = t => left + (Math.min(Math.max(t, run.begin), run.end) - run.begin) * wide;
  const top = 52, row = 20, h = top + 8 + inside.length * row + 4, svg = make("svg", {viewBox: `0 0 ${w} ${h}`, height: h});
  const short = name => run.region < 0 ? name : name.replace(plan.timeline.regions[run.region] + ".", "");
  for (const e of run.segments) {
    svg.append(explained(make("rect", {x: x(e.begin) + 1, y: 4, width: Math.max(1, wide - 2), height: 44, rx: 4, fill: fills[e.kind]}), `${e.kind} of ${e.name}`));
    const text = short(e.name), fits = Math.floor(wide / 6.6), pieces = [];
    let line = "";
    for (const piece of text.split(/(?<=[._])/)) { if ((line + piece).length > fits && line) { pieces.push(line); line = ""; } line += piece; }
    pieces.push(line);
    const lines = Math.min(3, pieces.length);
    pieces.slice(0, lines).forEach((piece, i) => svg.append(make("text", {class: "on", x: x(e.begin) + wide / 2, y: 31 - 6.5 * lines + 13 * i, "text-anchor": "middle", "pointer-events": "none"}, piece.slice(0, fits + 1))));
    svg.append(make("line", {x1: x(e.end), x2: x(e.end), y1: 50, y2: h, stroke: "var(--line)"}));
  }
  inside.forEach((e, i) => {
    const y = top + 6 + i * row, at = x(e.begin), width = Math.max(4, x(e.end) - at), begin = e.end === e.begin ? at - 2 : at;
    const text = `${short(e.name)}  ·  ${e.kind} over ${e.axis}  ·  ${bytes(e.size)}` + (e.begin < run.begin ? "  ·  set out earlier" : "") + (e.end > run.end ? "  ·  waited for later" : "");
    svg.append(explained(make("rect", {x: begin, y, width, height: row - 5, rx: 2, fill: fills[e.kind]}), `${e.name}\n${e.kind} over ${e.axis}\n${bytes(e.size)}`));
    const before = begin > w * .62;
    svg.append(make("text", {x: before ? begin - 6 : begin + width + 6, y: y + 12, "text-anchor": before ? "end" : "start", "pointer-events": "none"}, text));
  });
  if (!inside.length) svg.append(make("text", {x: left, y: top + 14}, "nothing is sent here"));
  return svg;
}

// --- memory ---
function draw_memory() {
  const card = section("Memory", "What a rank keeps from step to step, and beside it for a while.");
  const names = ["parameters", "gradients", "optimizer"], most = sum(memory[fullest]);
  card.append(legend(names.map((name, i) => [name, color(i)])));
  const bar = m => make("div", {class: "bar"}, ...m.map((n, i) => explained(make("span", {style: `width:${100 * n / Math.max(1, most)}%;background:${color(i)}`}), `${names[i]}: ${bytes(n)}`)));
  const lines = memory.length <= 16 ? memory.map((m, rank) => [`rank ${rank}`, m]) : [[`fullest, rank ${fullest}`, memory[fullest]], ["rank 0", memory[0]], [`emptiest, rank ${emptiest}`, memory[emptiest]]];
  table(card, [["", "name"], ["parameters", "n"], ["gradients", "n"], ["optimizer", "n"], ["together", "n"], ["", ""]], lines.map(([name, m]) => [name, ...m.map(bytes), bytes(sum(m)), bar(m)]));
  const peak = plan.memory.peak, highest = sum(peak.map(p => p[2]));
  card.append(make("div", {style: "height:18px"}), make("div", {class: "value"}, `${bytes(highest)} at the peak of a step on rank 0`),
    make("div", {class: "note"}, `predicted, in the ${plan.memory.where}`), make("div", {style: "height:6px"}));
  card.append(make("div", {class: "bar"}, ...peak.map(([, meaning, n], i) => explained(make("span", {style: `width:${100 * n / highest}%;background:${color(i)};${i > 7 ? "opacity:.55" : ""}`}), `${meaning}: ${bytes(n)}`))));
  table(card, [["", ""], ["", "name"], ["", "n"]], peak.filter(p => p[2] > 0).map(p => [make("div", {style: `width:12px;height:12px;border-radius:3px;background:${color(peak.indexOf(p))};${peak.indexOf(p) > 7 ? "opacity:.55" : ""}`}), p[1], bytes(p[2])]));
}

// --- what is sent ---
function draw_sent() {
  const card = section("What is sent in a step", "All collectives that rank 0 takes part in, those with most bytes first.");
  const rows = [...plan.collectives].sort((a, b) => b.bytes * b.times - a.bytes * a.times);
  if (!rows.length) return card.append("Nothing: every group has one rank.");
  const most = rows[0].bytes * rows[0].times;
  const lines = rows.map(c => [c.name, c.kind, `${c.axis}, ${c.ranks} ranks`, c.when, `${c.times} x`, bytes(c.bytes), bytes(c.bytes * c.times),
    make("div", {class: "bar"}, make("span", {style: `width:${100 * c.bytes * c.times / most}%;background:${fills[c.kind]}`}))]);
  const heads = [["collective", "name"], ["kind"], ["over"], ["when"], ["times", "n"], ["each", "n"], ["together", "n"], ["", ""]];
  table(card, heads, lines.slice(0, 12));
  if (lines.length <= 12) return;
  const more = make("details", {}, make("summary", {}, `the other ${lines.length - 12}`));
  card.append(more);
  table(more, heads, lines.slice(12));
}

draw_mesh();
draw_owners();
draw_timeline();
draw_memory();
draw_sent();
</script>
</body>
</html>
)html";

}  // namespace hyperparallel::plan
