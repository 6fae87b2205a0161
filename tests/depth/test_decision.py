"""Decision models: figures against definitions, learning something learnable, files, and stopping."""

import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftwood.depth import DraftState
from draftwood.depth.decision import (
    Decide,
    Decision,
    load_decision,
    output_features,
    save_decision,
)
from draftwood.errors import ConfigurationError, ModelError
from draftwood.models.checkpoints import artifact
from draftwood.train.calibration_metrics import area_under, calibration_table, judge, overlap, roc_curve
from draftwood.train.decisions import hidden_label, train_decision

DRAFT = "0123456789abcdef"


def examples(count: int = 3000) -> tuple[Tensor, Tensor, Tensor]:
    """(draft logits, accepted, true chance): peaked drafts are accepted more often."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(count, 20, generator=generator) * torch.rand(count, 1, generator=generator) * 6
    chance = torch.softmax(logits, -1).amax(-1) ** 2
    accepted = (torch.rand(count, generator=generator) < chance).float()
    return logits, accepted, chance


def test_features_are_probabilities_and_entropy() -> None:
    features = output_features(torch.tensor([[0.5, 0.125, 0.375, 0.0]]).log(), 3)
    entropy = -sum(p * math.log(p) for p in (0.5, 0.125, 0.375))
    assert features[0].tolist() == pytest.approx([0.5, 0.375, 0.125, entropy], abs=1e-6)
    assert output_features(torch.zeros(2, 3), 5).shape == (2, 6)
    assert output_features(torch.zeros(1, 3), 5)[0, 3:5].tolist() == [0.0, 0.0]


def test_hidden_label_is_the_acceptance_chance() -> None:
    """Spec §9.6: the paper prints max(1, p/q)."""
    assert hidden_label(torch.tensor([0.2, 0.8]), torch.tensor([0.8, 0.2])).tolist() == [0.25, 1.0]


def test_area_under_roc_is_the_chance_to_rank_right() -> None:
    generator = torch.Generator().manual_seed(2)
    chances = torch.randint(0, 6, (80,), generator=generator) / 6  # many ties
    labels = (torch.rand(80, generator=generator) < chances).float()
    pairs = [(a, b) for a in chances[labels == 1].tolist() for b in chances[labels == 0].tolist()]
    right = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    curve = roc_curve(chances, labels)
    assert area_under(curve) == pytest.approx(right, abs=1e-12)
    assert curve[0] == (0.0, 0.0) and curve[-1] == (1.0, 1.0)


def test_calibration_and_overlap() -> None:
    chances = torch.tensor([0.05, 0.05, 0.95, 0.95], dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    assert calibration_table(chances, labels) == [(pytest.approx(0.05), 0.5, 2), (pytest.approx(0.95), 1.0, 2)]
    assert judge(chances, labels).error == pytest.approx(0.5 * 0.45 + 0.5 * 0.05)
    assert overlap(chances, labels) == pytest.approx(1 / 3)
    assert overlap(chances, (chances > 0.5).double()) == 0.0


def test_training_learns_and_is_calibrated() -> None:
    logits, accepted, chance = examples()
    features = output_features(logits, 4)
    model, figures = train_decision("output", features, accepted, epochs=12)
    assert figures.examples == 600
    assert figures.auc > 0.8 and figures.log_loss < 0.8 * figures.base_loss
    assert figures.error < 0.08
    assert float((model.chance(features) - chance).abs().mean()) < 0.08
    (one, same), (again, figures) = (train_decision("output", features, accepted, epochs=1) for _ in range(2))
    assert same == figures
    assert torch.equal(again.chance(features), one.chance(features))
    noise = torch.randn(3000, 4, generator=torch.Generator().manual_seed(3))
    assert abs(train_decision("output", noise, accepted, epochs=2)[1].auc - 0.5) < 0.08


def test_hidden_kind_learns_soft_labels() -> None:
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(2000, 16, generator=generator)
    labels = torch.sigmoid(2 * hidden[:, 0] - hidden[:, 1])
    model, figures = train_decision("hidden", hidden, labels, epochs=10)
    assert sum(isinstance(layer, torch.nn.Linear) for layer in model.layers) == 3
    assert figures.auc > 0.95


def test_what_cannot_be_trained() -> None:
    with pytest.raises(ConfigurationError, match=r"3 examples cannot be split .* record more"):
        train_decision("output", torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        train_decision("output", torch.zeros(50, 2), torch.full((50,), 1.5))


def test_groups_are_held_out_whole() -> None:
    """A prompt that is learned by heart says nothing about other prompts."""
    generator = torch.Generator().manual_seed(5)
    groups = torch.arange(60).repeat_interleave(20)
    labels = (torch.rand(60, generator=generator) < 0.5).float()[groups]
    features = torch.randn(60, 16, generator=generator)[groups] + 0.01 * torch.randn(1200, 16, generator=generator)
    known = train_decision("output", features, labels, epochs=40)[1]
    unseen = train_decision("output", features, labels, groups, epochs=40)[1]
    assert known.examples == unseen.examples == 240
    assert known.auc > 0.99 and unseen.auc < 0.8
    with pytest.raises(ConfigurationError, match="80 examples of 4 prompts cannot be split"):
        train_decision("output", features[:80], labels[:80], groups[:80])


def test_saved_models_come_back_and_know_their_draft(tmp_path: Path) -> None:
    model = Decision("output", 5, 8)
    path = tmp_path / "models" / "decision.safetensors"
    figures = asdict(judge(torch.tensor([0.2, 0.9]), torch.tensor([0.0, 1.0])))
    save_decision(path, model, DRAFT, figures, {"prompts": 7})
    features = torch.rand(6, 5)
    assert torch.equal(load_decision(path, DRAFT).chance(features), model.chance(features))
    about = artifact.load(path, "decision", draft=DRAFT).about
    assert about["judgement"]["auc"] == 1.0 and about["recorded"] == {"prompts": 7}
    assert [file.name for file in path.parent.iterdir()] == ["decision.safetensors"]
    with pytest.raises(ModelError, match="trained for another draft") as caught:
        load_decision(path, "f" * 16)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="does not exist"):
        load_decision(tmp_path / "none.safetensors", DRAFT)
    path.write_bytes(b"damaged")
    with pytest.raises(ModelError, match="cannot be read"):
        load_decision(path, DRAFT)
    for settings in ({}, {"kind": "output", "inputs": 6, "width": 8}, {"kind": 1, "inputs": "x", "width": 10**12}):
        artifact.Artifact("decision", {"draft": DRAFT}, settings, model.state_dict()).save(path)
        with pytest.raises(ModelError, match=r"is damaged .* make it again with `draftwood train decision`"):
            load_decision(path, DRAFT)


def test_a_model_is_read_once_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "decision.safetensors"
    save_decision(path, Decision("output", 5, 8), DRAFT)
    first = load_decision(path, DRAFT)
    assert load_decision(path, DRAFT) is first
    save_decision(path, Decision("output", 4, 8), DRAFT)
    assert load_decision(path, DRAFT).inputs == 4


def test_drafting_stops_when_every_sequence_looks_bad() -> None:
    """Beta is met by one sequence: go on; by none: stop; the first layer and the limit come before it."""
    logits, accepted, _ = examples()
    model, _ = train_decision("output", output_features(logits, 4), accepted, epochs=8)
    sure, unsure = torch.zeros(1, 20), torch.zeros(1, 20)
    sure[0, 3] = 12.0
    control = Decide(model, 5, 0.4)
    assert control.deeper(DraftState(0))
    assert control.deeper(DraftState(1, [1], sure))
    assert control.deeper(DraftState(1, [1, 2], torch.cat((unsure, sure))))
    assert not control.deeper(DraftState(1, [1, 2], torch.cat((unsure, unsure))))
    assert not control.deeper(DraftState(1, [1], torch.cat((unsure, sure)), [(0, 2)]))  # the sure one is over
    assert not control.deeper(DraftState(5, [1], sure))
    assert Decide(model, 5, 0.0).deeper(DraftState(1, [1], unsure))


def test_hidden_states_of_sequences_that_go_on_are_read() -> None:
    model = Decision("hidden", 2, 1)  # a chance above one half where the first number is above 3
    weights = zip(model.parameters(), ([[1.0, 0.0]], [0.0], [[1.0]], [0.0], [[10.0]], [-30.0]), strict=True)
    with torch.no_grad():
        for weight, values in weights:
            weight.copy_(torch.tensor(values))
    control, logits = Decide(model, 5, 0.5), torch.zeros(2, 9)
    low_high = torch.tensor([[1.0, 9.0], [4.0, 0.0]])
    assert control.needs == {"hidden"}
    assert control.deeper(DraftState(0))
    assert control.deeper(DraftState(1, [1, 2], logits, [(0, 3), (1, 5)], low_high))
    assert not control.deeper(DraftState(1, [1, 2], logits, [(0, 3)], low_high))  # the better one is over
    assert not control.deeper(DraftState(1, [1, 2], logits, [(0, 3), (0, 4)], low_high))
    assert control.deeper(DraftState(1, [1, 2], logits, [(1, 0)], low_high))
    with pytest.raises(ConfigurationError, match="train one with --kind output"):
        control.deeper(DraftState(1, [1], logits, [(0, 3)]))
    with pytest.raises(ConfigurationError, match="of width 2, but the draft's are 3 wide"):
        control.deeper(DraftState(1, [1], logits, [(0, 3)], torch.zeros(2, 3)))


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_thresholds_that_are_refused(threshold: float) -> None:
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        Decide(Decision("output", 5), 4, threshold)
