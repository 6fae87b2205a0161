"""Depth controllers: how far a round drafts."""

from draftwood.depth.rules import DepthController, Fixed, Growth

__all__ = ["DepthController", "Fixed", "Growth"]
