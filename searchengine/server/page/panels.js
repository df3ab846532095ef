// What the cascade did, the map of the collection, and the curve of the last tuning.

import { byId, draw, make } from "./dom.js";

const NAMES = { wait: "waiting", encode: "encoding", search: "searching", fetch: "reading documents", cross_encode: "cross-encoding", total: "in all" };

export function showStages(result, stats, { mode, shortlist }) {
  const config = stats.index_config;
  const stages = Object.entries(NAMES).filter(([name]) => name !== "cross_encode" || result.timing[name] > 0);
  const rows = stages.map(([name, label]) => [label, `${result.timing[name].toFixed(2)} ms`]);
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

/**
 * Recall against milliseconds (a logarithmic axis) in the panel `id`, which is hidden without points.
 * A point has ms, recall, text (shown by the pointer) and cls; `goal` is a dashed line.
 */
function showPoints(id, points, goal, note) {
  byId(`${id}-panel`).hidden = !points.length;
  if (!points.length) return;
  const [width, height, margin] = [320, 200, 34];
  const times = points.map((point) => Math.log10(point.ms));
  const [left, right] = [Math.min(...times), Math.max(...times)];
  const low = Math.min(...points.map((point) => point.recall), goal);
  const x = (value) => margin + ((value - left) / (right - left || 1)) * (width - margin - 10);
  const y = (value) => 8 + ((1 - value) / (1 - low || 1)) * (height - margin - 16);
  const axis = (x1, x2, y1, y2, dashes) => draw("line", { class: "axis", x1, x2, y1, y2, "stroke-dasharray": dashes });
  const text = (at, content, anchor) => draw("text", { ...at, "text-anchor": anchor }, content);
  byId(id).replaceChildren(draw("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Recall and milliseconds of ${points.length} operating points`,
  },
  axis(margin, width, height - margin, height - margin),
  axis(margin, margin, 0, height - margin),
  axis(margin, width, y(goal), y(goal), "4 4"),
  text({ x: margin, y: height - 18 }, `${(10 ** left).toPrecision(2)} ms`),
  text({ x: width - 6, y: height - 18 }, `${(10 ** right).toPrecision(2)} ms`, "end"),
  text({ x: margin - 4, y: 12 }, "1.00", "end"),
  text({ x: margin - 4, y: y(low) + 4 }, low.toFixed(2), "end"),
  ...points.map((point) => draw("circle", { class: point.cls, cx: x(Math.log10(point.ms)), cy: y(point.recall), r: point.cls === "chosen" ? 6 : 3.5 },
    draw("title", {}, `${point.text}: recall ${point.recall.toFixed(3)}, ${point.ms.toPrecision(3)} ms`)))));
  byId(`${id}-note`).textContent = note;
}

const CONFIG = ["prefix", "structure", "code", "shortlist", "effort"];

/** The curve of the last tuning, with the operating point that it chose. */
export function showTuning(tuning, config) {
  const points = (tuning?.curve || []).map((point) => ({
    ...point,
    text: `prefix ${point.prefix}, ${point.structure} ${point.code}, shortlist ${point.shortlist}`,
    cls: CONFIG.every((name) => point[name] === config[name]) ? "chosen" : "dot",
  }));
  const goal = tuning?.goal;
  showPoints("curve", points, goal?.recall, goal && `Recall@${goal.k} against milliseconds of a search, as the last tuning ` +
    `measured them. Dashed: the goal, ${goal.recall}. Large dot: the operating point in use.`);
}

/** What `searchengine bench` measured: exact search, cascades and peers. */
export function showBench(bench) {
  const points = bench.points.map((point) => ({
    ...point,
    text: point.name,
    cls: point.name === bench.recommended ? "chosen" : point.kind === "cascade" ? "dot" : "other",
  })).sort((one, other) => (one.cls === "chosen") - (other.cls === "chosen")); // the chosen one on top
  showPoints("bench", points, bench.target, `Recall@${bench.k} against the median milliseconds of a search, ` +
    `measured on ${bench.measured_at?.slice(0, 10)}. Dashed: the target, ${bench.target}. ` +
    `${bench.recommended ? `Large dot: the recommended one, ${bench.recommended}. ` : ""}Rings: other kinds of search.`);
}
