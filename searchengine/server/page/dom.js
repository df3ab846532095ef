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

// Scripts whose words carry endings, or have no spaces between them: a part is found inside a word.
const JOINED = /[\p{Script=Han}\p{Script=Hangul}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Myanmar}\p{Script=Khmer}]/u;
const WORD = /[\p{L}\p{N}\p{M}]+/gu;

/** [start, end] of the first of these parts at or after an offset, with those that overlap it or follow at once. */
function nextRun(word, parts, from) {
  for (let start = from; start < word.length; start += 1) {
    let end = start;
    for (let i = start; i <= end; i += 1) {
      for (const part of parts) if (word.startsWith(part, i)) end = Math.max(end, i + part.length);
    }
    if (end > start) return [start, end];
  }
  return null;
}

/** The text as nodes, with these words in <mark>, as the server lists them. */
export function highlighted(text, words) {
  if (!words.length) return [text];
  const whole = new Set(words);
  const parts = words.filter((word) => JOINED.test(word));
  const nodes = [];
  let last = 0;
  const mark = (start, end) => {
    nodes.push(text.slice(last, start), make("mark", {}, text.slice(start, end)));
    last = end;
  };
  for (const match of text.matchAll(WORD)) {
    const word = match[0].toLowerCase();
    if (whole.has(word)) {
      mark(match.index, match.index + match[0].length);
      continue;
    }
    let run = parts.length ? nextRun(word, parts, 0) : null;
    for (; run; run = nextRun(word, parts, run[1])) mark(match.index + run[0], match.index + run[1]);
  }
  nodes.push(text.slice(last));
  return nodes;
}

export const number = (value) => value.toLocaleString("en");
