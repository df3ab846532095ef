// What the cascade did, and the map of the collection.

import { byId, draw, make } from "./dom.js";

const NAMES = { wait: "waiting", encode: "encoding", search: "searching", fetch: "reading documents", total: "in all" };

export function showStages(result, stats, { mode, shortlist }) {
  const config = stats.index_config;
  const rows = Object.entries(NAMES).map(([name, label]) => [label, `${result.timing[name].toFixed(2)} ms`]);
  if (result.timing.questions > 1) rows.push(["questions answered together", result.timing.questions]);
  if (mode !== "text") { // which reads no vectors
    rows.push(["prefix dimensions", `${config.prefix} of ${stats.dim}`]);
    rows.push(["structure", `${config.structure} ${config.code}`]);
    rows.push(["shortlist", shortlist ?? (stats.shortlist === null ? "–" : `up to ${stats.shortlist}`)]);
    rows.push(["exact", result.exact ? "yes" : "no"]);
  }
  document.querySelector(".slider").hidden = mode === "text";
  byId("stages").replaceChildren(make("table", {}, make("tbody", {}, ...rows.map(([label, value]) =>
    make("tr", {}, make("th", { scope: "row" }, label), make("td", {}, String(value)))))));
}

/** How many of the exact hits a search has missed, and which. */
export function showMissed(hits, exact) {
  const found = new Set(hits.map((hit) => hit.key));
  const missed = exact.filter((hit) => !found.has(hit.key)).map((hit) => hit.title || hit.key);
  byId("missed").textContent = missed.length
    ? `Missed ${missed.length} of the ${exact.length} true nearest: ${missed.join(", ")}`
    : `These are the ${exact.length} true nearest.`;
}

const [WIDTH, HEIGHT, MARGIN] = [320, 260, 14];
const map = { version: null, x: null, y: null, above: null, count: 0 }; // the sample that is drawn

export const mapVersion = () => map.version;

const inside = (value, size) => Math.min(size - 4, Math.max(4, value));

function dot(point, cls, r, open) {
  const place = { cx: inside(map.x(point.x), WIDTH).toFixed(1), cy: inside(map.y(point.y), HEIGHT).toFixed(1) };
  return draw("circle", { class: cls, ...place, r, onclick: open && (() => open(point.key, point.title)) }, draw("title", {}, point.title || point.key || "the question"));
}

/** Draw the sample, both axes to the same scale. What is drawn above it later may be outside: it stands at the edge. */
function drawSample(points, open) {
  const xs = points.map((point) => point.x);
  const ys = points.map((point) => point.y);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = Math.min((WIDTH - 2 * MARGIN) / (right - left || 1), (HEIGHT - 2 * MARGIN) / (high - low || 1));
  map.x = (value) => WIDTH / 2 + (value - (left + right) / 2) * scale;
  map.y = (value) => HEIGHT / 2 - (value - (low + high) / 2) * scale;
  map.above = draw("g");
  byId("map").replaceChildren(draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" },
    draw("g", {}, ...points.map((point) => dot(point, "dot", 2.5, open))), map.above));
}

/** The map; its sample is drawn only where the answer has another one than before. */
export function showMap(answer, open) {
  if (answer.points) {
    map.version = answer.version;
    map.count = answer.points.length;
    if (map.count >= 3) drawSample(answer.points, open);
    else byId("map").replaceChildren();
  }
  if (map.count < 3) {
    byId("map-note").textContent = "A map needs three documents with vectors.";
    return;
  }
  map.above.replaceChildren(...answer.hits.map((point) => dot(point, "hit", 5, open)),
    ...(answer.question ? [dot(answer.question, "question", 8)] : []));
  byId("map").firstChild.setAttribute("aria-label", `Map of ${map.count} documents` +
    (answer.question ? ", the question" : "") + (answer.hits.length ? ` and ${answer.hits.length} hits` : ""));
  byId("map-note").textContent =
    `${map.count} documents; similar ones are close (${(100 * answer.explained).toFixed(0)} % of the variance is shown). ` +
    "Blue: hits. Ring: the question. Click a dot for documents like it.";
}
