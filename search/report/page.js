// -- the two kinds of page

const SHOWN_BARS = 24;

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
      x: { label: "memory headroom, GiB", format: (v) => digits(v, 4) }, y: { label: "MFU, %", format: (v) => digits(v, 4) },
      series: [{ color: paint(0), points: all.map((i) => ({ i, x: at("memory_headroom", i) / 2 ** 30, y: 100 * at("mfu", i) })) }],
      tell: (i) => [element("b", {}, layout(i)), `MFU ${format("%", at("mfu", i))}, step ${format("s", at("step_time", i))}, headroom ${format("B", at("memory_headroom", i))}`],
      choose,
    }));
  section("The chosen layout", "", detail);
  const first = 10;
  section("Where time and memory go", `The layouts of the frontier by rank.${firstOf(all, first)}`, bars(all, first, (i) => `#${at("rank", i)}`));
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

// One card per objective, and per model where there are several.
function bestCards(best) {
  const models = [...new Set(best.map((i) => at("model", i)))];
  return models.flatMap((model) => [["Cheapest", "cost", "$"], ["Fastest", "days_to_train", "d"], ["Least energy", "energy", "J"]].map(([name, key, unit]) => {
    const own = best.filter((i) => at("model", i) === model && at(key, i) !== null);
    const head = models.length > 1 ? `${name}, ${model}` : name;
    if (!own.length) return [head, "–", "no price known"];
    const i = own.reduce((a, b) => (at(key, b) < at(key, a) ? b : a));
    return [head, format(unit, at(key, i)), `${count(at("gpus", i))} GPUs, ${withoutModel(i)}; ${range(unit, key, i)}`];
  }));
}

// The fewest GPUs in time, as they were found when the sweep ran.
function fewestCard(answer) {
  const size = (gpus, none) => (gpus === null ? none : count(gpus));
  const name = `${machine(answer)}: in ${format("d", D.max_days).replace(" d", D.max_days === 1 ? " day" : " days")}`;
  if (answer.gpus === null && answer.gpus_low === null) return [name, "–", "no size of this sweep"];
  return [name, answer.gpus === null ? "–" : `${count(answer.gpus)} GPUs`,
    `fewest in time; ${size(answer.gpus_low, "none")} to ${size(answer.gpus_high, "more than any size of this sweep")} at the ends of the interval${answer.smallest ? "; no smaller size was swept" : ""}`];
}

function money(values) {
  const [size, unit] = stepOf(Math.max(...values), MONEY);
  return { label: `cost, $ ${unit}`.trim(), format: (v) => digits(v / size, 5) };
}

function sweepCharts(best) {
  const machines = [...new Set(best.map(machine))];
  const looks = machines.map((name, n) => ({ name, ...look(n) }));
  const own = (name) => best.filter((i) => machine(i) === name).sort((a, b) => at("gpus", a) - at("gpus", b));
  const tell = (i) => [element("b", {}, `${machine(i)}, ${count(at("gpus", i))} GPUs`),
    `${format("d", at("days_to_train", i))} (${range("d", "days_to_train", i)}), ${at("cost", i) === null ? "no price known" : format("$", at("cost", i))}, MFU ${format("%", at("mfu", i))}; ${layout(i)}`];
  const sizes = [...new Set(best.map((i) => at("gpus", i)))].sort((a, b) => a - b);
  const gpus = { label: "GPUs", log: true, ticks: sizes, format: count };
  const against = (name) => looks.map((part) => ({ ...part, joined: true, points: own(part.name).filter((i) => at(name, i) !== null)
    .map((i) => ({ i, x: at("gpus", i), y: at(name, i), low: at(`${name}_low`, i), high: at(`${name}_high`, i) })) }));
  const pointed = machines.length > MANY_SERIES && sizes.length > 1 ? " drawn for the machine that is pointed at or walked to;" : "";
  const bands = `The band (a whisker where a machine has one size) is the central 80 % of the prediction;${pointed} click a point for its terms.`;
  const keys = (name) => lineLegend(looks.filter((part) => own(part.name).some((i) => at(name, i) !== null)));
  const limit = D.max_days === null ? null : { value: D.max_days, text: `limit: ${digits(D.max_days)} days` };
  section("Days to train against size", bands, keys("days_to_train"), chart("Days to train against size",
    { x: gpus, y: { label: "days", log: true, format: (v) => digits(v, 4), rule: limit }, series: against("days_to_train"), tell, choose }));
  const priced = best.filter((i) => at("cost", i) !== null);
  if (!priced.length) return;
  const cost = (ends) => money(ends.flatMap((end) => priced.map((i) => at(`cost${end}`, i))));
  section("Cost against size", bands, keys("cost"), chart("Cost against size",
    { x: gpus, y: cost(["", "_high"]), series: against("cost"), tell, choose }));
  const line = all.filter((i) => at("pareto", i)).sort((a, b) => at("cost", a) - at("cost", b));
  const place = (i) => ({ i, x: at("cost", i), y: at("days_to_train", i) });
  section("Cost against time", "The dashed line joins what nothing else beats in both.", keys("cost"), chart("Cost against time", {
    x: cost([""]), y: { label: "days", log: true, format: (v) => digits(v, 4) },
    series: [
      ...[...new Set(line.map((i) => at("model", i)))].map((model) => ({ color: "var(--soft)", joined: true, dash: "5 4",
        points: line.filter((i) => at("model", i) === model).map(place) })),
      ...looks.map((part) => ({ ...part, points: own(part.name).filter((i) => priced.includes(i)).map(place) })),
    ], tell, choose }));
}

function sweepTable(best) {
  const get = (name) => (row) => (row.reason ? row[name] ?? null : at(name, row.i));
  const batches = new Set([...best.map((i) => at("global_batch", i)), ...D.reasons.map((row) => row.global_batch)]);
  const failed = D.reasons.map((row) => (batches.size > 1 ? { ...row, reason: `batch ${count(row.global_batch)}: ${row.reason}` } : row));
  const plain = (name) => (row) => count(get(name)(row));
  section("Every machine and size", "Click a head to sort; a row for its terms.", table([
    ...D.naming.map(([name, head]) => column(head || name, "text", "", (row) => String(get(name)(row)), { key: true })),
    column("GPUs", "1", "", get("gpus"), { key: true, text: plain("gpus") }),
    column("days", "d", D.columns.days_to_train.meaning, get("days_to_train")),
    column("cost", "$", D.columns.cost.meaning, get("cost")),
    column("batch", "1", "sequences a step", get("global_batch"), { text: plain("global_batch") }),
    column("range of days", "text", "the central 80 % of the prediction", get("days_to_train"), { text: (row) => (row.reason ? "" : range("d", "days_to_train", row.i).replaceAll(" d", "")) }),
    column("MFU", "%", D.columns.mfu.meaning, get("mfu")),
    column("energy", "J", D.columns.energy.meaning, get("energy")),
    column("GPU-hours", "1", "", get("gpu_hours")),
    column("scaling", "%", D.columns.scaling_efficiency.meaning, get("scaling_efficiency")),
    column("layout", "text", "", (row) => (row.reason ? "" : layout(row.i)), { wide: true }),
  ], [...best.map((i) => ({ i })), ...failed]));
}

function sweepPage() {
  const best = D.best;
  cards([...D.fewest.map(fewestCard), ...bestCards(best)]);
  sweepCharts(best);
  if (D.knees.length) section("The knee", "The last size whose GPUs still gain four fifths of what full scaling would.", element("ul", {}, ...D.knees.map((text) => element("li", {}, text))));
  section("The chosen layout", "", detail);
  section("Where time and memory go", `The best layout of each machine and size.${firstOf(best, SHOWN_BARS)}`, bars(best, SHOWN_BARS, (i) => `${machine(i)} ${count(at("gpus", i))}`));
  sweepTable(best);
  const priced = best.filter((i) => at("cost", i) !== null);
  choose(priced.length ? priced.reduce((a, b) => (at("cost", b) < at("cost", a) ? b : a)) : best[0]);
}

function nothingFits() {
  if (D.fewest.length) cards(D.fewest.map(fewestCard));
  section("Nothing fits", "", element("ul", {}, ...D.reasons.map((row) =>
    element("li", {}, `${machine(row)}, ${count(row.gpus)} GPUs, batch ${count(row.global_batch)}: ${row.reason}`))));
}

function account() {
  const most = Math.max(...D.account.lines.map((line) => line.count), 1);
  section("The account of the space", D.account.summary, element("div", { class: "bars" }, ...D.account.lines.map((line) =>
    element("div", { class: "row" }, element("span", {}, line.rule),
      element("div", { class: "bar", role: "img", title: line.text, "aria-label": `${line.count} candidates, ${line.text}` },
        element("i", { style: `width:${(100 * line.count) / most}%;background:var(--c0)` })),
      element("span", { class: "n" }, count(line.count))))));
}

function assumptions() {
  const row = (tag, cells) => element("tr", {}, ...cells.map((text) => element(tag, tag === "th" ? { scope: "col" } : {}, text)));
  const group = ({ name, heads, rows }, n) => element("details", n < 2 ? { open: "" } : {}, element("summary", {}, name),
    element("div", { class: "scroll" }, element("table", {}, heads ? element("thead", {}, row("th", heads)) : null, element("tbody", {}, ...rows.map((cells) => row("td", cells))))));
  section("Assumptions and sources", "What went in: each figure with its value, tag and source, as the files have them now; the prediction used what they had when the search ran.",
    ...D.sources.map(group));
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
if (D.kind === "sweep" && D.best.length) sweepPage();
else if (D.kind === "sweep") nothingFits();
else if (D.count) frontierPage();
if (D.account) account();
assumptions();
