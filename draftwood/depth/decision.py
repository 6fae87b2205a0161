"""Decision models (MCSD §3.3): small networks that predict whether drafts will be accepted, and stop the drafting.

Kind 'hidden' reads the draft's last hidden state, kind 'output' its top-k probabilities and their entropy. Knows
training, saving, loading and stopping. Refuses to know models and what a good figure is (judgement.py): examples are
arrays that were recorded.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from draftwood.core.records import Round
from draftwood.depth.judgement import Judgement, judge
from draftwood.depth.rules import Growth
from draftwood.errors import ConfigurationError
from draftwood.sampling import Streams

DecisionKind = Literal["hidden", "output"]


def output_features(logits: Tensor, k: int) -> Tensor:
    """concat(top-k probabilities, entropy) [n, k + 1] of draft logits [n, V]; a small vocabulary is filled with 0."""
    q = torch.softmax(logits.float(), -1)
    entropy = torch.special.entr(q).sum(-1, keepdim=True)
    top = q.topk(min(k, q.shape[-1]), -1).values
    return torch.cat((nn.functional.pad(top, (0, k - top.shape[-1])), entropy), -1)


def hidden_label(p: Tensor, q: Tensor) -> Tensor:
    """min(1, p(x)/q(x)) of drafted tokens, the label of kind 'hidden' (the paper misprints max, spec §9.6)."""
    return (p / q).clamp(max=1.0)


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


def train_decision(
    kind: DecisionKind,
    features: Tensor,
    labels: Tensor,
    groups: Tensor | None = None,
    width: int = 64,
    held_out: float = 0.2,
    epochs: int = 30,
    batch: int = 256,
    rate: float = 3e-3,
    seed: int = 0,
) -> tuple[Decision, Judgement]:
    """Train on features [n, inputs] and labels [n] in [0, 1]; the judgement is on the `held_out` share, drawn by seed.

    Examples of one group [n] (of one prompt) are held out together; by default each is a group. The epoch that is best
    on a second held-out share, of the same size, is kept.
    """
    group_of = torch.arange(len(features)) if groups is None else torch.unique(groups, return_inverse=True)[1]
    count = int(group_of.max()) + 1 if len(features) else 0
    aside = int(count * held_out)
    if not 0 < held_out < 0.5 or aside < 1 or count - 2 * aside < 1:
        what = f"{count} examples" if groups is None else f"{len(features)} examples of {count} prompts"
        raise ConfigurationError(f"{what} cannot be split with held_out {held_out}; record more")
    if not bool(((labels >= 0) & (labels <= 1)).all()):
        raise ConfigurationError("labels must lie between 0 and 1; record them as accepted or min(1, p/q)")
    generator = torch.Generator().manual_seed(seed)
    place = torch.randperm(count, generator=generator)[group_of]  # of each example's group in a random order
    features, labels = features.float(), labels.float()
    test, tune, rest = (
        torch.nonzero(where)[:, 0]
        for where in (place < aside, (aside <= place) & (place < 2 * aside), 2 * aside <= place)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Decision(kind, features.shape[1], width)
    model.mean.copy_(features[rest].mean(0))
    model.scale.copy_(features[rest].std(0, unbiased=False).clamp(min=1e-6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    best, kept = float("inf"), {name: value.clone() for name, value in model.state_dict().items()}
    loss = nn.functional.binary_cross_entropy_with_logits
    for _ in range(epochs):
        for chosen in torch.split(rest[torch.randperm(len(rest), generator=generator)], batch):
            optimizer.zero_grad()
            loss(model(features[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            now = float(loss(model(features[tune]), labels[tune]))
        if now < best:
            best, kept = now, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    model.eval()
    return model, judge(model.chance(features[test]), labels[test])


def save_decision(
    path: Path,
    model: Decision,
    draft: str,
    judgement: Judgement | None = None,
    recorded: Mapping[str, Any] | None = None,
) -> None:
    """Write PATH (safetensors: all that loading needs) and beside it PATH with .json, for people.

    `draft` is the fingerprint of the draft model, `recorded` how the examples came about. Each file is written aside
    and then renamed, so that a kill leaves a whole one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"kind": model.kind, "inputs": model.inputs, "width": model.width, "draft": draft}
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    _write(path, save(weights, {name: str(value) for name, value in about.items()}))
    document = {**about, "judgement": asdict(judgement) if judgement else None, "recorded": dict(recorded or {})}
    _write(path.with_suffix(".json"), (json.dumps(document, indent=2) + "\n").encode())


def load_decision(path: Path, draft: str) -> Decision:
    """A saved decision model, shared by all who load it; `draft` is the fingerprint of the draft model.

    ConfigurationError where the model is missing, damaged or of another draft.
    """
    path = path.expanduser()
    if not path.is_file():
        raise ConfigurationError(f"decision model {path} does not exist; train it with `draftwood train decision`")
    state = path.stat()
    model, trained_for = _read(path, state.st_mtime_ns, state.st_size)
    if trained_for != draft:
        raise ConfigurationError(
            f"decision model {path} was trained for another draft (its hash is {trained_for}, this draft's {draft}); "
            "train one for this draft with `draftwood train decision`"
        )
    return model


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed: int, size: int) -> tuple[Decision, str]:
    """(model, fingerprint of its draft); read anew when the file changed."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata()
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        model = Decision(about["kind"], int(about["inputs"]), int(about["width"]))
        model.load_state_dict(weights)
        return model.eval(), about["draft"]
    except Exception as error:  # whatever a damaged file makes the reader raise
        raise ConfigurationError(f"decision model {path} cannot be read ({error}); train it again") from error


@functools.lru_cache(maxsize=16)
def _placed(model: Decision, device: torch.device) -> Decision:
    """A copy on another device, made once: requests on several devices share one model."""
    return copy.deepcopy(model).to(device)


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)


class Decide:
    """Stop when the predicted acceptance of every sequence is below `threshold` (MCSD's beta), after `most` layers at
    the latest.

    The first layer is always drafted: before it nothing is known of what the draft says.
    """

    def __init__(self, model: Decision, most: int, threshold: float = 0.4) -> None:
        if not 0 <= threshold <= 1:
            raise ConfigurationError(f"threshold is {threshold}, but must lie between 0 and 1")
        self.model, self.most, self.threshold = model, most, threshold
        self.needs = frozenset({"hidden" if model.kind == "hidden" else "logits"})

    def start(self, streams: Streams) -> None:
        pass

    def deeper(self, growth: Growth) -> bool:
        if growth.depth >= self.most:
            return False
        if growth.depth == 0 or growth.logits is None:
            return True
        read = growth.hidden if self.model.kind == "hidden" else growth.logits
        if read is None:
            raise ConfigurationError(
                "a decision model of kind hidden reads the draft's hidden states, which this drafter does not give; "
                "train one with --kind output"
            )
        if growth.picked:
            rows = sorted({row for row, _ in growth.picked})  # of sequences that go on
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

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        pass
