"""What a method will gain on a pair and prompts, from a minute of pilots, and whether it then does."""

from draftwood.tune.planner.planning import Choice, Plan, check, plan
from draftwood.tune.planner.prediction import Predictor

__all__ = ["Choice", "Plan", "Predictor", "check", "plan"]
