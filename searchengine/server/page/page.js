// The search page: reads the controls, asks the server, shows what it answers.
// Elements are built from text only: nothing that comes from a document is ever parsed as HTML.

const PAGE = 10; // hits
const [DEBOUNCE, RETRY] = [80, 5000]; // milliseconds
const TOKEN = "searchengine-token"; // kept until the tab is closed
const byId = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const documents = (n) => `${number(n)} document${n === 1 ? "" : "s"}`;

// usual: the mode in which the collection answers questions that name none
// asked, hits: the request that is shown, and its hits; found: how many match it
// asking: what ends the request under way
// like: the key of a document in place of a question; names: titles of documents, if they are known
// typing: whether the address is of a question that is being typed
// asTyped: a question whose words are not to be replaced
const state = {
  usual: "vector", stats: null, asked: null, hits: [], found: null, asking: null, timer: 0, retry: 0,
  like: null, names: {}, typing: false, asTyped: null,
};

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on") && value) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const make = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const button = (text, onclick, attributes = {}) => make("button", { type: "button", onclick, ...attributes }, text);

// ------------------------------------------------------------------------------------- the server

/** An error with a sentence for the user. `status`: of the response; 0: there is none. */
const failure = (status, message) => Object.assign(new Error(message), { status });

/** The JSON of a response; `body` makes it a POST. Throws a failure, and AbortError if it is given up. */
async function call(path, body, signal) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...(token && { Authorization: `Bearer ${token}` }), ...(body && { "Content-Type": "application/json" }) };
  const method = body ? "POST" : "GET";
  const response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) }).catch((error) => {
    throw error.name === "AbortError" ? error : failure(0, "The server cannot be reached.");
  });
  const json = await response.json().catch((error) => {
    throw error.name === "AbortError" ? error : failure(response.status, `The server answered ${response.status}.`);
  });
  if (!response.ok) throw failure(response.status, json.error.message);
  return json;
}

// Relative to the page, which may be below a prefix.
const at = (path) => `v1/collections/${encodeURIComponent(byId("collection").value)}/${path}`;

function showError(error) {
  if (error.name === "AbortError") return;
  if (error.status === 401) {
    byId("token-form").hidden = false;
    byId("token-unknown").hidden = sessionStorage.getItem(TOKEN) === null;
    byId("token").focus();
    return;
  }
  byId("error").hidden = false;
  byId("error").textContent = "status" in error ? error.message : `The page failed: ${error.message}`;
  byId("error").classList.toggle("lines", error.message.includes("\n")); // which point at a place
  if (!("status" in error)) console.error(error);
}

// ------------------------------------------------------------------------------------- filters

// checked: field → its values. ranges: field → [low, high], null where open. typed: conditions.
const filters = { checked: new Map(), ranges: new Map(), typed: [] };
let fields = []; // of the collection: name, kind, lists, low, high

function useFields(found) {
  fields = found.filter((field) => field.kind !== "text");
  byId("facets-panel").hidden = !found.length;
  const ranged = fields.find((field) => field.kind === "number");
  byId("where").placeholder = ranged ? `${ranged.name} >= ${ranged.low}` : found.length ? `${found[0].name} = '…'` : "";
}

function clearFilters() {
  filters.checked.clear();
  filters.ranges.clear();
  [filters.typed, byId("where").value] = [[], ""];
}

const written = (value) => (typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value));
const hasLists = (name) => fields.some((field) => field.name === name && field.lists);

/** All conditions as one filter, but those of the field `left_out`; null: there are none. */
function where(left_out) {
  const parts = filters.typed.map((condition) => `(${condition})`);
  for (const [name, values] of filters.checked) {
    const each = values.flatMap((value) => [`${name} = ${written(value)}`,
      ...(hasLists(name) ? [`${name} contains ${written(value)}`] : [])]);
    if (name !== left_out) parts.push(`(${each.join(" or ")})`);
  }
  for (const [name, [low, high]] of filters.ranges) {
    if (name === left_out) continue;
    // A day includes its hours: "2020-05-01T10:00" is below "2020-05-01~".
    if (low !== null) parts.push(`${name} >= ${written(low)}`);
    if (high !== null) parts.push(`${name} <= ${written(typeof high === "string" ? `${high}~` : high)}`);
  }
  return parts.join(" and ") || null;
}

/** The fields whose values are counted. */
function counted() {
  const choices = fields.filter((field) => field.kind === "choice").map((field) => field.name);
  return [...new Set([...choices, ...filters.checked.keys()])].slice(0, 20);
}

function toggleValue(name, value) {
  const values = filters.checked.get(name) ?? [];
  const rest = values.includes(value) ? values.filter((each) => each !== value) : [...values, value];
  if (rest.length) filters.checked.set(name, rest);
  else filters.checked.delete(name);
}

/** Filter by a value that a hit shows. */
function addValue(field, value, inList) {
  const plain = /^[\p{L}_][\p{L}\p{N}_]*$/u.test(field) && !/^(and|or|not|in|is|like|between|contains|true|false|null)$/i.test(field);
  const name = plain ? field : `\`${field}\``;
  if (inList && !hasLists(name)) filters.typed.push(`${name} contains ${written(value)}`);
  else if (!filters.checked.get(name)?.includes(value)) toggleValue(name, value);
  controlsChanged();
}

function showChips() {
  const chip = (text, remove, label = `Remove the filter ${text}`) => make("li", {}, button(`${text} ×`, () => {
    remove();
    controlsChanged();
    byId("query").focus();
  }, { dir: "auto", "aria-label": label }));
  const chips = filters.typed.map((condition) =>
    chip(condition, () => { filters.typed = filters.typed.filter((each) => each !== condition); }));
  for (const [name, values] of filters.checked) {
    chips.push(...values.map((value) => chip(`${name}: ${value}`, () => toggleValue(name, value))));
  }
  for (const [name, [low, high]] of filters.ranges) {
    const text = low === null ? `up to ${high}` : high === null ? `from ${low}` : `${low}–${high}`;
    chips.push(chip(`${name}: ${text}`, () => filters.ranges.delete(name)));
  }
  if (chips.length > 1) {
    chips.push(make("li", {}, button("Remove all filters", () => { clearFilters(); controlsChanged(); byId("query").focus(); }, { class: "plain" })));
  }
  if (state.like !== null) {
    const text = `Like: ${state.names[state.like] || state.like}`;
    chips.unshift(chip(text, () => { state.like = null; }, `Remove the example ${text}`));
  }
  byId("chips").replaceChildren(...chips);
}

function choices(name, values) {
  const checked = filters.checked.get(name) ?? [];
  const known = values.filter(({ value }) => ["string", "number", "boolean"].includes(typeof value));
  const missing = checked.filter((value) => !known.some((each) => each.value === value)).map((value) => ({ value, count: 0 }));
  if (!known.length && !missing.length) return "";
  const shown = [...known.slice(0, 8), ...known.slice(8).filter(({ value }) => checked.includes(value)), ...missing];
  return make("fieldset", {}, make("legend", { dir: "auto" }, name), ...shown.map(({ value, count }) => make("label", {},
    make("input", {
      type: "checkbox", checked: checked.includes(value) && "", "data-value": `${name} ${value}`,
      onchange: () => { toggleValue(name, value); controlsChanged(); },
    }), make("span", { dir: "auto" }, String(value)), make("span", { class: "quiet" }, number(count)))));
}

function range({ name, kind, low, high }) {
  const now = filters.ranges.get(name) ?? [null, null];
  const day = (value) => (kind === "date" ? value.slice(0, 10) : value);
  const days = kind === "date" && day(low).length === 10;
  const bound = (i, label, hint) => make("input", {
    type: days ? "date" : kind === "date" ? "text" : "number", step: "any", title: `${label} ${day(hint)}`,
    "aria-label": `${name} ${label}`, placeholder: day(hint), value: now[i], "data-value": `${name} ${label}`,
    onchange: ({ target: { value } }) => {
      const bounds = now.with(i, value === "" ? null : kind === "date" ? value : Number(value));
      if (bounds.every((each) => each === null)) filters.ranges.delete(name);
      else filters.ranges.set(name, bounds);
      controlsChanged();
    },
  });
  const between = (text) => make("span", { "aria-hidden": "true", class: "quiet" }, text);
  return make("fieldset", { class: days ? "range dates" : "range" }, make("legend", { dir: "auto" }, name),
    days ? between("from") : "", bound(0, "from", low), between(days ? "to" : "–"), bound(1, "to", high));
}

/** The controls of all fields, with the counts of their values; the focus stays where it was. */
function showFields(found) {
  const focused = document.activeElement?.dataset?.value;
  const facets = counted().map((name) => choices(name, found.facets[name] ?? [])).filter(Boolean);
  byId("facets").replaceChildren(...facets, ...fields.filter(({ kind }) => ["number", "date"].includes(kind)).map(range));
  if (focused) byId("facets").querySelector(`[data-value="${CSS.escape(focused)}"]`)?.focus();
}

/** Add a condition; one with a mistake is refused by the server, and stays out. */
async function addCondition(event) {
  event.preventDefault();
  const condition = byId("where").value.trim();
  const path = at(`documents?${new URLSearchParams({ limit: 0, where: condition })}`);
  if (!condition || !await call(path).catch(showError)) return;
  if (!filters.typed.includes(condition)) filters.typed.push(condition);
  byId("where").value = "";
  await controlsChanged();
}

// ------------------------------------------------------------------------------------- hits

// Scripts whose words carry endings, or have no spaces between them: a part is found inside a word.
const JOINED = /[\p{Script=Han}\p{Script=Hangul}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Myanmar}\p{Script=Khmer}]/u;
const WORD = /[\p{L}\p{N}\p{M}]+/gu;

/** The text as nodes, with these words in <mark>, as the server lists them; parts that touch are one. */
export function highlighted(text, words) {
  const [whole, parts] = [new Set(words), words.filter((word) => JOINED.test(word))];
  const marked = new Uint8Array(text.length);
  for (const { 0: match, index } of words.length ? text.matchAll(WORD) : []) {
    const word = match.toLowerCase();
    for (const part of whole.has(word) ? [word] : parts) {
      for (let i = word.indexOf(part); i >= 0; i = word.indexOf(part, i + 1)) marked.fill(1, index + i, index + i + part.length);
    }
  }
  const nodes = [];
  for (let start = 0, end; start < text.length; start = end) {
    const is = marked[start];
    end = marked.indexOf(1 - is, start);
    if (end < 0) end = text.length;
    nodes.push(is ? make("mark", {}, text.slice(start, end)) : text.slice(start, end));
  }
  return nodes;
}

/** The values of the fields that are not shown elsewhere on the card, as buttons that filter by them. */
function metadata(hit, shownAbove) {
  const items = [];
  for (const [field, value] of Object.entries(hit.metadata)) {
    if (shownAbove.includes(value)) continue;
    for (const each of Array.isArray(value) ? new Set(value) : [value]) {
      const text = String(each);
      const prose = text.length > 60 || text.split(" ").length > 6;
      if (!["string", "number", "boolean"].includes(typeof each) || prose || items.length >= 12) continue;
      const shown = /^\d{4}-\d\d-\d\dT\d\d:\d\d/.test(text) ? text.slice(0, 10) : text; // of a time the day
      const filter = button(make("b", {}, `${field} `), () => addValue(field, each, Array.isArray(value)),
        { dir: "auto", "aria-label": `Only ${field}: ${text}` });
      filter.append(shown);
      items.push(make("li", {}, filter));
    }
  }
  return items.length ? make("ul", { class: "metadata", "aria-label": "Metadata" }, ...items) : "";
}

/** An offset of characters as one of UTF-16 units, which JavaScript's strings count. */
const unitsAt = (text, offset) => Array.from(text).slice(0, offset).join("").length;

/** Show the whole text of a hit in place of its snippet, or the snippet again. Only then it is sent. */
async function toggleText(item, hit) {
  const open = item.getAttribute("data-open") !== "true";
  const [shown, whole] = [item.querySelector(".hit-text"), item.querySelector(".whole")];
  if (open) {
    const found = await call(at(`documents/${encodeURIComponent(hit.key)}`));
    const [start, end] = [hit.start, hit.end].map((offset) => unitsAt(found.text, offset));
    const passage = make("span", { class: "passage" }, ...highlighted(found.text.slice(start, end), hit.highlights));
    shown.replaceChildren(found.text.slice(0, start), passage, found.text.slice(end));
    shown.setAttribute("tabindex", "0"); // a long one scrolls
  } else {
    shown.replaceChildren(...highlighted(hit.snippet, hit.highlights));
    shown.removeAttribute("tabindex");
  }
  item.setAttribute("data-open", String(open));
  if (open) shown.scrollTop = shown.querySelector(".passage").offsetTop; // the page itself stays
  whole.textContent = open ? "Less" : "Whole text";
  whole.setAttribute("aria-expanded", String(open));
}

/** Why a hit has its place: its score, and those that it follows from. A button, and the table that it shows. */
function details(hit, rank, title) {
  // Three decimals; three significant digits of a score that would be shown as 0.000.
  const shown = (score) => (score && Math.abs(score) < 1e-3 ? score.toExponential(2) : score.toFixed(3));
  const scores = Object.entries(hit.scores).map(([name, score]) => [name.replace("_", "-"), shown(score)]);
  const rows = [["rank", rank], ["score", shown(hit.score)], ...scores, ["passage", `characters ${hit.start}–${hit.end}`], ["key", hit.key]];
  const table = make("table", { class: "details", hidden: "" }, make("tbody", {},
    ...rows.map(([label, value]) => make("tr", {}, make("th", { scope: "row" }, label), make("td", {}, String(value))))));
  const show = button("Details", () => {
    table.hidden = !table.hidden;
    show.setAttribute("aria-expanded", String(!table.hidden));
  }, { class: "why", "aria-expanded": "false", "aria-label": `Details of ${title}` });
  return [show, table];
}

function card(hit, rank) {
  const { path, lang, code, url } = hit.metadata;
  const title = hit.title || hit.key;
  const address = URL.canParse(url) && ["http:", "https:"].includes(new URL(url).protocol) ? url : null;
  const words = highlighted(title, hit.highlights);
  const above = typeof path === "string" && path !== title ? path : "";
  const text = { dir: "auto", lang: typeof lang === "string" && /^[a-z]{2,3}(-[\w-]+)?$/i.test(lang) ? lang : null };
  const item = make("li", { tabindex: "-1", "data-key": hit.key },
    make("h3", text, ...(address ? [make("a", { href: address, rel: "noreferrer" }, ...words)] : words)),
    above ? make("p", { class: "quiet above", dir: "auto" }, above) : "",
    make("p", { class: typeof code === "string" ? "hit-text code" : "hit-text", ...text }, ...highlighted(hit.snippet, hit.highlights)),
    metadata(hit, [address, path]));
  const open = () => toggleText(item, hit).catch(showError);
  const whole = button("Whole text", open, { class: "whole", "aria-expanded": "false", "aria-label": `Whole text of ${title}` });
  const like = button("More like this", () => showSimilar(hit.key, hit.title), { class: "like", "aria-label": `More like ${title}` });
  const [why, table] = details(hit, rank, title);
  item.append(make("div", { class: "actions" }, whole, like, why), table);
  item.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target === item) open(); });
  return item;
}

/** Hits after the first ones, or in their place: also none. */
function showHits(hits, first = 0) {
  state.hits = [...state.hits.slice(0, first), ...hits];
  const items = hits.map((hit, i) => card(hit, first + i + 1));
  if (first) byId("hits").append(...items);
  else byId("hits").replaceChildren(...items);
  byId("more").hidden = hits.length < PAGE || state.found?.total <= state.hits.length;
  return items;
}

// ------------------------------------------------------------------------------------- map

const [WIDTH, HEIGHT, MARGIN] = [320, 260, 14];
const map = { version: null, x: null, y: null, above: null, count: 0 }; // the sample that is drawn

function dot(point, cls, r, open) {
  const inside = (value, size) => Math.min(size - 4, Math.max(4, value)).toFixed(1); // what is outside stands at the edge
  const place = { cx: inside(map.x(point.x), WIDTH), cy: inside(map.y(point.y), HEIGHT), r };
  const opens = open && { role: "button", tabindex: "-1", onclick: () => openPoint(point) };
  return draw("circle", { class: cls, ...place, ...opens }, draw("title", {}, point.title || point.key || "the question"));
}

/** Draw the sample, both axes to the same scale. */
function drawSample(points) {
  const [xs, ys] = [points.map((point) => point.x), points.map((point) => point.y)];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = Math.min((WIDTH - 2 * MARGIN) / (right - left || 1), (HEIGHT - 2 * MARGIN) / (high - low || 1));
  map.x = (value) => WIDTH / 2 + (value - (left + right) / 2) * scale;
  map.y = (value) => HEIGHT / 2 - (value - (low + high) / 2) * scale;
  map.above = draw("g");
  byId("map").replaceChildren(draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", tabindex: "0" },
    draw("g", {}, ...points.toSorted((a, b) => a.x - b.x).map((point) => dot(point, "dot", 2.5, true))), map.above));
}

/** The map with the question and its hits; its sample is sent only where the page has not drawn it. */
async function showMap(question, hits, signal) {
  if (!byId("map-panel").open) return;
  const query = question && mode() !== "text" ? question : null;
  const answer = await call(at("map"), { query, keys: hits.map((hit) => hit.key), version: map.version }, signal);
  if (answer.points) {
    map.version = answer.version;
    map.count = answer.points.length;
    if (map.count >= 3) drawSample(answer.points);
    else byId("map").replaceChildren();
  }
  byId("map-note").textContent = "A map needs three documents with vectors.";
  if (map.count < 3) return;
  map.above.replaceChildren(...answer.hits.map((point) => dot(point, "hit", 5, true)), ...(answer.question ? [dot(answer.question, "question", 8)] : []));
  byId("map").firstChild.setAttribute("aria-label", `Map of ${map.count} documents` +
    (answer.question ? ", the question" : "") + (answer.hits.length ? ` and ${answer.hits.length} hits` : ""));
  byId("map-note").textContent =
    `${map.count} documents; similar ones are close (${(100 * answer.explained).toFixed(0)} % of the variance is shown). ` +
    "Blue: hits. Ring: the question. Click a dot for documents like it.";
}

/** A document of the map: the hit, or the documents like it. */
function openPoint({ key, title }) {
  const hit = [...byId("hits").children].find((element) => element.dataset.key === key);
  if (hit) hit.focus();
  else showSimilar(key, title);
}

// ------------------------------------------------------------------------------------- searching

const mode = () => byId("search").elements.mode.value;
const check = (name) => { byId("search").elements.mode.value = name; };
const question = () => byId("query").value.trim();
const setBusy = (busy) => byId("hits").setAttribute("aria-busy", busy); // the hits are those of an earlier question

const asked = () => ({ query: question() || null, mode: mode(), typo_tolerance: question() !== state.asTyped });

/** What the controls ask for; null: nothing. */
function request() {
  const common = { collection: byId("collection").value, where: where(), texts: false, k: PAGE };
  if (question()) return { ...common, ...asked() };
  return state.like === null ? null : { ...common, keys: [state.like], mode: "vector" };
}

const answer = (body, signal) => call(body.keys ? "v1/search/similar" : "v1/search", body, signal);

function searchSoon() {
  clearTimeout(state.timer);
  state.asking?.abort();
  state.asking = null; // what is given up does not end the waiting
  setBusy(true);
  state.timer = setTimeout(search, DEBOUNCE);
}

/** Show what the controls ask for; what was asked before is given up. */
async function search() {
  clearTimeout(state.timer);
  if (!state.stats) return; // the collection is being opened, and then it is asked
  state.asking?.abort();
  const asking = (state.asking = new AbortController());
  const body = request();
  setBusy(body !== null);
  try {
    const result = body && await answer(body, asking.signal);
    [state.asked, state.found] = [body, null];
    byId("error").hidden = true;
    showHits(result?.hits ?? []);
    showReplaced(result?.replaced ?? {});
    showNothing(...(result && !result.hits.length ? await reasons(result, asking.signal) : [[], []]));
    byId("status").classList.toggle("hidden", Boolean(result && !result.hits.length)); // but read aloud
    if (!state.hits.length || !byId("status").textContent) showStatus();
    await Promise.all([count(asking.signal), showMap(body?.query, state.hits, asking.signal)]);
  } catch (error) {
    if (error.name !== "AbortError") showList();
    showError(error);
  } finally {
    if (state.asking === asking) setBusy(false);
  }
}

/** The page without hits. */
function showList() {
  showHits([]);
  showReplaced({});
  showNothing([], []);
  byId("status").textContent = "";
  byId("status").classList.remove("hidden");
}

/** What was searched for in place of words that no document has, and a button to leave them. */
function showReplaced(replaced) {
  const listed = Object.entries(replaced).map(([word, other]) => `“${other}” instead of “${word}”`).join(", ");
  byId("replaced").hidden = !listed;
  const asTyped = button("Search as typed", () => { state.asTyped = question(); search(); }, { class: "why" });
  byId("replaced").replaceChildren(...(listed ? [`Searched for ${listed}. `, asTyped] : []));
}

/** How many documents match the filters, and values of fields: of a checked one under the filters of the others, to add more. */
async function count(signal) {
  const [checked, names] = [[...filters.checked.keys()], counted()];
  const groups = [[names.filter((name) => !checked.includes(name)), where()], ...checked.map((name) => [[name], where(name)])];
  const answers = await Promise.all(groups.map(([fields, where]) => call(at("facets"), { fields, where }, signal)));
  state.found = { total: answers[0].total, facets: Object.assign({}, ...answers.map((answer) => answer.facets)) };
  if (state.found.total <= state.hits.length) byId("more").hidden = true;
  showFields(state.found);
  showStatus();
}

function showStatus() {
  const { asked, found, hits } = state;
  let text = `${number(hits.length)} hit${hits.length === 1 ? "" : "s"}`;
  if (asked === null) text = found && where() ? `${documents(found.total)} match the filters.` : "";
  else if (!hits.length) text = "No hits.";
  else if (!asked.query) text = `The ${documents(hits.length)} most like it`;
  else if (mode() === "text") text = hits.length % PAGE ? `${documents(hits.length)} ${hits.length === 1 ? "matches" : "match"}` : `The best ${number(hits.length)}`;
  else if (found) text = `The best ${number(hits.length)} of ${documents(found.total)}`;
  byId("status").textContent = text;
}

/** Why there are no hits, as sentences, and the ways out, as buttons. */
async function reasons(result, signal) {
  const [query, filter, words] = [question(), where(), mode() === "text"];
  const sentences = ["Nothing was found.", ...result.notes];
  const ways = [];
  let [others, filtered] = [null, null]; // hits without the filters, and documents without the question
  if (filter && query) {
    const [without, left] = await Promise.all([answer({ ...request(), where: null }, signal), call(at("facets"), { where: filter }, signal)]);
    [others, filtered] = [without.hits.length, left.total];
    if (!result.notes.length && others) {
      sentences.push(filtered ? `The filters leave ${documents(filtered)}, and none matches the question.`
        : "No document matches the filters.", "Without them, something would be found.");
    }
  }
  if (words && !others && query) {
    sentences.push(/^[\p{L}\p{N}]+$/u.test(query) ? `No document has the word ${query}.` : "No document has a word of this question.");
  }
  if (query.includes('+"')) sentences.push("Without the + before it, the words of a phrase count one by one.");
  if (filter && others !== 0) ways.push(["Remove all filters", clearFilters]);
  if (words && filtered !== 0 && state.stats.encoder !== null) ways.push(["Search by meaning, too", () => check("hybrid")]);
  if (!result.notes.length && !ways.length) sentences.push("Try other words.");
  return [sentences, ways];
}

function showNothing(sentences, ways) {
  byId("nothing").hidden = !sentences.length;
  byId("nothing").replaceChildren(...sentences.map((text) => make("p", { dir: "auto" }, text)),
    ...ways.map(([text, change]) => button(text, () => { change(); controlsChanged(); })));
}

async function more() {
  const offset = state.hits.length;
  const result = await answer({ ...state.asked, offset }, state.asking?.signal);
  (showHits(result.hits, offset)[0] ?? byId("hits").lastChild)?.focus(); // the button may be hidden now
  showStatus();
}

/** The documents similar to one, in place of the question. */
function showSimilar(key, title) {
  byId("query").value = "";
  state.like = key;
  state.names[key] = title;
  controlsChanged();
  byId("hits").focus({ preventScroll: true });
  scrollTo(0, 0);
}

async function controlsChanged() {
  showChips();
  remember(true);
  await search();
}

// ------------------------------------------------------------------------------------- the address

/** The address of the page holds what was asked; `push`: as a new page, to which "back" returns. */
function remember(push) {
  const parameters = new URLSearchParams();
  if (question()) parameters.set("q", question());
  else if (state.like !== null) parameters.set("like", state.like);
  if (mode() !== state.usual) parameters.set("mode", mode());
  if (byId("collection").options.length > 1) parameters.set("in", byId("collection").value);
  for (const condition of filters.typed) parameters.append("where", condition);
  for (const [name, values] of filters.checked) parameters.append("is", JSON.stringify([name, ...values]));
  for (const [name, bounds] of filters.ranges) parameters.append("range", JSON.stringify([name, ...bounds]));
  const address = `#${parameters}`;
  if (address === (location.hash || "#")) return;
  history[push ? "pushState" : "replaceState"]({ names: state.names }, "", parameters.size ? address : location.pathname);
}

function recall() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  byId("query").value = parameters.get("q") ?? "";
  state.like = byId("query").value ? null : parameters.get("like");
  state.names = history.state?.names ?? {}; // not in a link that was shared
  check(parameters.get("mode") ?? state.usual);
  const chosen = parameters.get("in");
  if ([...byId("collection").options].some((option) => option.value === chosen)) byId("collection").value = chosen;
  clearFilters();
  filters.typed = parameters.getAll("where");
  for (const [values, parameter] of [[filters.checked, "is"], [filters.ranges, "range"]]) {
    for (const text of parameters.getAll(parameter)) {
      try {
        const [name, ...rest] = JSON.parse(text);
        if (typeof name === "string" && (parameter === "is" ? rest.length : rest.length === 2)) values.set(name, rest);
      } catch {
        // an address that was cut short has one filter less, as has one without a value
      }
    }
  }
}

async function openCollection() {
  clearTimeout(state.retry);
  state.stats = null;
  try {
    const [stats, { fields: found }] = await Promise.all(["stats", "fields"].map((path) => call(at(path))));
    state.stats = stats;
    byId("map-panel").hidden = false;
    useFields(found);
    byId("name").textContent = byId("collection").value;
    byId("size").textContent = documents(stats.documents);
    state.usual = stats.encoder === null && stats.mode !== "vector" ? "text" : stats.mode;
    if (!new URLSearchParams(location.hash.slice(1)).has("mode")) check(state.usual);
    showChips();
    await search();
  } catch (error) {
    showError(error);
    if (state.stats) return;
    showList();
    byId("facets-panel").hidden = byId("map-panel").hidden = true;
    setBusy(false);
    byId("size").textContent = "";
    if (error.status === 503) state.retry = setTimeout(openCollection, RETRY);
  }
}

async function begin() {
  const { collections } = await call("v1/collections");
  byId("token-form").hidden = byId("error").hidden = true;
  byId("collection").replaceChildren(...collections.map(({ name }) => make("option", { value: name }, name)));
  byId("collections").hidden = collections.length < 2;
  byId("name").classList.toggle("hidden", collections.length > 1); // the list names it
  recall();
  await openCollection();
}

// ------------------------------------------------------------------------------------- controls

function moveFocus(step, selector, before) {
  const items = [...document.querySelectorAll(selector)];
  const now = items.indexOf(document.activeElement.closest(selector));
  (items[Math.min(items.length - 1, now + step)] ?? before).focus();
}

function onKey(event) {
  const { target, key, code } = event;
  const [inHits, onMap] = [target.closest("#hits"), target.closest("#map svg")];
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) && target.type !== "radio";
  if (event.altKey && /^Digit[123]$/.test(code)) { // on a Mac the key is another character
    document.querySelectorAll("input[name=mode]")[Number(code[5]) - 1].checked = true;
    controlsChanged();
  } else if (key === "/" && !typing) {
    byId("query").focus();
    byId("query").select();
  } else if (key === "ArrowDown" && (inHits || target === byId("query"))) moveFocus(1, "#hits > li", byId("query"));
  else if (key === "ArrowUp" && inHits) moveFocus(-1, "#hits > li", byId("query"));
  else if (key === "ArrowRight" && onMap) moveFocus(1, "#map [role=button]", onMap);
  else if (key === "ArrowLeft" && onMap) moveFocus(-1, "#map [role=button]", onMap);
  else if (key === "Enter" && onMap) target.dispatchEvent(new Event("click"));
  else if (key === "Escape" && inHits) byId("query").focus();
  else return;
  event.preventDefault();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-label", `Change to ${theme === "dark" ? "light" : "dark"} colours`);
}

byId("query").addEventListener("input", () => {
  state.like = null;
  showChips();
  remember(!state.typing);
  state.typing = true;
  searchSoon();
});
byId("query").addEventListener("change", () => { state.typing = false; });
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  state.typing = false;
  search();
});
byId("search").addEventListener("change", (event) => { if (event.target.name === "mode") controlsChanged(); });
byId("filter").addEventListener("submit", addCondition);
byId("more").addEventListener("click", () => more().catch(showError));
byId("collection").addEventListener("change", () => {
  clearFilters();
  state.like = null;
  remember(true);
  openCollection();
});
byId("map-panel").addEventListener("toggle", () => {
  if (state.stats) showMap(state.asked?.query, state.hits).catch(showError);
});
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token").value = "";
  begin().catch(showError);
});
byId("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("searchengine-theme", theme);
  setTheme(theme);
});
addEventListener("popstate", () => {
  const before = byId("collection").value;
  recall();
  state.typing = false;
  if (byId("collection").value !== before) openCollection();
  else { showChips(); search(); }
});
document.addEventListener("keydown", onKey);
setTheme(localStorage.getItem("searchengine-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
byId("facets-panel").open = matchMedia("(min-width: 56rem)").matches; // on a phone they would push the hits down
byId("query").focus();
begin().catch(showError);
