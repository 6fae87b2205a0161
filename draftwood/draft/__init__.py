"""Drafters: each appends nodes to the forest and nothing else."""

from draftwood.draft.base import Drafter, NoDrafter, Proposer
from draftwood.draft.beam import BeamDrafter
from draftwood.draft.model import ModelDrafter
from draftwood.draft.ngram import NgramDrafter

__all__ = ["BeamDrafter", "Drafter", "ModelDrafter", "NgramDrafter", "NoDrafter", "Proposer"]
