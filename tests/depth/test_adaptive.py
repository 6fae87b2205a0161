"""The threshold that follows the acceptance rate (Draft & Verify), against the formula worked by hand."""

import torch
from pytest import approx

from draftwood.core.records import Round
from draftwood.depth import AdaptiveConfidence, DraftState
from draftwood.sampling.distributions import Streams


def state(depth: int, *chances: float) -> DraftState:
    """Tokens that the draft gave these probabilities."""
    logits = torch.tensor([[p, (1 - p)] for p in chances], dtype=torch.float64).log()
    return DraftState(depth, list(range(len(chances))), logits, [(row, 0) for row in range(len(chances))])


def drafts(controller: AdaptiveConfidence, *chances: float) -> int:
    """Layers that are drafted when the draft is as sure of each as `chances` say."""
    controller.start(Streams(0))
    depth, last = 0, DraftState(0)
    while controller.deeper(last):
        last = state(depth + 1, chances[min(depth, len(chances) - 1)])
        depth += 1
    return depth


def over(accepted: int, attempted: int) -> Round:
    values = dict.fromkeys(Round.__dataclass_fields__)
    values |= {"depth_accepted": accepted, "attempted": attempted}
    made = object.__new__(Round)
    for name in ("depth_accepted", "attempted"):
        object.__setattr__(made, name, values[name])
    return made


def test_drafting_ends_below_the_threshold() -> None:
    assert drafts(AdaptiveConfidence(5), 0.9, 0.61, 0.59, 0.99) == 3  # the third, which is unsure, is kept
    assert drafts(AdaptiveConfidence(5), 0.9) == 5
    assert drafts(AdaptiveConfidence(0), 0.9) == 0
    assert drafts(AdaptiveConfidence(5, threshold=0.0), 0.01) == 5
    wide = AdaptiveConfidence(5)
    assert wide.deeper(state(1, 0.1, 0.7)) and not wide.deeper(state(1, 0.1, 0.5))  # the surest of a tree


def test_the_formula_over_three_rounds() -> None:
    """AR' = (AR + a/k) / 2, threshold' = 0.9 threshold + 0.1 (threshold + or - 0.01), as the defaults have it."""
    controller = AdaptiveConfidence(4)
    assert drafts(controller, 0.9, 0.3) == 2
    controller.observe(over(1, 2))  # half accepted: AR = (0.9 + 0.5) / 2
    assert (controller.rate, controller.threshold) == (approx(0.7), approx(0.601))
    drafts(controller, 0.9, 0.9, 0.3)
    controller.observe(over(3, 3))  # AR = 0.85, still below
    assert (controller.rate, controller.threshold) == (approx(0.85), approx(0.602))
    drafts(controller, 0.9, 0.9, 0.3)
    controller.observe(over(3, 3))  # AR = 0.925: down again
    assert (controller.rate, controller.threshold) == (approx(0.925), approx(0.601))
    drafts(controller, 0.9)
    controller.observe(over(4, 4))  # all that may be drafted was: it stays
    assert (controller.rate, controller.threshold) == (approx(0.9625), approx(0.601))


def test_rounds_without_drafts_teach_nothing() -> None:
    controller = AdaptiveConfidence(4)
    controller.start(Streams(0))
    controller.observe(over(0, 0))
    assert (controller.rate, controller.threshold) == (0.9, 0.6)


def test_the_threshold_stays_a_probability() -> None:
    careful, bold = AdaptiveConfidence(3, step=1.0), AdaptiveConfidence(3, step=1.0)
    seen = []
    for _ in range(40):
        drafts(careful, 0.99)
        careful.observe(over(0, 1))
        if drafts(bold, 0.01) == 1:
            bold.observe(over(1, 1))
        seen += [careful.threshold, bold.threshold]
    assert all(0 <= threshold <= 1 for threshold in seen)
    assert careful.threshold == 1.0 and bold.threshold < 0.01


def test_it_finds_the_threshold_where_the_wanted_share_is_accepted() -> None:
    """A calibrated draft, whose sure and unsure tokens alternate at random: its unsure ones cost the wanted rate."""
    streams, controller = Streams(3), AdaptiveConfidence(8, threshold=0.2, target=0.8, step=0.5)
    history = []
    for _ in range(3000):
        chances = [0.95 if streams.uniform("noise") < 0.7 else 0.4 for _ in range(9)]
        count = drafts(controller, *chances)
        accepted = 0
        while accepted < count and streams.uniform("accept") < chances[accepted]:
            accepted += 1
        controller.observe(over(accepted, min(count, accepted + 1)))
        history.append(controller.threshold)
    late = history[1000:]
    assert sum(late) / len(late) > 0.35  # 0.2 lets unsure tokens through, which are accepted too rarely
    assert max(late) > 0.4 and min(late) < 0.95
