// The page: asks the server, and shows what comes.
import { element } from "./viewer/dom.js";
import { RunView } from "./viewer/run.js";
import { Failure, events, json, keyed, setKey } from "./api.js";
import { SNIPPETS, download, offline } from "./code.js";
import { Load } from "./load.js";
import { MethodPicker, Sampling } from "./settings.js";

const $ = (id) => document.getElementById(id);
const page = { about: null, methods: [], pickers: [], cards: [], stop: null, sampling: new Sampling($("common")), model: "" };

function fail(error) {
  $("error").textContent = error?.message ?? "";
  $("error").hidden = !error;
  if (error?.status === 401) { $("key").hidden = false; $("secret").focus(); }
}

function note(place, text) {
  place.textContent = text ?? "";
  place.hidden = !text;
}

// What the server offers; asked again until it answers.
async function begin() {
  const [about, { data: methods, default: usual }, { data: models }] = await Promise.all([json("page.json"), json("v1/methods"), json("v1/models")]);
  Object.assign(page, { about, methods, model: models[0].id });
  const { target, draft = [] } = about.models;
  $("models").textContent = ["target " + target, draft.length ? "draft " + draft.join(", ") : "", "version " + about.version].filter(Boolean).join(" · ");
  $("prompts").replaceChildren();
  for (const { label, prompt } of about.prompts) {
    const chip = element("button", $("prompts"), label);
    chip.type = "button";
    chip.title = prompt;
    chip.onclick = () => { $("prompt").value = prompt; fit(); $("prompt").focus(); };
  }
  if (!$("prompt").value && about.prompts.length) $("prompt").value = about.prompts[0].prompt;
  fit();
  pickers(usual);
}

// The method that is used, and before it the one that it is compared with.
function pickers(usual) {
  const trees = page.methods.some(({ name, usable }) => name === "mcsd" && usable); // they show most
  $("methods").replaceChildren();
  page.pickers = [["Compared with", "autoregressive"], ["Method", trees ? "mcsd" : usual]].map(([label, name]) => new MethodPicker($("methods"), page.methods, label, name));
  compared();
}

function compared() {
  if (page.pickers.length) page.pickers[0].root.hidden = !$("compare").checked;
}

function fit() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = Math.min(box.scrollHeight + 2, 320) + "px";
}

// A run's place on the page, with what can be done with it.
function card(body) {
  const root = element("section", $("runs"), undefined, "card"), head = element("div", root, undefined, "head");
  const title = element("h2", head, body.speculation.name), badge = element("span", head, "waiting", "badge");
  const tools = element("span", head, undefined, "tools"), made = { root, title, badge, body, view: null };
  const use = element("button", tools, "Copy as …", "quiet"), share = element("button", tools, "Share", "quiet");
  for (const button of [use, share]) button.type = "button";
  use.onclick = () => snippets(body);
  share.title = "one HTML file that needs no network";
  share.disabled = true;
  share.onclick = () => download("draftwood-" + body.speculation.name + "-seed-" + body.seed + ".html", offline(page.about.viewer, made.view.run));
  made.share = share;
  return made;
}

async function run(made, signal) {
  let ended = false;
  for await (const [event, data] of events("v1/forest", made.body, signal)) {
    if (event === "start") {
      made.title.textContent = data.method;
      made.badge.textContent = data.lossless ? "lossless" : "lossy";
      made.badge.classList.toggle("lossy", !data.lossless);
      made.view = new RunView(made.root, data);
      note($("hint"), data.hint);
    } else if (event === "round") {
      made.view.add(data);
    } else if (event === "end") {
      ended = true;
      made.view.end(data);
      made.share.disabled = false;
    } else if (event === "error") {
      throw new Failure(data.error?.message ?? "The server could not go on.", 500);
    }
  }
  if (!ended) throw new Failure("The server ended the stream before the text was complete; what came is shown.", 0);
}

async function generate() {
  fail(null);
  if (page.stop) return;
  if (!$("form").reportValidity()) return;
  const stop = (page.stop = new AbortController());
  for (const place of [$("hint"), $("verdict")]) note(place);
  $("runs").replaceChildren();
  $("intro").hidden = true;
  $("go").disabled = true;
  $("stop").hidden = false;
  const prompt = $("prompt").value, bodies = page.pickers.filter((picker) => !picker.root.hidden).map((picker) => ({ model: page.model, prompt, ...page.sampling.values, speculation: picker.values }));
  $("runs").className = bodies.length > 1 ? "runs two" : "runs";
  page.cards = bodies.map(card);
  try {
    for (const made of page.cards) await run(made, stop.signal); // one after the other: neither slows the other down
    compare(page.cards.map((made) => made.view));
  } catch (error) {
    if (error.name === "AbortError") note($("verdict"), "Stopped.");
    else fail(error);
    for (const { view, share } of page.cards) if (view && !view.run.finish) {
      view.end({ finish: error.name === "AbortError" ? "stopped" : "an error" });
      share.disabled = !view.run.rounds.length;
    }
    for (const { badge, view } of page.cards) if (!view) badge.textContent = "not run";
  } finally {
    page.stop = null;
    $("go").disabled = false;
    $("stop").hidden = true;
  }
}

// Two runs in a sentence.
function compare(views) {
  if (views.length < 2) return;
  const [a, b] = views.map((view) => ({ ...view.run, ...view.sums, text: view.run.rounds.flatMap((round) => round.pieces.map(([piece]) => piece)).join("") }));
  const ratio = b.metrics.tokens_per_second / a.metrics.tokens_per_second;
  const same = a.text === b.text ? "The texts are the same." : "The texts differ" + (a.lossless && b.lossless && !a.greedy ? ", as two draws do." : ".");
  note($("verdict"), b.method + " gives " + ratio.toFixed(2) + " times the tokens per second of " + a.method + ", with "
    + b.rounds + " forwards of the target in place of " + a.rounds + ". " + same + " They ran one after the other.");
}

function snippets(body) {
  const show = (name) => {
    for (const tab of $("tabs").children) tab.setAttribute("aria-pressed", tab.textContent === name);
    $("snippet").textContent = SNIPPETS[name](body);
    $("copied").textContent = name === "method file" ? "for --method file:PATH" : "";
  };
  $("tabs").replaceChildren();
  for (const name of Object.keys(SNIPPETS)) {
    const tab = element("button", $("tabs"), name);
    tab.type = "button";
    tab.onclick = () => show(name);
  }
  show("curl");
  $("code").showModal();
}

async function copy() {
  const range = document.createRange();
  range.selectNodeContents($("snippet"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  try {
    await navigator.clipboard.writeText($("snippet").textContent);
    $("copied").textContent = "copied";
  } catch { // not at this address: it is selected, so that a key copies it
    $("copied").textContent = "selected: press Ctrl + C";
  }
}

function theme() {
  const names = ["", "light", "dark"], root = document.documentElement.style;
  const show = () => { $("theme").textContent = "theme: " + (root.colorScheme || "auto"); };
  $("theme").onclick = () => {
    root.colorScheme = names[(names.indexOf(root.colorScheme) + 1) % names.length];
    try { localStorage.setItem("theme", root.colorScheme); } catch { /* for this visit only */ }
    show();
  };
  show();
}

// Whether the server answers. What it offers is asked for when it does so for the first time.
let asking = null, lost = null;
async function state(answers, error) {
  $("state").textContent = answers ? "ready" : error?.status === 401 ? (keyed() ? "wrong key" : "needs a key") : "no answer";
  $("state").classList.toggle("lost", !answers);
  if (error?.status === 401) $("key").hidden = false;
  lost = error;
  if (answers && !page.about && !asking) asking = begin().then(() => fail(null), fail).finally(() => { asking = null; });
}

$("form").onsubmit = (event) => { event.preventDefault(); page.about ? generate() : fail(lost); };
$("stop").onclick = () => page.stop?.abort();
$("compare").onchange = compared;
$("prompt").oninput = fit;
$("secret").oninput = () => setKey($("secret").value);
$("copy").onclick = copy;
$("close").onclick = () => $("code").close();
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
  else if (event.key === "Escape") page.stop?.abort();
  else if (!event.defaultPrevented && !event.target.closest("input, textarea, select, dialog, .text, summary")) page.cards.find((made) => made.view)?.view.key(event);
});
theme();
new Load($("load"), state);
