"""Predicts which method is fastest on a pair and prompts from a minute of pilot runs, and checks the prediction."""

from draftwood.tune.planner.planning import Choice, MethodPlan, check, plan
from draftwood.tune.planner.prediction import Predictor

__all__ = ["Choice", "MethodPlan", "Predictor", "check", "plan"]
