"""draftwood in forty lines: one text by three methods, streaming, a batch, and a check of exactness."""

from collections import Counter

import draftwood

PROMPT = "Story: In Corfe there lived a sailor called"

engine = draftwood.load()  # the embedded pair; or draftwood.load("path/to/target", draft="path/to/draft")

# Greedy decoding gives one text with any drafts. tau is the number of tokens per forward pass of the target.
for method in ("autoregressive", "speculative", {"name": "mcsd", "tree": [3, 2, 1]}):
    result = engine.generate(PROMPT, method, {"temperature": 0}, max_new_tokens=60)
    metrics = result.metrics
    print(
        f"{result.method['name']:14} tau {metrics.tau:.2f}, {metrics.tokens_per_second:.0f} tokens/s", repr(result.text)
    )

# Text is streamed as it is accepted; the last event holds the result.
for event in engine.stream(PROMPT, method="speculative", sampling={"temperature": 0.8}, seed=7, max_new_tokens=60):
    print(event.text, end="", flush=True)
print(f"\n[{event.result.finish_reason}: {Counter(event.result.kinds)}]")

# A batch may mix methods; each text is what it would be alone.
prompts = [PROMPT, {"prompt": "Problem: Lena has 13 pears.", "method": "lookup"}]
for result in engine.batch(prompts, sampling={"temperature": 0}, max_new_tokens=40):
    print(result.method["name"], repr(result.text))

# Exactness, on tabular models of three tokens: the frequency of each pair of tokens against its exact probability.
# Plain decoding shows how far off 1000 runs are by chance alone; a biased method would be further off.
target = draftwood.TabularModel.random(vocab_size=3, seed=1)
toy = draftwood.load(target, draft=draftwood.TabularModel.random(vocab_size=3, seed=2))


def probability(prefix, token):
    weights = target.law(prefix)
    return weights[token] / sum(weights)


for name in ("autoregressive", "speculative", "mcsd"):
    runs = toy.batch([{"prompt": [0], "seed": seed} for seed in range(1000)], 64, method=name, max_new_tokens=2)
    seen = Counter(tuple(run.tokens) for run in runs)
    off = [abs(seen[a, b] / 1000 - probability((0,), a) * probability((0, a), b)) for a in range(3) for b in range(3)]
    print(f"{name:14} total variation from the exact distribution: {sum(off) / 2:.3f}")
