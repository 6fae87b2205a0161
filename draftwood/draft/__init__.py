"""Drafters: each appends nodes to the forest and nothing else."""

from draftwood.draft.base import Drafter, NoDrafter, Proposer
from draftwood.draft.model import ModelDrafter
from draftwood.draft.ngram import NgramDrafter

__all__ = ["Drafter", "ModelDrafter", "NgramDrafter", "NoDrafter", "Proposer"]
