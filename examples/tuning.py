"""Tuning: which tree of drafts is fastest on this machine, in a few measured runs; `draftwood tune` does the same."""

from itertools import islice

import draftwood
from draftwood.corpus import documents
from draftwood.methods import Method
from draftwood.tune.measuring import TuningBench, Workload, guide, standings
from draftwood.tune.search import Guided, pilot_shape
from draftwood.tune.shapes import shapes

ROWS, DEPTH, RUNS = 24, 5, 6

engine = draftwood.load()  # the embedded pair; or draftwood.load("path/to/target", draft="path/to/draft")
prompts = [engine.tokens(document.prompt) for document in islice(documents("stories", "held-out", seed=3), 4)]
work = Workload(prompts, draftwood.SamplingParams(temperature=1.0), max_new_tokens=32)
bench = TuningBench(engine, work, plain=Method.parse("autoregressive"))

# The cost of a forward pass of K rows, target and draft.
target, draft = bench.costs(ROWS)
for name, cost in (("target", target), ("draft", draft)):
    each = ", ".join(f"{rows} rows {1000 * cost(rows):.2f} ms" for rows in cost.rows)
    print(f"{name:6} {each}")

# A pilot run shows how often the i-th sibling of a layer is accepted. That and the costs predict the speed of every
# tree of the space; the best predicted ones are measured, interleaved with plain decoding.
search = Guided(pilot_shape(ROWS, DEPTH), target, draft, ROWS, DEPTH)
guide(bench, search, RUNS)
for layer, places in enumerate(search.tally.acceptance(), 1):
    print(f"layer {layer}: accepted where met", ", ".join(f"{chance:.2f}" for chance in places))

space = sum(1 for shape in shapes(ROWS, DEPTH) if shape.tree)
print(f"{len(bench.trials)} runs of {len(search.runs)} of {space} trees:")
measured = {one.method.tree: one for one in standings(bench.trials)}
for _, shape in search.ranked():
    one = measured[shape.tree]
    runs = f"{len(one.trials)} run{'s' * (len(one.trials) > 1)}"
    tree = ",".join(map(str, shape.tree))
    print(
        f"  {tree:10} speed-up {one.speed_up:.2f}, predicted {search.predicted(shape):.2f}, tau {one.tau:.2f}, {runs}"
    )

# The best as a method: with engine.generate, or saved as JSON for --method file:best.json.
best = measured[search.ranked()[0][1].tree].method
print("best:", best.as_dict())
print(engine.generate(prompts[0], best, {"temperature": 0.0}, max_new_tokens=24).text)
