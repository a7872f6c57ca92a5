// A plot of rows: points, lines or bars over an axis of numbers, of times, or of names in their order.

const HEIGHT = 320;
const SERIES_MAX = 8;
const DAY = 86400000;
const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, ...inside) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

// Where a value is on an axis of its column: a number, milliseconds; NaN where it is on none.
function position(value, column) {
  if (value === null) return NaN;
  if (column.type === "date") return Date.parse(`${value}T00:00:00Z`);
  if (column.type === "time") return Date.parse(`1970-01-01T${value}Z`);
  if (column.type === "timestamp") return Date.parse(`${value.replace(" ", "T")}Z`);
  if (column.type === "timestamptz") return Date.parse(value.replace(" ", "T"));
  const number = value.trim() === "" ? NaN : Number(value);
  return Math.abs(number) <= 1e300 ? number : NaN;
}

// What is shown where nothing else was chosen; null where there is nothing to show.
function chosenByDefault({ columns, rows }) {
  const places = columns.map((_, place) => place);
  const numbers = places.filter((place) => isNumeric(columns[place], place, rows));
  if (numbers.length === 0 || rows.length === 0) return null;
  const across = places.find((place) => isTime(columns[place]))
    ?? places.find((place) => !["json", "bytes"].includes(columns[place].type) && numbers.some((number) => number !== place));
  const y = numbers.find((number) => number !== across);
  const x = y === undefined || across === undefined ? -1 : across; // by their order
  return { x, y: [y ?? numbers[0]], as: kindFor(x, { columns, rows }) };
}

function kindFor(x, { columns, rows }) {
  if (x === -1) return "line";
  if (!isTime(columns[x]) && !isNumeric(columns[x], x, rows)) return "bars";
  const at = rows.map((row) => position(row[x], columns[x])).filter(Number.isFinite);
  return at.every((value, place) => place === 0 || value >= at[place - 1]) ? "line" : "scatter";
}

// Round places between two numbers, few enough to be read.
function ticksOf(least, most, count) {
  const rough = (most - least) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  const ticks = [];
  for (let number = Math.ceil(least / step - 1e-9); number * step <= most + step * 1e-9; number++) ticks.push(number * step);
  return { step, ticks: ticks.map((tick) => ({ at: tick, text: numberText(tick, step) })) };
}

function numberText(number, step) {
  if (Math.abs(number) < step / 2) return "0";
  if (step < 1e-6 || Math.abs(number) >= 1e15) return Number(number.toPrecision(12)).toExponential();
  const [unit, name] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([unit]) => step >= unit) ?? [1, ""];
  const digits = unit > 1 ? 0 : Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return (number / unit).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }) + name;
}

const SPANS = [1, 10, 100, 1000, 5e3, 15e3, 30e3, 6e4, 3e5, 9e5, 18e5, 36e5, 108e5, 216e5, 432e5, DAY, 2 * DAY, 7 * DAY, 14 * DAY];

// The same of times: by the clock, by days, by months, by years.
function timeTicks(least, most, count, isOfDay) {
  const rough = (most - least) / count;
  const span = SPANS.find((span) => span >= rough);
  const ticks = [];
  if (span !== undefined) {
    for (let at = Math.ceil(least / span) * span; at <= most; at += span) ticks.push(at);
  } else {
    const months = [1, 3, 6].find((months) => months * 30.5 * DAY >= rough);
    const years = rough / (365.25 * DAY), power = 10 ** Math.max(0, Math.floor(Math.log10(years)));
    const step = months ?? 12 * power * ([5, 2].find((times) => times * power <= years) ?? 1);
    const from = new Date(least).getUTCFullYear() * 12 + new Date(least).getUTCMonth();
    for (let month = Math.ceil(from / step) * step; ; month += step) {
      const at = new Date(0).setUTCFullYear(Math.floor(month / 12), month % 12, 1);
      if (!(at <= most)) break;
      if (at >= least) ticks.push(at);
    }
  }
  const wide = span === undefined ? (ticks.every((at) => new Date(at).getUTCMonth() === 0) ? 4 : 7) : 10;
  const text = (at, place) => {
    const whole = new Date(at).toISOString();
    const [day, clock] = whole.split("T");
    const time = clock.slice(0, span >= 6e4 ? 5 : span >= 1000 ? 8 : 12);
    if (isOfDay) return time;
    if (span === undefined || span >= DAY) return day.slice(0, day.length - 10 + wide);
    const isNew = place === 0 || new Date(ticks[place - 1]).toISOString().slice(0, 10) !== day;
    return isNew ? `${day.slice(-5)} ${time}` : time;
  };
  return { ticks: ticks.map((at, place) => ({ at, text: text(at, place) })) };
}

// The horizontal axis: where each row is, from 0 to 1, and what is written below it.
function across({ columns, rows }, { x, as }, width) {
  const column = columns[x];
  const isNamed = as === "bars" || (x !== -1 && !isTime(column) && !isNumeric(column, x, rows));
  if (isNamed) {
    const names = rows.map((row, place) => (x === -1 ? String(place + 1) : row[x] ?? "NULL"));
    const every = Math.max(1, Math.ceil(rows.length / Math.max(1, Math.floor(width / 80))));
    const cut = (name) => (name.length > 11 ? `${name.slice(0, 10)}…` : name);
    const ticks = names.map((name, place) => ({ at: (place + 0.5) / rows.length, text: cut(name) }));
    return { places: rows.map((_, place) => (place + 0.5) / rows.length), ticks: ticks.filter((_, place) => place % every === 0) };
  }
  const at = rows.map((row, place) => (x === -1 ? place + 1 : position(row[x], column)));
  let [least, most] = extent(at);
  const timed = x !== -1 && isTime(column);
  [least, most] = apart(least, most, timed ? DAY / 2 : 0.5);
  const count = Math.max(2, Math.floor(width / 110));
  const { ticks } = timed ? timeTicks(least, most, count, column.type === "time") : ticksOf(least, most, count);
  const scaled = (value) => (value - least) / (most - least);
  return { places: at.map(scaled), ticks: ticks.map(({ at, text }) => ({ at: scaled(at), text })) };
}

function extent(values) {
  const [least, most] = values.filter(Number.isFinite).reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  return least > most ? [0, 1] : [least, most];
}

// Both ends of an axis, further apart where they are as good as one: ticks between them would have no digits of their own.
function apart(least, most, room) {
  const digits = Math.max(Math.abs(least), Math.abs(most)) * 1e-9;
  if (least !== most && most - least >= digits) return [least, most];
  return [least - Math.max(room, digits), most + Math.max(room, digits)];
}

// Draws it; gives the drawing, and how many rows have a place in it in each series.
function draw(answer, chosen, width) {
  const { columns, rows } = answer;
  const values = chosen.y.map((place) => rows.map((row) => position(row[place], columns[place])));
  let [least, most] = extent(values.flat());
  if (chosen.as === "bars") [least, most] = [Math.min(0, least), Math.max(0, most)];
  [least, most] = apart(least, most, 0.5);
  const up = ticksOf(least, most, 5);
  least = Math.min(least, Math.floor(least / up.step + 1e-9) * up.step);
  most = Math.max(most, Math.ceil(most / up.step - 1e-9) * up.step);
  up.ticks = ticksOf(least, most, 5).ticks;
  const left = 16 + 7 * Math.max(...up.ticks.map(({ text }) => text.length)), right = 16, top = 14, bottom = 44;
  const inner = Math.max(40, width - left - right), tall = HEIGHT - top - bottom;
  const along = across(answer, chosen, inner);
  const xOf = (row) => left + along.places[row] * inner;
  const yOf = (value) => top + (1 - (value - least) / (most - least)) * tall;
  const name = (place) => (place === -1 ? "row" : columns[place].name);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: "0" });
  for (const { at, text } of up.ticks) {
    svg.append(shape("line", { class: "grid", x1: left, x2: left + inner, y1: yOf(at), y2: yOf(at) }),
      shape("text", { class: "up", x: left - 8, y: yOf(at) + 4, "text-anchor": "end" }, text));
  }
  svg.append(shape("line", { class: "axis", x1: left, x2: left + inner, y1: top + tall, y2: top + tall }));
  for (const { at, text } of along.ticks) {
    const x = left + at * inner;
    svg.append(shape("line", { class: "axis", x1: x, x2: x, y1: top + tall, y2: top + tall + 5 }),
      shape("text", { class: "across", x, y: top + tall + 19, "text-anchor": at > 0.94 ? "end" : at < 0.02 ? "start" : "middle" }, text));
  }
  svg.append(shape("text", { class: "label", x: left + inner / 2, y: HEIGHT - 6, "text-anchor": "middle" }, name(chosen.x)));
  const drawn = values.map((series, number) => {
    const has = rows.map((_, row) => row).filter((row) => Number.isFinite(series[row]) && Number.isFinite(along.places[row]));
    svg.append(mark(chosen, series, has, { number, of: values.length, xOf, yOf, band: inner / Math.max(1, rows.length) }));
    return has;
  });
  const what = chosen.y.map(name).join(", ");
  svg.setAttribute("aria-label", `${what} by ${name(chosen.x)}: ${drawn.map((has) => has.length).join(", ")} points`);
  follow(svg, { answer, chosen, values, drawn, xOf, yOf, top, tall, width, name });
  return { svg, counts: drawn.map((has) => has.length) };
}

// A series: a mark for each row, and where it is a line, the line, broken where a row has no number.
function mark({ as, x }, series, has, { number, of, xOf, yOf, band }) {
  const group = shape("g", { class: `series s${number % SERIES_MAX}` });
  if (as === "bars") {
    const wide = Math.max(0.5, (band * 0.8) / of);
    for (const row of has) {
      const [zero, end] = [yOf(0), yOf(series[row])];
      const left = xOf(row) - band * 0.4 + number * wide;
      group.append(shape("rect", { class: "point", x: left, width: wide, y: Math.min(zero, end), height: Math.max(0.5, Math.abs(end - zero)), rx: Math.min(3, wide / 4) }));
    }
    return group;
  }
  if (as === "line") {
    const inOrder = x === -1 ? has : has.toSorted((one, other) => xOf(one) - xOf(other));
    const isBroken = (place) => place === 0 || (inOrder[place] > inOrder[place - 1] + 1 && x === -1);
    group.append(shape("path", { d: inOrder.map((row, place) => `${isBroken(place) ? "M" : "L"}${xOf(row).toFixed(2)} ${yOf(series[row]).toFixed(2)}`).join("") }));
  }
  const radius = has.length > 150 && as === "line" ? 1.2 : 3;
  for (const row of has) group.append(shape("circle", { class: "point", cx: xOf(row), cy: yOf(series[row]), r: radius }));
  return group;
}

// Says what is nearest to the pointer; the arrow keys go from row to row.
function follow(svg, { answer, chosen, values, drawn, xOf, yOf, top, tall, width, name }) {
  const rows = [...new Set(drawn.flat())].sort((one, other) => xOf(one) - xOf(other) || one - other);
  const told = shape("g", { class: "tip", "pointer-events": "none" });
  svg.append(told);
  let place = -1;
  const tell = (next) => {
    if (rows.length === 0) return;
    place = Math.min(Math.max(next, 0), rows.length - 1);
    const row = rows[place], x = xOf(row);
    const texts = [chosen.x, ...chosen.y].map((column) => `${name(column)}: ${column === -1 ? row + 1 : answer.rows[row][column] ?? "NULL"}`);
    const wide = Math.min(width - 8, 16 + 7 * Math.max(...texts.map((text) => text.length)));
    const left = x + wide + 12 > width ? Math.max(2, x - wide - 10) : x + 10;
    told.replaceChildren(shape("line", { class: "at", x1: x, x2: x, y1: top, y2: top + tall }),
      ...values.filter((series) => Number.isFinite(series[row]) && chosen.as !== "bars").map((series, number) =>
        shape("circle", { class: `s${number % SERIES_MAX}`, cx: x, cy: yOf(series[row]), r: 5, fill: "currentColor" })),
      shape("rect", { class: "box", x: left, y: top, width: wide, height: 10 + 17 * texts.length, rx: 6 }),
      ...texts.map((text, line) => shape("text", { class: "told", x: left + 8, y: top + 18 + 17 * line }, text.slice(0, 60))));
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    tell(rows.reduce((best, row, next) => (Math.abs(xOf(row) - at) < Math.abs(xOf(rows[best]) - at) ? next : best), 0));
  });
  const clear = () => told.replaceChildren();
  svg.addEventListener("pointerleave", clear);
  svg.addEventListener("blur", clear);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    tell(place + step);
  });
}
