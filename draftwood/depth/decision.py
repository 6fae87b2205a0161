"""Decision models (MCSD §3.3): small networks that predict whether drafts will be accepted, and stop the drafting.

Kind 'hidden' reads the draft's last hidden state, kind 'output' its top-k probabilities and their entropy.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from draftwood.depth.rules import DepthController, DraftState
from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import Artifact

DecisionKind = Literal["hidden", "output"]


def output_features(logits: Tensor, k: int) -> Tensor:
    """concat(top-k probabilities, entropy) [n, k + 1] of draft logits [n, V]; a small vocabulary is filled with 0."""
    q = torch.softmax(logits.float(), -1)
    entropy = torch.special.entr(q).sum(-1, keepdim=True)
    top = q.topk(min(k, q.shape[-1]), -1).values
    return torch.cat((nn.functional.pad(top, (0, k - top.shape[-1])), entropy), -1)


class Decision(nn.Module):
    """An MLP from features [n, inputs] to the logit of acceptance [n]: three layers for 'hidden', two for 'output'.

    Features are standardised as the training examples were.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, kind: DecisionKind, inputs: int, width: int = 64) -> None:
        super().__init__()
        self.kind, self.inputs, self.width = kind, inputs, width
        layers: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
        if kind == "hidden":
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))

    def forward(self, features: Tensor) -> Tensor:
        logit: Tensor = self.layers((features.float() - self.mean) / self.scale)[..., 0]
        return logit

    def chance(self, features: Tensor) -> Tensor:
        """The predicted chance of acceptance [n]."""
        with torch.no_grad():
            return torch.sigmoid(self(features))


def save_decision(
    path: Path,
    model: Decision,
    draft: str,
    judgement: Mapping[str, Any] | None = None,
    recorded: Mapping[str, Any] | None = None,
) -> None:
    """Write a decision model for the draft of a fingerprint.

    `judgement` are its figures on held-out examples, `recorded` says how the examples came about.
    """
    settings = {"kind": model.kind, "inputs": model.inputs, "width": model.width}
    about = {"judgement": judgement, "recorded": recorded}
    Artifact("decision", {"draft": draft}, settings, model.state_dict(), about).save(path)


def load_decision(path: Path, draft: str) -> Decision:
    """A saved decision model, shared by all who load it, for the draft of a fingerprint.

    ModelError where the model is missing, damaged or of another draft.
    """
    path = path.expanduser()
    state = path.stat() if path.is_file() else None
    return _read(path, draft, state and state.st_mtime_ns, state and state.st_size)


@functools.lru_cache(maxsize=16)
def _read(path: Path, draft: str, changed: int | None, size: int | None) -> Decision:
    """Read anew when the file changed."""
    stored = artifact.load(path, "decision", draft=draft)
    try:
        kind, inputs, width = (stored.settings[name] for name in ("kind", "inputs", "width"))
        with torch.device("meta"):
            model = Decision(kind, inputs, width)
        model.load_state_dict(stored.tensors, assign=True)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise artifact.damaged(path, "decision", error) from error
    return model.requires_grad_(False).eval()


@functools.lru_cache(maxsize=16)
def _placed(model: Decision, device: torch.device) -> Decision:
    """A copy on another device, made once: requests on several devices share one model."""
    return copy.deepcopy(model).to(device)


class Decide(DepthController):
    """Stop when the predicted acceptance of every sequence is below `threshold` (MCSD's beta), after `most` layers at
    the latest.

    The first layer is always drafted: before it nothing is known of what the draft says.
    """

    def __init__(self, model: Decision, most: int, threshold: float = 0.4) -> None:
        if not 0 <= threshold <= 1:
            raise ConfigurationError(f"threshold is {threshold}, but must lie between 0 and 1")
        self.model, self.most, self.threshold = model, most, threshold
        self.needs = frozenset({"hidden" if model.kind == "hidden" else "logits"})

    def deeper(self, state: DraftState) -> bool:
        if state.depth >= self.most:
            return False
        if state.depth == 0 or state.logits is None:
            return True
        read = state.hidden if self.model.kind == "hidden" else state.logits
        if read is None:
            raise ConfigurationError(
                "a decision model of kind hidden reads the draft's hidden states, which this drafter does not give; "
                "train one with --kind output"
            )
        if state.picked:
            rows = sorted({row for row, _ in state.picked})  # of sequences that go on
            if len(rows) < len(read):
                read = read[rows]
        features = read if self.model.kind == "hidden" else output_features(read, self.model.inputs - 1)
        if features.shape[-1] != self.model.inputs:
            raise ConfigurationError(
                f"the decision model reads hidden states of width {self.model.inputs}, but the draft's are "
                f"{features.shape[-1]} wide; train one for this draft with `draftwood train decision`"
            )
        model = self.model
        if model.mean.device != features.device:
            model = self.model = _placed(model, features.device)
        return bool((model.chance(features) >= self.threshold).any())
