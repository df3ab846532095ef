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

// Words of English questions that are not taken for the beginning of others.
const COMMON = new Set(("a an and are as at be been between by can could did do does for from had has have how i if in into is it its " +
  "may more most not of on or our should so some such than that the their them there these they this those to was we were what " +
  "when where which while who whose why will with would you your").split(" "));

// Scripts whose words carry endings, or have no spaces between them: a part is found inside a word.
const JOINED = /[\p{Script=Han}\p{Script=Hangul}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Myanmar}\p{Script=Khmer}]/u;
const WORD = /[\p{L}\p{N}\p{M}]+/gu;

/** The last word of a question, if it may not be finished: two letters or more, and no part of a word. */
function typed(question) {
  const last = /[\p{L}\p{N}\p{M}]$/u.test(question) ? question.toLowerCase().match(WORD).at(-1) : "";
  return last.length > 1 && !COMMON.has(last) && !JOINED.test(last) ? last : null;
}

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

/** The text as nodes, with these words in <mark>, as the server lists them; and those that begin with the last word of the question. */
export function highlighted(text, words, question) {
  const begun = typed(question);
  if (!words.length && !begun) return [text];
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
    if (whole.has(word) || (begun && word.startsWith(begun))) {
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
