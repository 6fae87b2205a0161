"""Beams written down a second time with plain loops: the exact law of beam sampling, and naive beam search.

Knows tabular models and definitions only; shares no code with what is tested.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from enumeration import slow_penalties

from draftwood import SamplingParams, TabularModel
from draftwood.certify.references import BeamLaw, Beams, Output, log_softmax

__all__ = ["BeamLaw", "Beams", "Sequence_", "beam_search", "log_softmax"]

Sequence_ = Output  # generated tokens


def beam_search(
    model: TabularModel,
    prompt: Sequence[int],
    width: int,
    max_new_tokens: int,
    over: Callable[[Sequence_], bool],
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    params: SamplingParams | None = None,
) -> tuple[list[tuple[Sequence_, float, float]], bool]:
    """(tokens, log-likelihood, score) of the best `width` hypotheses, best first; whether nothing was nearly a tie.

    Each step ranks all continuations of the live beams; of the best `width` those that are `over` join the finished
    hypotheses (of which the best `width` are kept), and the best `width` that are not go on. At the limit live beams
    are hypotheses too. It is over when nothing is live, or with `width` finished ones under the rule of
    `early_stopping`.
    """
    settings = params or SamplingParams()

    def score(likelihood: float, length: int) -> float:
        return likelihood / length**length_penalty

    live: list[tuple[Sequence_, float]] = [((), 0.0)]
    finished: list[tuple[Sequence_, float, float]] = []
    clear = True

    def distinct(values: list[float]) -> bool:
        return all(abs(a - b) > 1e-7 for a, b in itertools.pairwise(sorted(values)))

    for length in range(1, max_new_tokens + 1):
        ranked: list[tuple[float, Sequence_]] = []
        for output, likelihood in live:
            raw = [math.log(w) if w > 0 else -math.inf for w in model.law((*prompt, *output))]
            gains = log_softmax(slow_penalties(raw, prompt, output, settings))
            ranked += [(likelihood + gain, (*output, token)) for token, gain in enumerate(gains) if gain > -math.inf]
        ranked.sort(key=lambda entry: -entry[0])
        clear = clear and distinct([s for s, _ in ranked])
        finished += [(output, s, score(s, length)) for s, output in ranked[:width] if over(output)]
        finished.sort(key=lambda entry: -entry[2])
        clear = clear and distinct([s for _, _, s in finished])
        del finished[width:]
        live = [(output, s) for s, output in ranked if not over(output)][:width]
        if not live:
            break
        if len(finished) == width and length < max_new_tokens:
            reach = max_new_tokens if early_stopping == "never" and length_penalty > 0 else length
            clear = clear and distinct([score(live[0][1], reach), finished[-1][2]])
            if early_stopping is True or score(live[0][1], reach) <= finished[-1][2]:
                return finished, clear
    finished += [(output, s, score(s, len(output))) for output, s in live]
    finished.sort(key=lambda entry: -entry[2])
    return finished[:width], clear and distinct([s for _, _, s in finished])
