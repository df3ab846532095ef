// The search page: reads the controls, asks the server, shows what it answers.

import { ApiError, call, useToken } from "./api.js";
import { byId, make, number } from "./dom.js";
import { condition, showChips, showFacets, showHits } from "./hits.js";
import { mapVersion, showBench, showMap, showMissed, showStages, showTuning } from "./panels.js";

const PAGE = 10;
const DEBOUNCE = 80; // milliseconds
const FACETS = 5;
// usual: the mode in which the collection answers questions that name none
// candidates: the most hits that the server's cross-encoder orders again; null: it has none
const state = { usual: "vector", candidates: null, filters: [], fields: [], lists: new Set(), hits: [], stats: null, asked: null, last: null, asking: null, timer: 0 };

const checkedMode = () => document.querySelector("input[name=mode]:checked").value;
const check = (mode) => {
  const choice = document.querySelector(`input[name=mode][value="${CSS.escape(mode)}"]`);
  if (choice) choice.checked = true;
};
const crossEncodes = () => state.candidates !== null && byId("cross-encoder").checked;
const shortlist = () => (Number(byId("shortlist").value) ? 2 ** (Number(byId("shortlist").value) + 2) : null);
const where = () => state.filters.map((filter) => `(${filter})`).join(" and ") || null;
const at = () => `v1/collections/${encodeURIComponent(byId("collection").value)}`;

function showError(error) {
  if (error.name === "AbortError") return;
  if (error.status === 401) byId("token-form").hidden = false;
  byId("error").hidden = false;
  byId("error").textContent = error instanceof ApiError ? error.message : `The page failed: ${error.message}`;
  if (!(error instanceof ApiError)) console.error(error);
}

function request(question) {
  const mode = checkedMode();
  return {
    collection: byId("collection").value, query: question, mode, where: where(),
    shortlist: mode === "text" ? null : shortlist(), as_you_type: true,
    texts: false, cross_encoder: crossEncodes(), k: Math.min(PAGE, crossEncodes() ? state.candidates : PAGE),
  };
}

/** The text of a hit, which comes only where it is asked for. */
async function textOf(key) {
  const { documents } = await call(`${at()}/documents?${new URLSearchParams({ where: condition("_id", key), limit: 1 })}`);
  if (!documents.length) throw new ApiError(404, "This document has been deleted.");
  return documents[0].text;
}

/** Whether the hits that are shown are still those of an earlier question. */
const setBusy = (busy) => byId("hits").setAttribute("aria-busy", busy);

/** Ask the question that is in the box; the one asked before is given up. */
async function search() {
  clearTimeout(state.timer);
  state.asking?.abort();
  const question = byId("query").value.trimStart(); // a space at the end ends the last word
  byId("missed").textContent = "";
  if (!question) {
    remember(question);
    state.asked = null;
    showHits([], "", actions, false);
    byId("status").textContent = "";
    byId("more").hidden = byId("error").hidden = true;
    setBusy(false);
    return;
  }
  setBusy(true);
  const start = performance.now();
  const asking = (state.asking = new AbortController());
  try {
    const asked = request(question);
    const result = await call("v1/search", asked, asking.signal);
    const received = performance.now();
    state.asked = asked;
    state.hits = result.hits;
    byId("error").hidden = true;
    showHits(result.hits, question, actions, false);
    byId("more").hidden = !mayHaveMore(result);
    byId("status").textContent = result.hits.length
      ? `${result.hits.length} hits in ${result.timing.total.toFixed(1)} ms`
      : ["No hits.", ...result.notes,
        ...(question.includes('+"') ? ["Without the + before it, a phrase only adds to the score."] : [])]
        .join(" ");
    byId("cascade").hidden = false;
    showStages(result, state.stats, asked.shortlist);
    byId("compare").disabled = asked.mode !== "vector" || !result.hits.length;
    const shown = performance.now();
    await painted();
    const detail = { server: result.timing.total, received: received - start, shown: shown - start };
    performance.measure("painted", { start, detail });
    if (state.asked !== asked) return; // another question has been answered meanwhile
    remember(question.trim()); // takes the browser some milliseconds, as the map does
    await locate(question, result.hits, asking.signal);
  } catch (error) {
    showError(error);
  } finally {
    if (state.asking === asking) setBusy(false);
  }
}

/** When the browser has painted what was just shown: a task after the next frame. */
const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

/** Whether a further page can be asked for: a cross-encoder orders its candidates, and no others. */
const mayHaveMore = (result) => result.hits.length === state.asked.k
  && (!state.asked.cross_encoder || state.hits.length + state.asked.k <= state.candidates);

async function more() {
  const offset = state.hits.length;
  try {
    const result = await call("v1/search", { ...state.asked, offset }, state.asking.signal);
    state.hits = [...state.hits, ...result.hits];
    const items = showHits(result.hits, state.asked.query, actions, true);
    byId("more").hidden = !mayHaveMore(result);
    byId("status").textContent = `${state.hits.length} hits`;
    items[0]?.focus();
  } catch (error) {
    showError(error);
  }
}

async function compare() {
  const asked = { ...state.asked, k: state.hits.length, exact: true, shortlist: null, texts: false };
  try {
    const exact = await call("v1/search", asked, state.asking.signal);
    showMissed(state.hits, exact.hits);
  } catch (error) {
    showError(error);
  }
}

/** The map, with the question and its hits. */
async function locate(question, hits, signal) {
  if (!byId("map-panel").open) return;
  const encoded = question && checkedMode() !== "text" ? question : null;
  const keys = hits.map((hit) => hit.key);
  showMap(await call(`${at()}/map`, { query: encoded, keys, version: mapVersion() }, signal));
}

async function filtersChanged() {
  showChips(state.filters, (i) => {
    state.filters.splice(i, 1);
    filtersChanged();
    byId("where").focus();
  });
  remember(byId("query").value.trim());
  await Promise.all([search(), facets()]);
}

/** Add a filter; one with a mistake is refused by the server, and stays out. */
async function addFilter(filter) {
  try {
    await call(`${at()}/documents?${new URLSearchParams({ limit: 0, where: filter })}`);
  } catch (error) {
    showError(error);
    return false;
  }
  if (!state.filters.includes(filter)) state.filters.push(filter);
  byId("error").hidden = true;
  await filtersChanged();
  return true;
}

const actions = { onFilter: addFilter, textOf, showError };

async function facets() {
  if (!state.fields.length) return;
  const parameters = new URLSearchParams(state.fields.map((field) => ["field", field]));
  if (where()) parameters.set("where", where());
  try {
    showFacets((await call(`${at()}/facets?${parameters}`)).facets, state.lists, addFilter);
  } catch (error) {
    showError(error);
  }
}

/** Fields of a few short values, in a sample of documents. */
function fieldsOf(documents) {
  const values = new Map();
  for (const { _id, title, text, ...metadata } of documents) {
    for (const [field, value] of Object.entries(metadata)) {
      const flat = (Array.isArray(value) ? value : [value]).filter((each) => typeof each !== "object");
      values.set(field, new Set([...(values.get(field) || []), ...flat]));
    }
  }
  const few = [...values].filter(([field, set]) =>
    /^[\p{L}_][\p{L}\p{N}_]*$/u.test(field) && set.size > 1 && set.size <= Math.max(12, documents.length / 3));
  return few.slice(0, FACETS).map(([field]) => field);
}

async function openCollection() {
  try {
    const [stats, sample, bench] = await Promise.all(
      ["stats", "documents?limit=100", "bench"].map((path) => call(`${at()}/${path}`)));
    state.stats = stats;
    state.lists = new Set(sample.documents.flatMap((document) =>
      Object.keys(document).filter((field) => Array.isArray(document[field]))));
    state.fields = [...new Set([...stats.fields.filter((field) => !field.includes(".")), ...fieldsOf(sample.documents)])]
      .slice(0, FACETS);
    byId("name").textContent = byId("collection").value;
    byId("size").textContent = `${number(stats.documents)} documents · ${stats.dim} dimensions`;
    showTuning(stats.tuning, stats.index_config);
    showBench(bench);
    state.usual = stats.encoder === null && stats.mode !== "vector" ? "text" : stats.mode;
    if (!new URLSearchParams(location.hash.slice(1)).has("mode")) check(state.usual);
    await Promise.all([filtersChanged(), byId("query").value ? null : locate("", [], undefined)]);
  } catch (error) {
    showError(error);
  }
}

async function begin() {
  try {
    const { collections } = await call("v1/collections");
    byId("token-form").hidden = byId("error").hidden = true;
    byId("collection").replaceChildren(...collections.map(({ name }) => make("option", { value: name }, name)));
    byId("collections").hidden = collections.length < 2;
    state.candidates = collections[0].candidates;
    byId("cross-encoding").hidden = state.candidates === null;
    recall();
    await openCollection();
  } catch (error) {
    showError(error);
  }
}

/** The address of the page holds what was asked, so that it can be kept and sent. */
function remember(question) {
  const parameters = new URLSearchParams();
  if (question) parameters.set("q", question);
  if (checkedMode() !== state.usual) parameters.set("mode", checkedMode());
  if (byId("collection").options.length > 1) parameters.set("in", byId("collection").value);
  for (const filter of state.filters) parameters.append("where", filter);
  history.replaceState(null, "", parameters.size ? `#${parameters}` : location.pathname);
}

function recall() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  byId("query").value = parameters.get("q") || "";
  if (parameters.has("mode")) check(parameters.get("mode"));
  if ([...byId("collection").options].some((option) => option.value === parameters.get("in"))) {
    byId("collection").value = parameters.get("in");
  }
  state.filters = parameters.getAll("where");
}

function moveFocus(step) {
  const items = [...byId("hits").children];
  const now = items.indexOf(document.activeElement.closest("#hits > li"));
  if (now + step < 0) byId("query").focus();
  else items[Math.min(items.length - 1, now + step)]?.focus();
}

function onKey(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "radio";
  if (event.altKey && "123".includes(event.key)) {
    const choice = document.querySelectorAll("input[name=mode]")[Number(event.key) - 1];
    choice.checked = true;
    search();
  } else if (event.key === "/" && !typing) {
    byId("query").focus();
    byId("query").select();
  } else if (event.key === "ArrowDown" && (event.target === byId("query") || event.target.closest("#hits"))) {
    moveFocus(1);
  } else if (event.key === "ArrowUp" && event.target.closest("#hits")) {
    moveFocus(-1);
  } else if (event.key === "Escape" && event.target.closest("#hits")) {
    byId("query").focus();
  } else {
    return;
  }
  event.preventDefault();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Change to ${theme === "dark" ? "light" : "dark"} colours`);
}

byId("query").addEventListener("input", () => {
  clearTimeout(state.timer);
  setBusy(true);
  state.timer = setTimeout(search, DEBOUNCE);
});
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const filter = byId("where").value.trim();
  if (!filter) search();
  else addFilter(filter).then((added) => { if (added) byId("where").value = ""; });
});
byId("search").addEventListener("change", (event) => {
  if (event.target.name === "mode" || event.target.id === "cross-encoder") search();
});
byId("shortlist").addEventListener("input", () => {
  const text = shortlist() === null ? "as tuned" : number(shortlist());
  byId("shortlist-value").textContent = text;
  byId("shortlist").setAttribute("aria-valuetext", text);
  clearTimeout(state.timer);
  setBusy(true);
  state.timer = setTimeout(search, DEBOUNCE);
});
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value.trim());
  byId("token").value = "";
  begin();
});
byId("collection").addEventListener("change", () => {
  state.filters = [];
  openCollection();
});
byId("map-panel").addEventListener("toggle", () => {
  if (state.stats) locate(state.asked?.query ?? "", state.hits, undefined).catch(showError);
});
byId("more").addEventListener("click", more);
byId("compare").addEventListener("click", compare);
byId("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("searchengine-theme", theme);
  setTheme(theme);
});
document.addEventListener("keydown", onKey);
setTheme(localStorage.getItem("searchengine-theme")
  ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
byId("facets-panel").open = matchMedia("(min-width: 56rem)").matches; // on a phone they would push the hits down
byId("query").focus();
begin();
