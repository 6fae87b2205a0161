// An answer's place on the page: it is asked for, shown as it comes, and what can be done with it.
import { element } from "./viewer/dom.js";
import { RunView } from "./viewer/run.js";
import { Failure, events } from "./api.js";
import { SNIPPETS, download, offline } from "./code.js";

const $ = (id) => document.getElementById(id);

export class Answer {
  // `body` is that of POST v1/forest, `label` names the text, `viewer` is the page in which it is shared.
  constructor(place, body, viewer, label, folded = false) {
    Object.assign(this, { body, label, folded, view: null, message: null });
    this.root = element("section", place, undefined, "card");
    const head = element("div", this.root, undefined, "head");
    this.title = element("h2", head, body.speculation.name);
    this.badge = element("span", head, "waiting", "badge");
    this.tools = element("span", head, undefined, "tools");
    this.tool("Copy as …", () => snippets(body));
    this.share = this.tool("Share", () => download("draftwood-" + body.speculation.name + "-seed-" + body.seed + ".html", offline(viewer, this.view.run)));
    this.share.title = "one HTML file that needs no network";
    this.share.disabled = true;
  }

  tool(name, act) {
    const button = element("button", this.tools, name, "quiet");
    button.type = "button";
    button.onclick = act;
    return button;
  }

  get text() {
    return this.view?.run.rounds.flatMap((round) => round.pieces.map(([piece]) => piece)).join("") ?? "";
  }

  // Asks, and shows what comes; `seen` is called with each event.
  async run(signal, seen = () => {}) {
    let ended = false;
    for await (const [event, data] of events("v1/forest", this.body, signal)) {
      if (event === "start") {
        this.title.textContent = data.method;
        this.badge.textContent = data.lossless ? "lossless" : "lossy";
        this.badge.classList.toggle("lossy", !data.lossless);
        this.view = new RunView(this.root, data, this.label, this.folded);
      } else if (event === "round") {
        this.view.add(data);
      } else if (event === "end") {
        ended = true;
        this.message = data.message;
        this.view.end(data);
        this.share.disabled = false;
      } else if (event === "error") {
        throw new Failure(data.error?.message ?? "The server could not go on.", 500);
      }
      seen(event, data);
    }
    if (!ended) throw new Failure("The server ended the stream before the text was complete; what came is shown.", 0);
  }

  // The run has ended before its text did.
  cut(reason) {
    if (!this.view) {
      this.badge.textContent = "not run";
    } else if (!this.view.run.finish) {
      this.view.end({ finish: reason });
      this.share.disabled = !this.view.run.rounds.length;
    }
  }
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

$("copy").onclick = copy;
$("close").onclick = () => $("code").close();
