"""What a method will gain on a pair and prompts, from a minute of pilots, and whether it then does."""

from draftwood.evidence.planner.planning import Choice, Plan, plan
from draftwood.evidence.planner.prediction import Observation, Predictor

__all__ = ["Choice", "Observation", "Plan", "Predictor", "plan"]
