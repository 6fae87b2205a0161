"""The single registry: a method's name -> its options -> drafter, verifier and depth controller."""

from draftwood.methods.base import METHODS, Method, Parts
from draftwood.methods.beams import DynamicWidth, PlainBeamSampling, PlainBeamSearch, SpeculativeBeamSearch
from draftwood.methods.self_drafting import DFlash, Eagle, EarlyExit, Medusa, MultiTokenPrediction, SelfSpeculative
from draftwood.methods.sequences import (
    Autoregressive,
    Fork,
    Lookup,
    MultiCandidate,
    SequenceMethod,
    SpecInfer,
    Speculative,
)

METHODS.update(
    (method.name, method)
    for method in (
        Autoregressive,
        Speculative,
        SpecInfer,
        MultiCandidate,
        Fork,
        EarlyExit,
        SelfSpeculative,
        Medusa,
        Eagle,
        MultiTokenPrediction,
        DFlash,
        Lookup,
        PlainBeamSampling,
        DynamicWidth,
        PlainBeamSearch,
        SpeculativeBeamSearch,
    )
)

__all__ = [
    "METHODS",
    "Autoregressive",
    "DFlash",
    "DynamicWidth",
    "Eagle",
    "EarlyExit",
    "Fork",
    "Lookup",
    "Medusa",
    "Method",
    "MultiCandidate",
    "MultiTokenPrediction",
    "Parts",
    "PlainBeamSampling",
    "PlainBeamSearch",
    "SelfSpeculative",
    "SequenceMethod",
    "SpecInfer",
    "Speculative",
    "SpeculativeBeamSearch",
]
