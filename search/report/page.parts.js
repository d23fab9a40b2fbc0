// -- where time and memory go

const SHOWN = 200;
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
    D.kind === "sweep" ? `${machine(i)}, ${count(at("gpus", i))} GPUs, batch ${count(at("global_batch", i))}` : `rank ${at("rank", i)} of ${D.count}`,
    `${at("schedule", i)}, ranks ${at("rank_order", i)}, ZeRO over ${at("dp_shard", i)} ranks${at("sequence_parallel", i) ? ", sequence parallel" : ""}`,
    stages ? `layers per stage ${stages.join(" ")}` : null,
    at("balance_gain", i) > 0 ? `stages balanced by CP-SAT, step ${format("%", -at("balance_gain", i))} against the closed-form split: ${at("recompute_per_stage", i)}` : null,
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

function barsOf(rows, label) {
  const longest = D.kind === "sweep" ? null : Math.max(...rows.map((i) => at("step_time", i)));
  const list = (kind) => element("div", { class: "bars" }, ...rows.map((i) => {
    const whole = kind === "time" ? longest ?? at("step_time", i) : at("memory", i) + at("memory_headroom", i);
    const shown = format(kind === "time" ? "s" : "B", at(kind === "time" ? "step_time" : "memory", i));
    return element("div", { class: "row" },
      element("button", { type: "button", onclick: () => choose(i), "aria-label": `${label(i)}: show its terms` }, label(i)),
      bar(kind, i, whole), element("span", { class: "n" }, shown));
  }));
  const names = (kind) => {
    const used = TERMS[kind].filter((name) => rows.some((i) => at(name, i) > 0));
    const first = used.slice(0, COLORS - 1).map((name) => [words(name), colorOf(kind, name)]);
    return legend(used.length >= COLORS ? [...first, ["other", paint(COLORS - 1)]] : first);
  };
  return element("div", {}, element("p", {}, longest ? "Time of a step" : "Shares of a step's time"), names("time"), list("time"),
    element("p", {}, "Memory of the neediest stage, against what a GPU has"), names("memory"), list("memory"));
}

// The first rows, and the rest behind a line that says how many they are; they are drawn when it is opened.
function bars(rows, shown, label) {
  const rest = rows.slice(shown);
  const more = element("details", { class: "more", ontoggle: () => {
    if (more.open && more.childElementCount === 1) more.append(barsOf(rest, label));
  } }, element("summary", {}, rest.length === 1 ? "The other one" : `The other ${count(rest.length)}`));
  return element("div", {}, barsOf(rows.slice(0, shown), label), rest.length ? more : null);
}
const firstOf = (rows, shown) => (rows.length > shown ? ` The first ${shown} of ${count(rows.length)}; the others are below.` : "");

// -- a table that sorts and filters

// What a typed word matches: "32" is the beginning of a number, not the end of $76,332.
const starting = (word) => new RegExp((/^\d/.test(word) ? "(?<![\\d.,])" : "") + word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));

// Columns that say the same in every row are left out, and said once. A row with a reason has that in place of figures.
function table(every, rows) {
  const same = rows.length > 1 ? every.filter((one) => rows.every((row) => one.text(row) === one.text(rows[0]))) : [];
  const columns = every.filter((one) => !same.includes(one));
  const keys = columns.filter((one) => one.key);
  let sorted = { column: null, down: false };
  const input = element("input", { type: "search", placeholder: "filter", "aria-label": "Filter the table", oninput: fill });
  const note = element("span", { class: "note", role: "status" });
  const body = element("tbody");
  const heads = columns.map((column) => element("th", { class: column.number ? "n" : "", scope: "col", title: column.title || "" },
    element("button", { type: "button", onclick: () => {
      sorted = { column, down: sorted.column === column ? !sorted.down : false };
      fill();
    } }, column.name)));
  const cell = (column, row) => element("td", { class: column.number ? "n" : column.wide ? "wide" : column.key ? "t key" : "t" }, column.text(row));
  const line = (row) => (row.reason
    ? element("tr", {}, ...keys.map((column) => cell(column, row)), element("td", { class: "reason", colspan: columns.length - keys.length }, row.reason))
    : element("tr", { tabindex: 0, "data-row": row.i, onclick: () => choose(row.i), onkeydown: (event) => { if (event.key === "Enter") choose(row.i); } },
      ...columns.map((column) => cell(column, row))));
  function fill() {
    const asked = input.value.toLowerCase().split(/\s+/).filter(Boolean).map(starting);
    const matching = rows.filter((row) => {
      const text = [...every.map((column) => column.text(row)), row.reason || ""].join(" ").toLowerCase();
      return asked.every((word) => word.test(text));
    });
    if (sorted.column) {
      const value = sorted.column.value;
      const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
      const known = (x) => x !== null && x !== undefined;
      matching.sort((a, b) => known(value(b)) - known(value(a)) || (known(value(a)) ? compare(value(a), value(b)) * (sorted.down ? -1 : 1) : 0));
    }
    heads.forEach((head, n) => head.setAttribute("aria-sort", columns[n] === sorted.column ? (sorted.down ? "descending" : "ascending") : "none"));
    body.replaceChildren(...matching.slice(0, SHOWN).map(line));
    note.textContent = matching.length > SHOWN ? `${matching.length} rows, the first ${SHOWN} are shown` : `${matching.length} ${matching.length === 1 ? "row" : "rows"}`;
  }
  fill();
  const alike = same.filter((one) => one.text(rows[0])).map((one) => `${one.name} ${one.text(rows[0])}`).join(", ");
  return element("div", {}, alike ? element("p", { class: "note alike" }, `The same in every row: ${alike}.`) : null,
    element("div", { class: "filter" }, input, note),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)));
}
const column = (name, unit, title, value, more = {}) => ({ name, title, number: unit !== "text", value, text: (row) => format(unit, value(row)), ...more });
