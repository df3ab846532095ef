// The list of hits, the chips of filters, and the values to filter by.

import { byId, highlighted, make, number } from "./dom.js";

/** A condition of the filter language for a value of a field, or for an element of its lists. */
export function condition(field, value, contains = false) {
  const plain = /^[\p{L}_][\p{L}\p{N}_]*$/u.test(field);
  const reserved = /^(and|or|not|in|true|false|null)$/i.test(field);
  const name = plain && !reserved ? field : `\`${field}\``;
  const written = typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value);
  return `${name} ${contains ? "contains" : "="} ${written}`;
}

const scalar = (value) => ["string", "number", "boolean"].includes(typeof value);

function metadata(hit, onFilter) {
  const items = [];
  for (const [field, value] of Object.entries(hit.metadata)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (!scalar(each) || String(each).length > 80 || items.length >= 12) continue;
      const text = condition(field, each, Array.isArray(value));
      const button = make("button", { type: "button", onclick: () => onFilter(text) },
        make("b", {}, `${field} `), String(each));
      items.push(make("li", {}, button));
    }
  }
  return items.length ? make("ul", { class: "metadata", "aria-label": "Metadata" }, ...items) : "";
}

/** Offsets of characters as offsets of UTF-16 units, which JavaScript's strings count. */
function unitsAt(text, offsets) {
  const units = [];
  let [characters, at] = [0, 0];
  for (const offset of offsets) {
    for (; characters < offset; characters += 1) at += text.codePointAt(at) > 0xffff ? 2 : 1;
    units.push(at);
  }
  return units;
}

/** Shows the whole text of a hit in place of its snippet, or the snippet again. */
async function toggle(item, hit, question, { textOf, showError }) {
  const open = item.getAttribute("data-open") === "true";
  const shown = item.querySelector(".hit-text");
  if (open) {
    shown.replaceChildren(...highlighted(hit.snippet, question));
  } else {
    let text;
    try {
      text = await textOf(hit.key);
    } catch (error) {
      return showError(error);
    }
    // Offsets count characters, JavaScript's strings count UTF-16 units.
    const [start, end] = unitsAt(text, [hit.start, hit.end]);
    const passage = make("span", { class: "passage" });
    passage.append(...highlighted(text.slice(start, end), question));
    shown.replaceChildren(text.slice(0, start), passage, text.slice(end));
    shown.setAttribute("tabindex", "0"); // a long one scrolls
    passage.scrollIntoView({ block: "nearest" });
  }
  item.setAttribute("data-open", String(!open));
  item.querySelector(".whole").textContent = open ? "Whole text" : "Snippet";
}

/** Three decimals; three significant digits of a score below, which would be shown as 0.000. */
const shown = (score) => (score && Math.abs(score) < 1e-3 ? score.toExponential(2) : score.toFixed(3));

/** The score, and those of the stages and parts that it follows from. */
function scores(hit) {
  const parts = Object.entries(hit.scores).map(([name, score]) => `${name.replace("_", "-")} ${shown(score)}`);
  return parts.length ? `Score; ${parts.join(", ")}` : "Score";
}

function item(hit, question, actions) {
  const title = hit.title || hit.key;
  const element = make("li", { tabindex: "-1", "data-key": hit.key },
    make("div", { class: "head" },
      make("h3", {}, ...highlighted(title, question)),
      make("span", { class: "score", title: scores(hit) }, shown(hit.score))),
    make("p", { class: "hit-text" }, ...highlighted(hit.snippet, question)),
    metadata(hit, actions.onFilter),
  );
  const whole = make("button", { type: "button", class: "whole", "aria-label": `Whole text of ${title}` }, "Whole text");
  whole.addEventListener("click", () => toggle(element, hit, question, actions));
  element.append(make("p", { class: "quiet" }, hit.title ? `${hit.key} ` : "", whole));
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target === element) toggle(element, hit, question, actions);
  });
  return element;
}

export function showHits(hits, question, actions, append) {
  const items = hits.map((hit) => item(hit, question, actions));
  const list = byId("hits");
  if (append) list.append(...items);
  else list.replaceChildren(...items);
  return items;
}

export function showChips(filters, onRemove) {
  byId("chips").replaceChildren(...filters.map((filter, i) => make("li", {},
    make("button", { type: "button", "aria-label": `Remove the filter ${filter}`, onclick: () => onRemove(i) },
      `${filter} ×`))));
}

export function showFacets(facets, lists, onFilter) {
  const parts = [];
  for (const [field, values] of Object.entries(facets)) {
    if (values.length < 2) continue;
    const shown = values.slice(0, 8).map(({ value, count }) => make("li", {},
      make("button", { type: "button", onclick: () => onFilter(condition(field, value, lists.has(field))) },
        `${value} (${number(count)})`)));
    parts.push(make("h2", {}, field), make("ul", { "aria-label": field }, ...shown));
  }
  byId("facets-panel").hidden = !parts.length;
  byId("facets").replaceChildren(...parts);
}
