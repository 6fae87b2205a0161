"""docs/results.md: a section for each experiment."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from benchmarks.execute import read
from benchmarks.pages import chat_prompts
from benchmarks.pages.tables import (
    RESULTS,
    documents,
    frame,
    labels,
    markdown,
    pivoted,
    source,
    sources,
    span,
    text,
    times,
    value,
)

HEAD = """# Results

Every number here comes from the files under `benchmarks/results`; `python -m benchmarks pages` makes this page of them.
Each section names the command that repeats it. Ratios compare what took turns on the same prompts; in parentheses are
95% bootstrap intervals over n items; sampled ones up to 28 November 2026, but for messages to SmolLM2, are of items
that drew with the same random numbers, and can be too narrow. Compare times only between runs that name the same
processor and kernels. A grown pair has the text and acceptance of the embedded pair at the cost of a larger shape."""

SHOWN_LOADS = (1, 4, 16, 64)  # requests at once; beside other engines, in bfloat16, all are shown


def page() -> str:
    """The whole page."""
    sections = (
        methods,
        beams,
        chat_prompts.section,
        peers,
        loop,
        forwards,
        quantisation,
        serving,
        fairness,
        certificates,
        scores,
    )
    return "\n\n".join([HEAD, *filter(None, (section() for section in sections))]) + "\n"


LEFT_OUT = ("plain", "draft model, K=4", "fork W=16, longest")  # of a family's methods


def methods() -> str:
    """Speed of each family over plain decoding."""
    parts = []
    known = labels("headline")
    for part in ("chains", "mcsd", "eesd"):
        rows = frame("headline", part, task="all")
        rows = rows[rows["method"].isin(known) & ~rows["method"].isin(LEFT_OUT)]
        rows["method"] += rows["lossy"].map({True: " (lossy)", False: ""})
        rows["T"] = "T=" + rows["temperature"].map("{:g}".format)
        rows["cell"] = [
            f"{times(row.speed_up_with_prompt, True)}; decoding alone {times(row.speed_up)}; tau {row.tau:.2f}"
            for row in rows.itertuples()
        ]
        parts.append(markdown(pivoted(rows, ["pair", "type", "method"], "T")))
    chain = frame("headline", "chains", task="all", method="chain of 4")["speed_up_with_prompt"]
    small, large = chain[:2], chain[2:]
    wide = frame("headline", "mcsd", task="all", method="target-initialised 2,4,3,1,1")["speed_up_with_prompt"]
    return f"""## Speed over plain decoding

Of whole requests with their prompts (the interval is over n prompts); of decoding alone; tau, tokens per forward pass
of the target. Eight prompts of each kind of text, four at 12x768.

{parts[0]}

Trees. The target-initialised one keeps the longest (`longest-root`, ours; the authors' rule is `longest`).

{parts[1]}

Early exits, without a draft model.

{parts[2]}

A chain of 4 is {span(small)} times as fast as plain decoding on the embedded pair and {span(large)} times at
12x768, where one more row costs little. Trees chosen for a GPU lose to a chain on these cores: the target-initialised
one is {span(wide)} times as fast as plain decoding. [The papers](papers.md) has forks, and each paper's own tables.

{sources("headline")}"""


def beams() -> str:
    """The fastest drafted beam search of each width."""
    rows = frame("beams", "search", task="all")
    rows = rows[rows["method"].isin(labels("beams")) & rows["method"].str.contains("drafted")]
    rows["fast"] = rows["speed_up_with_prompt"].map(value)
    rows = rows.loc[rows.groupby(["run", "width"], sort=False)["fast"].idxmax()]
    shown = pd.DataFrame(
        {
            "pair": rows["pair"],
            "type": rows["type"],
            "beams": rows["width"],
            "drafted, gamma": [f"{row.draft_width:g}, {row.gamma:g}" for row in rows.itertuples()],
            "over beam search": [times(each, True) for each in rows["speed_up_with_prompt"]],
            "decoding alone": [times(each, True) for each in rows["speed_up"]],
            "same text": rows["same_text"].map("{:.0%}".format),
        }
    )
    return f"""## Beam search with drafts

The fastest setting of `speculative-beam-search` for each width over `beam-search` of that width, chosen with hindsight
on these prompts, which the intervals leave out. In bfloat16 rounding decides between nearly equal beams.

{markdown(shown)}

{sources("beams")}"""


def peers() -> str:
    """Milliseconds per token of each engine, and ranges of ours over theirs."""
    rows = frame("peers", "rows")
    rows["models"] = rows["pair"] + ", " + rows["type"]
    rows["cell"] = [text(each) for each in rows["ms_per_token"]]
    ratios = frame("peers", "ratios").rename(columns={"mode": "ours"})
    grown = ratios[ratios["pair"] != "embedded"]

    def against(engine: str, mode: str) -> str:
        return span(grown[(grown["engine"] == engine) & (grown["ours"] == mode)]["ratio"].tolist())

    tiny = ratios[(ratios["pair"] == "embedded") & (ratios["ours"] == "plain") & (ratios["engine"] == "llama.cpp")]
    llama, openvino = (
        [against(engine, mode) for mode in ("plain", "speculation")] for engine in ("llama.cpp", "OpenVINO GenAI")
    )
    embedded = span(tiny["ratio"].tolist())
    return f"""## Compared with other engines

Milliseconds per token, greedy, one request, without the prompt's forward pass, the same weights everywhere;
speculation drafts four tokens. int8 and int4 are each engine's own; llama.cpp's are Q8_0 and Q4_K_M. OpenVINO GenAI was
measured at the commit below; its adapter is not kept.

{markdown(pivoted(rows, ["engine", "mode"], "models"))}

On the grown pairs plain decoding with the native kernels is {llama[0]} times as fast as llama.cpp's
and {openvino[0]} times as fast as OpenVINO GenAI's, with speculation on both sides {llama[1]}
and {openvino[1]} times; on the embedded pair plain decoding is {embedded} times as fast as llama.cpp's.

{sources("peers")}"""


def loop() -> str:
    """The loop over a bare one, plain decoding by setting, and shares of a round."""
    rows = frame("engine", "loop")
    shown = rows[["pair", "type"]].assign(
        **{
            "time over a bare loop": [times(each, True, 3) for each in rows["ratio"]],
            "plain, ms a token": [text(each) for each in rows["loop_ms"]],
        }
    )
    plain, shares = frame("engine", "plain"), frame("engine", "shares")
    shares = shares[shares["setting"] != "greedy"]
    plain["cell"] = [f"{text(row.ms)} ({times(row.to_greedy)})" for row in plain.itertuples()]
    tables = []
    for share in ("not_a_forward", "choosing"):
        some = shares.dropna(subset=share)
        tables.append(some.assign(cell=[text(each, ".1%") for each in some[share]]))
    return f"""## What the loop costs

Plain decoding through the engine over a bare greedy loop on the same decoder.

{markdown(shown)}

Share of a round outside forward passes, sampled:

{markdown(pivoted(tables[0], ["pair", "type", "setting"], "method"))}

Milliseconds a token of plain decoding under each setting, and over greedy decoding. SmolLM2 135M has 49,152 tokens,
Gemma 3 270M 262,144; they draft for themselves where a method needs a draft.

{markdown(pivoted(plain, ["pair", "type"], "setting"))}

Share of a round in which logits are edited, warped, drawn from and verified:

{markdown(pivoted(tables[1], ["pair", "type", "setting"], "method"))}

{sources("engine")}"""


def forwards() -> str:
    """Milliseconds of a forward by rows."""
    rows = frame("native", "forwards", backend="native")
    rows["cell"] = [
        text(row.ms, ".3g") + ("" if pd.isna(value(row.to_pytorch)) else f" ({times(row.to_pytorch)})")
        for row in rows.itertuples()
    ]
    return f"""## Forward passes by number of rows

Milliseconds of one forward pass of the target with the native kernels behind 200 tokens, and of a prompt of 512; in
parentheses how many times as fast as PyTorch in the same turn.

{markdown(pivoted(rows, ["pair", "type"], "rows"))}

{sources("native")}"""


def quantisation() -> str:
    """Perplexity, agreement and divergence by type of weights."""
    rows = frame("quantisation", "quality").drop_duplicates(["pair", "type"])
    rows = rows[(rows["type"] != "float32") & ~rows["type"].str.contains("keys float32|keys bfloat16")]
    shown = pd.DataFrame(
        {
            "pair": rows["pair"],
            "weights": rows["type"],
            "perplexity": [text(each, ".3f") for each in rows["perplexity"]],
            "over bfloat16": [times(each, True, 4) for each in rows["to_bfloat16"]],
            "agreement": [text(each, ".1%", ends=True) for each in rows["agreement"]],
            "divergence": [text(each, ".5f", ends=True) for each in rows["kl"]],
        }
    )
    return f"""## What quantisation changes

The target reads held-out documents of every kind. Agreement is the share of positions where its most probable token
is that of float32, divergence Kullback and Leibler's from the distributions of float32, in nats a token. Of the
real models, float32 is what the codes of their GGUF files stand for. `keys` says that keys and values are stored in
int8, too.

{markdown(shown)}

{sources("quantisation")}"""


def serving() -> str:
    """Tokens per second of requests at once."""
    rows = frame("serving", "serving").rename(columns={"load": "requests"})
    rows["cell"] = [f"{text(row.tokens_per_second, '.0f')} ({times(row.to_baseline)})" for row in rows.itertuples()]
    shown = rows[rows["requests"].isin(SHOWN_LOADS) | (rows["type"] == "bfloat16")]
    ours = rows[rows["method"] == "load-aware"]
    small, large = ours[ours["run"] == "embedded"], ours[ours["run"] == "grown-12x768"]
    few, more = (small[small["requests"] <= 2], small[small["requests"] > 2])
    plain = [span(each["to_baseline"].tolist()) for each in (few, more, large)]
    fixed = [span(each["to_fastest"].tolist()) for each in (small, large)]
    return f"""## Many requests at once

Greedy tokens per second, and over plain decoding at the same load. Requests come at once, with prompts of 8 to 240
tokens, which are part of the time. `load-aware` is `depth=auto`.

{markdown(pivoted(shown, ["run", "requests"], "method"))}

Load-aware drafting is {plain[0]} times as fast as plain decoding on the embedded pair with one and two requests,
{plain[1]} times with more, and {plain[2]} times at 12x768. Over the fixed depth that is fastest at each load,
chosen with hindsight among none, 2, 4 and 8, it is {fixed[0]} times as fast on the embedded pair and {fixed[1]}
times at 12x768.

{sources("serving")}"""


def fairness() -> str:
    """A light request beside a heavy one."""
    rows = frame("fairness", "fairness")
    rows["alone"] = [text(each, ".1f") for each in rows["alone_first_ms"]]
    rows["cell"] = [
        f"{text(row.first_ms, '.1f')} ({text(row.first_to_alone, '.1f', 'x')})" for row in rows.itertuples()
    ]
    rows["alone"] = rows.groupby("light")["alone"].transform("first")
    return f"""## Light requests beside heavy ones

Milliseconds from a light request to its first token while another client's call decodes, and how many times as long
as alone.

{markdown(pivoted(rows, ["pair", "light", "alone"], "heavy"))}

{sources("fairness")}"""


def certificates() -> str:
    """The number of methods by the verdict of their certificates."""
    document = read(RESULTS / "certificate" / "embedded.json")
    verdicts = Counter((each["lossless"], each["verdict"]) for each in document["certificates"])
    counted = [f"{count} {'lossless' if exact else 'lossy'}: {verdict}" for (exact, verdict), count in verdicts.items()]
    return f"""## Certificates

Methods and rules on small models whose choices can be enumerated, and on the embedded pair. {"; ".join(counted)}.

`draftwood certify --all --out FILE`. Measured: {source(document["environment"])}."""


def scores() -> str:
    """Scores of lossless methods, and how far they are from plain decoding's: below the certificates."""
    rows = frame("lossless", "scores")
    if rows.empty:
        return ""
    shown = rows[["pair", "method"]].assign(
        score=[text(each, ".3f", ends=True) for each in rows["score"]],
        points=[text(each, ends=True) for each in rows["points"]],
        runs=rows["runs"],
    )
    known = [(document["models"]["pair"], document["settings"]) for document in documents("lossless")]
    runs = "; ".join(f"{pair}: {', '.join(made['tasks'])}, {made['seeds']} seeds" for pair, made in known)
    return f"""A lossless method answers as well as plain decoding, as far as 300 items and more tell. Scores at T = 1,
each task alike ({runs}), and points above plain decoding's on the same items with the same seeds:

{markdown(shown)}

{sources("lossless")}"""
