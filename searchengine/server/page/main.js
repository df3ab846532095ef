// The search page: reads the controls, asks the server, shows what it answers.

import { ApiError, call, hasToken, useToken } from "./api.js";
import { byId, make, number } from "./dom.js";
import { addValue, clearFilters, counted, filters, fromAddress, showChips, showFields, toAddress, useFields, where } from "./filters.js";
import { showHits, showNothing } from "./hits.js";
import { mapVersion, showMap, showMissed, showStages } from "./panels.js";

const PAGE = 10;
const [DEBOUNCE, RETRY] = [80, 5000]; // milliseconds
// usual: the mode in which the collection answers questions that name none
// asTyped: a question whose words are not to be replaced
// like: the key of a document in place of a question; null: none; names: titles of documents, if they are known
// typing: whether the address is of a question that is being typed
const state = { usual: "vector", hits: [], stats: null, asked: null, asking: null, timer: 0, retry: 0, like: null, names: {}, typing: false, asTyped: null };

const checkedMode = () => document.querySelector("input[name=mode]:checked").value;
const check = (mode) => {
  const choice = document.querySelector(`input[name=mode][value="${CSS.escape(mode)}"]`);
  if (choice) choice.checked = true;
};
const shortlist = () => (Number(byId("shortlist").value) ? 2 ** (Number(byId("shortlist").value) + 2) : null);
const at = () => `v1/collections/${encodeURIComponent(byId("collection").value)}`;

function showError(error) {
  if (error.name === "AbortError") return;
  if (error.status === 401) return wantToken();
  byId("error").hidden = false;
  byId("error").textContent = error instanceof ApiError ? error.message : `The page failed: ${error.message}`;
  byId("error").classList.toggle("lines", error.message.includes("\n")); // which point at a place
  if (!(error instanceof ApiError)) console.error(error);
}

function wantToken() {
  byId("token-form").hidden = false;
  byId("token-unknown").hidden = !hasToken();
  byId("token").focus();
}

function request(question) {
  const asked = { collection: byId("collection").value, where: where(), texts: false, k: PAGE };
  if (!question) return { ...asked, keys: [state.like], mode: "vector", shortlist: shortlist() };
  const mode = checkedMode();
  return {
    ...asked, query: question, mode, shortlist: mode === "text" ? null : shortlist(),
    typo_tolerance: question !== state.asTyped,
  };
}

/** The answer to a question, or the documents similar to one. */
const answer = (asked, signal) => call(asked.keys ? "v1/search/similar" : "v1/search", asked, signal);

/** The text of a hit, which comes only where it is asked for. */
async function textOf(key) {
  const { documents: [document] } = await call(`${at()}/documents:get`, { keys: [key] });
  if (!document) throw new ApiError(404, "This document has been deleted.");
  return document.text;
}

/** Whether the hits that are shown are still those of an earlier question. */
const setBusy = (busy) => byId("hits").setAttribute("aria-busy", busy);

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
  const question = byId("query").value.trim();
  byId("missed").textContent = byId("why-text").textContent = "";
  const idle = !question && state.like === null;
  setBusy(!idle);
  const start = performance.now();
  try {
    if (idle) {
      await showIdle(asking.signal);
      return;
    }
    const asked = request(question);
    const result = await answer(asked, asking.signal);
    const received = performance.now();
    state.asked = asked;
    state.hits = result.hits;
    byId("error").hidden = true;
    showHits(result.hits, actions);
    showReplaced(result.replaced, question);
    byId("more").hidden = !mayHaveMore(result);
    byId("missing").hidden = !question;
    if (result.hits.length) showNothing([], []);
    else showNothing(...await nothing(result, question, asking.signal));
    byId("status").classList.toggle("hidden", !result.hits.length); // but read aloud
    state.found = null;
    if (!result.hits.length || !byId("status").textContent) showStatus(null);
    byId("cascade").hidden = result.timing === null;
    if (result.timing) showStages(result, state.stats, asked);
    byId("compare").hidden = asked.mode !== "vector" || !result.hits.length;
    const shown = performance.now();
    await painted();
    const detail = { server: result.timing?.total, received: received - start, shown: shown - start, paint: performance.now() - received };
    performance.measure("painted", { start, detail });
    if (state.asking !== asking) return; // another question has been answered meanwhile
    await Promise.all([count(question || null, asking.signal), locate(question, result.hits, asking.signal)]);
  } catch (error) {
    if (error.name !== "AbortError") showList([]);
    showError(error);
  } finally {
    if (state.asking === asking) setBusy(false);
  }
}

/** What was searched for in place of words that no document has, and a button to leave them. */
function showReplaced(replaced, question) {
  const words = Object.entries(replaced);
  byId("replaced").hidden = !words.length;
  if (!words.length) return;
  const listed = words.map(([word, other]) => `“${other}” instead of “${word}”`).join(", ");
  const onclick = () => { state.asTyped = question; search(); };
  byId("replaced").replaceChildren(`Searched for ${listed}. `, make("button", { type: "button", class: "why", onclick }, "Search as typed"));
}

function showList(hits) {
  state.hits = hits;
  showHits(hits, actions);
  showReplaced({}, "");
  showNothing([], []);
  byId("more").hidden = byId("missing").hidden = true;
  byId("status").textContent = "";
  byId("status").classList.remove("hidden");
}

/** The page without a question. */
async function showIdle(signal) {
  state.asked = null;
  showList([]);
  byId("cascade").hidden = byId("error").hidden = true;
  await Promise.all([count(null, signal), locate("", [], signal)]);
}

/** How many documents match, and which values they have; after the hits, which do not wait for it. */
async function count(query, signal) {
  const found = await call(`${at()}/count`, { query, mode: checkedMode(), typo_tolerance: query !== state.asTyped, where: where(), fields: counted() }, signal);
  showFields(found, controlsChanged);
  state.found = found;
  showStatus(found);
}

const documents = (n) => `${number(n)} document${n === 1 ? "" : "s"}`;

function showStatus(found) {
  const shown = state.hits.length;
  if (!shown && state.asked === null) {
    byId("status").textContent = found && where() ? `${documents(found.total)} match the filters.` : "";
    return;
  }
  if (!shown) return void (byId("status").textContent = "No hits.");
  let text = `${number(shown)} hit${shown === 1 ? "" : "s"}`;
  if (!state.asked.query) text = `The ${documents(shown)} most like it`;
  else if (found && checkedMode() === "text") {
    text = `${found.at_least ? "more than " : ""}${documents(found.total)} ${found.total === 1 ? "matches" : "match"}`;
  } else if (found) text = `The best ${number(shown)} of ${documents(found.total)}`;
  byId("status").textContent = text;
}

/** Why there may be no hits, as sentences, and the ways out, as buttons. */
async function nothing(result, question, signal) {
  const [mode, filter] = [checkedMode(), where()];
  const sentences = ["Nothing was found.", ...result.notes];
  const ways = [];
  let [others, filtered] = [null, null]; // documents without the filters, and without the question
  if (filter && question) {
    const bodies = [{ query: question, mode, typo_tolerance: question !== state.asTyped }, { where: filter }];
    [others, filtered] = (await Promise.all(bodies.map((body) => call(`${at()}/count`, body, signal)))).map((count) => count.total);
    if (!result.notes.length && others) {
      sentences.push(filtered ? `The filters leave ${documents(filtered)}, and none matches the question.`
        : "No document matches the filters.", `Without them, ${documents(others)} would be found.`);
    }
  }
  if (mode === "text" && !others && question) {
    const one = /^[\p{L}\p{N}]+$/u.test(question.trim());
    sentences.push(one ? `No document has the word ${question.trim()}.` : "No document has a word of this question.");
  }
  if (question.includes('+"')) sentences.push("Without the + before it, a phrase only adds to the score.");
  if (filter && others !== 0) ways.push(["Remove all filters", () => { clearFilters(); controlsChanged(); }]);
  if (mode === "text" && filtered !== 0 && state.stats.encoder !== null) {
    ways.push(["Search by meaning, too", () => { check("hybrid"); controlsChanged(); }]);
  }
  if (!result.notes.length && !ways.length) sentences.push("Try other words.");
  return [sentences, ways];
}

/** When the browser has painted what was just shown: a task after the next frame. */
const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

/** Whether a further page can be asked for. */
const mayHaveMore = (result) => result.hits.length === state.asked.k;

async function more() {
  const offset = state.hits.length;
  try {
    const result = await answer({ ...state.asked, offset }, state.asking?.signal);
    state.hits = [...state.hits, ...result.hits];
    const items = showHits(result.hits, actions, offset);
    byId("more").hidden = !mayHaveMore(result);
    showStatus(state.found);
    items[0]?.focus();
  } catch (error) {
    showError(error);
  }
}

/** Why the search that is shown does not find a document, with the further pages that are shown. */
async function why() {
  const k = Math.max(state.asked.k, state.hits.length);
  const asked = { ...state.asked, k, key: byId("why-key").value.trim() };
  try {
    byId("why-text").textContent = (await call("v1/search/explain", asked, state.asking?.signal)).text;
  } catch (error) {
    showError(error);
  }
}

async function compare() {
  const asked = { ...state.asked, k: state.hits.length, exact: true, shortlist: null, texts: false };
  try {
    const exact = await answer(asked, state.asking?.signal);
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
  showMap(await call(`${at()}/map`, { query: encoded, keys, version: mapVersion() }, signal), openPoint);
}

/** A document of the map: the hit, or the documents like it. */
function openPoint(key, title) {
  const hit = [...byId("hits").children].find((element) => element.dataset.key === key);
  if (hit) return hit.focus();
  showSimilar(key, title);
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

function chips() {
  showChips(controlsChanged);
  if (state.like === null) return;
  const text = `Like: ${state.names[state.like] || state.like}`;
  const onclick = () => { state.like = null; controlsChanged(); byId("query").focus(); };
  byId("chips").prepend(make("li", {}, make("button", { type: "button", dir: "auto", "aria-label": `Remove the example ${text}`, onclick }, `${text} ×`)));
}

async function controlsChanged() {
  chips();
  remember(true);
  await search();
}

/** Add a filter; one with a mistake is refused by the server, and stays out. */
async function addFilter(filter) {
  try {
    await call(`${at()}/documents?${new URLSearchParams({ limit: 0, where: filter })}`);
  } catch (error) {
    showError(error);
    return false;
  }
  if (!filters.typed.includes(filter)) filters.typed.push(filter);
  byId("error").hidden = true;
  await controlsChanged();
  return true;
}

const actions = {
  textOf, showError, onLike: showSimilar,
  onValue: (field, value, inList) => { addValue(field, value, inList); controlsChanged(); },
};

async function openCollection() {
  clearTimeout(state.retry);
  state.stats = null;
  try {
    const [stats, { fields }] = await Promise.all(["stats", "fields"].map((path) => call(`${at()}/${path}`)));
    state.stats = stats;
    byId("error").hidden = true;
    byId("map-panel").hidden = false;
    useFields(fields);
    byId("name").textContent = byId("collection").value;
    byId("size").textContent = documents(stats.documents);
    state.usual = stats.encoder === null && stats.mode !== "vector" ? "text" : stats.mode;
    if (!new URLSearchParams(location.hash.slice(1)).has("mode")) check(state.usual);
    chips();
    await search();
  } catch (error) {
    showError(error);
    if (state.stats) return;
    showList([]);
    for (const id of ["facets-panel", "map-panel", "cascade"]) byId(id).hidden = true;
    setBusy(false);
    byId("size").textContent = "";
    if (error.status === 503) state.retry = setTimeout(openCollection, RETRY);
  }
}

async function begin() {
  try {
    const { collections } = await call("v1/collections");
    byId("token-form").hidden = byId("error").hidden = true;
    byId("collection").replaceChildren(...collections.map(({ name }) => make("option", { value: name }, name)));
    byId("collections").hidden = collections.length < 2;
    byId("name").classList.toggle("hidden", collections.length > 1); // the list names it
    recall();
    await openCollection();
  } catch (error) {
    showError(error);
  }
}

/** The address of the page holds what was asked; `push`: as a new page, to which "back" returns. */
function remember(push) {
  const parameters = new URLSearchParams();
  const question = byId("query").value.trim();
  if (question) parameters.set("q", question);
  else if (state.like !== null) parameters.set("like", state.like);
  if (checkedMode() !== state.usual) parameters.set("mode", checkedMode());
  if (byId("collection").options.length > 1) parameters.set("in", byId("collection").value);
  toAddress(parameters);
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
  fromAddress(parameters);
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
    controlsChanged();
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
  byId("theme").setAttribute("aria-label", `Change to ${theme === "dark" ? "light" : "dark"} colours`);
}

byId("query").addEventListener("input", () => {
  state.like = null;
  chips();
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
byId("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  const filter = byId("where").value.trim();
  if (filter) addFilter(filter).then((added) => { if (added) byId("where").value = ""; });
});
byId("search").addEventListener("change", (event) => {
  if (event.target.name === "mode") controlsChanged();
});
addEventListener("popstate", () => {
  const before = byId("collection").value;
  recall();
  state.typing = false;
  if (byId("collection").value !== before) openCollection();
  else { chips(); search(); }
});
byId("shortlist").addEventListener("input", () => {
  const text = shortlist() === null ? "as tuned" : number(shortlist());
  byId("shortlist-value").textContent = text;
  byId("shortlist").setAttribute("aria-valuetext", text);
  searchSoon();
});
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value.trim());
  byId("token").value = "";
  begin();
});
byId("collection").addEventListener("change", () => {
  clearFilters();
  state.like = null;
  remember(true);
  openCollection();
});
byId("map-panel").addEventListener("toggle", () => {
  if (state.stats) locate(state.asked?.query ?? "", state.hits, undefined).catch(showError);
});
byId("why").addEventListener("submit", (event) => {
  event.preventDefault();
  why();
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
