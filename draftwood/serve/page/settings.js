// What is asked: method and options from the server's registry, and how tokens are drawn.
import { element } from "./viewer/dom.js";

const KINDS = ["integer", "number", "text", "null", "value"];
const SAMPLING = [
  ["temperature", "Temperature", 0.7, { min: 0, max: 5, step: 0.1 }, "0: greedy; 1: the target as it is"],
  ["max_tokens", "Max tokens", null, { min: 1, step: 1 }, "the text ends here at the latest"],
  ["seed", "Seed", 0, { step: 1 }, "the same seed gives the same text"],
  ["top_p", "Top-p", 0.95, { min: 0.01, max: 1, step: 0.01 }, "keep this share of the probability; 1: all"],
  ["top_k", "Top-k", 0, { min: 0, step: 1 }, "keep the K most probable tokens; 0: all"],
];
const RECOMMENDED = [ // shown where the checkpoint's makers name them
  ["min_p", "Min-p", 0, { min: 0, max: 1, step: 0.01 }, "drop tokens below this share of the best one's probability; 0: none"],
  ["repetition_penalty", "Repetition penalty", 1, { min: 0.01, max: 100, step: 0.01 }, "divides the scores of tokens that were there; 1: off"],
];
const NEUTRAL = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1 };
let fields = 0;

function field(parent, label, control, help) {
  const place = element("div", parent, undefined, "field"), id = "field-" + ++fields;
  const name = element("label", place, label);
  name.htmlFor = control.id = id;
  place.append(control);
  if (!help) return;
  const about = element("small", place, help);
  about.id = id + "-help";
  control.setAttribute("aria-describedby", about.id);
}

export class Sampling {
  constructor(place, tokens) {
    this.place = place;
    this.recommended = {};
    this.controls = SAMPLING.map((one) => this.control(...one));
    this.length(tokens, "");
    this.match = Object.assign(element("input"), { name: "match", autocomplete: "off", spellcheck: false });
    this.match.oninput = () => this.match.setCustomValidity(this.structured === undefined ? "This JSON schema is no JSON." : "");
    field(place, "Must match", this.match, "a regular expression or a JSON schema; empty: any text");
  }

  get values() {
    const set = this.controls.map(({ name, value }) => [name, Number(value)]);
    const told = ([name, value]) => name === "temperature" || name in this.recommended || value !== NEUTRAL[name];
    return { ...Object.fromEntries(set.filter(told)), ...this.structured };
  }

  control(name, label, usual, bounds, help) {
    const control = Object.assign(element("input"), { type: "number", value: usual, name, required: true, ...bounds });
    field(this.place, label, control, help);
    return control;
  }

  // How the checkpoint's makers draw tokens, in place of what this page would.
  recommend(given) {
    this.recommended = given;
    if (!Object.keys(given).length) return;
    this.controls.push(...RECOMMENDED.filter(([name]) => name in given).map((one) => this.control(...one)));
    for (const control of this.controls) control.value = { ...NEUTRAL, ...given }[control.name] ?? control.value;
    element("p", this.place, "Recommended by the model's makers: " + Object.entries(given).map(([name, value]) => name + " " + value).join(", ") + ".", "faint recommended");
  }

  // The length of answers, unless it was changed from the `usual` one.
  length(tokens, usual) {
    const control = this.controls.find(({ name }) => name === "max_tokens");
    if (control.value === String(usual)) control.value = tokens;
  }

  // What the text must be; undefined where that cannot be read.
  get structured() {
    const text = this.match.value;
    if (!text.trim()) return {};
    if (!text.trim().startsWith("{")) return { structured_outputs: { regex: text } };
    try { return { structured_outputs: { json: JSON.parse(text) } }; } catch { return undefined; }
  }
}

// A method of the registry and its options; what is left empty is the method's own default.
export class MethodPicker {
  constructor(place, methods, label, chosen) {
    this.methods = methods;
    this.root = element("div", place, undefined, "method");
    this.select = element("select");
    for (const method of methods) {
      const option = element("option", this.select, method.name);
      option.value = method.name;
      option.disabled = !method.usable;
    }
    field(this.root, label, this.select);
    this.about = element("p", this.root, undefined, "faint");
    this.more = element("details", this.root);
    this.head = element("summary", this.more);
    this.grid = element("div", this.more, undefined, "options");
    this.select.value = methods.some((method) => method.name === chosen) ? chosen : methods[0].name;
    this.select.onchange = () => this.build();
    this.root.addEventListener("input", () => this.summarise());
    this.build();
  }

  get method() {
    return this.methods.find((method) => method.name === this.select.value);
  }

  build() {
    const { summary, lossless, options } = this.method;
    this.about.replaceChildren(element("span", null, lossless ? "lossless" : "lossy", "badge" + (lossless ? "" : " lossy")), summary);
    this.grid.replaceChildren();
    this.controls = options.map((option) => {
      const control = made(option);
      control.name = option.name;
      field(this.grid, option.name, control, option.description);
      return control;
    });
    this.summarise();
  }

  summarise() {
    const { name, ...options } = this.values, set = Object.entries(options).map(([key, value]) => key + "=" + value);
    this.more.hidden = !this.controls.length;
    this.head.textContent = "Options of " + name + (set.length ? ": " + set.join(" ") : "");
  }

  get values() {
    const found = { name: this.select.value };
    for (const control of this.controls) if (control.value.trim()) found[control.name] = value(control.value.trim());
    return found;
  }
}

function value(text) {
  try { return JSON.parse(text); } catch { return text; }
}

// The control for an option, by its type in words: 'integer 0..64', 'rejection or coupled', 'integer ≥ 1, ...'.
function made(option) {
  const usual = option.default === null ? "null" : Array.isArray(option.default) ? option.default.join(",") : String(option.default);
  const parts = option.type.split(" or ");
  if (parts.length > 1 && parts.every((part) => /^[\w-]+$/.test(part) && !KINDS.includes(part))) {
    const select = element("select");
    for (const part of ["", ...parts]) element("option", select, part || usual + " (default)").value = part;
    return select;
  }
  const input = element("input");
  input.placeholder = usual;
  input.title = option.type;
  input.autocomplete = "off";
  input.spellcheck = false;
  if (parts.length === 1 && /^(integer|number)\b[^,]*$/.test(option.type)) {
    const [, low, high] = option.type.match(/([\d.]+)\.\.([\d.]+)$/) ?? [, option.type.match(/≥ ([\d.]+)/)?.[1] ?? "", ""];
    Object.assign(input, { type: "number", min: low, max: high, step: option.type.startsWith("integer") ? 1 : "any" });
  }
  return input;
}
