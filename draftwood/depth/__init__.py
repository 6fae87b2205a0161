"""Depth controllers: how far a round drafts."""

from draftwood.depth.auto import Auto
from draftwood.depth.auto_beams import AutoBeams
from draftwood.depth.calibrated import CalibratedThompson
from draftwood.depth.confidence import AdaptiveConfidence, Confidence, Entropy, OptimalStopping
from draftwood.depth.load import ALONE, DraftCost, Load, best_depth, improvement
from draftwood.depth.rules import LOAD, NOTHING, DepthController, DraftState, Fixed, Learner
from draftwood.depth.settings import CONTROLLERS, depth_text, parse_depth
from draftwood.depth.thompson import Acceptance, BetaThompson, SpeedupThompson

__all__ = [
    "ALONE",
    "CONTROLLERS",
    "LOAD",
    "NOTHING",
    "Acceptance",
    "AdaptiveConfidence",
    "Auto",
    "AutoBeams",
    "BetaThompson",
    "CalibratedThompson",
    "Confidence",
    "DepthController",
    "DraftCost",
    "DraftState",
    "Entropy",
    "Fixed",
    "Learner",
    "Load",
    "OptimalStopping",
    "SpeedupThompson",
    "best_depth",
    "depth_text",
    "improvement",
    "parse_depth",
]
