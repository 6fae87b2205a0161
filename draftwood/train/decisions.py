"""Decision models (MCSD §3.3): examples noted while an engine decodes, and the training on them.

A recorder stands in the place of a request's verifier and depth controller and passes on what these say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwood.core.forest import Forest, Verdict
from draftwood.core.records import Round
from draftwood.depth import ALONE, DepthController, DraftState, Load
from draftwood.depth.decision import Decision, DecisionKind, output_features
from draftwood.engine.engine import Engine
from draftwood.engine.generation import Generation
from draftwood.engine.request import MethodSpec, Prompt
from draftwood.errors import ConfigurationError
from draftwood.methods import Method
from draftwood.models.checkpoints.artifact import fingerprints
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.train.calibration_metrics import CalibrationMetrics, judge
from draftwood.train.recording import WatchedEngine, drafts_one_by_one, fit, split
from draftwood.verify import VerifierProxy


def hidden_label(p: Tensor, q: Tensor) -> Tensor:
    """min(1, p(x)/q(x)) of drafted tokens, the label of kind 'hidden' (the paper misprints max, spec §9.6)."""
    return (p / q).clamp(max=1.0)


@dataclass(slots=True)
class Examples:
    """Recorded examples, one per judged draft, and the fingerprint of the draft model that they belong to."""

    kind: DecisionKind
    draft: str
    features: list[Tensor] = field(default_factory=list)  # [inputs] each: hidden state, or top probabilities, entropy
    labels: list[float] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)  # which prompt it comes from

    def __len__(self) -> int:
        return len(self.labels)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """(features [n, inputs], labels [n], prompts [n]) on the CPU."""
        features = torch.stack(self.features) if self.features else torch.empty(0, 0)
        return features, torch.tensor(self.labels), torch.tensor(self.prompts, dtype=torch.long)


@dataclass(slots=True)
class DecisionRecorder(DepthController, VerifierProxy):
    """Stands in for the verifier and the depth controller of one request, and records an example of each judged draft.

    A draft is judged when all before it on its path were accepted and no sibling drawn before it was. Its features are
    of the row that it was drawn from. Its label is min(1, p(x)/q(x)) for kind 'hidden', with p and q after temperature
    and truncation; for kind 'output', and where drafts are not drawn (greedy, coupled), whether it was accepted.
    """

    depth: DepthController
    examples: Examples
    top: int  # probabilities among the features of kind 'output'
    prompt: int
    most: int = field(init=False)
    needs: frozenset[str] = field(init=False)
    _states: list[DraftState] = field(init=False, default_factory=list)  # one per drafted layer of the round

    def __post_init__(self) -> None:
        VerifierProxy.__post_init__(self)
        self.most = self.depth.most
        self.needs = self.depth.needs | {"hidden" if self.examples.kind == "hidden" else "logits"}

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self._states = []
        self.depth.start(streams, load)

    def deeper(self, state: DraftState) -> bool:
        if state.depth:
            self._states.append(state)
        return self.depth.deeper(state)

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        self.depth.observe(round_, state)

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        verdict = self.verify(forest, target, streams)
        path = forest.path(verdict.parent[0])
        for row, parent, nodes, q in self._drawn(forest, path):
            p = target.probs(parent) if self.examples.kind == "hidden" and q is not None else None
            for node in nodes:
                x = forest.token[node]
                label = float(node in path) if p is None or q is None else float(hidden_label(p[x], q[x]))
                self.examples.features.append(row)
                self.examples.labels.append(label)
                self.examples.prompts.append(self.prompt)
        return verdict

    def _drawn(self, forest: Forest, path: list[int]) -> Iterator[tuple[Tensor, int, list[int], Tensor | None]]:
        """(features [inputs], parent, judged drafts, q [V]) of each proposal below the accepted path.

        The last layer's drafts are left out when the request's end, and not the controller, ended the drafting.
        """
        frontier = forest.live
        for parent, after, state in zip(path, [*path[1:], None], self._states, strict=False):
            if state.logits is None:
                return
            rows = [node for node in frontier if node not in forest.finished]
            if len(frontier) == 1:
                rows *= len(state.logits)  # the root, once per draft model
            places = [row for row, node in enumerate(rows) if node == parent]
            for place, proposal in zip(places, forest.proposals.get(parent, ()), strict=False):
                nodes = list(dict.fromkeys(proposal.nodes))
                accepted = after in nodes
                yield (
                    self._features(state, place),
                    parent,
                    nodes[: nodes.index(after) + 1] if after is not None and accepted else nodes,
                    proposal.q,
                )
                if accepted:
                    break
            frontier = list(state.nodes)

    def _features(self, state: DraftState, row: int) -> Tensor:
        if self.examples.kind == "hidden":
            if state.hidden is None:
                raise ConfigurationError(
                    "this drafter gives no hidden states for a decision model of kind hidden; train one of kind output"
                )
            return state.hidden[row].float().cpu().clone()
        assert state.logits is not None
        return output_features(state.logits[row : row + 1], self.top)[0].cpu()


def recordable(engine: Engine, spec: MethodSpec | None) -> Method:
    """The method to record with; ConfigurationError where its drafts are no examples for decision models."""
    method = engine.method(spec)
    if not drafts_one_by_one(method):
        raise ConfigurationError(
            f"decision models are not recorded with method {method.name}, but with one that drafts for one hypothesis: "
            "mcsd-fork, mcsd, specinfer or speculative"
        )
    if not method.lossless:
        raise ConfigurationError(
            f"method {method.name} is lossy as it is set, so its drafts are not judged one by one; record with a "
            "lossless form of it"
        )
    if str(getattr(method, "depth", "")).partition(":")[0] == "auto":  # which drafts only where it pays
        return method.model_copy(update={"depth": "fixed"})
    return method


def record(
    engine: Engine,
    prompts: Sequence[Prompt],
    kind: DecisionKind,
    method: MethodSpec = "mcsd-fork",
    temperatures: Sequence[float] = (1.0,),
    max_new_tokens: int = 64,
    top: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Examples:
    """Decode every prompt at every temperature and record the judged drafts; `progress` as in `Engine.batch`.

    `top` is how many of the draft's probabilities kind 'output' reads.
    """
    chosen = recordable(engine, method)
    models = chosen.models(engine.target, engine.drafts)
    if kind == "hidden" and len(models) > 1:
        raise ConfigurationError("hidden states are those of one draft model; load one, or train --kind output")
    examples = Examples(kind, fingerprints(models))
    known: dict[tuple[int, ...], int] = {}  # prompt -> its number

    def watch(generation: Generation, number: int) -> None:
        prompt = known.setdefault(generation.request.prompt, len(known))
        recorder = DecisionRecorder(generation.verify, generation.depth, examples, top, prompt)
        generation.verify = generation.depth = recorder

    requests = [
        {"prompt": prompt, "seed": seed + i, "sampling": {"temperature": temperature}}
        for temperature in temperatures
        for i, prompt in enumerate(prompts)
    ]
    WatchedEngine(engine, watch).batch(requests, progress=progress, method=chosen, max_new_tokens=max_new_tokens)
    return examples


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
) -> tuple[Decision, CalibrationMetrics]:
    """Train on features [n, inputs] and labels [n] in [0, 1]; the judgement is on the `held_out` share, drawn by seed.

    Examples of one group [n] (of one prompt) are held out together; by default each is a group. The epoch that is best
    on a second held-out share, of the same size, is kept.
    """
    generator = torch.Generator().manual_seed(seed)
    what = "{count} examples" if groups is None else f"{len(features)} examples of {{count}} prompts"
    test, tune, rest = split(torch.arange(len(features)) if groups is None else groups, held_out, generator, what)
    if not bool(((labels >= 0) & (labels <= 1)).all()):
        raise ConfigurationError("labels must lie between 0 and 1; record them as accepted or min(1, p/q)")
    features, labels = features.float(), labels.float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Decision(kind, features.shape[1], width)
    model.mean.copy_(features[rest].mean(0))
    model.scale.copy_(features[rest].std(0, unbiased=False).clamp(min=1e-6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    parameters = list(model.parameters())
    _, kept = fit(
        lambda some: model(features[some]), labels, parameters, optimizer, rest, tune, epochs, batch, generator
    )
    with torch.no_grad():
        for part, value in zip(parameters, kept, strict=True):
            part.copy_(value)
    model.eval()
    return model, judge(model.chance(features[test]), labels[test])
