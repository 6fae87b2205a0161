// Elements and numbers. Text of models is only ever inserted as text.

export function element(name, parent, words, kind) {
  const made = document.createElement(name);
  if (words !== undefined) made.textContent = words;
  if (kind) made.className = kind;
  if (parent) parent.append(made);
  return made;
}

export function rows(parent, entries) {
  const table = element("table", parent);
  for (const entry of entries) {
    const row = element("tr", table);
    entry.forEach((cell, i) => element(i ? "td" : "th", row, cell));
  }
}

export const number = (x) => x === null ? "–" : x === 0 ? "0" : x < 0.001 ? x.toExponential(0) : x.toFixed(3);
export const percent = (x) => x === null ? "–" : (100 * x).toFixed(x < 0.1 ? 1 : 0) + "%";
export const plural = (n, word) => n + " " + word + (n === 1 ? "" : "s");
export const quoted = (text) => JSON.stringify(text);
export const visible = (text) => quoted(text).slice(1, -1).replaceAll('\\"', '"').replaceAll(" ", "·");
export const sum = (values) => values.reduce((a, b) => a + b, 0);
