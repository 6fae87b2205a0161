// The page of one answer: `draftwood explain --html`, and what the server's page writes to share a run.
import { element, plural } from "./dom.js";
import { RunView } from "./run.js";

function begin() {
  const run = JSON.parse(document.getElementById("data").textContent), models = run.models;
  const view = new RunView(document.getElementById("run"), run);
  const { tokens, rounds, drafted } = view.sums;
  document.getElementById("head").textContent = [run.method + (run.lossless ? " (lossless)" : " (lossy)"),
    "target " + (models.target || "without a name"), "draft " + ((models.draft || []).join(", ") || "none"),
    run.greedy ? "greedy" : "temperature " + run.sampling.temperature, "seed " + run.seed,
    plural(tokens, "token") + " in " + plural(rounds, "round") + ", " + drafted + " drafted"].join(" · ");
  const asked = Number((location.hash.match(/round=(\d+)/) || [])[1]) || 1;
  if (rounds) view.show(asked - 1);
  else element("p", document.getElementById("run"), "Nothing was generated.");
  document.addEventListener("keydown", (event) => event.defaultPrevented || view.key(event));
}

begin();
