"""README's tables of what benchmarks/early_exit.py measured.

Knows results as they lie in files. Imports nothing that reads or measures them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Result = dict[str, Any]
CONTROLLERS = ("beta-ts", "cali-ts", "speedup-ts", "optimal-stopping", "confidence", "adaptive-confidence")


def early_exit_table(results: Sequence[Result]) -> str:
    """Markdown for README: Tables 1-3 and the best tree of Table 7 over all domains, and which targets are reached."""
    machines = dict.fromkeys("{threads} threads of {processor}, {date}".format(**r["environment"]) for r in results)
    intro = (
        f"Speed-ups over plain decoding in the same turns, prompt aside (median, 95% interval; {'; '.join(machines)}). "
        "HM is the harmonic mean of accepted drafts over drafts and over tokens. All methods here are lossless."
    )
    return "\n\n".join([intro, *(block for _, block in _blocks(results, _short, _targets))])


def early_exit_details(results: Sequence[Result]) -> str:
    """Markdown of everything: Tables 1 to 8 by domain, Figures 3 to 5."""
    makers = (_methods, _fixed, _ablated, _generality, _exits, _cost, _trees, _times)
    return "\n\n".join(f"### {title}\n\n{block}" for title, block in _blocks(results, *makers))


def _blocks(
    results: Sequence[Result], *makers: Callable[[Sequence[Result]], Iterator[str]]
) -> Iterator[tuple[str, str]]:
    """Tables that have rows, and the first sentence of what makes them as title."""
    ordered = sorted(results, key=lambda r: (r["pair"]["target"]["parameters"], r["environment"]["dtype"]))
    for make in makers:
        lines = list(make(ordered))
        if len(lines) > 2:
            yield (make.__doc__ or "").partition(".")[0], "\n".join(lines)


def _head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _name(result: Result) -> list[str]:
    return [result["pair"]["name"], result["environment"]["dtype"]]


def _ratio(ratio: Mapping[str, float]) -> str:
    return "{median:.2f}x ({low:.2f} to {high:.2f})".format(**ratio)


def _weights(count: int) -> str:
    if not count:
        return "none"
    return f"{count / 1e9:.3g}B" if count >= 1e9 else f"{count / 1e6:.3g}M"


def _rows(results: Sequence[Result], part: str, group: str) -> Iterator[tuple[Result, str, dict[str, Any], Any]]:
    """(result, temperature, the part's entry, row), plain decoding left out."""
    for result in results:
        entry = result["parts"].get(part, {"groups": {}})
        for at, groups in entry["groups"].items():
            for row in groups.get(group, ()):
                if row["family"] != "plain":
                    yield result, at, entry, row


def _short(results: Sequence[Result]) -> Iterator[str]:
    """Tables 1 to 3 and 7, all domains: methods, and the tree that is fastest at each temperature."""
    temperatures = list(dict.fromkeys(at for _, at, *_ in _rows(results, "tables", "tables")))
    names = [name for at in temperatures for name in (f"speed-up, T={at}", "HM")]
    yield from _head("pair", "type", "method", "trained", "deployed", *names)
    for result in results:
        cells: dict[tuple[str, str, str], dict[str, list[str]]] = {}
        trees: dict[str, Any] = {}
        for _, at, entry, row in _rows([result], "tables", "tables"):
            count = sum(entry["sizes"][name] for name in row["about"]["trains"])
            key = row["label"], _weights(count), _weights(count + entry["sizes"]["target"])
            cells.setdefault(key, {})[at] = [_ratio(row["speed_up"]), f"{row['harmonic_mean']:.1%}"]
        for _, at, _, row in _rows([result], "tree", "tree"):
            if "tree" in row["about"] and row["speed_up"]["median"] > trees.get(at, row)["speed_up"]["median"] - 1e-9:
                trees[at] = row
        if trees:
            best = {
                at: [f"{_ratio(row['speed_up'])}: {row['about']['tree']}, {row['about']['controller']}", ""]
                for at, row in trees.items()
            }
            for at, row in trees.items():
                best[at][1] = f"{row['harmonic_mean']:.1%}"
            cells["eesd, the fastest tree in hindsight", "", ""] = best
        for key, found in cells.items():
            each = [cell for at in temperatures for cell in found.get(at, ["", ""])]
            yield _line(*_name(result), *key, *each)


def _methods(results: Sequence[Result]) -> Iterator[str]:
    """Tables 1 to 3: methods, speed-up and HM. All domains, and each."""
    domains = list(dict.fromkeys(d for *_, row in _rows(results, "tables", "tables") for d in row["domains"]))
    yield from _head("pair", "type", "T", "method", "turns", "speed-up", "HM", *domains)
    for result, at, _, row in _rows(results, "tables", "tables"):
        each = [
            f"{row['domains'][d]['speed_up']['median']:.2f}x ({row['domains'][d]['harmonic_mean']:.0%})"
            if d in row["domains"]
            else ""
            for d in domains
        ]
        overall = [_ratio(row["speed_up"]), f"{row['harmonic_mean']:.1%}"]
        yield _line(*_name(result), at, row["label"], str(row["runs"]), *overall, *each)


def _fixed(results: Sequence[Result]) -> Iterator[str]:
    """Figure 3: the best fixed K in hindsight beside the controllers. By domain."""
    yield from _head("pair", "type", "T", "domain", "best fixed K", *CONTROLLERS)
    for result in results:
        for at, groups in result["parts"].get("ablations", {"groups": {}})["groups"].items():
            rows = groups.get("controllers", ())
            for domain in rows[0]["domains"] if rows else ():
                speed = {row["label"]: row["domains"][domain]["speed_up"]["median"] for row in rows}
                fixed = {row["about"]["fixed"]: speed[row["label"]] for row in rows if "fixed" in row["about"]}
                if not fixed:
                    continue
                best = max(fixed, key=lambda k: fixed[k])
                names = [f"eesd + {name}" for name in CONTROLLERS]
                each = [f"{speed[name]:.2f}x" if name in speed else "" for name in names]
                yield _line(*_name(result), at, domain, f"{fixed[best]:.2f}x (K={best})", *each)


def _ablated(results: Sequence[Result]) -> Iterator[str]:
    """Table 4: ablations."""
    yield from _head("pair", "type", "T", "of", "is taken away", "speed that is left")
    for result in results:
        for at, found in result["parts"].get("ablations", {}).get("ablated", {}).items():
            for one in found:
                what = one["what"].removeprefix("without ")
                yield _line(*_name(result), at, one["of"], what, _ratio(one["speed"]))


def _generality(results: Sequence[Result]) -> Iterator[str]:
    """Table 5: controllers on other methods."""
    yield from _head("pair", "type", "T", "method", "speed-up", "HM")
    for result, at, _, row in _rows(results, "ablations", "generality"):
        yield _line(*_name(result), at, row["label"], _ratio(row["speed_up"]), f"{row['harmonic_mean']:.1%}")


def _exits(results: Sequence[Result]) -> Iterator[str]:
    """Figures 4 and 5: exits behind N layers, and of several layers."""
    yield from _head("pair", "type", "T", "N", "exit layers", "trained", "held-out acceptance", "speed-up", "HM")
    for result, at, entry, row in _rows(results, "exits", "exits"):
        about, made = row["about"], entry["exits"][row["about"]["exit"]]
        cells = [at, str(about["layers"]), str(about["depth"]), _weights(made["parameters"])]
        speed = [_ratio(row["speed_up"]), f"{row['harmonic_mean']:.1%}"]
        yield _line(*_name(result), *cells, f"{made['acceptance']:.1%}", *speed)


def _cost(results: Sequence[Result]) -> Iterator[str]:
    """Table 6: what training costs."""
    yield from _head("pair", "type", "training", "weights loaded", "trained", "tokens of a step", "seconds of a step")
    for result in results:
        for one in result["parts"].get("exits", {}).get("cost", ()):
            cells = [one["method"], _weights(one["loaded"]), _weights(one["trainable"])]
            tokens = f"{one['batch']}x{one['context']}"
            yield _line(*_name(result), *cells, tokens, f"{one['seconds_per_step']:.3g}")


def _trees(results: Sequence[Result]) -> Iterator[str]:
    """Table 7: trees."""
    yield from _head("pair", "type", "T", "drafts", "controller", "speed-up", "HM", "tau")
    for result, at, _, row in _rows(results, "tree", "tree"):
        shape = f"tree {row['about']['tree']}" if "tree" in row["about"] else "chain"
        figures = [_ratio(row["speed_up"]), f"{row['harmonic_mean']:.1%}", f"{row['tau']:.2f}"]
        yield _line(*_name(result), at, shape, row["about"]["controller"], *figures)


def _times(results: Sequence[Result]) -> Iterator[str]:
    """Table 8: where a round's time goes."""
    names = ("draft", "verify", "sampling", "other")
    yield from _head("pair", "type", "T", "method", *(f"{n}, ms a round" for n in names), "controller alone")
    for result, at, _, row in _rows(results, "breakdown", "tables"):
        each = [f"{row['ms_per_round'][n]:.2f} ({row['time_shares'][n]:.0%})" for n in names]
        yield _line(*_name(result), at, row["label"], *each, f"{row['controller_share']:.2%}")


def _targets(results: Sequence[Result]) -> Iterator[str]:
    """What was wanted; speed over plain decoding is wanted of large targets only."""
    yield from _head("pair", "type", "wanted", "found", "")
    for result in results:
        for entry in result["parts"].values():
            for one in entry["targets"]:
                if not one["meant_here"]:
                    continue
                form = ".1%" if one["wanted"] < 0.1 else ".2f"
                sign = "at most" if one["wanted"] < 0.1 else "at least"
                wanted = f"{one['what']}: {sign} {format(one['wanted'], form)}"
                said = "reached" if one["reached"] else "missed"
                yield _line(*_name(result), wanted, format(one["found"], ".2%" if form == ".1%" else ".2f"), said)
