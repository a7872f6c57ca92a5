// The page of the queries: what there is to ask comes from q.json, and what is asked stands behind the # of the page's own URL, as
// it would in the answer's: #flights.csv?origin=JFK. What begins with "plot." says what is drawn.

const TOKEN = "headwater.token";
const by = (id) => document.getElementById(id);
const page = document.documentElement;
let queries = new Map();
let shown = null; // the answer that is on the page
let place = null; // its URL, as the server has it
let asking = new AbortController();

function make(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && typeof value === "boolean") made[key] = value;
    else if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...inside);
  return made;
}

const token = () => sessionStorage.getItem(TOKEN);

// Asks the server. Without the browser's own credentials, as it would ask for a name and a password by itself where there are none.
function get(url, signal) {
  return fetch(url, { headers: token() === null ? {} : { Authorization: `Bearer ${token()}` }, credentials: "omit", signal });
}

function say(place, text) {
  by(place).textContent = text;
  by(place).hidden = text === "";
}

// What the server says of a request that it does not answer.
async function faultOf(response) {
  let said = {};
  try { said = await response.json(); } catch { /* not by this server */ }
  const wait = response.headers.get("Retry-After");
  const again = wait === null ? "" : ` Come back in ${wait} s.`;
  return `${response.status}: ${said.message ?? response.statusText}.${again}`;
}

// Whole numbers that no number of a script holds stay as they are written.
const exact = (_, value, context) => (typeof value === "number" && !Number.isSafeInteger(value) && context?.source ? context.source : value);

async function load() {
  const response = await get("q.json");
  if (!response.ok) throw new Error(await faultOf(response));
  const listed = JSON.parse(await response.text(), exact);
  const found = new Map();
  for (const [path, { get: operation }] of Object.entries(listed.paths)) {
    const [, name, ending] = /^\/q\/([^.]+)(?:\.(.+))?$/.exec(path);
    if (ending === undefined) continue; // the same, by Accept
    const query = found.get(name) ?? { name, title: operation.summary, isPublic: operation.security.length === 0, parameters: operation.parameters, endings: [] };
    query.endings.push(ending);
    query.endings.sort((one, other) => (other === "json") - (one === "json"));
    found.set(name, query);
  }
  queries = found;
  list();
}

function list() {
  const wanted = by("search").value.toLowerCase();
  const found = [...queries.values()].filter(({ name, title }) => `${name} ${title}`.toLowerCase().includes(wanted));
  const current = asked().name;
  by("queries").replaceChildren(...found.map(({ name, title }) => {
    const link = make("a", { href: `#${name}`, "aria-current": name === current ? "page" : undefined }, title);
    if (title !== name) link.append(make("small", {}, name));
    return make("li", {}, link);
  }));
  const nothing = queries.size === 0 ? "There is no query that you may ask. Signed in, you may see more." : "No query is called so.";
  say("none", found.length === 0 ? nothing : "");
}

// What the page's URL asks for.
function asked() {
  const [path, given] = split(location.hash.slice(1), "?");
  const [name, ending] = split(path, ".");
  const args = new URLSearchParams(given ?? "");
  const plot = {};
  for (const key of new Set([...args.keys()].filter((key) => key.startsWith("plot.")))) {
    plot[key.slice(5)] = args.getAll(key);
    args.delete(key);
  }
  return { name, ending: ending ?? "json", args, plot, isRun: given !== undefined };
}

function split(text, at) {
  const place = text.indexOf(at);
  return place === -1 ? [text, undefined] : [text.slice(0, place), text.slice(place + 1)];
}

function fragment({ name, ending, args, plot }) {
  const pairs = new URLSearchParams(args);
  for (const [key, values] of Object.entries(plot)) for (const value of values) pairs.append(`plot.${key}`, value);
  return `#${name}${ending === "json" ? "" : `.${ending}`}?${pairs}`;
}

const bound = (schema, key) => schema[key] ?? schema[`x-${key}`];

function field({ name, required, schema }, given) {
  const id = `a-${name}`, type = schema["x-type"], value = given ?? schema.default;
  const [least, most] = [bound(schema, "minimum"), bound(schema, "maximum")];
  const range = [least !== undefined && `from ${least}`, most !== undefined && `to ${most}`].filter(Boolean).join(" ");
  const hint = [type, range, schema.default !== undefined && schema.default !== "" && `default ${schema.default}`].filter(Boolean).join(", ");
  const common = { id, name, required, "aria-describedby": `${id}-hint` };
  let input;
  if (schema.enum !== undefined || type === "bool") {
    const options = (schema.enum ?? [true, false]).map(String).map((text) => make("option", { value: text }, text));
    input = make("select", common, ...(value === undefined ? [make("option", { value: "" }, "Choose")] : []), ...options);
  } else if (type === "json") {
    input = make("textarea", { ...common, rows: 2, maxlength: schema.maxLength, spellcheck: "false" });
  } else {
    const isDay = type === "date" && [value, least, most].every((day) => day === undefined || /^\d{4}-\d\d-\d\d$/.test(day));
    const kinds = { int: { type: "number", step: 1 }, real: { type: "number", step: "any" }, decimal: { inputmode: "decimal" }, uuid: { minlength: 32 },
      time: { placeholder: "12:34:56" }, timestamp: { placeholder: "2026-01-31 12:34:56" }, timestamptz: { placeholder: "2026-01-31 12:34:56Z" } };
    const kind = isDay ? { type: "date" } : kinds[type] ?? {};
    input = make("input", { type: "text", autocomplete: "off", ...common, ...kind, min: least, max: most, maxlength: schema.maxLength });
  }
  if (value !== undefined) input.value = value;
  return make("div", { class: "field" }, make("label", { for: id, "data-mark": required ? " *" : "" }, name), input, make("span", { class: "hint", id: `${id}-hint` }, hint));
}

// The form of a query, filled with what the URL gives.
function form(query, { ending, args }) {
  say("title", query.title);
  say("name", query.name);
  by("access").textContent = query.isPublic ? "public" : "signed in";
  by("fields").replaceChildren(...query.parameters.map((parameter) => field(parameter, args.get(parameter.name) ?? undefined)));
  by("formats").replaceChildren(...query.endings.map((each) => {
    const input = make("input", { type: "radio", name: "format", value: each, checked: each === ending });
    return make("label", {}, input, make("span", {}, each));
  }));
}

// The arguments as they stand in the form. An empty one is none, but for a text that has a default: there it is an empty text.
function formArguments(query) {
  const args = new URLSearchParams();
  for (const { name, schema } of query.parameters) {
    const value = by(`a-${name}`).value;
    if (value !== "" || (schema["x-type"] === "text" && schema.default !== undefined && schema.default !== "")) args.append(name, value);
  }
  return args;
}

async function run(query, question) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  for (const part of ["address", "plot", "answer"]) by(part).hidden = true;
  say("fault", "");
  say("status", "Asking");
  page.dataset.state = "running";
  const began = performance.now();
  let response;
  try {
    const given = question.args.toString();
    response = await get(`q/${query.name}.arrays.json${given === "" ? "" : `?${given}`}`, signal);
    const first = performance.now();
    place = response.url;
    address(query, question);
    if (!response.ok) throw new Error(await faultOf(response));
    const answer = await readRows(response);
    if (signal.aborted) return;
    head(response, { first: first - began, all: performance.now() - began });
    show(answer, response, question);
    say("status", `${response.status}, ${(performance.now() - began).toFixed(0)} ms`);
    page.dataset.state = "done";
  } catch (error) {
    if (signal.aborted) return;
    if (response !== undefined) head(response, { first: performance.now() - began });
    if (response?.status === 401) by("login").open = true;
    say("status", "");
    const broken = response === undefined ? "The server can't be reached." : "The answer was cut off on the way: it is not whole.";
    say("fault", error instanceof TypeError ? broken : error.message);
    page.dataset.state = "failed";
  }
}

// The one URL of the answer: the server has led to it.
function address(query, { ending }) {
  const url = new URL(place);
  url.pathname = url.pathname.replace(/\.arrays\.json$/, `.${ending}`);
  by("url").value = url.href;
  by("curl").value = query.isPublic ? `curl '${url.href}'` : `curl -H "Authorization: Bearer $TOKEN" '${url.href}'`;
  by("download").href = url.href;
  by("download").download = `${query.name}.${ending}`;
  by("address").hidden = false;
}

function head(response, { first, all }) {
  const names = ["ETag", "Last-Modified", "Age", "Cache-Control", "Vary", "Retry-After", "Content-Encoding", "Content-Length"];
  const lines = names.map((name) => [name, response.headers.get(name)]).filter(([, value]) => value !== null);
  const times = [["First byte", `${first.toFixed(1)} ms`], ...(all === undefined ? [] : [["Shown rows", `${all.toFixed(1)} ms`]])];
  const told = [["Status", `${response.status} ${response.statusText}`.trim()], ...lines, ...times];
  by("head").replaceChildren(...told.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  say("head-of", "Of the answer in the table, which is asked for as .arrays.json: each format has a tag of its own.");
}

function show(answer, response, question) {
  const { columns, rows, count } = answer;
  shown = { answer, question };
  const numeric = columns.map((column, place) => isNumeric(column, place, rows));
  const cellOf = (value, place) => (value === null ? make("td", { class: "null" }, "NULL") : make("td", numeric[place] ? { class: "number" } : {}, value));
  const names = columns.map(({ name, type }, place) => make("th", { scope: "col", class: numeric[place] ? "number" : undefined }, name, make("small", {}, type)));
  by("table").tHead.replaceChildren(make("tr", {}, ...names));
  by("table").tBodies[0].replaceChildren(...rows.map((row) => make("tr", {}, ...row.map(cellOf))));
  const all = count === undefined ? "more than are shown here" : `of ${count.toLocaleString("en-US")}`;
  say("count", rows.length === count ? `${count.toLocaleString("en-US")} ${count === 1 ? "row" : "rows"}` : `The first ${rows.length.toLocaleString("en-US")} rows, ${all}. The download has all.`);
  paging(answer, response, question);
  by("answer").hidden = false;
  choices();
}

function paging({ next }, response, question) {
  const link = next ?? /^<([^>]*)>; rel="next"$/.exec(response.headers.get("Link") ?? "")?.[1];
  const args = link === undefined ? null : new URLSearchParams(split(link, "?")[1]);
  by("next").hidden = args === null;
  if (args !== null) by("next").href = fragment({ ...question, args });
  const start = new URLSearchParams([...question.args].filter(([name]) => !name.startsWith("after.")));
  by("first").hidden = start.size === question.args.size;
  by("first").href = fragment({ ...question, args: start });
}

// What is drawn: as the URL says, else as the columns suggest.
function choices() {
  const { answer, question } = shown;
  const plain = chosenByDefault(answer);
  by("plot").hidden = plain === null;
  if (plain === null) return;
  const { columns, rows } = answer;
  const { x, y, as } = question.plot;
  const named = (name) => columns.findIndex((column) => column.name === name);
  const isNumber = (place) => place >= 0 && isNumeric(columns[place], place, rows);
  const across = x === undefined ? plain.x : named(x[0]);
  const up = (y ?? []).map(named).filter(isNumber).slice(0, SERIES_MAX);
  const chosen = { x: across, y: up.length > 0 ? up : plain.y, as: ["line", "scatter", "bars"].includes(as?.[0]) ? as[0] : kindFor(across, answer) };
  const options = columns.map(({ name }, place) => make("option", { value: place }, name));
  by("plot-x").replaceChildren(make("option", { value: -1 }, "the rows' order"), ...options);
  by("plot-x").value = chosen.x;
  by("plot-as").value = chosen.as;
  const boxes = columns.map(({ name }, place) => {
    if (!isNumber(place)) return null;
    const order = chosen.y.indexOf(place);
    const box = make("input", { type: "checkbox", value: place, checked: order >= 0 });
    return make("label", {}, box, make("span", { class: order >= 0 ? `swatch s${order}` : "swatch", "aria-hidden": "true" }), name);
  });
  by("plot-y").replaceChildren(by("plot-y").firstElementChild, ...boxes.filter(Boolean));
  shown.chosen = chosen;
  plot();
}

function plot() {
  if (by("plot").hidden || shown === null) return;
  const { answer, chosen } = shown;
  const { svg, counts } = draw(answer, chosen, Math.max(280, Math.round(by("canvas").clientWidth)));
  by("canvas").replaceChildren(svg);
  const lost = counts.map((count) => answer.rows.length - count);
  const most = Math.max(...lost);
  say("plot-note", most > 0 ? `${most} of ${answer.rows.length} rows have no place in the plot: NULL, or no number or time.` : "");
}

// What was chosen goes into the URL, so that it can be kept and sent.
function choose() {
  const { answer, question } = shown;
  const boxes = [...by("plot-y").querySelectorAll("input:checked")].slice(0, SERIES_MAX);
  const x = Number(by("plot-x").value);
  const isNewAxis = x !== shown.chosen.x;
  const name = (place) => answer.columns[place]?.name ?? "";
  question.plot = { x: [name(x)], y: boxes.map((box) => name(box.value)), as: isNewAxis ? [kindFor(x, answer)] : [by("plot-as").value] };
  history.replaceState(null, "", fragment(question));
  choices();
}

function route() {
  const question = asked();
  const query = queries.get(question.name);
  list();
  by("query").hidden = query === undefined;
  by("welcome").hidden = question.name !== "";
  const missing = query === undefined && question.name !== "";
  say("page-fault", missing ? `There is no query ${question.name} that you may ask.${token() !== null ? "" : " Sign in, if it is not public."}` : "");
  document.title = query === undefined ? "Queries" : `${query.title} – Queries`;
  if (query === undefined) {
    asking.abort();
    page.dataset.state = missing ? "failed" : "idle";
    return;
  }
  form(query, question);
  if (question.isRun) return run(query, question);
  asking.abort();
  for (const part of ["address", "plot", "answer", "fault"]) by(part).hidden = true;
  say("status", "");
  page.dataset.state = "idle";
}

function signedIn() {
  const isIn = token() !== null;
  by("who").textContent = isIn ? "Signed in" : "Sign in";
  by("logout").hidden = !isIn;
}

async function signIn(given) {
  if (!/^[\x21-\x7e]+$/.test(given)) return say("login-fault", "That is no token.");
  sessionStorage.setItem(TOKEN, given);
  say("login-fault", "");
  try {
    await load();
    by("login").open = false;
    by("token").value = "";
  } catch (error) {
    sessionStorage.removeItem(TOKEN);
    say("login-fault", error instanceof TypeError ? "The server can't be reached." : error.message);
  }
  signedIn();
  if (!by("login").open) route();
}

async function signOut() {
  sessionStorage.removeItem(TOKEN);
  signedIn();
  await begin();
}

async function download(event) {
  // A link sends no token: then the rows are fetched, and given from memory.
  if (token() === null || by("access").textContent === "public") return;
  event.preventDefault();
  const response = await get(by("download").href);
  if (!response.ok) return say("fault", await faultOf(response));
  const url = URL.createObjectURL(await response.blob());
  make("a", { href: url, download: by("download").download }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

async function copy(button) {
  const field = by(button.dataset.copies);
  field.select();
  try { await navigator.clipboard.writeText(field.value); } catch { document.execCommand("copy"); }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

async function begin() {
  signedIn();
  try {
    await load();
    say("page-fault", "");
    route();
  } catch (error) {
    say("page-fault", error instanceof TypeError ? "The server can't be reached." : error.message);
    by("login").open = token() !== null;
    page.dataset.state = "failed";
  }
}

by("arguments").addEventListener("submit", (event) => {
  event.preventDefault();
  const { name, plot } = asked();
  const ending = by("formats").querySelector(":checked")?.value ?? "json";
  const next = fragment({ name, ending, plot, args: formArguments(queries.get(name)) });
  if (next === location.hash) route();
  else location.hash = next;
});
by("formats").addEventListener("change", (event) => {
  const question = asked();
  question.ending = event.target.value;
  if (!question.isRun) return;
  history.replaceState(null, "", fragment(question));
  if (shown !== null) shown.question.ending = question.ending;
  if (!by("address").hidden) address(queries.get(question.name), question);
});
by("login-form").addEventListener("submit", (event) => { event.preventDefault(); signIn(by("token").value.trim()); });
by("logout").addEventListener("click", signOut);
by("search").addEventListener("input", list);
by("skip").addEventListener("click", () => by("main").focus());
by("download").addEventListener("click", download);
for (const button of document.querySelectorAll("[data-copies]")) button.addEventListener("click", () => copy(button));
for (const id of ["plot-x", "plot-as", "plot-y"]) by(id).addEventListener("change", choose);
new ResizeObserver(plot).observe(by("canvas"));
window.addEventListener("hashchange", route);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") by("login").open = false; });
begin();
