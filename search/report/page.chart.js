// -- one chart: points, joined by lines and banded by intervals where asked

const FEW_TICKS = 4;
const MANY_SERIES = 4; // from here on a band is drawn for the series that is looked at
const LETTER = 6.6; // width of one at 12 px
const NAMES_FROM = 640; // width of a chart that has room for names at the ends of its lines

function linearTicks(low, high) {
  const raw = (high - low) / 6 || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= raw);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step / 1e6; x += step) found.push(+x.toPrecision(12));
  return found;
}

function logTicks(low, high) {
  const with_ = (steps) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const step of steps) found.push(+(step * 10 ** power).toPrecision(12));
    return found.filter((x) => x >= low * 0.999 && x <= high * 1.001);
  };
  const found = [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7]].map(with_).find((some) => some.length >= FEW_TICKS);
  return found || linearTicks(low, high).filter((x) => x > 0);
}

function axis(spec, values) {
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) [low, high] = spec.log ? [low / 1.5, high * 1.5] : [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
  if (spec.log) [low, high] = [low / (high / low) ** 0.03, high * (high / low) ** 0.03];
  else [low, high] = [low - (high - low) * 0.04, high + (high - low) * 0.04];
  const place = spec.log ? (x) => Math.log(x / low) / Math.log(high / low) : (x) => (x - low) / (high - low);
  const note = spec.log ? " (log scale)" : low > 0 ? " (does not start at 0)" : "";
  return { place, label: spec.label + note, ticks: spec.ticks || (spec.log ? logTicks : linearTicks)(low, high) };
}

// The ticks whose labels keep clear of the one before.
function clear(ticks, place, room) {
  const kept = [];
  for (const tick of ticks) if (!kept.length || Math.abs(place(tick) - place(kept[kept.length - 1])) >= room(tick)) kept.push(tick);
  return kept;
}

// Places at least `gap` apart, as near as may be to those wanted (rising), inside of `low` to `high`.
function spread(wanted, gap, low, high) {
  const found = [];
  for (const y of wanted) found.push(Math.max(y, low, found.length ? found[found.length - 1] + gap : low));
  for (let n = found.length - 1, top = high; n >= 0; n--, top -= gap) found[n] = Math.min(found[n], top);
  return found;
}

// Series of one point with an interval stand beside each other where they share a size.
function beside(series) {
  const alone = series.filter((part) => part.points.length === 1 && part.points[0].low !== undefined);
  const shifts = new Map();
  for (const x of new Set(alone.map((part) => part.points[0].x))) {
    const same = alone.filter((part) => part.points[0].x === x);
    if (same.length > 1) same.forEach((part, n) => shifts.set(part, n - (same.length - 1) / 2));
  }
  return { shifts, most: Math.max(0, ...shifts.values()) };
}

function chart(title, { x, y, series, tell, choose }) {
  const box = element("div", { class: "chart" });
  const tip = element("div", { class: "tip", role: "status", hidden: "" });
  const points = series.flatMap((part) => part.points.map((point) => ({ ...point, part })));
  points.sort((a, b) => a.x - b.x || a.y - b.y);
  const banded = series.filter((part) => part.points.some((point) => point.low !== undefined));
  const { shifts, most } = beside(series);
  let chosen = null;
  let marks = [];
  let groups = new Map();

  function lookAt(part) {
    groups.forEach((group, own) => group.classList.toggle("on", own === part));
    marks.forEach((mark, n) => mark.classList.toggle("on", points[n].part === part));
    box.classList.toggle("looking", part !== null && part.name !== undefined);
  }
  function show(number) {
    const point = points[number];
    chosen = number;
    marks.forEach((mark, n) => mark.classList.toggle("chosen", n === number));
    lookAt(point.part);
    tip.replaceChildren(...tell(point.i));
    tip.hidden = false;
    const mark = marks[number].getBoundingClientRect(), frame = box.getBoundingClientRect();
    const left = mark.left - frame.left + 14, width = tip.offsetWidth;
    tip.style.left = `${Math.max(0, left + width > frame.width ? left - width - 24 : left)}px`;
    tip.style.top = `${Math.max(0, mark.top - frame.top - tip.offsetHeight / 2)}px`;
  }
  function hide() {
    tip.hidden = true;
    lookAt(null);
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
  function frameOf() {
    const width = Math.max(300, box.clientWidth || 640), height = Math.min(420, Math.max(240, width * 0.5));
    const names = series.filter((part) => part.joined && part.name && part.points.length && !shifts.has(part));
    const longest = Math.max(0, ...names.map((part) => part.name.length)) * LETTER + 26;
    const room = names.length > 1 && width >= NAMES_FROM && longest < width * 0.32 && names.length * 14 < height - 54;
    const edge = { left: 62, right: room ? longest : 14, top: 10, bottom: 44 };
    const rules = y.rule ? [y.rule.value] : [];
    const across = axis(x, points.map((point) => point.x));
    const up = axis(y, [...rules, ...points.flatMap((point) => [point.y, ...(point.low === undefined ? [] : [point.low, point.high])])]);
    const inner = width - edge.left - edge.right;
    const apart = most ? Math.min(60, inner / (2 * most + 2)) : 0;
    const px = (value, part) => edge.left + across.place(value) * inner + apart * (shifts.get(part) || 0);
    const py = (value) => height - edge.bottom - up.place(value) * (height - edge.top - edge.bottom);
    return { width, height, edge, across, up, px, py, names: room ? names : [], upright: apart >= 22 };
  }
  function drawAxes({ width, height, edge, across, up, px, py }) {
    const right = width - edge.right, bottom = height - edge.bottom;
    const grid = (x1, x2, y1, y2) => element("line", { class: "grid", x1, x2, y1, y2 });
    const said = [];
    for (const tick of clear(across.ticks, px, (tick) => Math.max(30, x.format(tick).length * LETTER + 8)))
      said.push(grid(px(tick), px(tick), edge.top, bottom), element("text", { class: "x", x: px(tick), y: bottom + 18, "text-anchor": "middle" }, x.format(tick)));
    for (const tick of clear(up.ticks, py, () => 14))
      said.push(grid(edge.left, right, py(tick), py(tick)), element("text", { class: "y", x: edge.left - 8, y: py(tick) + 4, "text-anchor": "end" }, y.format(tick)));
    said.push(element("text", { x: (right + edge.left) / 2, y: height - 6, "text-anchor": "middle" }, across.label),
      element("text", { x: 14, y: (bottom + edge.top) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(bottom + edge.top) / 2})` }, up.label));
    if (y.rule) {
      const at = py(y.rule.value), above = at - edge.top > 20;
      said.push(element("line", { class: "rule", x1: edge.left, x2: right, y1: at, y2: at }),
        element("text", { class: "ruled", x: right - 4, y: above ? at - 6 : at + 14, "text-anchor": "end" }, y.rule.text));
    }
    return said;
  }
  function drawSeries(part, { px, py, edge, height, upright }) {
    const group = element("g", { class: "series", onpointerenter: () => lookAt(part), onpointerleave: () => { if (tip.hidden) lookAt(null); } });
    const ends = part.points.filter((point) => point.low !== undefined);
    if (ends.length > 1) {
      const outline = [...ends.map((p) => [p.x, p.high]), ...ends.toReversed().map((p) => [p.x, p.low])];
      group.append(element("polygon", { class: "band", points: outline.map(([a, b]) => `${px(a)},${py(b)}`).join(" "), fill: part.color }));
    } else if (part.points.length === 1) for (const p of ends) {
      const [a, low, high] = [px(p.x, part), py(p.low), py(p.high)];
      group.append(element("path", { class: "whisker", d: `M${a} ${low}V${high}M${a - 5} ${low}H${a + 5}M${a - 5} ${high}H${a + 5}`, stroke: part.color }));
      const half = part.name.length * LETTER / 2, middle = Math.max(edge.top + half, Math.min(height - edge.bottom - half, py(p.y)));
      if (upright && shifts.has(part)) group.append(element("text", { class: "name", x: a - 9, y: middle, "text-anchor": "middle", transform: `rotate(-90 ${a - 9} ${middle})` }, part.name));
    }
    if (part.joined && part.points.length > 1)
      group.append(element("path", { class: "joined", d: part.points.map((p, n) => `${n ? "L" : "M"}${px(p.x)} ${py(p.y)}`).join(""), stroke: part.color, "stroke-dasharray": part.dash }));
    return group;
  }
  function drawNames({ names, edge, width, height, px, py }) {
    const last = (part) => part.points[part.points.length - 1];
    const sorted = [...names].sort((a, b) => py(last(a).y) - py(last(b).y));
    const places = spread(sorted.map((part) => py(last(part).y)), 14, edge.top + 4, height - edge.bottom);
    return sorted.flatMap((part, n) => [
      element("path", { class: "leader", d: `M${px(last(part).x, part) + 6} ${py(last(part).y)}L${width - edge.right + 14} ${places[n]}`, stroke: part.color }),
      element("text", { class: "name", x: width - edge.right + 18, y: places[n] + 4 }, part.name),
    ]);
  }
  function draw() {
    const frame = frameOf();
    groups = new Map(series.map((part) => [part, drawSeries(part, frame)]));
    const size = points.length > 400 ? 3 : 5;
    marks = points.map((point, n) => marker(point.part.marker || MARKERS[0], frame.px(point.x, point.part), frame.py(point.y), size, { class: "point",
      fill: point.part.color, onpointerenter: () => show(n), onpointerleave: hide, onclick: () => { show(n); choose(point.i); } }));
    const drawn = element("svg", { viewBox: `0 0 ${frame.width} ${frame.height}`, tabindex: 0, role: "application", "aria-label":
      `${title}. Arrow keys walk over ${points.length} points, Enter chooses one.`, onkeydown: key, onblur: hide },
    ...drawAxes(frame), ...groups.values(), ...drawNames(frame), ...marks);
    box.classList.toggle("many", banded.length > MANY_SERIES);
    box.replaceChildren(drawn, tip);
  }
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(box);
  return box;
}
