"""Throughput of concurrent requests of mixed methods, against one by one and against Hugging Face's batched generate.

The same requests each time, variants alternated over the repeats; results of every request are compared with those it
has alone. Hugging Face decodes greedily without drafts, padded on the left.

Run: python benchmarks/batching.py --pair grown-12x768 --dtype bfloat16
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import torch
from pairs import NAMES, pair
from record import arguments, environment, spread, write
from rich.console import Console
from rich.progress import track
from rich.table import Table

import draftwood
from draftwood.corpus import DOMAINS, documents

METHODS: tuple[dict[str, Any], ...] = (
    {"name": "autoregressive"},
    {"name": "speculative", "gamma": 4},
    {"name": "mcsd", "tree": [3, 2, 1, 1]},
    {"name": "lookup"},
    {"name": "speculative", "gamma": 4, "verify": "coupled"},
)
CONCURRENT = (1, 2, 4, 8, 16)


def requests(count: int, tokens: int) -> list[dict[str, Any]]:
    """Held-out prompts of all domains in turn, methods in turn, half of them greedy."""
    domains = {domain: documents(domain, "held-out", seed=2) for domain in DOMAINS}
    made = []
    for i, (domain, method) in enumerate(islice(zip(cycle(DOMAINS), cycle(METHODS), strict=False), count)):
        made.append(
            {
                "prompt": next(domains[domain]).prompt,
                "method": method,
                "sampling": {"temperature": float(i % 2)},
                "seed": i,
                "max_new_tokens": tokens,
                "ignore_eos": True,
            }
        )
    return made


def hugging_face(source: str, dtype: str, prompts: list[list[int]], tokens: int) -> Callable[[int], None]:
    """Decodes all prompts, so many at a time, with transformers."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype)).eval()

    def run(concurrent: int) -> None:
        for start in range(0, len(prompts), concurrent):
            some = prompts[start : start + concurrent]
            longest = max(map(len, some))
            padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in some])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in some])
            model.generate(
                padded,
                attention_mask=mask,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )

    return run


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = perf_counter()
    result = work()
    return perf_counter() - began, result


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=NAMES, default="embedded")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = pair(options.pair)
    engine = draftwood.load(chosen.target, chosen.draft, dtype=options.dtype)
    asked = requests(options.requests, options.tokens)
    total = options.requests * options.tokens
    peer = hugging_face(str(chosen.target), options.dtype, [engine.tokens(r["prompt"]) for r in asked], options.tokens)
    rates: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    same = {n: 0 for n in CONCURRENT}
    engine.batch(asked[:4], concurrency=4)  # libraries make their kernels
    for _ in track(range(options.repeats), "batching"):
        seconds, alone = timed(lambda: [engine.generate(**request) for request in asked])
        rates.setdefault("one by one", []).append(total / seconds)
        for n in CONCURRENT:
            taken, results = timed(lambda n=n: engine.batch(asked, concurrency=n))
            rates.setdefault(f"{n} at once", []).append(total / taken)
            ratios.setdefault(f"{n} at once", []).append(seconds / taken)
            theirs, _none = timed(lambda n=n: peer(n))
            rates.setdefault(f"Hugging Face, {n} at once", []).append(total / theirs)
            ratios.setdefault(f"{n} at once, to Hugging Face", []).append(theirs / taken)
            same[n] += sum(
                a.tokens == b.tokens and a.logprobs == b.logprobs for a, b in zip(alone, results, strict=True)
            )
    result = {
        "environment": environment(options.dtype),
        "pair": chosen.describe(),
        "requests": options.requests,
        "tokens": options.tokens,
        "tokens_per_second": {name: spread(values) for name, values in rates.items()},
        "ratios": {name: spread(values) for name, values in ratios.items()},
        "same_bits_as_alone": {str(n): count / options.repeats / options.requests for n, count in same.items()},
    }
    table = Table("concurrent", "tokens/s", "x one by one", "x Hugging Face", "same bits", title=options.pair)
    for n in CONCURRENT:
        table.add_row(
            str(n),
            f"{result['tokens_per_second'][f'{n} at once']['median']:.0f}",
            f"{result['ratios'][f'{n} at once']['median']:.2f}",
            f"{result['ratios'][f'{n} at once, to Hugging Face']['median']:.2f}",
            f"{result['same_bits_as_alone'][str(n)]:.0%}",
        )
    console = Console()
    console.print(table)
    console.print(f"written: {write(options.name or f'batching-{options.pair}-{options.dtype}', result)}")


if __name__ == "__main__":
    main()
