"""What the engine itself costs, and what speculation gains on the embedded pair.

Three parts, all ratios taken inside one run, medians of interleaved repeats:
1. plain decoding through the loop against a bare hand-written loop over the same decoder;
2. the share of a round that is not a model forward;
3. methods against plain decoding on held-out prompts of every domain, greedy and at temperature 1.
Beside them perplexity (what a shorter type changes), memory, and the bandwidth at which weights are read.

Run: python benchmarks/engine.py
     python benchmarks/engine.py --pair grown-12x768 --dtype bfloat16 --threads 2 --name engine-12x768-bfloat16
"""

from __future__ import annotations

import math
import resource
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from pairs import NAMES, pair
from peer_runners import machine
from record import arguments, environment, spread, write
from rich.console import Console
from rich.progress import track
from rich.table import Table

import draftwood
from draftwood.corpus import DOMAINS, documents
from draftwood.models.base import Batch

METHODS: dict[str, Any] = {
    "speculative": {"name": "speculative", "gamma": 4},
    "specinfer": {"name": "specinfer", "expansion": [2, 2, 1, 1]},
    "mcsd": {"name": "mcsd", "tree": [3, 2, 1, 1]},
    "lookup": {"name": "lookup"},
    "coupled": {"name": "speculative", "gamma": 4, "verify": "coupled"},
}


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def synchronise() -> None:
    """Wait for the device, so that clocks see finished work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def bare_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """The shortest greedy loop over the decoder: no sampling options, no EOS, no records."""
    device = model.device
    cache = model.new_cache(1, 512)
    with torch.inference_mode():
        n = len(prompt)
        places = torch.arange(n, device=device)
        mask = torch.ones(1, n, n, dtype=torch.bool, device=device).tril()
        tokens = torch.tensor([prompt], device=device)
        logits = model(Batch(tokens, places[None], places[None], slice(0, 1), n, mask, slice(n - 1, n)), cache)
        out = [int(logits.argmax())]
        more = model.cells(1) - 1  # cells of padding, which keep the kernels, and with them the bits, the same
        for place in range(n, n + count - 1):
            at = torch.tensor([[place] * (more + 1)], device=device)
            slots = torch.tensor([[place] + [cache.capacity - 1] * more], device=device)
            token = torch.tensor([[out[-1]] * (more + 1)], device=device)
            logits = model(Batch(token, at, slots, slice(0, 1), place + 1, None, slice(0, 1)), cache)
            out.append(int(logits.argmax()))
    return out


def loop_overhead(engine: draftwood.Engine, prompts: list[list[int]], repeats: int, count: int) -> dict[str, Any]:
    """Time of plain greedy decoding through the loop over the bare loop's, same tokens."""
    ratios, bare_ms, loop_ms = [], [], []
    for repeat in track(range(repeats + 1), "plain loop   "):
        prompt = prompts[repeat % len(prompts)]
        synchronise()
        t0 = perf_counter()
        expected = bare_greedy(engine.target, prompt, count)
        synchronise()
        t1 = perf_counter()
        got = engine.generate(prompt, "autoregressive", {"temperature": 0}, max_new_tokens=count, ignore_eos=True)
        synchronise()
        t2 = perf_counter()
        if got.tokens != expected:
            raise SystemExit("the loop and the bare loop disagree: the timing would compare different work")
        if repeat:  # the first one warms up
            bare_ms.append((t1 - t0) / count * 1e3)
            loop_ms.append((t2 - t1) / count * 1e3)
            ratios.append((t2 - t1) / (t1 - t0))
    return {"ratio": spread(ratios), "bare_ms_per_token": spread(bare_ms), "loop_ms_per_token": spread(loop_ms)}


def round_overhead(engine: draftwood.Engine, prompts: list[list[int]], repeats: int, count: int) -> dict[str, Any]:
    """Share of a round that is not a model forward; first rounds (which hold the prompt's forward) are left out."""
    shares: dict[str, Any] = {}
    methods = {"autoregressive": {"name": "autoregressive"}, **METHODS}
    for name in track(list(methods), "round share  "):
        for temperature in (0.0, 1.0):
            values = []
            for repeat in range(repeats + 1):
                result = engine.generate(
                    prompts[repeat % len(prompts)],
                    methods[name],
                    {"temperature": temperature},
                    max_new_tokens=count,
                    seed=repeat,
                    ignore_eos=True,
                )
                if repeat:
                    whole = sum(round_.seconds for round_ in result.rounds[1:])
                    model = sum(round_.draft_seconds + round_.verify_seconds for round_ in result.rounds[1:])
                    values.append(1 - model / whole)
            shares[f"{name} T={temperature:g}"] = spread(values)
    return shares


def speed_ups(engine: draftwood.Engine, per_domain: int, count: int) -> list[dict[str, Any]]:
    """Each method against plain decoding, same prompt and seed, interleaved; one row per domain and temperature."""
    rows = []
    assert engine.tokenizer is not None
    for temperature in (0.0, 1.0):
        sampling = {"temperature": temperature}
        for domain in track(DOMAINS, f"methods T={temperature:g}  "):
            ratios: dict[str, list[float]] = {name: [] for name in METHODS}
            sums = {name: draftwood.Metrics() for name in METHODS}
            same = dict.fromkeys(METHODS, 0)
            plain_rate = []
            for seed, item in enumerate(islice(documents(domain, "held-out"), per_domain)):
                options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": count, "seed": seed}
                plain = engine.generate(item.prompt, "autoregressive", **options)
                plain_rate.append(plain.metrics.tokens_per_second)
                for name, method in METHODS.items():
                    result = engine.generate(item.prompt, method, **options)
                    ratios[name].append(result.metrics.tokens_per_second / plain.metrics.tokens_per_second)
                    same[name] += result.tokens == plain.tokens
                    for round_ in result.rounds:
                        sums[name].add(round_)
            for name, metrics in sums.items():
                rows.append(
                    {
                        "domain": domain,
                        "temperature": temperature,
                        "method": name,
                        "speed_up": spread(ratios[name]),
                        "plain_tokens_per_second": spread(plain_rate),
                        "tau": metrics.tau,
                        "alpha": metrics.alpha,
                        "acceptance_rate": metrics.acceptance_rate,
                        "c": metrics.draft_cost_ratio,
                        "same_text_as_plain": same[name] / per_domain,
                    }
                )
    return rows


def perplexity(engine: draftwood.Engine, per_domain: int = 6) -> float:
    """The target's, teacher-forced on held-out documents: what a shorter dtype or int8 changes."""
    assert engine.tokenizer is not None
    total, count = 0.0, 0
    for domain in DOMAINS:
        for item in islice(documents(domain, "held-out", seed=1), per_domain):
            tokens = torch.tensor([engine.tokenizer.encode(item.text)[: engine.target.context]])
            with torch.inference_mode():
                logits = engine.target.train_forward(tokens)[0, :-1].float()
            total += float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum"))
            count += tokens.shape[1] - 1
    return math.exp(total / count)


def show(console: Console, result: dict[str, Any]) -> None:
    """Print what was measured."""
    plain = result["plain_loop"]
    console.print(
        f"plain decoding through the loop: {plain['ratio']['median']:.3f}x the bare loop "
        f"({plain['loop_ms_per_token']['median']:.2f} against {plain['bare_ms_per_token']['median']:.2f} ms a token)"
    )
    table = Table("method", "not a model forward", title="share of a round")
    for name, share in result["round_share"].items():
        table.add_row(name, f"{share['median']:.1%} ({share['low']:.1%} to {share['high']:.1%})")
    console.print(table)
    table = Table("T", "domain", "method", "speed-up", "tau", "alpha", "c", "same text", title="methods")
    for row in result["methods"]:
        table.add_row(
            f"{row['temperature']:g}",
            row["domain"],
            row["method"],
            f"{row['speed_up']['median']:.2f}",
            f"{row['tau']:.2f}",
            f"{row['alpha']:.2f}",
            f"{row['c']:.2f}",
            f"{row['same_text_as_plain']:.0%}",
        )
    console.print(table)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=NAMES, default=None, help="a pair of benchmarks/pairs.py, grown if need be")
    parser.add_argument("--quantize", default=None)
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each generation")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--per-domain", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    before = peak_bytes()
    if options.pair is not None:
        chosen = pair(options.pair)
        options.target, options.draft = chosen.target, chosen.draft
    began = perf_counter()
    engine = draftwood.load(options.target, options.draft, dtype=options.dtype, quantize=options.quantize)
    loading = perf_counter() - began
    loaded = peak_bytes()
    assert engine.tokenizer is not None
    prompts = [
        engine.tokenizer.encode(item.prompt) for domain in DOMAINS for item in islice(documents(domain, "held-out"), 2)
    ]
    result = {
        "environment": environment(options.quantize or options.dtype),
        "models": engine.names if options.pair is None else chosen.describe(),
        "perplexity": perplexity(engine),
        "plain_loop": loop_overhead(engine, prompts, options.repeats, options.tokens),
        "round_share": round_overhead(engine, prompts, options.repeats, options.tokens),
        "methods": speed_ups(engine, options.per_domain, options.tokens),
    }
    peak, memory = peak_bytes(), machine.bandwidth()
    weights = {"target": engine.target.weight_bytes, "draft": engine.drafts[0].weight_bytes}
    token = result["plain_loop"]["loop_ms_per_token"]["median"] / 1e3
    result["memory"] = {
        "weight_bytes": weights,
        "cache_bytes": sum(cache.bytes for cache in engine._caches.values()),
        "load_seconds": loading,
        "bytes_before": before,  # the peak of a process with torch and draftwood and no model
        "peak_bytes_loading": loaded,
        "peak_bytes": peak,
        "copy_bandwidth": memory["copy"],
        "read_bandwidth": memory["read"],
        "plain_weight_bandwidth": weights["target"] / token,
        "share_of_copy_bandwidth": weights["target"] / token / memory["copy"],
    }
    console = Console()
    show(console, result)
    console.print(f"written: {write(options.name or 'engine', result)}")


if __name__ == "__main__":
    main()
