// The cards of documents: hits, and documents like one.

import { byId, highlighted, make } from "./dom.js";

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d/; // of which the day is shown

const brief = (value) => String(value).length <= 60 && String(value).split(" ").length <= 6; // not prose
const scalar = (value) => ["string", "number", "boolean"].includes(typeof value);

/** The values of the fields that are not shown elsewhere on the card, as buttons that filter by them. */
function metadata(hit, shownAbove, onValue) {
  const items = [];
  for (const [field, value] of Object.entries(hit.metadata)) {
    if (shownAbove.includes(value)) continue;
    for (const each of Array.isArray(value) ? new Set(value) : [value]) {
      if (!scalar(each) || !brief(each) || items.length >= 12) continue;
      const button = make("button", { type: "button", dir: "auto", "aria-label": `Only ${field}: ${each}`, onclick: () => onValue(field, each, Array.isArray(value)) },
        make("b", {}, `${field} `), TIME.test(each) ? each.slice(0, 10) : String(each));
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
async function toggle(item, hit, { textOf, showError }) {
  const open = item.getAttribute("data-open") === "true";
  const shown = item.querySelector(".hit-text");
  if (open) {
    shown.replaceChildren(...highlighted(hit.snippet, hit.highlights));
    shown.removeAttribute("tabindex");
  } else {
    let text;
    try {
      text = await textOf(hit.key);
    } catch (error) {
      return showError(error);
    }
    const [start, end] = unitsAt(text, [hit.start, hit.end]);
    const passage = make("span", { class: "passage" }, ...highlighted(text.slice(start, end), hit.highlights));
    shown.replaceChildren(text.slice(0, start), passage, text.slice(end));
    shown.setAttribute("tabindex", "0"); // a long one scrolls
  }
  item.setAttribute("data-open", String(!open));
  if (!open) shown.scrollTop = shown.querySelector(".passage").offsetTop; // the page itself stays
  const button = item.querySelector(".whole");
  button.textContent = open ? "Whole text" : "Less";
  button.setAttribute("aria-expanded", String(!open));
}

/** Three decimals; three significant digits of a score below, which would be shown as 0.000. */
const shown = (score) => (score && Math.abs(score) < 1e-3 ? score.toExponential(2) : score.toFixed(3));

/** Why a hit has its place: its score, and those that it follows from. A button, and the table that it shows. */
function details(hit, rank) {
  const rows = [["rank", rank], ["score", shown(hit.score)],
    ...Object.entries(hit.scores).map(([name, score]) => [name.replace("_", "-"), shown(score)]),
    ["passage", `characters ${hit.start}–${hit.end}`], ["key", hit.key]];
  const table = make("table", { class: "details", hidden: "" }, make("tbody", {},
    ...rows.map(([label, value]) => make("tr", {}, make("th", { scope: "row" }, label), make("td", {}, String(value))))));
  const button = make("button", { type: "button", class: "why", "aria-expanded": "false", "aria-label": `Details of ${hit.title || hit.key}`, onclick: () => {
    table.hidden = !table.hidden;
    button.setAttribute("aria-expanded", String(!table.hidden));
  } }, "Details");
  return [button, table];
}

/** The address that a document names, if a click may go there. */
const addressOf = ({ url }) => (URL.canParse(url) && ["http:", "https:"].includes(new URL(url).protocol) ? url : null);

function item(hit, rank, actions) {
  const { title: given, key, metadata: { path, lang, code } } = hit;
  const title = given || key;
  const address = addressOf(hit.metadata);
  const words = highlighted(title, hit.highlights);
  const above = [path === title ? "" : path, hit.heading].filter((part) => typeof part === "string" && part && part !== given).join(" › ");
  const language = typeof lang === "string" && /^[a-z]{2,3}(-[\w-]+)?$/i.test(lang) ? lang : null;
  const element = make("li", { tabindex: "-1", "data-key": key },
    make("h3", { dir: "auto", lang: language },
      ...(address ? [make("a", { href: address, rel: "noreferrer" }, ...words)] : words)),
    above ? make("p", { class: "quiet above", dir: "auto" }, above) : "",
    make("p", { class: typeof code === "string" ? "hit-text code" : "hit-text", dir: "auto", lang: language }, ...highlighted(hit.snippet, hit.highlights)),
    metadata(hit, [address, path, hit.heading], actions.onValue));
  const whole = make("button", { type: "button", class: "whole", "aria-expanded": "false", "aria-label": `Whole text of ${title}` }, "Whole text");
  whole.addEventListener("click", () => toggle(element, hit, actions));
  const like = make("button", { type: "button", class: "like", "aria-label": `More like ${title}`, onclick: () => actions.onLike(key, given) }, "More like this");
  const [why, table] = details(hit, rank);
  element.append(make("div", { class: "actions" }, whole, like, why), table);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target === element) toggle(element, hit, actions);
  });
  return element;
}

export function showHits(hits, actions, first = 0) {
  const items = hits.map((hit, i) => item(hit, first + i + 1, actions));
  if (first) byId("hits").append(...items);
  else byId("hits").replaceChildren(...items);
  return items;
}

/** Why there are no hits, and the ways out. */
export function showNothing(sentences, ways) {
  byId("nothing").hidden = !sentences.length;
  byId("nothing").replaceChildren(...sentences.map((text) => make("p", { dir: "auto" }, text)),
    ...ways.map(([text, onclick]) => make("button", { type: "button", onclick }, text)));
}
