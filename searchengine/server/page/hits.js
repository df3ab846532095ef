// The list of hits, the chips of filters, and the values to filter by.

import { byId, highlighted, make, number } from "./dom.js";

/** A condition of the filter language for a value of a field. */
export function condition(field, value) {
  const plain = /^[\p{L}_][\p{L}\p{N}_]*$/u.test(field);
  const reserved = /^(and|or|not|in|true|false|null)$/i.test(field);
  const name = plain && !reserved ? field : `\`${field}\``;
  const written = typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value);
  return `${name} = ${written}`;
}

const scalar = (value) => ["string", "number", "boolean"].includes(typeof value);

function metadata(hit, onFilter) {
  const items = [];
  for (const [field, value] of Object.entries(hit.metadata)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (!scalar(each) || String(each).length > 80 || items.length >= 12) continue;
      const contains = Array.isArray(value);
      const text = contains ? condition(field, each).replace(" = ", " contains ") : condition(field, each);
      const button = make("button", { type: "button", onclick: () => onFilter(text) },
        make("b", {}, `${field} `), String(each));
      items.push(make("li", {}, button));
    }
  }
  return items.length ? make("ul", { class: "metadata", "aria-label": "Metadata" }, ...items) : "";
}

/** Shows the whole text of a hit in place of its snippet, or the snippet again. */
function toggle(item, hit, question) {
  const open = item.getAttribute("data-open") === "true";
  const shown = item.querySelector(".hit-text");
  if (open) {
    shown.replaceChildren(...highlighted(hit.snippet, question));
  } else {
    // Offsets count characters, JavaScript's strings count UTF-16 units.
    const characters = [...hit.text];
    const part = (from, to) => highlighted(characters.slice(from, to).join(""), question);
    shown.replaceChildren(
      ...part(0, hit.start),
      make("span", { class: "passage" }, ...part(hit.start, hit.end)),
      ...part(hit.end),
    );
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

function item(hit, question, onFilter) {
  const title = hit.title || hit.key;
  const element = make("li", { tabindex: "-1", "data-key": hit.key },
    make("div", { class: "head" },
      make("h3", {}, ...highlighted(title, question)),
      make("span", { class: "score", title: scores(hit) }, shown(hit.score))),
    make("p", { class: "hit-text" }, ...highlighted(hit.snippet, question)),
    metadata(hit, onFilter),
  );
  const whole = make("button", { type: "button", class: "whole", "aria-label": `Whole text of ${title}` }, "Whole text");
  whole.addEventListener("click", () => toggle(element, hit, question));
  if (hit.text) element.append(make("p", { class: "quiet" }, hit.title ? `${hit.key} ` : "", whole));
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target === element) toggle(element, hit, question);
  });
  return element;
}

export function showHits(hits, question, onFilter, append) {
  const items = hits.map((hit) => item(hit, question, onFilter));
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

export function showFacets(facets, onFilter) {
  const parts = [];
  for (const [field, values] of Object.entries(facets)) {
    if (values.length < 2) continue;
    const shown = values.slice(0, 8).map(({ value, count }) => make("li", {},
      make("button", { type: "button", onclick: () => onFilter(condition(field, value)) },
        `${value} (${number(count)})`)));
    parts.push(make("h2", {}, field), make("ul", { "aria-label": field }, ...shown));
  }
  byId("facets-panel").hidden = !parts.length;
  byId("facets").replaceChildren(...parts);
}
