"""The package's own beams written down a second time, where tests look for them."""

from __future__ import annotations

from draftwood.certify.references import BeamLaw, Beams, Output, log_softmax
from draftwood.certify.references import slow_beam_search as beam_search

__all__ = ["BeamLaw", "Beams", "Sequence_", "beam_search", "log_softmax"]

Sequence_ = Output  # generated tokens
