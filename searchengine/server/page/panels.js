// What the cascade did, the map of the collection, and the curve of the last tuning.

import { byId, draw, make } from "./dom.js";

const NAMES = { wait: "waiting", encode: "encoding", search: "searching", fetch: "reading documents", total: "in all" };

export function showStages(result, stats, shortlist) {
  const config = stats.index_config;
  const rows = Object.entries(NAMES).map(([name, label]) => [label, `${result.timing[name].toFixed(2)} ms`]);
  if (result.timing.questions > 1) rows.push(["questions answered together", result.timing.questions]);
  rows.push(["prefix", `${config.prefix} of ${stats.dim} dimensions`]);
  rows.push(["structure", `${config.structure} ${config.code}`]);
  rows.push(["shortlist", shortlist ?? (stats.shortlist === null ? "–" : `up to ${stats.shortlist}`)]);
  if (result.read !== null) rows.push(["rows read at full width", `${(100 * result.read).toFixed(1)} %`]);
  rows.push(["exact", result.exact ? "yes" : "not shown to be"]);
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

function dot(point, cls, r) {
  const place = { cx: inside(map.x(point.x), WIDTH).toFixed(1), cy: inside(map.y(point.y), HEIGHT).toFixed(1) };
  return draw("circle", { class: cls, ...place, r }, draw("title", {}, point.title || point.key || "the question"));
}

/** Draw the sample, both axes to the same scale. What is drawn above it later may be outside: it stands at the edge. */
function drawSample(points) {
  const xs = points.map((point) => point.x);
  const ys = points.map((point) => point.y);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = Math.min((WIDTH - 2 * MARGIN) / (right - left || 1), (HEIGHT - 2 * MARGIN) / (high - low || 1));
  map.x = (value) => WIDTH / 2 + (value - (left + right) / 2) * scale;
  map.y = (value) => HEIGHT / 2 - (value - (low + high) / 2) * scale;
  map.above = draw("g");
  byId("map").replaceChildren(draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" },
    draw("g", {}, ...points.map((point) => dot(point, "dot", 2.5))), map.above));
}

/** The map; its sample is drawn only where the answer has another one than before. */
export function showMap(answer) {
  if (answer.points) {
    map.version = answer.version;
    map.count = answer.points.length;
    if (map.count >= 3) drawSample(answer.points);
    else byId("map").replaceChildren();
  }
  if (map.count < 3) {
    byId("map-note").textContent = "A map needs three documents with vectors.";
    return;
  }
  map.above.replaceChildren(...answer.hits.map((point) => dot(point, "hit", 5)),
    ...(answer.question ? [dot(answer.question, "question", 8)] : []));
  byId("map").firstChild.setAttribute("aria-label", `Map of ${map.count} documents` +
    (answer.question ? ", the question" : "") + (answer.hits.length ? ` and ${answer.hits.length} hits` : ""));
  byId("map-note").textContent =
    `${map.count} documents; the two directions show ${(100 * answer.explained).toFixed(0)} % of the variance. ` +
    "Ring: the question. Large dots: hits.";
}

export function showCurve(tuning) {
  const panel = byId("curve-panel");
  panel.hidden = !tuning || !(tuning.curve || []).length;
  if (panel.hidden) return;
  const points = tuning.curve.map((point) => ({ ...point, x: Math.log10(point.ms), y: point.recall }));
  const [width, height, margin] = [320, 200, 34];
  const [left, right] = [Math.min(...points.map((p) => p.x)), Math.max(...points.map((p) => p.x))];
  const low = Math.min(...points.map((p) => p.y), tuning.goal.recall);
  const x = (value) => margin + ((value - left) / (right - left || 1)) * (width - margin - 10);
  const y = (value) => height - margin - ((value - low) / (1 - low || 1)) * (height - margin - 10);
  const goal = y(tuning.goal.recall);
  byId("curve").replaceChildren(draw("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Recall and milliseconds of ${points.length} operating points`,
  },
  draw("line", { class: "axis", x1: margin, x2: width, y1: height - margin, y2: height - margin }),
  draw("line", { class: "axis", x1: margin, x2: margin, y1: 0, y2: height - margin }),
  draw("line", { class: "axis", x1: margin, x2: width, y1: goal, y2: goal, "stroke-dasharray": "4 4" }),
  draw("text", { x: margin, y: height - 14 }, `${(10 ** left).toPrecision(2)} ms`),
  draw("text", { x: width - 6, y: height - 14, "text-anchor": "end" }, `${(10 ** right).toPrecision(2)} ms`),
  draw("text", { x: 2, y: 12 }, "1.0"),
  draw("text", { x: 2, y: height - margin }, low.toFixed(2)),
  ...points.map((point) => draw("circle", { class: "dot", cx: x(point.x), cy: y(point.y), r: 3.5 },
    draw("title", {}, `shortlist ${point.shortlist}: recall ${point.recall}, ${point.ms} ms`)))));
  byId("curve-note").textContent =
    `Recall@${tuning.goal.k} against milliseconds, as the last tuning measured them. Dashed: the goal, ${tuning.goal.recall}.`;
}
