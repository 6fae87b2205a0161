// The page: asks the server, and shows what comes.
import { element } from "./viewer/dom.js";
import { Answer } from "./answer.js";
import { json, keyed, setKey } from "./api.js";
import { Chat, sends } from "./chat.js";
import { Load } from "./load.js";
import { MethodPicker, Sampling } from "./settings.js";

const $ = (id) => document.getElementById(id);
const CHAT_TOKENS = 512, TEXT_TOKENS = 64;
const page = { about: null, methods: [], pickers: [], answers: [], stop: null, sampling: new Sampling($("common"), TEXT_TOKENS), model: "", chat: false, talk: null, kept: "" };

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
  page.sampling.recommend(about.sampling);
  pickers(usual);
  page.talk = new Chat($("thread"), { ask: () => $("form").reportValidity() && { ...asked(page.pickers.at(-1)), system: $("system").value.trim() }, work, viewer: about.viewer, write });
  $("modes").hidden = !about.chat;
  fit();
  if (about.chat) mode(true);
}

// The method that is used, and before it the one that it is compared with.
function pickers(usual) {
  const trees = page.methods.some(({ name, usable }) => name === "mcsd" && usable); // they show most
  $("methods").replaceChildren();
  page.pickers = [["Compared with", "autoregressive"], ["Method", trees ? "mcsd" : usual]].map(([label, name]) => new MethodPicker($("methods"), page.methods, label, name));
  compared();
  summarise();
}

function compared() {
  if (page.pickers.length) page.pickers[0].root.hidden = page.chat || !$("compare").checked;
}

function fit() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = Math.min(box.scrollHeight + 2, 320) + "px";
}

// Runs answers one after the other, so that neither slows the other down; whether all came to their end.
async function work(answers, seen = () => {}) {
  const stop = (page.stop = new AbortController());
  fail(null);
  for (const place of [$("hint"), $("verdict")]) note(place);
  $("said").textContent = "";
  $("intro").hidden = true;
  busy(true);
  try {
    for (const answer of answers) await answer.run(stop.signal, (event, data) => {
      if (event === "start") note($("hint"), data.hint);
      seen();
    });
    $("said").textContent = "The text is complete.";
    return true;
  } catch (error) {
    const stopped = error.name === "AbortError";
    if (stopped) note($("verdict"), "Stopped.");
    else fail(error);
    for (const answer of answers) answer.cut(stopped ? "stopped" : "an error");
    return false;
  } finally {
    page.stop = null;
    busy(false);
    seen();
  }
}

function busy(now) {
  document.body.classList.toggle("busy", now);
  $("go").disabled = now;
  $("stop").hidden = !now;
}

const asked = (picker) => ({ model: page.model, ...page.sampling.values, speculation: picker.values });

async function generate() {
  if (page.stop || !$("form").reportValidity()) return;
  if (page.chat) return send();
  $("runs").replaceChildren();
  const prompt = $("prompt").value, bodies = page.pickers.filter((picker) => !picker.root.hidden).map((picker) => ({ ...asked(picker), prompt }));
  $("runs").className = bodies.length > 1 ? "runs two" : "runs";
  page.answers = bodies.map((body, i) => new Answer($("runs"), body, page.about.viewer, bodies.length > 1 ? "text " + (i + 1) : "the text"));
  if (await work(page.answers)) compare(page.answers);
}

// The message that was typed; it comes back where nothing was answered.
async function send() {
  const text = $("prompt").value;
  if (!text.trim()) return;
  write("");
  if (!await page.talk.reply(text) && !$("prompt").value) write(text);
}

function write(text) {
  if (text !== undefined) $("prompt").value = text;
  fit();
  $("prompt").focus({ preventScroll: true });
}

// A conversation, or a text that is continued.
function mode(chat) {
  if (chat === page.chat) return;
  page.chat = chat;
  [page.kept, $("prompt").value] = [$("prompt").value, page.kept]; // of the other mode
  document.body.classList.toggle("chat", chat);
  for (const button of $("modes").children) button.setAttribute("aria-pressed", (button.id === "talk") === chat);
  for (const one of document.querySelectorAll("[data-mode]")) one.hidden = (one.dataset.mode === "chat") !== chat;
  $("label").textContent = chat ? "Message" : "Prompt";
  $("label").classList.toggle("hidden", chat);
  $("prompt").rows = chat ? 1 : 3;
  $("prompt").placeholder = chat ? "Message" : "";
  $("go").textContent = chat ? "Send" : "Generate";
  $("settings").open = !chat;
  page.sampling.length(chat ? CHAT_TOKENS : TEXT_TOKENS, chat ? TEXT_TOKENS : CHAT_TOKENS);
  compared();
  summarise();
  fit();
}

function summarise() {
  if (!page.pickers.length) return;
  const { temperature, max_tokens } = page.sampling.values;
  $("summary").textContent = "Settings: " + page.pickers.at(-1).values.name + " · temperature " + temperature + " · at most " + max_tokens + " tokens";
}

// Two runs in a sentence.
function compare(answers) {
  if (answers.length < 2) return;
  const [a, b] = answers.map(({ view, text }) => ({ ...view.run, ...view.sums, text }));
  const ratio = b.metrics.tokens_per_second / a.metrics.tokens_per_second;
  const same = a.text === b.text ? "The texts are the same." : "The texts differ" + (a.lossless && b.lossless && !a.greedy ? ", as two draws do." : ".");
  note($("verdict"), b.method + " gives " + ratio.toFixed(2) + " times the tokens per second of " + a.method + ", with "
    + b.rounds + " forwards of the target in place of " + a.rounds + ". " + same + " They ran one after the other.");
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
$("talk").onclick = () => mode(true);
$("text").onclick = () => mode(false);
$("new").onclick = () => { page.stop?.abort(); page.talk.clear(); write(); };
$("settings").addEventListener("input", summarise);
$("settings").addEventListener("invalid", () => { $("settings").open = true; }, true); // what is wrong must be seen
document.addEventListener("keydown", (event) => {
  const shown = page.chat ? page.talk.latest : page.answers.find((answer) => answer.view)?.view;
  if (event.target.id === "prompt" && (page.chat ? sends(event) : event.key === "Enter" && (event.ctrlKey || event.metaKey))) {
    event.preventDefault();
    $("form").requestSubmit();
  } else if (event.key === "Escape") {
    page.stop?.abort();
  } else if (!event.defaultPrevented && !event.target.closest("input, textarea, select, dialog, .text, summary") && (!page.chat || shown?.details.open)) {
    shown?.key(event);
  }
});
theme();
new Load($("load"), state);
