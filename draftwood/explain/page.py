"""An answer and its rounds as plain data, and the page that steps through them: one HTML file that needs no network.

The server's page shows the same data with the same modules (`viewer/`), a round at a time as they happen.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from draftwood.core.forest import FINISHED, TRUNK
from draftwood.core.records import Kind
from draftwood.explain.judging import RoundJudgement
from draftwood.explain.text import TextOf
from draftwood.explain.tree import FATES, RoundTree, TreeNode, completions, hypotheses_after

if TYPE_CHECKING:
    from draftwood.engine.results import GenerationResult

PROMPT_TOKENS = 40  # tokens of the prompt that are shown
ROOT_CHARACTERS = 20  # characters of the text that a round begins behind
VIEWER = files("draftwood.explain") / "viewer"
MODULES = "dom.js", "tree.js", "run.js", "viewer.js"  # each before those that import it


def html(document: Mapping[str, Any]) -> str:
    """The page of a document (`Explanation.document`). No text of a model can end the script element that holds it."""
    data = json.dumps(document, ensure_ascii=False, allow_nan=False)
    for bad in "<>&\u2028\u2029":
        data = data.replace(bad, f"\\u{ord(bad):04x}")
    return template().replace("{{ data }}", data)


def template() -> str:
    """The page without its data, which takes the place of `{{ data }}`; only its own script may run in it."""
    modules = [(VIEWER / name).read_text("utf-8") for name in MODULES]
    script = "".join(re.sub(r"^import .*\n|^export ", "", module, flags=re.MULTILINE) for module in modules)
    parts = {
        "style": (VIEWER / "viewer.css").read_text("utf-8"),
        "script": script,
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    page = (VIEWER / "viewer.html").read_text("utf-8")
    return re.sub(r"{{ (style|script|digest) }}", lambda match: parts[match[1]], page)


def start(about: Mapping[str, Any], prompt: Sequence[int], words: TextOf) -> dict[str, Any]:
    """The part of the document that is known before the first round; for `about` see `Explanation`."""
    return {
        **about,
        "prompt": [words([token]) for token in prompt[-PROMPT_TOKENS:]],
        "shortened": len(prompt) > PROMPT_TOKENS,
        "fates": {name: fate.meaning for name, fate in FATES.items()},
    }


def end(result: GenerationResult) -> dict[str, Any]:
    """The part of the document that is known after the last round."""
    metrics = result.metrics
    names = "rounds", "emitted", "seconds", "tau", "acceptance_rate", "tokens_per_second"
    return {
        "finish": result.finish_reason,
        "metrics": {name: getattr(metrics, name) for name in names},
        "best": [
            {
                "text": beam.text,
                "score": beam.log_likelihood,
                "perplexity": beam.perplexity if beam.tokens else None,
                "finish": beam.finish_reason,
            }
            for beam in result.beams
        ],
    }


def round_document(
    tree: RoundTree,
    judgement: RoundJudgement,
    before: Sequence[int],
    words: TextOf,
    ends: frozenset[int],
    pieces: Sequence[tuple[str, Kind]] = (),
) -> dict[str, Any]:
    """A round: what came out, its forest, what it cost. `pieces` of text became certain; `before` are all tokens."""
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
        return {**node(one), "text": last_words(words([*shared[-ROOT_CHARACTERS:], *path]))}

    drafted = [one for one in tree.nodes.values() if one.drafted]
    kept = sum(any(draw.fate in ("accepted", "forced", "cut off") for draw in one.draws) for one in drafted)
    return {
        "tokens": [[words([token]), kind] for token, kind in zip(round_.tokens, round_.kinds, strict=True)],
        "pieces": [list(piece) for piece in pieces],
        "drafted": len(drafted),
        "accepted": round_.accepted,
        "draws": round_.draws,
        "wasted": len(drafted) - kept,
        "rows": round_.target_rows,
        "milliseconds": {
            "drafting": 1000 * round_.draft_seconds,
            "target": 1000 * round_.verify_seconds,
            "sampling": 1000 * round_.sampling_seconds,
            "other": 1000 * round_.other_seconds,
        },
        "left": None if judgement.chosen is None or judgement.greedy else judgement.chosen[1],
        "roots": [root(one) for one in tree.roots],
        "beams": _beams(tree, judgement, words, ends) if round_.layers else [],
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


def _beams(tree: RoundTree, judgement: RoundJudgement, words: TextOf, ends: frozenset[int]) -> list[dict[str, Any]]:
    """The hypotheses after a round, most likely first: what each has beyond the text that all of them share."""
    beams: dict[tuple[int, ...], dict[str, Any]] = {}
    after = hypotheses_after(tree.round_)
    scores = judgement.scores or (None,) * len(after)
    for tokens, token, score in zip(after, tree.round_.roots, scores, strict=True):
        beam = beams.setdefault(tokens, {"text": words(tokens), "score": score, "times": 0, "ended": False})
        beam["times"] += 1
        beam["ended"] = token == FINISHED or token in ends
    return sorted(beams.values(), key=lambda beam: -(beam["score"] or 0.0))


def last_words(text: str) -> str:
    """The end of a text, in whole words where there is room for one."""
    if len(text) <= ROOT_CHARACTERS:
        return text
    end = text[-ROOT_CHARACTERS:]
    _, space, rest = end.partition(" ")
    return "…" + (rest if space and rest.strip() else end)
