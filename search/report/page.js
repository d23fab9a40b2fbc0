"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const COLORS = 8;
const SHOWN = 200;

// -- values and their formats

const at = (name, i) => (name in D.constant ? D.constant[name] : name in D.rows ? D.rows[name][i] : null);
const all = Array.from({ length: D.count }, (_, i) => i);
const digits = (x, n = 3) => (x === 0 ? "0" : Math.abs(x) >= 10 ** n ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(n)));
const scaled = (x, steps) => {
  const [size, unit] = steps.find(([size]) => Math.abs(x) >= size) || steps[steps.length - 1];
  return `${digits(x / size)} ${unit}`;
};
const FORMAT = {
  B: (x) => scaled(x, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [1, "B"]]),
  s: (x) => scaled(x, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]),
  d: (x) => `${digits(x)} d`,
  h: (x) => `${digits(x)} h`,
  $: (x) => `$${x >= 1e6 ? `${digits(x / 1e6)} M` : digits(x)}`,
  J: (x) => scaled(x, [[3.6e12, "GWh"], [3.6e9, "MWh"], [3.6e6, "kWh"]]),
  "%": (x) => `${digits(100 * x)} %`,
  1: (x) => (typeof x === "number" ? digits(x, 4) : String(x)),
};
const format = (unit, x) => (x === null || x === undefined ? "–" : (FORMAT[unit] || FORMAT[1])(x));
const range = (unit, name, i) => {
  const ends = [at(`${name}_low`, i), at(`${name}_high`, i)];
  return ends[0] === null ? "" : `${format(unit, ends[0])} to ${format(unit, ends[1])}`;
};
const words = (name) => name.replace(/^(time|memory)_/, "").replaceAll("_", " ");
const layout = (i) => {
  const degrees = ["tp", "pp", "vpp", "cp", "ep", "etp"].filter((name) => at(name, i) > 1).map((name) => `${name}${at(name, i)}`);
  return [...degrees, `dp${at("dp", i)}`, `zero${at("zero_stage", i)}`, `mb${at("micro_batch", i)}`, at("recompute", i)].join(" ");
};
const naming = ["model", "cluster", ...D.settings].filter((name) => name === "cluster" || !(name in D.constant));
const machine = (i) => naming.map((name) => at(name, i)).join(", ");

// -- elements

function element(tag, attributes = {}, ...inside) {
  const made = ["svg", "g", "line", "path", "circle", "text", "polygon"].includes(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...inside.filter((part) => part !== null));
  return made;
}
const section = (title, note, ...inside) => {
  const made = element("section", {}, element("h2", {}, title), note ? element("p", { class: "note" }, note) : null, ...inside);
  main.append(made);
  return made;
};
const paint = (number) => `var(--c${number < COLORS ? number : COLORS - 1})`;

// -- one chart: points, joined by lines and banded by intervals where asked

function ticks(low, high, log) {
  if (log) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const step of [1, 2, 5]) found.push(step * 10 ** power);
    const inside = found.filter((x) => x >= low * 0.999 && x <= high * 1.001);
    return inside.length > 9 ? inside.filter((x) => String(x).replace(/[.0]/g, "") === "1" || inside.length < 13) : inside;
  }
  const raw = (high - low) / 6 || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= raw);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step / 1e6; x += step) found.push(+x.toPrecision(12));
  return found;
}

function axis(spec, values) {
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) [low, high] = spec.log ? [low / 1.5, high * 1.5] : [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
  if (spec.log) [low, high] = [low / (high / low) ** 0.03, high * (high / low) ** 0.03];
  else [low, high] = [low - (high - low) * 0.04, high + (high - low) * 0.04];
  const place = spec.log ? (x) => Math.log(x / low) / Math.log(high / low) : (x) => (x - low) / (high - low);
  return { place, ticks: spec.ticks || ticks(low, high, spec.log) };
}

function chart(title, { x, y, series, tell, choose }) {
  const box = element("div", { class: "chart" });
  const tip = element("div", { class: "tip", role: "status", hidden: "" });
  const points = series.flatMap((part) => part.points.map((point) => ({ ...point, color: part.color })));
  points.sort((a, b) => a.x - b.x || a.y - b.y);
  let chosen = null;
  let marks = [];

  function show(number) {
    const point = points[number];
    chosen = number;
    marks.forEach((mark, n) => mark.classList.toggle("chosen", n === number));
    tip.replaceChildren(...tell(point.i));
    tip.hidden = false;
    const mark = marks[number].getBoundingClientRect(), frame = box.getBoundingClientRect();
    const left = mark.left - frame.left + 14, width = tip.offsetWidth;
    tip.style.left = `${Math.max(0, left + width > frame.width ? left - width - 24 : left)}px`;
    tip.style.top = `${Math.max(0, mark.top - frame.top - tip.offsetHeight / 2)}px`;
  }
  function hide() {
    tip.hidden = true;
    marks.forEach((mark) => mark.classList.remove("chosen"));
  }
  function key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (step) show(Math.min(points.length - 1, Math.max(0, chosen === null ? 0 : chosen + step)));
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(points.length - 1);
    else if ((event.key === "Enter" || event.key === " ") && chosen !== null) choose(points[chosen].i);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  }
  function draw() {
    const width = Math.max(300, box.clientWidth || 640), height = Math.min(420, Math.max(240, width * 0.5));
    const edge = { left: 62, right: 14, top: 10, bottom: 44 };
    const across = axis(x, points.map((point) => point.x));
    const up = axis(y, points.flatMap((point) => [point.y, ...(point.low === undefined ? [] : [point.low, point.high])]));
    const px = (value) => edge.left + across.place(value) * (width - edge.left - edge.right);
    const py = (value) => height - edge.bottom - up.place(value) * (height - edge.top - edge.bottom);
    const drawn = element("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application", "aria-label":
      `${title}. Arrow keys walk over ${points.length} points, Enter chooses one.`, onkeydown: key, onblur: hide });
    for (const tick of across.ticks)
      drawn.append(element("line", { class: "grid", x1: px(tick), x2: px(tick), y1: edge.top, y2: height - edge.bottom }),
        element("text", { x: px(tick), y: height - edge.bottom + 18, "text-anchor": "middle" }, x.format(tick)));
    for (const tick of up.ticks)
      drawn.append(element("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: py(tick), y2: py(tick) }),
        element("text", { x: edge.left - 8, y: py(tick) + 4, "text-anchor": "end" }, y.format(tick)));
    drawn.append(element("text", { x: (width + edge.left) / 2, y: height - 6, "text-anchor": "middle" }, x.label),
      element("text", { x: 14, y: height / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${height / 2})` }, y.label));
    for (const part of series) {
      const ends = part.points.filter((point) => point.low !== undefined);
      if (ends.length > 1) {
        const outline = [...ends.map((p) => [p.x, p.high]), ...ends.toReversed().map((p) => [p.x, p.low])];
        drawn.append(element("polygon", { points: outline.map(([a, b]) => `${px(a)},${py(b)}`).join(" "), fill: part.color, opacity: 0.16 }));
      }
      if (part.joined)
        drawn.append(element("path", { d: part.points.map((p, n) => `${n ? "L" : "M"}${px(p.x)} ${py(p.y)}`).join(""), fill: "none",
          stroke: part.color, "stroke-width": 2, "stroke-dasharray": part.dashed ? "5 4" : null }));
    }
    const size = points.length > 400 ? 3 : 5;
    marks = points.map((point, n) => element("circle", { class: "point", cx: px(point.x), cy: py(point.y), r: size, fill: point.color,
      onpointerenter: () => show(n), onpointerleave: hide, onclick: () => { show(n); choose(point.i); } }));
    drawn.append(...marks);
    box.replaceChildren(drawn, tip);
  }
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(box);
  return box;
}

function legend(entries) {
  return element("ul", { class: "legend" }, ...entries.map(([name, color]) =>
    element("li", {}, element("i", { style: `background:${color}` }), name)));
}

// -- where time and memory go

const ranked = (terms) => {
  const sum = (name) => all.slice(0, 50).reduce((total, i) => total + (at(name, i) || 0), 0);
  return [...terms].sort((a, b) => sum(b) - sum(a));
};
const TERMS = { time: ranked(D.terms.time), memory: ranked(D.terms.memory) };
const colorOf = (kind, name) => paint(TERMS[kind].indexOf(name));

function bar(kind, i, whole) {
  const parts = TERMS[kind].filter((name) => at(name, i) > 0);
  const text = parts.map((name) => `${words(name)} ${format(kind === "time" ? "s" : "B", at(name, i))}`).join(", ");
  return element("div", { class: "bar", role: "img", "aria-label": text, title: text }, ...parts.map((name) =>
    element("i", { style: `width:${(100 * at(name, i)) / whole}%;background:${colorOf(kind, name)}` })));
}

function termTable(kind, i) {
  const unit = kind === "time" ? "s" : "B";
  const total = at(kind === "time" ? "step_time" : "memory", i);
  const rows = TERMS[kind].filter((name) => at(name, i) > 0).sort((a, b) => at(b, i) - at(a, i));
  return element("table", {}, element("tbody", {}, ...rows.map((name) =>
    element("tr", { title: D.columns[name].meaning },
      element("td", {}, element("i", { style: `background:${colorOf(kind, name)}` }), words(name)),
      element("td", { class: "n" }, format(unit, at(name, i))),
      element("td", { class: "n" }, format("%", at(name, i) / total))))));
}

const detail = element("div", { "aria-live": "polite" });
function choose(i) {
  const usable = at("memory", i) + at("memory_headroom", i);
  const stages = at("layers_per_stage", i);
  const facts = [
    D.kind === "sweep" ? `${machine(i)}, ${at("gpus", i).toLocaleString("en")} GPUs, batch ${at("global_batch", i).toLocaleString("en")}` : `rank ${at("rank", i)} of ${D.count}`,
    `${at("schedule", i)}, ZeRO over ${at("dp_shard", i)} ranks${at("sequence_parallel", i) ? ", sequence parallel" : ""}`,
    stages ? `layers per stage ${stages.join(" ")}` : null,
    at("calibrated", i) === false ? "outside of the calibrated range" : null,
  ].filter(Boolean);
  detail.replaceChildren(
    element("h2", {}, layout(i)), element("p", { class: "note" }, facts.join(" · ")),
    element("div", { class: "two" },
      element("div", {}, element("p", {}, `step ${format("s", at("step_time", i))}, MFU ${format("%", at("mfu", i))} `,
        element("span", { class: "note" }, range("s", "step_time", i))), bar("time", i, at("step_time", i)), termTable("time", i)),
      element("div", {}, element("p", {}, `memory ${format("B", at("memory", i))} of ${format("B", usable)} `,
        element("span", { class: "note" }, range("B", "memory", i))), bar("memory", i, usable), termTable("memory", i))));
  document.querySelectorAll("tr[data-row]").forEach((row) => row.classList.toggle("on", Number(row.dataset.row) === i));
}

function bars(rows, label) {
  const longest = D.kind === "sweep" ? null : Math.max(...rows.map((i) => at("step_time", i)));
  const list = (kind) => element("div", { class: "bars" }, ...rows.map((i) => {
    const whole = kind === "time" ? longest ?? at("step_time", i) : at("memory", i) + at("memory_headroom", i);
    const shown = format(kind === "time" ? "s" : "B", at(kind === "time" ? "step_time" : "memory", i));
    return element("div", { class: "row" },
      element("button", { type: "button", onclick: () => choose(i), "aria-label": `${label(i)}: show its terms` }, label(i)),
      bar(kind, i, whole), element("span", { class: "n" }, shown));
  }));
  const named = (kind) => {
    const used = TERMS[kind].filter((name) => rows.some((i) => at(name, i) > 0));
    const first = used.slice(0, COLORS - 1).map((name) => [words(name), colorOf(kind, name)]);
    return legend(used.length >= COLORS ? [...first, ["other", paint(COLORS - 1)]] : first);
  };
  return element("div", {}, element("p", {}, longest ? "Time of a step" : "Shares of a step's time"), named("time"), list("time"),
    element("p", {}, "Memory of the neediest stage, against what a GPU has"), named("memory"), list("memory"));
}

// -- a table that sorts and filters

function table(columns, rows) {
  let sorted = { column: null, down: false };
  const input = element("input", { type: "search", placeholder: "filter", "aria-label": "Filter the table", oninput: fill });
  const note = element("span", { class: "note", role: "status" });
  const body = element("tbody");
  const heads = columns.map((column) => element("th", { class: column.number ? "n" : "", scope: "col", title: column.title || "" },
    element("button", { type: "button", onclick: () => {
      sorted = { column, down: sorted.column === column ? !sorted.down : false };
      fill();
    } }, column.name)));
  function fill() {
    const asked = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = rows.filter((row) => {
      const text = columns.map((column) => column.text(row)).join(" ").toLowerCase();
      return asked.every((word) => text.includes(word));
    });
    if (sorted.column) {
      const value = sorted.column.value;
      const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
      const known = (x) => x !== null && x !== undefined;
      matching.sort((a, b) => known(value(b)) - known(value(a)) || (known(value(a)) ? compare(value(a), value(b)) * (sorted.down ? -1 : 1) : 0));
    }
    heads.forEach((head, n) => head.setAttribute("aria-sort", columns[n] === sorted.column ? (sorted.down ? "descending" : "ascending") : "none"));
    body.replaceChildren(...matching.slice(0, SHOWN).map((row) => element("tr", row.i === undefined ? {} : {
      tabindex: 0, "data-row": row.i, onclick: () => choose(row.i),
      onkeydown: (event) => { if (event.key === "Enter") choose(row.i); },
    }, ...columns.map((column) => element("td", { class: column.number ? "n" : row.i === undefined ? "" : "t" }, column.text(row))))));
    note.textContent = matching.length > SHOWN ? `${matching.length} rows, the first ${SHOWN} are shown` : `${matching.length} rows`;
  }
  fill();
  return element("div", {}, element("div", { class: "filter" }, input, note),
    element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)));
}
const column = (name, unit, title, value, shown) => ({ name, title, number: unit !== "text", value, text: shown || ((row) => format(unit, value(row))) });

// -- the two kinds of page

function cards(entries) {
  main.append(element("div", { class: "cards" }, ...entries.map(([name, value, note]) =>
    element("div", { class: "card" }, element("span", {}, name), element("b", {}, value), element("span", {}, note)))));
}

function frontierPage() {
  const roomy = all.reduce((best, i) => (at("memory_headroom", i) > at("memory_headroom", best) ? i : best), 0);
  cards([
    ["Best MFU", format("%", at("mfu", 0)), layout(0)],
    ["Step time", format("s", at("step_time", 0)), range("s", "step_time", 0)],
    ["Tokens per second and GPU", format("1", at("tokens_per_second_per_gpu", 0)), `${format("%", at("communication_overhead", 0))} of the step is exposed communication`],
    ["Most headroom", format("B", at("memory_headroom", roomy)), `at ${format("%", at("mfu", roomy))} MFU`],
  ]);
  section("MFU against memory headroom", "Each point is a layout that no other beats in both. Hover or walk with the arrow keys; click, or press Enter, for its terms.",
    chart("MFU against memory headroom", {
      x: { label: "memory headroom, GiB", format: (v) => digits(v) }, y: { label: "MFU, %", format: (v) => digits(v) },
      series: [{ color: paint(0), points: all.map((i) => ({ i, x: at("memory_headroom", i) / 2 ** 30, y: 100 * at("mfu", i) })) }],
      tell: (i) => [element("b", {}, layout(i)), `MFU ${format("%", at("mfu", i))}, step ${format("s", at("step_time", i))}, headroom ${format("B", at("memory_headroom", i))}`],
      choose,
    }));
  section("The chosen layout", "", detail);
  section("Where time and memory go", "The first layouts of the frontier.", bars(all.slice(0, 10), (i) => `#${at("rank", i)}`));
  section("All layouts", "", table([
    column("#", "1", "rank", (row) => at("rank", row.i)),
    column("layout", "text", "", (row) => layout(row.i)),
    column("MFU", "%", D.columns.mfu.meaning, (row) => at("mfu", row.i)),
    column("step", "s", "", (row) => at("step_time", row.i)),
    column("tokens/s/GPU", "1", "", (row) => at("tokens_per_second_per_gpu", row.i)),
    column("memory", "B", D.columns.memory.meaning, (row) => at("memory", row.i)),
    column("headroom", "B", "", (row) => at("memory_headroom", row.i)),
    column("communication", "%", D.columns.communication_overhead.meaning, (row) => at("communication_overhead", row.i)),
  ], all.map((i) => ({ i }))));
  choose(0);
}

function sweepPage() {
  const best = D.best;
  const machines = [...new Set(best.map(machine))];
  const color = (i) => paint(machines.indexOf(machine(i)) % COLORS);
  const tell = (i) => [element("b", {}, `${machine(i)}, ${at("gpus", i).toLocaleString("en")} GPUs`),
    `${format("d", at("days_to_train", i))} (${range("d", "days_to_train", i)}), ${format("$", at("cost", i))}, MFU ${format("%", at("mfu", i))}; ${layout(i)}`];
  const least = (name) => best.filter((i) => at(name, i) !== null).reduce((a, b) => (a === null || at(name, b) < at(name, a) ? b : a), null);
  cards([["Cheapest", "cost", "$"], ["Fastest", "days_to_train", "d"], ["Least energy", "energy", "J"]].map(([name, key, unit]) => {
    const i = least(key);
    return i === null ? [name, "–", "no price known"] : [name, format(unit, at(key, i)), `${at("gpus", i).toLocaleString("en")} GPUs, ${machine(i)}; ${range(unit, key, i)}`];
  }));
  const sizes = [...new Set(best.map((i) => at("gpus", i)))].sort((a, b) => a - b);
  const every = Math.ceil(sizes.length / 8);
  const gpus = { label: "GPUs", log: true, ticks: sizes.filter((_, n) => n % every === 0), format: (v) => v.toLocaleString("en") };
  const against = (name) => machines.map((one) => {
    const own = best.filter((i) => machine(i) === one && at(name, i) !== null).sort((a, b) => at("gpus", a) - at("gpus", b));
    return { color: paint(machines.indexOf(one) % COLORS), joined: true, points: own.map((i) => ({ i, x: at("gpus", i), y: at(name, i), low: at(`${name}_low`, i), high: at(`${name}_high`, i) })) };
  });
  const names = () => legend(machines.map((one, n) => [one, paint(n % COLORS)]));
  const bands = "The band is the central 80 % of the prediction. Click a point for its terms.";
  section("Days to train against size", bands, names(), chart("Days to train against size",
    { x: gpus, y: { label: "days", log: true, format: (v) => digits(v) }, series: against("days_to_train"), tell, choose }));
  if (best.some((i) => at("cost", i) !== null)) {
    section("Cost against size", bands, names(), chart("Cost against size",
      { x: gpus, y: { label: "cost, $ M", log: false, format: (v) => digits(v / 1e6) }, series: against("cost"), tell, choose }));
    const priced = best.filter((i) => at("cost", i) !== null);
    const line = all.filter((i) => at("pareto", i)).sort((a, b) => at("cost", a) - at("cost", b));
    section("Cost against time", "The dashed line joins what nothing else beats in both.", names(), chart("Cost against time", {
      x: { label: "cost, $ M", format: (v) => digits(v / 1e6) }, y: { label: "days", log: true, format: (v) => digits(v) },
      series: [
        ...[...new Set(line.map((i) => at("model", i)))].map((model) => ({ color: "var(--soft)", joined: true, dashed: true,
          points: line.filter((i) => at("model", i) === model).map((i) => ({ i, x: at("cost", i), y: at("days_to_train", i) })) })),
        ...priced.map((i) => ({ color: color(i), points: [{ i, x: at("cost", i), y: at("days_to_train", i) }] })),
      ], tell, choose }));
  }
  if (D.knees.length) section("The knee", "The last size whose GPUs still gain four fifths of what full scaling would.", element("ul", {}, ...D.knees.map((text) => element("li", {}, text))));
  section("The chosen layout", "", detail);
  section("Where time and memory go", "The best layout of each machine and size.", bars(best.slice(0, 24), (i) => `${machine(i)} ${at("gpus", i).toLocaleString("en")}`));
  const fits = (row) => row.i !== undefined;
  const of = (name) => (row) => (fits(row) ? at(name, row.i) : null);
  section("Every machine and size", "Click a head to sort; a row for its terms.", table([
    ...["model", "cluster", ...D.settings].map((name) => column(name, "text", "", (row) => (fits(row) ? String(at(name, row.i)) : String(row[name])))),
    column("GPUs", "1", "", (row) => (fits(row) ? at("gpus", row.i) : row.gpus), (row) => (fits(row) ? at("gpus", row.i) : row.gpus).toLocaleString("en")),
    column("layout", "text", "", (row) => (fits(row) ? layout(row.i) : row.reason)),
    column("MFU", "%", "", of("mfu")),
    column("days", "d", D.columns.days_to_train.meaning, of("days_to_train"), (row) => (fits(row) ? `${format("d", at("days_to_train", row.i))}` : "–")),
    column("range", "text", "central 80 %", of("days_to_train"), (row) => (fits(row) ? range("d", "days_to_train", row.i) : "")),
    column("cost", "$", D.columns.cost.meaning, of("cost")),
    column("GPU-hours", "h", "", of("gpu_hours")),
    column("energy", "J", D.columns.energy.meaning, of("energy")),
    column("scaling", "%", D.columns.scaling_efficiency.meaning, of("scaling_efficiency")),
  ], [...best.map((i) => ({ i })), ...D.reasons]));
  choose(least("cost") ?? best[0]);
}

function rest() {
  if (D.account) {
    const most = Math.max(...D.account.lines.map((line) => line.count), 1);
    section("The account of the space", D.account.summary, element("div", { class: "bars" }, ...D.account.lines.map((line) =>
      element("div", { class: "row" }, element("span", {}, line.rule),
        element("div", { class: "bar", role: "img", title: line.text, "aria-label": `${line.count} candidates, ${line.text}` },
          element("i", { style: `width:${(100 * line.count) / most}%;background:var(--c0)` })),
        element("span", { class: "n" }, line.count.toLocaleString("en"))))));
  }
  section("Assumptions and sources", "What went in, each figure with its tag and source.", ...D.sources.map((group, n) =>
    element("details", n ? {} : { open: "" }, element("summary", {}, group.name), element("div", { class: "scroll" },
      element("table", {}, element("tbody", {}, ...group.rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell)))))))))); 
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
if (D.kind === "sweep" && D.best.length) sweepPage();
else if (D.kind === "frontier" && D.count) frontierPage();
if (D.kind === "sweep" && !D.best.length) section("Nothing fits", "", element("ul", {}, ...D.reasons.map((row) => element("li", {}, `${row.cluster}, ${row.gpus} GPUs: ${row.reason}`))));
rest();
