"""Rounds as plain data for the page that draws them: every node with its fate, p, q and what the target thought.

Pure functions. Refuses to know HTML, engines and flags.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from draftwood.core.forest import FINISHED, TRUNK
from draftwood.explain.judging import Judgement
from draftwood.explain.text import FATES, Draw, Grove, Twig, Words, completions
from draftwood.results import GenerationResult, Outcome

BEFORE = 40  # tokens of the prompt that are shown


def noted(grove: Grove, judgement: Judgement) -> None:
    """Give the drafts of a round the numbers that were recorded for them."""
    seen: set[Outcome] = set()
    for one in judgement.drafts:
        twig = grove.twig(one.outcome)
        if any(draw.fate == "cut off" for draw in twig.draws):
            continue
        if one.outcome not in seen:
            twig.draws.clear()
            seen.add(one.outcome)
        known = one.fate != "discarded"
        chance = None if math.isnan(one.chance) else one.chance
        twig.note(one.fate, *((one.p, one.q, chance) if known else ()))
    if judgement.greedy and judgement.chosen is not None:
        outcome, p = judgement.chosen
        for draw in grove.twig(outcome).draws:
            if draw.chances[0] is not None:
                draw.chances = (p, None, None)


def document(
    result: GenerationResult,
    groves: Sequence[Grove],
    judgements: Sequence[Judgement],
    words: Words,
    ends: frozenset[int],
    about: dict[str, Any],
) -> dict[str, Any]:
    """All that the page shows. `about` heads it: what was asked, of whom."""
    rounds = [_round(grove, judgement, words, ends) for grove, judgement in zip(groves, judgements, strict=True)]
    metrics = result.metrics
    return {
        **about,
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


def _round(grove: Grove, judgement: Judgement, words: Words, ends: frozenset[int]) -> dict[str, Any]:
    round_ = grove.round_
    nodes = {id(twig): node for node, twig in grove.at.items()}

    def node(twig: Twig) -> dict[str, Any]:
        made: dict[str, Any] = {"text": "(has ended)" if twig.token == FINISHED else words([twig.token])}
        made["fates"] = [_draw(draw) for draw in twig.draws]
        made["goes_on"] = twig.goes_on
        made["ends"] = twig.token in ends
        likely = judgement.likely.get(nodes.get(id(twig), TRUNK), ())
        made["likely"] = [[words([token]), p] for token, p in likely]
        made["below"] = [node(below) for below in twig.below]
        return made

    twigs = [twig for twig in grove.at.values() if twig.drafted]
    kept = sum(any(draw.fate in ("accepted", "cut off") for draw in twig.draws) for twig in twigs)
    return {
        "tokens": [[words([token]), kind] for token, kind in zip(round_.tokens, round_.kinds, strict=True)],
        "drafted": len(twigs),
        "draws": round_.draws,
        "wasted": len(twigs) - kept,
        "rows": round_.target_rows,
        "milliseconds": {
            "drafting": 1000 * round_.draft_seconds,
            "target": 1000 * round_.verify_seconds,
            "sampling": 1000 * round_.sampling_seconds,
            "bookkeeping": 1000 * round_.other_seconds,
        },
        "left": None if judgement.chosen is None or judgement.greedy else judgement.chosen[1],
        "roots": [node(root) for root in grove.roots],
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


def _draw(draw: Draw) -> dict[str, Any]:
    p, q, chance = draw.chances
    return {"fate": draw.fate, "p": p, "q": q, "accept": chance, "times": draw.times}


def script(data: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: no text of a model can end it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    for bad in "<>&\u2028\u2029":
        text = text.replace(bad, f"\\u{ord(bad):04x}")
    return text
