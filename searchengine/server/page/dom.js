// Elements built from text only: nothing that comes from a document is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on") && value) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// Words of English questions that are not marked, unless there are no others.
const COMMON = new Set(("a an and are as at be been between by can could did do does for from had has have how i if in into is it its " +
  "may more most not of on or our should so some such than that the their them there these they this those to was we were what " +
  "when where which while who whose why will with would you your").split(" "));

// Scripts whose words carry endings, or have no spaces between them: a word is found inside another.
const JOINED = /[\p{Script=Han}\p{Script=Hangul}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u;

/** The text as nodes, with the words of the question in <mark>. */
export function highlighted(text, question) {
  const all = question.toLowerCase().match(/[\p{L}\p{N}]{2,}/gu) || [];
  const telling = all.filter((word) => !COMMON.has(word));
  const words = telling.length ? telling : all;
  const typed = /[\p{L}\p{N}]$/u.test(question) ? words.find((word) => word === all.at(-1)) : null; // may be unfinished
  const stems = [...new Set(words.map((word) => (word.length > 5 && !JOINED.test(word) ? word.slice(0, -2) : word)))];
  const joined = stems.filter((stem) => JOINED.test(stem));
  if (!stems.length) return [text];
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(/[\p{L}\p{N}]+/gu)) {
    const word = match[0].toLowerCase();
    const begun = typed && word.startsWith(typed);
    const within = joined.find((stem) => word.includes(stem));
    if (!within && !begun && !stems.some((stem) => word === stem || (stem.length > 3 && word.startsWith(stem)))) continue;
    const start = match.index + (within ? word.indexOf(within) : 0);
    const end = within ? start + within.length : match.index + match[0].length;
    nodes.push(text.slice(last, start), make("mark", {}, text.slice(start, end)));
    last = end;
  }
  nodes.push(text.slice(last));
  return nodes;
}

export const number = (value) => value.toLocaleString("en");
