"""README's table of what benchmarks/batching.py measured."""

from __future__ import annotations

from typing import Any


def batching_table(results: list[dict[str, Any]]) -> str:
    """Markdown of what benchmarks/batching.py measured: tokens a second of all requests together."""
    env = results[0]["environment"]
    lines = [
        f"Tokens a second of requests with mixed methods together, {env['threads']} threads of {env['processor']}, "
        f"{env['date']}; in brackets the ratio to Hugging Face's batched greedy `generate` of plain decoding.",
        "",
        "| pair | type | one by one | " + " | ".join(f"{n} at once" for n in results[0]["same_bits_as_alone"]) + " |",
        "| --- | --- | --- | " + " | ".join("---" for _ in results[0]["same_bits_as_alone"]) + " |",
    ]
    for result in results:
        speed, ratio = result["tokens_per_second"], result["ratios"]
        cells = [
            f"{speed[f'{n} at once']['median']:.0f} ({ratio[f'{n} at once, to Hugging Face']['median']:.2f}x)"
            for n in result["same_bits_as_alone"]
        ]
        alone = f"{speed['one by one']['median']:.0f}"
        dtype = result["environment"]["dtype"]
        lines.append(f"| {result['pair']['name']} | {dtype} | {alone} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
