"""Beams: DSBD against beam sampling, the n best answers, and faster beam search with the same output."""

import draftwood

PROMPT = (
    "Table goods: item, colour, price\nlamp,red,12\nboat,blue,40\ndrum,red,7\nkite,green,23\n"
    "Question: Which goods have the colour 'red'?\nSQL:"
)

engine = draftwood.load()  # the embedded pair; or draftwood.load("path/to/target", draft="path/to/draft")


def rate(result):
    metrics = result.metrics
    return f"{metrics.rounds:3} forwards of the target for {len(result.tokens)} tokens"


# Beam sampling draws several beams from the joint of beam and token; DSBD drafts layers of beams with a draft model and
# verifies them at once. Both return the beam of lowest perplexity. DSBD's width adapts to how many are accepted.
sampling = {"top_k": 10, "top_p": 0.8}
for method in ({"name": "beam-sampling", "width": 3}, {"name": "dsbd", "draft_width": 6, "gamma": 3, "threshold": 0.9}):
    result = engine.generate(PROMPT, method, sampling, seed=1)
    layers = [layer for round_ in result.rounds for layer in round_.layers]
    width = sum(layer.width for layer in layers) / len(layers)
    print(f"{result.method['name']:24} {rate(result)}, mean width {width:.1f}:{result.text}")

# The n best beams, at a high temperature so that they differ, and distinct, since drawn without replacement.
method = {"name": "dsbd", "draft_width": 6, "gamma": 3, "width": 4, "replacement": False, "n_best": 4}
for beam in engine.generate(PROMPT, method, {"temperature": 2.0, "top_k": 10}, seed=1).beams:
    print(f"  perplexity {beam.perplexity:6.3f} {beam.finish_reason:6} {beam.text!r}")

# Beam search samples nothing. With drafts it needs fewer forward passes, and its beams are the same, score for score.
plain = engine.generate(PROMPT, {"name": "beam-search", "width": 4, "n_best": 4})
quick = engine.generate(PROMPT, {"name": "speculative-beam-search", "width": 4, "n_best": 4, "draft_width": 6})
for result in (plain, quick):
    print(f"{result.method['name']:24} {rate(result)}: {result.beams[0].text!r}")
same = [beam.tokens for beam in plain.beams] == [beam.tokens for beam in quick.beams]
print("the same beams:", same, "with scores", [round(beam.score, 3) for beam in quick.beams])
