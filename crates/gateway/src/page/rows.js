// An answer of /q/NAME.arrays.json as it comes: a head, a row a line, a tail.

const ROWS_MAX = 1000;
const CHARACTERS_MAX = 8 << 20;

// The rows, no more than so many; what is behind them is not waited for. Fails where the answer was cut off.
async function readRows(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const rows = [];
  let columns = null, tail = null, rest = "", characters = 0;
  for (let part; !(part = await reader.read()).done;) {
    characters += part.value.length;
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (columns === null) columns = JSON.parse(line + "]}").columns;
      else if (line.startsWith("]")) tail = JSON.parse(`{"rows":[${line}`);
      else if (rows.length < ROWS_MAX) rows.push(cells(line).map((raw, place) => cell(raw, columns[place].type)));
      else tail ??= {};
    }
    if (tail === null && (characters > CHARACTERS_MAX)) tail = {};
    if (tail !== null && tail.count === undefined) {
      await reader.cancel();
      break;
    }
  }
  if (tail === null) throw new TypeError("no end");
  return { columns, rows, count: tail.count, next: tail.next };
}

// The values of a row, each as it is written: a number's digits are never read into one that holds fewer.
function cells(line) {
  const found = [];
  let depth = 0, start = 1, isText = false;
  for (let at = 0; at < line.length; at++) {
    const letter = line[at];
    if (isText) {
      if (letter === "\\") at++;
      else if (letter === '"') isText = false;
    } else if (letter === '"') isText = true;
    else if (letter === "[" || letter === "{") depth++;
    else if (letter === "]" || letter === "}") depth--;
    if (!isText && (depth === 0 || (depth === 1 && letter === ","))) {
      if (at > start) found.push(line.slice(start, at));
      start = at + 1;
      if (depth === 0) break;
    }
  }
  return found;
}

// What a value says; null for NULL.
function cell(raw, type) {
  if (raw === "null") return null;
  return raw[0] === '"' && type !== "json" ? JSON.parse(raw) : raw;
}

const isTime = (column) => ["date", "time", "timestamp", "timestamptz"].includes(column.type);

// Whether a column has numbers: by its type, or where it has none by all that is in it.
function isNumeric(column, place, rows) {
  if (column.type !== "any") return ["int", "real", "decimal"].includes(column.type);
  const values = rows.map((row) => row[place]).filter((value) => value !== null);
  return values.length > 0 && values.every((value) => value.trim() !== "" && Number.isFinite(Number(value)));
}
