// One answer: its text coloured by origin, its figures, its beams and its rounds. Rounds may come one at a time.
import { element, percent, plural, quoted, rows, sum } from "./dom.js";
import { KEPT, describeNode, drawForest } from "./tree.js";

const KINDS = ["accepted", "corrected", "bonus", "forced", "plain"];
const TIMES = { drafting: "drafting", target: "target", sampling: "sampling", other: "waiting and bookkeeping" };

export class RunView {
  // `run`: {method, lossless, greedy, coupled, models, sampling, seed, prompt, shortened, fates} and `rounds`; see page.py
  // `label` names the text; all but the text may be `folded`, with the figures in a line.
  constructor(place, run, label = "the text", folded = false) {
    Object.assign(this, { label, folded, run: { ...run, rounds: [] } });
    this.at = this.drawn = -1; // the round that is looked at, and the one that is drawn
    this.follows = true; // the newest round, until another one is asked for
    this.root = element("div", place, undefined, "run");
    this.build();
    for (const round of run.rounds ?? []) this.take(round);
    if (run.metrics) this.end(run);
    this.draw();
  }

  build() {
    const add = (name, kind, parent = this.root) => (this[kind] = element(name, parent, undefined, kind));
    if (!this.folded) add("dl", "figures");
    add("div", "text");
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "region");
    this.text.setAttribute("aria-label", this.label);
    if (!this.folded) element("span", this.text, (this.run.shortened ? "…" : "") + this.run.prompt.join(""), "prompt");
    add("p", "legend");
    if (this.folded) this.fold();
    const below = this.details ?? this.root;
    add("div", "racing", below);
    add("div", "clock", below);
    add("div", "rounds", below);
    add("div", "strip", this.rounds);
    this.strip.setAttribute("role", "group");
    this.strip.setAttribute("aria-label", "rounds");
    const bar = element("div", this.rounds, undefined, "bar");
    const button = (label, words, step) => {
      const made = element("button", bar, words);
      made.type = "button";
      made.setAttribute("aria-label", label);
      made.onclick = () => this.show(step());
      return made;
    };
    this.back = [button("first round", "|◀", () => 0), button("round before", "◀", () => this.at - 1)];
    add("span", "where", bar);
    this.forth = [button("next round", "▶", () => this.at + 1), button("last round", "▶|", () => this.run.rounds.length - 1)];
    const label = element("label", bar);
    this.all = element("input", label);
    this.all.type = "checkbox";
    this.all.onchange = () => this.drawRound();
    label.append("show drafts that were not judged");
    add("p", "summary", this.rounds);
    add("div", "forest", this.rounds);
    add("p", "fates", this.rounds);
    const side = element("div", this.rounds, undefined, "side"), left = element("div", side), right = element("div", side);
    add("h3", "title", left);
    add("div", "node", left);
    element("h3", right, "This round");
    add("div", "cost", right);
    add("div", "layers", right);
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  // What is below the text, drawn while it is open.
  fold() {
    this.details = element("details", this.root, undefined, "folded");
    this.line = element("summary", this.details, "Rounds");
    this.figures = element("dl", this.details, undefined, "figures");
    this.details.ontoggle = () => { if (this.details.open && this.at >= 0) this.drawRound(); };
  }

  // A round that has just happened.
  add(round) {
    this.take(round);
    this.pending ??= requestAnimationFrame(() => { this.pending = undefined; this.draw(); });
  }

  take(round) {
    const place = this.run.rounds.push(round) - 1;
    for (const [piece, kind] of round.pieces) {
      const made = element("span", this.text, piece, "token " + kind);
      made.title = kind + ", round " + (place + 1);
      made.dataset.round = place;
      made.onclick = () => this.show(place);
    }
    const column = element("button", this.strip), kept = round.drafted - round.wasted;
    column.type = "button";
    column.title = "round " + (place + 1) + ": " + round.drafted + " drafted, " + kept + " kept, out: " + round.tokens.map(([token]) => token).join("");
    column.setAttribute("aria-label", column.title);
    for (const kind of ["wasted", "kept"]) element("i", column, undefined, kind);
    column.onclick = () => this.show(place);
  }

  // What is known at the end: {finish, metrics, best}. A round with a correction says more than the last one.
  end(end) {
    Object.assign(this.run, { finish: end.finish, metrics: end.metrics, best: end.best, joules: end.joules });
    const { rounds } = this.run, lost = (round) => Math.min(round.wasted, round.drafted - round.wasted);
    if (this.follows && rounds.some(lost)) {
      this.at = rounds.reduce((best, round, i) => lost(round) > lost(rounds[best]) ? i : best, 0);
      this.follows = false;
    }
    this.drawn = -1;
    this.draw();
  }

  key(event) {
    const step = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: this.run.rounds.length - 1 }[event.key];
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    this.show(step);
    event.preventDefault();
  }

  show(place) {
    const last = this.run.rounds.length - 1;
    this.at = Math.min(Math.max(place, 0), last);
    this.follows = this.at === last;
    if (this.details) this.details.open = true;
    this.drawRound();
  }

  draw() {
    if (this.follows) this.at = this.run.rounds.length - 1;
    this.drawFigures();
    this.drawLegend();
    this.drawTimes();
    this.drawStrip();
    this.rounds.hidden = !this.run.rounds.length;
    if (this.at >= 0 && this.drawn !== this.at) this.drawRound();
    else if (this.at >= 0) this.drawPlace(); // what is looked at stays as it is
    if (this.follows || this.run.finish) this.text.scrollTop = this.text.scrollHeight;
  }

  get sums() {
    const all = (name) => sum(this.run.rounds.map((round) => round[name])), seconds = sum(Object.values(this.times)) / 1000;
    const tokens = sum(this.run.rounds.map((round) => round.tokens.length));
    const known = { rounds: this.run.rounds.length, tokens, drafted: all("drafted"), accepted: all("accepted"), seconds };
    return { ...known, seconds: this.run.metrics?.seconds || known.seconds };
  }

  get times() {
    return Object.fromEntries(Object.keys(TIMES).map((name) => [name, sum(this.run.rounds.map((round) => round.milliseconds[name]))]));
  }

  drawFigures() {
    const { rounds, tokens, drafted, accepted, seconds } = this.sums, joules = this.run.joules;
    this.figures.replaceChildren();
    const put = (name, value, about) => {
      const pair = element("div", this.figures);
      pair.title = about;
      element("dt", pair, name);
      element("dd", pair, value);
    };
    put("tokens/s", seconds ? (tokens / seconds).toFixed(0) : "–", "tokens per second of wall time, prompt included");
    put("tau", rounds ? (tokens / rounds).toFixed(2) : "–", "tokens per forward pass of the target");
    put("accepted", drafted ? percent(accepted / drafted) : "–", "share of the drafts that were accepted");
    put("tokens", String(tokens), "tokens of the text");
    put("forwards", String(rounds), "forward passes of the target, one per round");
    if (joules) put("energy", joules.toFixed(1) + " J", "from the machine's counter, for everything that ran meanwhile");
    if (this.line) this.line.textContent = ["Rounds", seconds ? (tokens / seconds).toFixed(0) + " tokens/s" : "", rounds ? "tau " + (tokens / rounds).toFixed(2) : "",
      drafted ? percent(accepted / drafted) + " accepted" : ""].filter(Boolean).join(" · ");
  }

  drawLegend() {
    const counts = {};
    for (const round of this.run.rounds) for (const [, kind] of round.tokens) counts[kind] = (counts[kind] ?? 0) + 1;
    this.legend.replaceChildren();
    for (const kind of KINDS) if (counts[kind]) {
      const key = element("span", this.legend, undefined, "key");
      element("span", key, kind, "token " + kind);
      element("span", key, " " + counts[kind]);
      key.title = this.run.fates[kind];
    }
    if (this.run.finish) element("span", this.legend, "ended by: " + this.run.finish, "key");
  }

  drawTimes() {
    const times = this.times, total = sum(Object.values(times));
    this.clock.replaceChildren();
    if (!total) return;
    const bar = element("div", this.clock, undefined, "stack"), words = element("p", this.clock, undefined, "faint");
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", "where the time went");
    for (const [name, label] of Object.entries(TIMES)) {
      element("i", bar, undefined, name).style.width = 100 * times[name] / total + "%";
      const key = element("span", words, undefined, "key");
      element("b", key, undefined, name);
      key.append(label + " " + percent(times[name] / total));
    }
  }

  drawStrip() {
    const most = Math.max(1, ...this.run.rounds.map((round) => round.drafted));
    this.run.rounds.forEach((round, place) => {
      const [wasted, kept] = this.strip.children[place].children;
      wasted.style.height = 100 * round.wasted / most + "%";
      kept.style.height = 100 * (round.drafted - round.wasted) / most + "%";
    });
  }

  drawPlace() {
    const last = this.run.rounds.length - 1;
    this.where.textContent = "round " + (this.at + 1) + " of " + (last + 1);
    for (const one of this.back) one.disabled = this.at === 0;
    for (const one of this.forth) one.disabled = this.at === last;
    [...this.strip.children].forEach((column, i) => column.setAttribute("aria-current", i === this.at));
  }

  drawRound() {
    const round = this.run.rounds[this.at];
    this.drawPlace();
    if (this.details && !this.details.open) return;
    this.drawn = this.at;
    this.strip.scrollLeft = this.strip.children[this.at].offsetLeft - this.strip.clientWidth / 2;
    for (const token of this.text.querySelectorAll(".token")) token.classList.toggle("now", Number(token.dataset.round) === this.at);
    this.summary.textContent = plural(round.drafted, "draft") + (round.draws > round.drafted ? " in " + round.draws + " draws" : "")
      + ", " + round.wasted + " wasted; out: " + (round.tokens.length ? quoted(round.tokens.map(([token]) => token).join("")) : "nothing yet, the beams differ");
    drawForest(this.forest, round, this.all.checked, (node, root) => describeNode(this.node, this.title, node, root, this.run, round.layers.length > 0));
    this.drawFates(round);
    this.drawCost(round);
    this.drawBeams(round);
  }

  drawFates(round) {
    const found = new Set();
    (function walk(nodes) { for (const node of nodes) { node.fates.forEach((fate) => found.add(fate.fate)); walk(node.children); } })(round.roots);
    this.fates.replaceChildren();
    for (const name in this.run.fates) if (found.has(name)) {
      const key = element("span", this.fates, undefined, "key");
      element("b", key, undefined, KEPT.includes(name) || name === "rejected" ? name : "unseen");
      key.append(name + ": " + this.run.fates[name]);
    }
    element("span", this.fates, "▸ the next round begins here · a dot in a token is a space", "key");
  }

  drawCost(round) {
    const kept = round.drafted - round.wasted, took = round.milliseconds;
    const entries = [
      ["tokens out", round.tokens.length, "by one forward pass of the target"],
      ["drafts", round.drafted, "kept " + kept + ", wasted " + round.wasted + (round.drafted ? " (" + percent(round.wasted / round.drafted) + ")" : "")],
      ["rows", round.rows.toFixed(0), "tokens that the target computed; the first round includes the prompt's"],
      ["time", sum(Object.values(took)).toFixed(1) + " ms", Object.entries(took).map(([name, ms]) => TIMES[name] + " " + ms.toFixed(1)).join(", ")],
    ];
    if (round.left !== null) entries.push(["probability", percent(round.left), "of the token that ended the round, where it was sampled"]);
    this.cost.replaceChildren();
    rows(this.cost, entries);
    this.layers.replaceChildren();
    if (!round.layers.length) return;
    element("h3", this.layers, "Layers of beams");
    rows(this.layers, [["layer", "width", "of draws", "accepted", "chosen by the target", "distinct", "probability of the width"],
      ...round.layers.map((layer, i) => [i + 1, layer.width, layer.draws, layer.accepted, layer.completed, layer.distinct, percent(layer.chance)])]);
  }

  // The answer's beams, and those after this round, with how likely each is among them.
  drawBeams(round) {
    const { best = [] } = this.run;
    this.racing.replaceChildren();
    if (!round.layers.length) return;
    if (best.length) drawRace(this.racing, "The best " + (best.length > 1 ? plural(best.length, "beam") : "beam"), best);
    if (round.beams.length > 1) drawRace(this.racing, plural(round.beams.length, "beam") + " after round " + (this.at + 1) + ", and how each continues", round.beams);
  }
}

function drawRace(place, title, beams) {
  element("h3", place, title);
  const scores = beams.map((beam) => beam.score ?? 0), top = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - top)), total = sum(weights);
  const list = element("ol", place);
  beams.forEach((beam, i) => {
    const item = element("li", list), share = weights[i] / total;
    element("span", item, beam.text || "(nothing beyond the shared text)", "beam");
    element("i", element("span", item, undefined, "track")).style.width = 100 * share + "%";
    element("small", item, [percent(share), beam.score === null ? "" : "log-likelihood " + beam.score.toFixed(2),
      beam.perplexity ? "perplexity " + beam.perplexity.toFixed(2) : "", beam.times > 1 ? "drawn ×" + beam.times : "",
      beam.finish ?? (beam.ended ? "has ended" : "")].filter(Boolean).join(" · "));
  });
}
