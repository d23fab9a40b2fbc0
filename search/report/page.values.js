"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");

// -- values and their formats

const at = (name, i) => (name in D.constant ? D.constant[name] : name in D.rows ? D.rows[name][i] : null);
const all = Array.from({ length: D.count }, (_, i) => i);
const count = (n) => n.toLocaleString("en");
const digits = (x, n = 3) => (x === 0 ? "0" : Math.abs(x) >= 10 ** n ? count(Math.round(x)) : String(+x.toPrecision(n)));
const stepOf = (x, steps) => steps.find(([size]) => Math.abs(x) >= size) || steps[steps.length - 1];
const scaled = (x, steps) => {
  const [size, unit] = stepOf(x, steps);
  return `${digits(x / size)} ${unit}`;
};
const MONEY = [[1e9, "B"], [1e6, "M"], [1e3, "k"], [1, ""]];
const FORMAT = {
  B: (x) => scaled(x, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [1, "B"]]),
  s: (x) => scaled(x, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]),
  d: (x) => `${digits(x)} d`,
  h: (x) => `${digits(x)} h`,
  $: (x) => `$${x >= 1e6 ? scaled(x, MONEY) : digits(x)}`,
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
// Of balanced stages what these compute again, as the terminal's table has it.
const recompute = (i) => {
  if (!(at("balance_gain", i) > 0)) return at("recompute", i) + (at("recompute_layers", i) ? ` in ${at("recompute_layers", i)}` : "");
  const used = new Set(at("recompute_per_stage", i).match(/[^\s,|]+(?=,| \||$)/g));
  return used.size > 1 ? "mixed" : [...used].join("");
};
const layout = (i) => {
  const degrees = ["tp", "pp", "vpp", "cp", "ep", "etp"].filter((name) => at(name, i) > 1).map((name) => `${name}${at(name, i)}`);
  return [...degrees, `dp${at("dp", i)}`, `zero${at("zero_stage", i)}`, `mb${at("micro_batch", i)}`, recompute(i)].join(" ");
};

// -- machines: what tells them apart, from a row (by its number) or from an answer (by its keys)

const valueOf = (name, row) => (typeof row === "number" ? at(name, row) : row[name]);
const named = (row, naming) => naming.map(([column, name]) => (name ? `${name}=${valueOf(column, row)}` : valueOf(column, row))).join(", ");
const machine = (row) => named(row, D.naming);
const withoutModel = (row) => named(row, D.naming.filter(([column]) => column !== "model"));

// -- elements

const SVG = ["svg", "g", "line", "path", "text", "polygon"];
function element(tag, attributes = {}, ...inside) {
  const made = SVG.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
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

// -- how series look: eight colours, then the same ones with other dashes and other markers

const COLORS = 8;
const DASHES = [null, "7 4", "2 3", "10 3 2 3"];
const MARKERS = [ // around 0 0, of radius 1
  "M-1 0A1 1 0 1 1 1 0A1 1 0 1 1 -1 0Z", "M-.9 -.9H.9V.9H-.9Z", "M0 -1.2L1.1 .8H-1.1Z", "M0 -1.3L1.3 0L0 1.3L-1.3 0Z", "M0 1.2L1.1 -.8H-1.1Z",
];
const paint = (number) => `var(--c${number < COLORS ? number : COLORS - 1})`;
const look = (number) => {
  const cycle = Math.floor(number / COLORS);
  return { color: paint(number % COLORS), dash: DASHES[cycle % DASHES.length], marker: MARKERS[cycle % MARKERS.length] };
};
const marker = (shape, x, y, size, attributes) => element("path", { d: shape, transform: `translate(${x} ${y}) scale(${size})`, ...attributes });

function legend(entries) {
  return element("ul", { class: "legend" }, ...entries.map(([name, color]) => element("li", {}, element("i", { style: `background:${color}` }), name)));
}
function lineLegend(series) {
  return element("ul", { class: "legend" }, ...series.map(({ name, color, dash, marker: shape }) => element("li", {},
    element("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" },
      element("path", { d: "M1 6H33", stroke: color, "stroke-width": 2, "stroke-dasharray": dash }), marker(shape, 17, 6, 4, { fill: color })),
    name)));
}
