"""The page that steps through the rounds of an answer: one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from draftwood.core.forest import FINISHED, TRUNK
from draftwood.explain.judging import Judgement
from draftwood.explain.text import Words
from draftwood.explain.tree import FATES, RoundTree, TreeNode, completions

if TYPE_CHECKING:
    from draftwood.explain.explanation import Explanation

BEFORE = 40  # tokens of the prompt that are shown
ROOT = 20  # characters of the text that a round begins behind


def html(explanation: Explanation) -> str:
    """The page as text. No text of a model can end the script element that holds the data."""
    data = json.dumps(document(explanation), ensure_ascii=False, allow_nan=False)
    for bad in "<>&\u2028\u2029":
        data = data.replace(bad, f"\\u{ord(bad):04x}")
    return (files("draftwood.explain") / "viewer.html").read_text("utf-8").replace("{{ data }}", data)


def document(explanation: Explanation) -> dict[str, Any]:
    """All that the page shows, as plain data."""
    result, words, ends = explanation.result, explanation.words, explanation.ends
    rounds, before = [], list(result.prompt_tokens)
    for tree, judgement in zip(explanation.trees, explanation.judgements, strict=True):
        rounds.append(_round(tree, judgement, before, words, ends))
        before += tree.round_.tokens
    metrics = result.metrics
    return {
        **explanation.about,
        "prompt": [words([token]) for token in result.prompt_tokens[-BEFORE:]],
        "shortened": len(result.prompt_tokens) > BEFORE,
        "fates": {name: fate.meaning for name, fate in FATES.items()},
        "finish": result.finish_reason,
        "sums": {
            "rounds": metrics.rounds,
            "tokens": metrics.emitted,
            "drafted": sum(each["drafted"] for each in rounds),
            "wasted": sum(each["wasted"] for each in rounds),
            "rows": metrics.target_rows,
            "tau": metrics.tau,
        },
        "rounds": rounds,
    }


def _round(
    tree: RoundTree, judgement: Judgement, before: Sequence[int], words: Words, ends: frozenset[int]
) -> dict[str, Any]:
    round_ = tree.round_
    places = {id(node): place for place, node in tree.nodes.items()}

    def node(one: TreeNode) -> dict[str, Any]:
        likely = judgement.likely.get(places.get(id(one), TRUNK), ())
        return {
            "text": "(has ended)" if one.token == FINISHED else words([one.token]),
            "fates": [
                {"fate": draw.fate, "times": draw.times, **dict(zip(("p", "q", "accept"), draw.chances, strict=True))}
                for draw in one.draws
            ],
            "goes_on": one.goes_on,
            "ends": one.token in ends,
            "likely": [[words([token]), p] for token, p in likely],
            "children": [node(child) for child in one.children],
        }

    def root(one: TreeNode) -> dict[str, Any]:
        path = round_.path(places[id(one)])
        shared = before if len(tree.roots) > 1 else before[:-1]
        return {**node(one), "text": last_words(words([*shared[-ROOT:], *path]))}

    drafted = [one for one in tree.nodes.values() if one.drafted]
    kept = sum(any(draw.fate in ("accepted", "cut off") for draw in one.draws) for one in drafted)
    return {
        "tokens": [[words([token]), kind] for token, kind in zip(round_.tokens, round_.kinds, strict=True)],
        "drafted": len(drafted),
        "draws": round_.draws,
        "wasted": len(drafted) - kept,
        "rows": round_.target_rows,
        "milliseconds": {
            "drafting": 1000 * round_.draft_seconds,
            "target": 1000 * round_.verify_seconds,
            "sampling": 1000 * round_.sampling_seconds,
            "bookkeeping": 1000 * round_.other_seconds,
        },
        "left": None if judgement.chosen is None or judgement.greedy else judgement.chosen[1],
        "roots": [root(one) for one in tree.roots],
        "layers": [
            {
                "width": layer.width,
                "draws": len(layer.judged),
                "accepted": layer.accepted,
                "completed": len(completions(layer)),
                "distinct": len(layer.distinct),
                "chance": layer.chance if any(one.q for one in layer.judged) else None,
                "stands": layer.stands,
            }
            for layer in round_.layers
        ],
    }


def last_words(text: str) -> str:
    """The end of a text, in whole words where there is room for one."""
    if len(text) <= ROOT:
        return text
    end = text[-ROOT:]
    _, space, whole = end.partition(" ")
    return "…" + (whole if space and whole.strip() else end)
