"""draftwood: language models decode faster by speculation, and nothing is lost."""

from draftwood.engine import Engine, StreamEvent, load
from draftwood.errors import ConfigurationError, DraftwoodError, ModelError, NonFiniteError, RequestError
from draftwood.methods import METHODS, Method
from draftwood.models.tabular import TabularModel
from draftwood.sampling import SamplingParams
from draftwood.trace import GenerationResult, Metrics, Round

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "ConfigurationError",
    "DraftwoodError",
    "Engine",
    "GenerationResult",
    "Method",
    "Metrics",
    "ModelError",
    "NonFiniteError",
    "RequestError",
    "Round",
    "SamplingParams",
    "StreamEvent",
    "TabularModel",
    "load",
]
