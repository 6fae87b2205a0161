"""Drafters: each appends nodes to the forest and nothing else."""

from draftwood.draft.base import CertainDrafter, Drafter, NoDrafter, Proposer
from draftwood.draft.beam import BeamDrafter
from draftwood.draft.blocks import BlockSession, BlockSource
from draftwood.draft.confident import ConfidentDrafter
from draftwood.draft.heads import HeadsDrafter
from draftwood.draft.model import ModelDrafter
from draftwood.draft.ngram import NgramSource
from draftwood.draft.shared import AssistantSession, SharedSession
from draftwood.draft.state_drafter import StateDrafter, drafting
from draftwood.draft.states import ExitSource, HeadSession, HeadSource
from draftwood.draft.suffix import EarlierAnswers, SuffixLookup
from draftwood.draft.translated import TranslatedSession
from draftwood.draft.written import TextDrafter

__all__ = [
    "AssistantSession",
    "BeamDrafter",
    "BlockSession",
    "BlockSource",
    "CertainDrafter",
    "ConfidentDrafter",
    "Drafter",
    "EarlierAnswers",
    "ExitSource",
    "HeadSession",
    "HeadSource",
    "HeadsDrafter",
    "ModelDrafter",
    "NgramSource",
    "NoDrafter",
    "Proposer",
    "SharedSession",
    "StateDrafter",
    "SuffixLookup",
    "TextDrafter",
    "TranslatedSession",
    "drafting",
]
