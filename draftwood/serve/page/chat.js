// A conversation: messages, their answers, and what is asked again.
import { element } from "./viewer/dom.js";
import { Answer } from "./answer.js";

const NEXT_TRY = 1000003; // between the seeds of answers to one message, as `draftwood chat` has it

export class Chat {
  // `ask()`: the fields of a request but its messages, with `system`; `work(answers, seen)`: runs it, whether to its end;
  // `viewer`: the page in which answers are shared; `write()`: goes to the field for messages.
  constructor(place, { ask, work, viewer, write }) {
    Object.assign(this, { place, ask, work, viewer, write, turns: [], running: false, follows: false, bottom: 0 });
    addEventListener("scroll", () => { if (scrollY < this.bottom - 4) this.follows = false; });
  }

  get latest() {
    return this.turns.at(-1)?.answer.view ?? null;
  }

  clear() {
    this.turns = [];
    this.place.replaceChildren();
  }

  // Answers `text` in the place of a message and all that follows it; these come back where nothing was answered.
  async reply(text, at = this.turns.length, tries = 0) {
    const asked = !this.running && this.ask();
    if (!asked) return false;
    const before = this.turns.splice(at), { system, ...fields } = asked;
    const told = this.turns.flatMap((turn) => [{ role: "user", content: turn.text }, turn.message]);
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...told, { role: "user", content: text }];
    const turn = this.shown(at, text, tries, { ...fields, seed: fields.seed + messages.length + NEXT_TRY * tries, messages });
    for (const one of before) one.root.remove();
    this.turns.push(turn);
    this.follows = true;
    this.bottom = 0;
    this.follow();
    this.running = true;
    const { answer } = turn, ended = await this.work([answer], () => requestAnimationFrame(() => this.follow()));
    this.running = false;
    if (!this.turns.includes(turn)) return true; // the conversation was given up
    if (answer.text || ended) {
      turn.message = answer.message ?? { role: "assistant", content: answer.text };
      return true;
    }
    turn.root.remove();
    this.turns.splice(at, 1, ...before);
    this.place.append(...before.map((one) => one.root));
    return false;
  }

  shown(at, text, tries, body) {
    const root = element("li", this.place), asked = element("div", root, undefined, "asked");
    element("p", asked, text, "message");
    const edit = element("button", asked, "Edit", "quiet");
    edit.type = "button";
    edit.setAttribute("aria-label", "Edit message " + (at + 1));
    const turn = { root, asked, text, tries, answer: new Answer(root, body, this.viewer, "answer " + (at + 1), true) };
    edit.onclick = () => this.edit(turn);
    const again = turn.answer.tool("Regenerate", () => { this.write(); this.reply(turn.text, this.turns.indexOf(turn), turn.tries + 1); });
    again.classList.add("again");
    again.title = "another answer, with another seed";
    return turn;
  }

  // A message as a field to change it in; sending it drops what follows.
  edit(turn) {
    const form = element("form", null, undefined, "edit"), box = element("textarea", form);
    const close = () => { form.replaceWith(turn.asked); turn.asked.querySelector("button").focus(); };
    box.value = turn.text;
    box.rows = 2;
    box.setAttribute("aria-label", "the message, changed");
    const send = element("button", form, "Send", "main"), cancel = element("button", form, "Cancel", "quiet");
    cancel.type = "button";
    cancel.onclick = close;
    element("small", form, "The answer to it is new, and what follows it goes.", "faint");
    form.onsubmit = async (event) => {
      event.preventDefault();
      if (!box.value.trim()) return;
      send.disabled = true;
      this.write();
      if (await this.reply(box.value, this.turns.indexOf(turn))) return;
      send.disabled = false;
      box.focus();
    };
    box.onkeydown = (event) => {
      if (event.key === "Escape") { close(); event.stopPropagation(); }
      else if (sends(event)) { event.preventDefault(); form.requestSubmit(); }
    };
    turn.asked.replaceWith(form);
    box.focus();
  }

  // Keeps the end of the newest answer above the field for messages, until the reader scrolls back.
  follow() {
    if (!this.follows || !this.turns.length) return;
    const line = Math.min(document.getElementById("form").getBoundingClientRect().top, innerHeight);
    const hidden = this.turns.at(-1).root.getBoundingClientRect().bottom + 16 - line;
    if (hidden > 0) scrollBy(0, hidden);
    this.bottom = scrollY;
  }
}

// Whether a key sends a message: Enter, but not the one that ends a word of an input method.
export const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;
