// The what-if page: a form, and pictures of the answers that the suite's Python files give in a web worker.
// Nothing here knows a schedule, a rule or a cost: this file draws what it is sent.
"use strict";

const byId = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const { dataset = {}, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
const drawn = (tag, attributes = {}, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const shown = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const short = Number(value.toPrecision(4));
  return Math.abs(short) >= 1e7 || (short && Math.abs(short) < 1e-4) ? short.toExponential() : String(short);
};

// Words of the question: the link, a saved view and the command hold the same ones

let words = [];
const kept = {}; // words of the other views
const keyOf = (word) => word.slice(0, word.indexOf("="));
const valueOf = (key) => words.findLast((word) => keyOf(word) === key)?.slice(key.length + 1) ?? "";
const fragmentOf = (list) => new URLSearchParams(list.map((word) => [keyOf(word), word.slice(keyOf(word).length + 1)])).toString();
const wordsOf = (fragment) => [...new URLSearchParams(fragment)].map(([key, value]) => `${key}=${value}`);

// The worker. One that is busy with an older question for long is replaced.

const PATIENCE = 5000; // milliseconds without a word of the worker
const SOON = 300; // milliseconds until a missing answer is announced
let worker = null;
let asked = 0;
let heard = 0;
let busy = false;
let announced = 0;

const launch = () => {
  // a worker from a blob obeys the page's own content security policy, one from a file would not
  const source = `import ${JSON.stringify(new URL("worker.js", location.href).href)};`;
  worker?.terminate();
  worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })), { type: "module" });
  worker.onmessage = receive;
  worker.onerror = (event) => receive({ data: { failed: event.message || "its worker did not load" } });
  busy = false;
};

const ask = (run = false) => {
  if (!worker) return;
  if (busy && performance.now() - heard > PATIENCE) launch();
  asked += 1;
  [heard, busy] = [performance.now(), true];
  clearTimeout(announced);
  announced = setTimeout(() => { byId("busy").textContent = "Computing …"; }, SOON);
  worker.postMessage({ id: asked, kind: "answer", words, run });
};

const explain = (number, index) => worker.postMessage({ id: asked, kind: "explain", number, index });

const receive = ({ data }) => {
  heard = performance.now();
  if (data.progress) {
    byId("status").hidden = false;
    byId("status").replaceChildren(make("p", { textContent: `${data.progress} …` }), make("progress", { value: data.part }));
  } else if (data.failed) {
    byId("status").hidden = false;
    byId("status").replaceChildren(make("p", { textContent: `The page could not start: ${data.failed}` }));
  } else if (data.ready) {
    byId("status").hidden = true;
    byId("page").hidden = false;
  } else if (data.kind === "explain") {
    if (byId("explained")) byId("explained").textContent = data.text;
  } else if (data.id === asked) {
    if (data.kind === "answer") show(data);
    if (data.kind === "part") showPart(data);
    if (data.kind === "done" || data.error) {
      busy = false;
      clearTimeout(announced);
      byId("busy").textContent = "";
      document.body.dataset.done = asked;
    }
  }
};

// The form

const shapeOf = (fields) => JSON.stringify(fields.map(({ name, kind, choices }) => [name, kind, choices]));
let shape = "";

const input = (field) => {
  if (field.kind === "choice") {
    return make("select", {}, ...field.choices.map((name) => make("option", { value: name, textContent: name || "–" })));
  }
  if (field.name === "pasted") return make("textarea", { spellcheck: false, rows: 8 });
  const number = field.kind === "number" || field.kind === "whole";
  const box = make("input", { type: number ? "number" : "text", autocomplete: "off" });
  if (number) Object.assign(box, { step: field.kind === "whole" ? "1" : "any", min: field.least, max: field.most ?? "" });
  return box;
};

const fill = ({ views, view, fields }) => {
  const now = JSON.stringify([view, shapeOf(fields)]);
  const form = byId("form");
  const anew = now !== shape;
  if (anew) {
    const focused = document.activeElement?.name;
    const tabs = make("fieldset", {}, ...views.map((name) => make("label", {}, make("input", {
      type: "radio", name: "view", value: name, checked: name === view,
    }), make("b", { textContent: `${name[0].toUpperCase()}${name.slice(1)} view` }))));
    const folded = form.querySelector("details")?.open ?? false;
    const label = (field) => {
      const box = Object.assign(input(field), { name: field.name, title: field.help });
      box.dataset.standard = field.default;
      const kind = [field.name.includes(".") ? "argument" : "", field.name === "pasted" ? "wide" : ""].join(" ").trim();
      return make("label", { className: kind, title: field.help }, make("b", { textContent: field.name }), box);
    };
    const meanings = fields.flatMap((field) => [make("dt", { textContent: field.name }), make("dd", { textContent: field.help })]);
    form.replaceChildren(tabs, ...fields.filter((field) => !field.rare).map(label),
      make("details", { open: folded }, make("summary", { textContent: "More settings, and what each one means" }),
        make("div", { className: "fields" }, ...fields.filter((field) => field.rare).map(label)), make("dl", {}, ...meanings)));
    if (focused) form.elements[focused]?.focus?.();
    shape = now;
  }
  for (const field of fields) {
    const box = form.elements[field.name];
    if (anew || box !== document.activeElement) box.value = field.value;
    if (field.name === "pasted") box.closest("label").hidden = ![valueOf("schedule"), valueOf("versus")].includes("pasted");
  }
};

const changed = ({ target: { name, value, dataset } }) => {
  const fields = [...byId("form").elements].filter((box) => box.name !== "view").map((box) => box.name);
  const view = byId("form").elements.view.value;
  const current = name === "view" ? valueOf("view") || "schedule" : view;
  words = words.filter((word) => fields.includes(keyOf(word)) && keyOf(word) !== name && !keyOf(word).startsWith(`${name}.`));
  if (name === "view") {
    kept[current] = words;
    words = kept[value] ?? [];
  } else if (value !== dataset.standard) {
    words.push(`${name}=${value}`);
  }
  if (view !== "schedule") words.unshift(`view=${view}`);
  ask();
};

// Tables and charts

const cell = (value, longest) => {
  if (value && typeof value === "object") {
    return make("td", {}, make("a", { href: value.href, textContent: value.text }));
  }
  const box = make("td", { className: typeof value === "number" ? "number" : "", title: typeof value === "number" ? String(value) : "" }, shown(value));
  if (longest && typeof value === "number") {
    const bar = make("span", { className: "bar" });
    bar.style.width = `${(6 * Math.abs(value)) / longest}rem`;
    box.className = "";
    box.prepend(bar, " ");
  }
  return box;
};

const table = ({ title, columns, rows, note, bars }) => {
  const longest = bars === null || bars === undefined ? 0 : Math.max(...rows.map((row) => Math.abs(row[bars]) || 0));
  const numeric = columns.map((_, place) => rows.some((row) => typeof row[place] === "number"));
  const head = make("tr", {}, ...columns.map((name, place) => make("th", { scope: "col", className: numeric[place] && place !== bars ? "number" : "", textContent: name })));
  const body = rows.map((row) => {
    const [first, ...rest] = row.map((value, place) => cell(value, place === bars ? longest : 0));
    return make("tr", {}, make("th", { scope: "row" }, ...first.childNodes), ...rest);
  });
  const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: title },
    make("table", { ariaLabel: title }, make("thead", {}, head), make("tbody", {}, ...body)));
  return make("section", {}, make("h3", { textContent: title }), scroll, note ? make("p", { className: "formula", textContent: note }) : null);
};

const COLOURS = ["--op-F", "--op-W", "--op-B", "--op-E", "--op-I", "--bad"];
const ticksOf = (end, most = 8) => {
  if (!(end > 0)) return [0];
  const power = 10 ** Math.floor(Math.log10(end / most));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= end / most);
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, place) => Number((place * step).toPrecision(12)));
};

const lines = ({ title, x, y, series }) => {
  const [width, height, left, foot, top] = [640, 300, 56, 40, 12];
  const xs = series.flatMap((each) => each.x);
  const ys = series.flatMap((each) => each.y);
  const [least, most] = [Math.min(...xs), Math.max(...xs)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const bottom = low < high - low ? 0 : low - (high - low) / 20;
  const ceiling = high > bottom ? high + (high - bottom) / 20 : bottom + 1;
  const across = (value) => left + ((value - least) / (most - least || 1)) * (width - left - 10);
  const down = (value) => height - foot - ((value - bottom) / (ceiling - bottom)) * (height - foot - top);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const text = (content, place) => Object.assign(svg.appendChild(drawn("text", place)), { textContent: content });
  for (const tick of ticksOf(ceiling, (5 * ceiling) / (ceiling - bottom)).filter((each) => each >= bottom)) {
    const at = down(tick);
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - 10, y1: at, y2: at }));
    text(shown(tick), { x: left - 6, y: at + 4, "text-anchor": "end" });
  }
  for (const tick of ticksOf(most - least)) text(shown(least + tick), { x: across(least + tick), y: height - foot + 16, "text-anchor": "middle" });
  text(x, { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" });
  svg.append(drawn("line", { class: "axis", x1: left, x2: width - 10, y1: height - foot, y2: height - foot }));
  series.forEach((each, number) => {
    const points = each.x.map((value, place) => [across(value), down(each.y[place])]);
    const path = points.map(([a, b], place) => `${place ? "L" : "M"}${a} ${b}`).join("");
    svg.append(drawn("path", { d: path, class: "line" }));
    svg.lastChild.style.stroke = `var(${COLOURS[number % COLOURS.length]})`;
    if (number % 2) svg.lastChild.setAttribute("stroke-dasharray", "7 4");
  });
  const legend = make("ul", { className: "kinds" }, ...series.map((each, number) => {
    const mark = make("i");
    mark.style.background = `var(${COLOURS[number % COLOURS.length]})`;
    return make("li", {}, mark, each.name);
  }));
  const shared = [...new Set(xs)].sort((a, b) => a - b);
  const values = table({
    title: `Values: ${title}`, columns: [x, ...series.map((each) => each.name)],
    rows: shared.map((value) => [value, ...series.map((each) => each.y[each.x.indexOf(value)] ?? null)]),
  });
  return make("figure", { className: "chart" }, make("h3", { textContent: title }), make("p", { className: "formula", textContent: y }), svg, legend,
    make("details", {}, make("summary", { textContent: "Values" }), values));
};

const contents = ({ title, facts, charts, tables }) => [
  ...(facts.length ? [table({ title: title || "In short", columns: ["quantity", "value"], rows: facts.map((fact) => [fact.name, fact.text]) })] : []),
  ...charts.map(lines),
  ...tables.map(table),
];
const sentences = (texts) => texts.map((text) => make("p", { textContent: text }));

// Timelines: ops of one or two schedules on one time axis

const MOST_LISTED = 3000; // ops in the table behind a picture
const axis = { from: 0, to: 1, cursor: Infinity, playing: 0, critical: false };
let pictures = [];

class Timeline {
  constructor(number, data, numbers) {
    this.number = number;
    const slice = ({ from, to }) => numbers.subarray(from, to);
    this.columns = Object.fromEntries(Object.entries(data.columns).map(([name, place]) => [name, slice(place)]));
    this.steps = (list) => list.map(({ x, y }) => ({ x: slice(x), y: slice(y) }));
    Object.assign(this, { data, memory: this.steps(data.memory), versions: this.steps(data.versions), selected: -1 });
    this.critical = new Set(this.columns.critical);
    this.byRow = data.rows.map(() => []);
    this.columns.row.forEach((row, index) => this.byRow[row].push(index));
    this.canvas = make("canvas", { tabIndex: 0, role: "application" });
    this.canvas.setAttribute("aria-label", `Timeline of ${data.name}. Arrow keys select an op, plus and minus zoom, 0 shows all, space plays.`);
    const details = make("details", {}, make("summary", { textContent: `Ops and curves of ${data.name} as tables` }));
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(...this.list()); });
    this.figure = make("figure", { className: "timeline" }, make("h3", { textContent: `${data.name}: ${shown(data.makespan)}` }), this.canvas, details);
    this.listen();
  }

  label(index) {
    const { kind, index: microbatch, chunk } = this.columns;
    return `${this.data.kinds[kind[index]]}${microbatch[index]}${"'".repeat(chunk[index])}`;
  }

  // Tables behind the picture: its ops, named as the suite prints them, and the steps of its curves
  list() {
    const { row, stage, kind, index: microbatch, start, end } = this.columns;
    const ops = Array.from(start, (_, index) => [`${stage[index]}${this.data.kinds[kind[index]]}${microbatch[index]}`, this.data.rows[row[index]], start[index], end[index]]);
    const steps = (list, what) => list.flatMap(({ x, y }, place) => Array.from(x, (time, step) => [`${what} ${place}`, time, y[step]]));
    const limited = (title, columns, rows) => table({
      title: `${title} of ${this.data.name}`, columns, rows: rows.slice(0, MOST_LISTED),
      note: rows.length > MOST_LISTED ? `The first ${MOST_LISTED} of ${rows.length} rows; the command with --json prints all.` : "",
    });
    return [
      limited("Ops", ["op", "rank", "start", "end"], ops),
      limited("Activations", ["rank", "from", "activations"], steps(this.memory, "rank")),
      ...(this.versions.length ? [limited("Weight versions", ["stage", "from", "versions"], steps(this.versions, "stage"))] : []),
    ];
  }

  size() {
    const rows = this.data.rows.length;
    const each = Math.max(7, Math.min(24, Math.floor(560 / rows)));
    const left = Math.min(90, 12 + 6.4 * Math.max(...pictures.flatMap(({ data }) => data.rows.map((name) => name.length))));
    const curves = this.versions.length ? 2 : 1;
    return { each, left, width: this.canvas.clientWidth || 900, ops: each * rows, curve: 84, curves, height: each * rows + 22 + curves * 104 };
  }

  draw() {
    const { each, left, width, ops, curve, curves, height } = this.size();
    const scale = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * scale, height: height * scale });
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name);
    const { row, kind, start, end, chunk } = this.columns;
    const paints = [...this.data.kinds].map((letter) => colour(`--op-${letter}`));
    const across = (time) => left + ((time - axis.from) / (axis.to - axis.from)) * (width - left - 4);
    pen.scale(scale, scale);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = colour("--soft");
    this.data.rows.forEach((name, place) => { if (each > 9 || place % 2 === 0) pen.fillText(name, 0, each * (place + 0.5)); });
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width - left, height);
    pen.clip();
    pen.textAlign = "center";
    for (let index = 0; index < start.length; index += 1) {
      if (end[index] < axis.from || start[index] > axis.to) continue;
      const [x, y, wide] = [across(start[index]), each * row[index], Math.max(across(end[index]) - across(start[index]), 0.7)];
      const lies = axis.critical && this.critical.has(index);
      pen.globalAlpha = (start[index] >= axis.cursor ? 0.12 : axis.critical && !lies ? 0.3 : 1) * (1 - 0.22 * Math.min(chunk[index], 3));
      pen.fillStyle = paints[kind[index]];
      pen.fillRect(x, y + 1, Math.max(wide - 0.6, 0.6), each - 2);
      if (each > 11 && wide > 13) {
        const text = this.label(index).slice(1);
        if (wide > 6.5 * text.length + 3) {
          pen.globalAlpha = start[index] >= axis.cursor ? 0.3 : 1;
          pen.fillStyle = colour("--paper");
          pen.fillText(text, x + wide / 2, y + each / 2 + 0.5);
        }
      }
      if (index === this.selected) {
        pen.globalAlpha = 1;
        pen.strokeStyle = colour("--ink");
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, y + 1, Math.max(wide - 2, 1), each - 2);
      }
    }
    pen.globalAlpha = 1;
    pen.fillStyle = colour("--soft");
    for (const tick of ticksOf(axis.to, (8 * axis.to) / (axis.to - axis.from))) {
      if (tick < axis.from || tick > axis.to) continue;
      pen.fillRect(across(tick), 0, 0.5, ops);
      pen.fillText(shown(tick), Math.max(left + 8, Math.min(across(tick), width - 14)), ops + 10);
    }
    if (Number.isFinite(axis.cursor)) {
      pen.fillStyle = colour("--bad");
      pen.fillRect(across(axis.cursor), 0, 1.5, height);
    }
    pen.restore();
    this.curve(pen, this.memory, "activations that each rank holds", ops + 22, curve, left, width, across, colour);
    if (curves > 1) this.curve(pen, this.versions, "weight versions on each stage", ops + 126, curve, left, width, across, colour);
  }

  // Steps over time, a line per row; the row of the selected op is bold
  curve(pen, list, title, top, high, left, width, across, colour) {
    const most = Math.max(1e-9, ...list.map(({ y }) => y.reduce((a, b) => Math.max(a, b), 0)));
    const chosen = this.selected < 0 ? -1 : this.columns.row[this.selected];
    pen.textAlign = "left";
    pen.fillStyle = colour("--soft");
    pen.fillText(title, left, top + 6);
    pen.fillText(shown(most), 0, top + 18);
    pen.fillText("0", 0, top + high + 12);
    pen.fillRect(left, top + high + 14, width - left, 0.5);
    pen.save();
    pen.beginPath();
    pen.rect(left, top + 10, width - left, high + 6);
    pen.clip();
    list.forEach(({ x, y }, place) => {
      pen.beginPath();
      pen.strokeStyle = colour(COLOURS[place % COLOURS.length]);
      pen.globalAlpha = chosen < 0 || place === chosen ? 0.9 : 0.25;
      pen.lineWidth = place === chosen ? 2.5 : 1.2;
      let last = top + high + 14;
      pen.moveTo(left, last);
      for (let step = 0; step < x.length && x[step] <= Math.min(axis.to, axis.cursor); step += 1) {
        const at = across(x[step]);
        pen.lineTo(at, last);
        last = top + high + 14 - (y[step] / most) * (high - 2);
        pen.lineTo(at, last);
      }
      pen.lineTo(across(Math.min(axis.to, axis.cursor, this.data.makespan)), last);
      pen.stroke();
    });
    pen.restore();
  }

  at({ offsetX, offsetY }) {
    const { each, left, width } = this.size();
    const time = axis.from + ((offsetX - left) / (width - left - 4)) * (axis.to - axis.from);
    const row = Math.floor(offsetY / each);
    return { time, index: (this.byRow[row] ?? []).find((each_) => this.columns.start[each_] <= time && time < this.columns.end[each_]) ?? -1 };
  }

  select(index) {
    if (index < 0 || index === this.selected) return;
    for (const picture of pictures) picture.selected = picture === this ? index : -1;
    explain(this.number, index);
    const { start, end } = this.columns;
    const span = axis.to - axis.from;
    if (start[index] < axis.from || end[index] > axis.to) look(start[index] - span / 4, start[index] + (3 * span) / 4);
    redraw();
  }

  listen() {
    let held = null;
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, from: axis.from, to: axis.to, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) {
        if (event.pointerType === "mouse") this.select(this.at(event).index);
        return;
      }
      const { left, width } = this.size();
      const shift = ((held.x - event.offsetX) / (width - left)) * (held.to - held.from);
      held.moved ||= Math.abs(held.x - event.offsetX) > 4;
      if (held.moved) look(held.from + shift, held.to + shift);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved) this.select(this.at(event).index);
      held = null;
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, this.at(event).time);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const row = this.selected < 0 ? 0 : this.columns.row[this.selected];
      const own = this.byRow[row];
      const place = own.indexOf(this.selected);
      const beside = (other) => this.byRow[other]?.find((index) => this.columns.end[index] > (this.columns.start[this.selected] ?? 0)) ?? -1;
      const acts = {
        ArrowRight: () => this.select(own[Math.min(place + 1, own.length - 1)]),
        ArrowLeft: () => this.select(own[Math.max(place - 1, 0)]),
        ArrowDown: () => this.select(beside(row + 1)),
        ArrowUp: () => this.select(beside(row - 1)),
        Home: () => this.select(own[0]), End: () => this.select(own[own.length - 1]),
        "+": () => zoom(0.8), "=": () => zoom(0.8), "-": () => zoom(1.25), 0: () => look(0, whole()), " ": play,
      };
      if (event.ctrlKey || event.altKey || event.metaKey || !acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
  }
}

const whole = () => Math.max(1e-9, ...pictures.map((picture) => picture.data.makespan));
let waiting = 0;
const redraw = () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => pictures.forEach((picture) => picture.draw()));
};
const look = (from, to) => {
  const span = Math.min(Math.max(to - from, whole() / 2000), whole());
  axis.from = Math.min(Math.max(from, 0), whole() - span);
  axis.to = axis.from + span;
  redraw();
};
const zoom = (factor, around = (axis.from + axis.to) / 2) => look(around - (around - axis.from) * factor, around + (axis.to - around) * factor);

// Moves the cursor to the next time at which an op starts or ends; false at the end
const step = () => {
  const now = Number.isFinite(axis.cursor) ? axis.cursor : -1;
  let next = Infinity;
  for (const { columns } of pictures) {
    for (const times of [columns.start, columns.end]) for (const time of times) if (time > now + 1e-12 && time < next) next = time;
  }
  axis.cursor = next;
  redraw();
  return Number.isFinite(next);
};
const play = () => {
  clearInterval(axis.playing);
  axis.playing = axis.playing ? 0 : setInterval(() => { if (!step()) play(); }, 350);
  if (byId("play")) byId("play").textContent = axis.playing ? "Pause" : "Play";
};

const tools = (kinds) => {
  const button = (textContent, act, id = "") => {
    const made = make("button", { type: "button", textContent, id });
    made.addEventListener("click", act);
    return made;
  };
  const critical = make("input", { type: "checkbox", checked: axis.critical });
  critical.addEventListener("change", () => { axis.critical = critical.checked; redraw(); });
  const names = { F: "forward pass", B: "backward pass", I: "input gradient", W: "weight gradient", U: "update" };
  return [
    make("p", { className: "tools" }, button("Zoom in", () => zoom(0.6)), button("Zoom out", () => zoom(1 / 0.6)), button("Show all", () => look(0, whole())),
      button("Play", play, "play"), button("Next tick", step), button("End", () => { axis.cursor = Infinity; redraw(); }), make("label", {}, critical, "critical path")),
    make("ul", { className: "kinds" }, ...kinds.map((letter) => make("li", {}, make("i", { className: letter }), names[letter]))),
    make("p", { id: "explained", role: "status", textContent: "Point at an op, or select one with the arrow keys, to see what it needs and what it waited for. Numbers are microbatches; a prime marks a later stage of the same rank." }),
  ];
};

const showTimelines = (list, numbers) => {
  const place = byId("timelines");
  place.hidden = !list.length;
  if (axis.playing) play();
  axis.cursor = Infinity;
  pictures = list.map((data, number) => new Timeline(number, data, numbers));
  if (!list.length) return;
  const used = new Set(pictures.flatMap(({ data, columns }) => [...new Set(columns.kind)].map((kind) => data.kinds[kind])));
  place.replaceChildren(...tools([..."FBIWU"].filter((letter) => used.has(letter))), ...pictures.map((picture) => picture.figure));
  Object.assign(axis, { from: 0, to: whole() });
  pictures.forEach((picture) => picture.draw());
};

// Answers

const show = ({ form, answer, state, numbers, error = "", key = "" }) => {
  if (form) fill(form);
  const alarm = byId("error");
  alarm.hidden = !error;
  alarm.textContent = error;
  alarm.classList.toggle("drawing", error.includes(" | "));
  for (const box of byId("form").elements) {
    if (box.name) box.setAttribute("aria-invalid", String(Boolean(error) && box.name === key));
  }
  byId("share").hidden = Boolean(error);
  for (const id of ["answer", "timelines", "tables", "parts"]) byId(id).classList.toggle("stale", Boolean(error));
  if (error && key === "pasted" && valueOf("pasted")) {
    const run = make("button", { type: "button", textContent: "Run this Python" });
    run.addEventListener("click", () => ask(true));
    alarm.append(" ", run);
  }
  if (!error) {
    words = state;
    history.replaceState(null, "", `#${fragmentOf(words)}`);
    byId("title").textContent = answer.title;
    byId("words").replaceChildren(...sentences(answer.words));
    byId("command").textContent = answer.command;
    showTimelines(answer.timelines, numbers);
    byId("tables").replaceChildren(...contents({ ...answer, title: "" }));
    byId("parts").replaceChildren();
  }
  document.body.dataset.answered = asked;
};

const showPart = (data) => {
  const slot = `part-${data.slot}`;
  const part = make("div", { id: slot }, ...sentences(data.words), ...contents(data));
  const old = byId(slot);
  if (old) old.replaceWith(part);
  else byId("parts").append(part);
};

// Links, files and the start

const copy = async (text, name) => {
  try {
    await navigator.clipboard.writeText(text);
    byId("shared").textContent = `${name} copied.`;
  } catch {
    byId("shared").textContent = text;
  }
};

const begin = () => {
  words = wordsOf(location.hash.slice(1));
  if (location.protocol === "file:") {
    const quoted = words.map((word) => (/^[\w./=:,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
    byId("status").replaceChildren(make("p", {}, "A browser runs this page only from a server. This command serves it: ", make("code", { textContent: `suite whatif --serve ${quoted}`.trim() })));
    return;
  }
  launch();
  byId("form").addEventListener("input", changed);
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  byId("copy-command").addEventListener("click", () => copy(byId("command").textContent, "Command"));
  byId("copy-link").addEventListener("click", () => copy(location.href, "Link"));
  byId("save").addEventListener("click", () => {
    const link = make("a", { download: "whatif.json", href: URL.createObjectURL(new Blob([JSON.stringify({ whatif: words }, null, 1)], { type: "application/json" })) });
    link.click();
    URL.revokeObjectURL(link.href);
  });
  byId("load").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", async ({ target }) => {
    try {
      const saved = JSON.parse(await target.files[0].text()).whatif;
      if (!Array.isArray(saved)) throw new Error("it has no list named whatif");
      words = saved.map(String);
      ask();
    } catch (error) {
      byId("shared").textContent = `This file is no saved view: ${error.message}`;
    }
    target.value = "";
  });
  addEventListener("hashchange", () => { words = wordsOf(location.hash.slice(1)); ask(); });
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", () => pictures.forEach((picture) => picture.draw()));
  ask();
};

begin();
