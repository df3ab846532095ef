// Filters: checked values, ranges, and conditions that were typed. Their controls, chips and conditions.

import { byId, make, number } from "./dom.js";

/** checked: field → its values. ranges: field → [low, high], null where open. typed: conditions. */
export const filters = { checked: new Map(), ranges: new Map(), typed: [] };
let fields = []; // of the collection: name, kind, lists, low, high

export function useFields(found) {
  fields = found.filter((field) => field.kind !== "text");
  byId("facets-panel").hidden = !found.length;
  const ranged = fields.find((field) => field.kind === "number");
  byId("where").placeholder = ranged ? `${ranged.name} >= ${ranged.low}` : found.length ? `${found[0].name} = '…'` : "";
}

export function clearFilters() {
  filters.checked.clear();
  filters.ranges.clear();
  filters.typed = [];
}

const written = (value) => (typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value));
const listed = (name) => fields.some((field) => field.name === name && field.lists);
const nameOf = (top) => {
  const plain = /^[\p{L}_][\p{L}\p{N}_]*$/u.test(top) && !/^(and|or|not|in|is|like|between|contains|true|false|null)$/i.test(top);
  return plain ? top : `\`${top}\``;
};

/** All conditions as one filter, but those of the field `left_out`; null: there are none. */
export function where(left_out) {
  const parts = filters.typed.map((condition) => `(${condition})`);
  for (const [name, values] of filters.checked) {
    const each = values.flatMap((value) => [`${name} = ${written(value)}`,
      ...(listed(name) ? [`${name} contains ${written(value)}`] : [])]);
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

/** Fields to count, each under the filters of the others, so that its other values can be added. */
export const counted = () => Object.fromEntries(
  [...new Set([...fields.filter((field) => field.kind === "choice").map((field) => field.name), ...filters.checked.keys()])]
    .slice(0, 20).map((name) => [name, where(name)]));

export function toggle(name, value) {
  const values = filters.checked.get(name) ?? [];
  const rest = values.filter((each) => each !== value);
  if (rest.length === values.length) rest.push(value);
  if (rest.length) filters.checked.set(name, rest);
  else filters.checked.delete(name);
}

function setRange(name, low, high) {
  if (low === null && high === null) filters.ranges.delete(name);
  else filters.ranges.set(name, [low, high]);
}

export function showChips(changed) {
  const chip = (text, remove) => make("li", {}, make("button", {
    type: "button", dir: "auto", "aria-label": `Remove the filter ${text}`,
    onclick: () => { remove(); changed(); byId("query").focus(); },
  }, `${text} ×`));
  const chips = filters.typed.map((condition) =>
    chip(condition, () => { filters.typed = filters.typed.filter((each) => each !== condition); }));
  for (const [name, values] of filters.checked) {
    for (const value of values) chips.push(chip(`${name}: ${value}`, () => toggle(name, value)));
  }
  for (const [name, [low, high]] of filters.ranges) {
    const text = low === null ? `up to ${high}` : high === null ? `from ${low}` : `${low}–${high}`;
    chips.push(chip(`${name}: ${text}`, () => filters.ranges.delete(name)));
  }
  if (chips.length > 1) {
    chips.push(make("li", {}, make("button", { type: "button", class: "plain", onclick: () => { clearFilters(); changed(); byId("query").focus(); } },
      "Remove all filters")));
  }
  byId("chips").replaceChildren(...chips);
}

function choices(name, values, changed) {
  const checked = filters.checked.get(name) ?? [];
  const known = values.filter(({ value }) => ["string", "number", "boolean"].includes(typeof value));
  const missing = checked.filter((value) => !known.some((each) => each.value === value)).map((value) => ({ value, count: 0 }));
  if (!known.length && !missing.length) return "";
  const first = [...known.slice(0, 8), ...known.slice(8).filter(({ value }) => checked.includes(value)), ...missing];
  return make("fieldset", {}, make("legend", { dir: "auto" }, name), ...first.map(({ value, count }) => make("label", {},
    make("input", {
      type: "checkbox", checked: checked.includes(value) && "", "data-value": `${name} ${value}`,
      onchange: () => { toggle(name, value); changed(); },
    }), make("span", { dir: "auto" }, String(value)), make("span", { class: "quiet" }, number(count)))));
}

function range({ name, kind, low, high }, changed) {
  const now = filters.ranges.get(name) ?? [null, null];
  const day = (value) => (kind === "date" && value !== null ? value.slice(0, 10) : value);
  const days = kind === "date" && day(low).length === 10;
  const bound = (i, label, hint) => {
    const input = make("input", {
      type: days ? "date" : kind === "date" ? "text" : "number", step: "any", title: `${label} ${day(hint)}`,
      "aria-label": `${name} ${label}`, placeholder: day(hint), value: now[i], "data-value": `${name} ${label}`,
      onchange: () => {
        const bounds = [...now];
        bounds[i] = input.value === "" ? null : kind === "date" ? input.value : Number(input.value);
        setRange(name, ...bounds);
        changed();
      },
    });
    return input;
  };
  const between = (text) => make("span", { "aria-hidden": "true", class: "quiet" }, text);
  return make("fieldset", { class: days ? "range dates" : "range" }, make("legend", { dir: "auto" }, name),
    days ? between("from") : "", bound(0, "from", low), between(days ? "to" : "–"), bound(1, "to", high));
}

/** The controls of all fields, with the counts of this question; the focus stays where it was. */
export function showFields(count, changed) {
  const focused = document.activeElement?.dataset?.value;
  const facets = Object.keys(counted()).map((name) => choices(name, count.facets[name] ?? [], changed)).filter(Boolean);
  const ranges = fields.filter((field) => field.kind === "number" || field.kind === "date");
  const parts = [...facets, facets.length && count.best ? make("p", { class: "quiet" }, `Counts are of the ${count.best} best documents.`) : "",
    ...ranges.map((field) => range(field, changed))];
  byId("facets").replaceChildren(...parts);
  if (focused) byId("facets").querySelector(`[data-value="${CSS.escape(focused)}"]`)?.focus();
}

/** Filter by a value that a hit shows. */
export function addValue(top, value, inList) {
  const name = nameOf(top);
  if (inList && !listed(name)) filters.typed.push(`${name} contains ${written(value)}`);
  else if (!filters.checked.get(name)?.includes(value)) toggle(name, value);
}

/** Filters to and from the parameters of an address. */
export function toAddress(parameters) {
  for (const condition of filters.typed) parameters.append("where", condition);
  for (const [name, values] of filters.checked) parameters.append("is", JSON.stringify([name, ...values]));
  for (const [name, bounds] of filters.ranges) parameters.append("range", JSON.stringify([name, ...bounds]));
}

export function fromAddress(parameters) {
  clearFilters();
  filters.typed = parameters.getAll("where");
  for (const [map, parameter] of [[filters.checked, "is"], [filters.ranges, "range"]]) {
    for (const text of parameters.getAll(parameter)) {
      try {
        const [name, ...values] = JSON.parse(text);
        if (parameter === "is" || values.length === 2) map.set(name, values);
      } catch {
        // an address that was cut short has one filter less
      }
    }
  }
}
