"""Decision models as controllers, from their file to the method: no law and no greedy or coupled text changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from beam_reference import BeamLaw
from enumeration import EnumeratedRandomness
from tabular import follows

from draftwood import Engine, Method, SamplingParams, TabularModel
from draftwood.core.records import Round
from draftwood.depth import DraftState
from draftwood.depth.decision import Decide, Decision, DecisionKind, save_decision
from draftwood.errors import ConfigurationError, ModelError
from draftwood.methods import Fork, MultiCandidate, Speculative
from draftwood.models.checkpoints.artifact import fingerprint, fingerprints
from draftwood.models.other_device import OnOtherDevice
from draftwood.sampling.distributions import Streams

PROMPT, END = [1, 2, 1, 2], frozenset({0})
KINDS: list[DecisionKind] = ["output", "hidden"]
METHODS: list[dict[str, Any]] = [
    {"name": "speculative", "gamma": 3},
    {"name": "specinfer", "expansion": [2, 1]},
    {"name": "mcsd", "tree": [2, 1]},
    {"name": "mcsd-fork", "width": 2, "gamma": 3},
]


def file_of(kind: DecisionKind, directory: Path, *drafts: TabularModel) -> Path:
    """A model that predicts acceptance where the draft is sure: its best token has more than about 0.6."""
    vocab = drafts[0].vocab_size
    model = Decision(kind, 3 if kind == "output" else vocab, vocab)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        first, last = model.layers[0], model.layers[-1]
        if kind == "output":  # the greatest probability
            first.weight[0, 0], last.weight[0, 0], last.bias[0] = 1.0, 10.0, -6.0
        else:  # a tabular model's hidden state is log q: the sum of relu(log q + 0.5) is above 0 where q > 0.6
            first.weight.copy_(torch.eye(vocab))
            first.bias.fill_(0.5)
            model.layers[2].weight.copy_(torch.eye(vocab))
            last.weight.fill_(100.0)
            last.bias.fill_(-0.1)
    path = directory / f"{kind}.safetensors"
    save_decision(path, model, fingerprints(drafts))
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[bool]:
    """The decisions that were taken after a layer."""
    seen: set[bool] = set()

    def deeper(control: Decide, state: DraftState, decide: Any = Decide.deeper) -> bool:
        on: bool = decide(control, state)
        if 0 < state.depth < control.most:
            seen.add(on)
        return on

    monkeypatch.setattr(Decide, "deeper", deeper)
    return seen


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        pytest.param(kind, method, marks=() if (i + j) % 2 else pytest.mark.slow, id=f"{kind}-{method['name']}")
        for i, kind in enumerate(KINDS)
        for j, method in enumerate(METHODS)
    ],
)
def test_law_is_exact(
    kind: DecisionKind, method: dict[str, Any], tmp_path: Path, asked: set[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every random number is enumerated, over rounds that end early and rounds that do not."""
    target, draft = TabularModel.random(3, seed=41), TabularModel.random(3, seed=42)
    engine = Engine(target, [draft], end_tokens=END)
    options = {**method, "depth": f"decision:{file_of(kind, tmp_path, draft)},threshold=0.5"}
    params = SamplingParams() if method["name"] == "speculative" else SamplingParams(top_k=2)
    EnumeratedRandomness(monkeypatch).assert_plain(engine, [1, 1], options, 4, params)
    assert asked == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_and_coupled_text_is_plain_decodings(kind: DecisionKind, tmp_path: Path, asked: set[bool]) -> None:
    target, draft = TabularModel.random(4, seed=11, order=4), TabularModel.random(4, seed=12, order=3, sharpness=2)
    engine = Engine(target, [draft])
    depth = f"decision:{file_of(kind, tmp_path, draft)},threshold=0.5"
    for sampling, verify in (({"temperature": 0}, "rejection"), ({"temperature": 0.8}, "coupled")):
        options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 40, "seed": 3}
        plain = engine.generate(PROMPT, {"name": "autoregressive", "verify": verify}, **options).tokens
        for method in METHODS:
            assert engine.generate(PROMPT, {**method, "depth": depth, "verify": verify}, **options).tokens == plain
    assert asked == {True, False}


@pytest.mark.some(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "method",
    [Speculative(gamma=5), MultiCandidate(tree=(3, 1, 1)), Fork(width=3, gamma=4)],
    ids=lambda method: method.name,
)
def test_no_drafted_token_is_dropped(
    kind: DecisionKind, method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer that the controller allowed is in the forest that is verified, whole; it allows more and fewer."""
    draft = TabularModel.random(6, seed=12, order=3, sharpness=2)
    log: list[tuple[int, int]] = []

    class Noted(Decide):
        layers = 0

        def start(self, streams: Streams, load: Any = None) -> None:
            self.layers = 0

        def deeper(self, state: DraftState) -> bool:
            on = super().deeper(state)
            self.layers = state.depth + on
            return on

        def observe(self, round_: Round, state: Any = None) -> None:
            depth = [0]
            for parent in round_.forest_parent[1:]:
                depth.append(depth[parent] + 1)
            log.append((self.layers, max(depth)))

    monkeypatch.setattr("draftwood.depth.settings.Decide", Noted)
    engine = Engine(TabularModel.random(6, seed=11, order=4), [draft])
    depth = f"decision:{file_of(kind, tmp_path, draft)},threshold=0.5"
    for seed in range(4):
        engine.generate(PROMPT, {**method.as_dict(), "depth": depth}, max_new_tokens=50, seed=seed)
    assert all(layers == drafted for layers, drafted in log)
    assert len({layers for layers, _ in log}) >= 3


def test_beams_follow_beam_sampling(tmp_path: Path, asked: set[bool]) -> None:
    target, draft = TabularModel.random(3, seed=11, order=4), TabularModel.random(3, seed=12, order=3)
    engine = Engine(target, [draft], end_tokens=END)
    method = {"name": "dsbd", "width": 2, "draft_width": 4, "gamma": 3, "n_best": 2}
    method["depth"] = f"decision:{file_of('output', tmp_path, draft)},threshold=0.5"
    samples: Any = [
        tuple(sorted(tuple(beam.tokens) for beam in engine.generate(PROMPT, method, max_new_tokens=4, seed=seed).beams))
        for seed in range(250)
    ]
    law: Any = BeamLaw(target, PROMPT, SamplingParams(), END, "joint").law(2, True, 4)
    assert follows(samples, law)
    assert asked == {True, False}


def test_what_is_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    target, draft, other = (TabularModel.random(vocab, seed=1) for vocab in (3, 3, 4))
    hidden, foreign = file_of("hidden", tmp_path, draft), tmp_path / "foreign.safetensors"
    file_of("output", tmp_path, other).rename(foreign)
    engine = Engine(target, [draft])
    cases = [
        ("dsbd", f"decision:{hidden}", "hidden states, which beams do not give"),
        ("speculative-beam-search", f"decision:{hidden}", "hidden states, which beams do not give"),
        ("mcsd-fork", f"decision:{foreign}", f"trained for another draft .* {fingerprint(draft)}"),
        ("speculative", f"decision:{tmp_path / 'none'}", "does not exist"),
        ("speculative", f"decision:{hidden},threshold=-1", "must be at least 0"),
    ]
    for name, depth, message in cases:
        with pytest.raises((ConfigurationError, ModelError), match=message) as caught:
            engine.generate(PROMPT, {"name": name, "depth": depth}, max_new_tokens=5)
        assert "\n" not in str(caught.value)


def test_a_model_for_a_draft_is_for_that_draft_on_any_device(tmp_path: Path) -> None:
    target, draft = TabularModel.random(3, seed=41), TabularModel.random(3, seed=42)
    engine = Engine(target, [OnOtherDevice(draft, target.device)])
    method = {"name": "speculative", "depth": f"decision:{file_of('output', tmp_path, draft)}"}
    assert len(engine.generate(PROMPT, method, max_new_tokens=9).tokens) == 9


def test_a_model_for_one_draft_is_not_for_several(tmp_path: Path) -> None:
    drafts = [TabularModel.random(3, seed=seed) for seed in (1, 2)]
    engine = Engine(TabularModel.random(3, seed=3), drafts)
    method = {"name": "specinfer", "expansion": [1, 1]}
    with pytest.raises(ModelError, match="trained for another draft"):
        engine.generate(PROMPT, {**method, "depth": f"decision:{file_of('output', tmp_path, drafts[0])}"})
    depth = f"decision:{file_of('output', tmp_path, *drafts)}"
    assert len(engine.generate(PROMPT, {**method, "depth": depth}, max_new_tokens=9).tokens) == 9
