// The forest of one round: how each draft continues another, and what became of it.
import { element, number, percent, plural, quoted, rows, visible } from "./dom.js";

export const UNSEEN = ["discarded", "unreached", "not reached", "cut off"];
export const KEPT = ["accepted", "corrected", "bonus", "forced", "plain", "stays"];
const unseen = (node) => node.fates.length > 0 && node.fates.every((one) => UNSEEN.includes(one.fate)) && node.children.every(unseen);
const size = (node) => 1 + node.children.reduce((total, child) => total + size(child), 0);

// Draws a round into `place` and calls `pick(node, root)` for the node that is looked at.
export function drawForest(place, round, all, pick) {
  place.replaceChildren();
  const list = element("ul", place);
  for (const root of round.roots) put(list, root, true);
  (place.querySelector("li li:not(.fold) > .box") || place.querySelector(".box"))?.dispatchEvent(new Event("focus"));

  function put(below, node, root) {
    const fate = node.fates[0], kind = root ? "root" : fate ? fate.fate : "plain";
    const item = element("li", below, undefined, kind.replace(" ", "-"));
    item.classList.toggle("kept", KEPT.includes(kind));
    item.classList.toggle("unseen", Boolean(fate) && UNSEEN.includes(kind));
    const box = element("button", item, undefined, "box");
    box.type = "button";
    element("span", box, visible(node.text) + (fate && fate.times > 1 ? " ×" + fate.times : "") + (node.goes_on ? " ▸" : ""));
    const numbers = fate && fate.p !== null ? "p " + number(fate.p) + (fate.q !== null ? " q " + number(fate.q) : "") : kind;
    element("small", box, root ? "from here" : fate ? numbers : "kept");
    box.setAttribute("aria-label", quoted(node.text) + ", " + (root ? "the round begins here" : kind + (numbers === kind ? "" : ", " + numbers)));
    box.onclick = box.onfocus = () => {
      place.querySelectorAll(".chosen").forEach((other) => other.classList.remove("chosen"));
      box.classList.add("chosen");
      pick(node, root);
    };
    if (node.children.length) children(item, node.children);
  }
  function children(item, nodes) {
    const list = element("ul", item, undefined, nodes.length === 1 ? "chain" : "");
    const folded = all ? [] : nodes.filter(unseen);
    for (const child of nodes) if (!folded.includes(child)) put(list, child, false);
    if (!folded.length) return;
    const fold = element("li", list, undefined, "fold");
    const count = folded.reduce((total, child) => total + size(child), 0);
    const open = element("button", fold, "+" + count, "box");
    open.type = "button";
    element("small", open, "not judged");
    open.setAttribute("aria-label", "show " + plural(count, "draft") + " that " + (count === 1 ? "was" : "were") + " not judged");
    open.onclick = () => { fold.remove(); folded.forEach((child) => put(list, child, false)); };
  }
}

// Why a draft has its fate, in a sentence.
function why(fate, run, beams) {
  const chance = fate.accept === null ? null : percent(fate.accept);
  if (fate.fate === "accepted" || fate.fate === "outrun") {
    if (chance) return fate.accept >= 1 ? "The target finds it at least as likely as the draft did, so it is always accepted." : "It was accepted with probability " + chance + ".";
    if (beams) return "It is among the target's best beams.";
    if (run.coupled) return "The target's own draw under this seed is the same token.";
    if (run.greedy) return "It is the target's most likely token.";
  } else if (fate.fate === "rejected") {
    if (chance) return fate.p === 0 ? "The target, or its residual distribution, gives it probability 0." : "It would have been accepted with probability " + chance + ".";
    if (beams) return "It is not among the target's best beams.";
    if (run.coupled) return "The target's own draw under this seed is another token.";
    if (run.greedy) return "The target finds another token more likely.";
  } else if (fate.fate === "corrected" && !run.greedy && !run.coupled && !beams) {
    return "Drawn from the residual distribution after the rejections: max(0, p − q), normalised.";
  }
  return "";
}

// What is to be said of one node.
export function describeNode(place, title, node, root, run, beams) {
  place.replaceChildren();
  title.textContent = (root ? "The round begins after " : "") + quoted(node.text);
  for (const fate of node.fates) {
    const line = element("p", place);
    element("b", line, fate.fate, "tone " + fate.fate.replace(" ", "-"));
    line.append((fate.times > 1 ? ", " + fate.times + " times" : "") + ": " + run.fates[fate.fate] + ". " + why(fate, run, beams));
    const entries = [];
    if (fate.p !== null) entries.push(["p", number(fate.p), run.greedy ? "the target's probability (greedy: the largest wins)"
      : "the target's probability; after rejections, in the residual distribution"]);
    if (fate.q !== null) entries.push(["q", number(fate.q), "the draft's probability; 1: not sampled"]);
    if (fate.accept !== null) entries.push(["accept", percent(fate.accept), "probability of acceptance, min(1, a p/q); a: that of the path before it (traversal)"]);
    if (entries.length) rows(place, entries);
  }
  if (node.ends) element("p", place, "This token ends the text.");
  if (node.goes_on) element("p", place, "▸ Here the next round begins, or the answer ends.");
  if (!node.fates.length && !root) element("p", place, "Kept from an earlier round.");
  if (node.likely.length) {
    element("p", place, "The target's most likely next tokens:", "faint");
    const list = element("ul", place, undefined, "likely");
    for (const [word, p] of node.likely) {
      const item = element("li", list);
      element("span", item, visible(word), "word");
      element("i", item).style.width = 6 * p + "rem";
      element("small", item, number(p));
    }
  }
}
