"""Cali-TS: its predictor from recorded drafts to a file and back, by hand and at work."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from enumeration import EnumeratedRandomness

import draftwood
from draftwood import ConfigurationError, DraftwoodError, Engine, Method, ModelError, TabularModel
from draftwood.depth import CalibratedThompson, DraftState
from draftwood.depth.calibrated import (
    PLACES,
    Calibration,
    load_calibration,
    save_calibration,
)
from draftwood.methods import Speculative
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.train.calibration import RecordedDrafts, deviations, record, train_calibration

D_TARGET, D_DRAFT = 6, 4


def of_paper(place: int, target: torch.Tensor, draft: torch.Tensor, maps: list[torch.Tensor], w: torch.Tensor) -> float:
    """EESD Eq. 5 as it is printed, with matrices W^1 to W^10."""
    return float(torch.sigmoid(w @ torch.cat((maps[min(place, 10) - 1] @ target, draft))))


def test_vectors_say_what_the_papers_matrices_say() -> None:
    generator = torch.Generator().manual_seed(1)
    maps = [torch.randn(5, D_TARGET, generator=generator) for _ in range(10)]
    w = torch.randn(5 + D_DRAFT, generator=generator)
    model = Calibration(torch.stack([w[:5] @ each for each in maps]), w[5:], torch.zeros(PLACES), torch.zeros(D_TARGET))
    for place in (1, 2, 9, 10, 11, 40):
        target = torch.randn(D_TARGET, generator=generator)
        draft = torch.randn(D_DRAFT, generator=generator)
        state = DraftState(place, [3], torch.zeros(1, 2), [(0, 1)], draft[None])
        assert model.chance(state, target) == pytest.approx(of_paper(place, target, draft, maps, w), abs=1e-6)
        one = torch.sigmoid(model.logits(torch.tensor([place]), target[None], draft[None]))
        assert float(one) == pytest.approx(of_paper(place, target, draft, maps, w), abs=1e-6)


def test_an_unknown_target_state_is_the_mean_one_and_trees_count_their_best_node() -> None:
    model = Calibration(torch.ones(PLACES, 2), torch.tensor([1.0]), torch.zeros(PLACES), torch.tensor([0.5, 0.25]))
    state = DraftState(1, [1, 2, 3], torch.zeros(3, 2), [(0, 1), (2, 0)], torch.tensor([[-1.0], [9.0], [0.25]]))
    assert model.chance(state, None) == pytest.approx(1 / (1 + math.exp(-(0.75 + 0.25))))  # row 1 is over
    assert model.chance(state, torch.tensor([0.0, 0.0])) == pytest.approx(1 / (1 + math.exp(-0.25)))
    assert model.chance(DraftState(1, [1]), None) is None


def simulated(requests: int = 60, seed: int = 0) -> RecordedDrafts:
    """Drafts whose chance depends on both states and the place, two to twelve per round, three rounds per request."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[tuple[int, torch.Tensor, torch.Tensor, float, int, int]] = []
    a, b = torch.tensor([1.2, 0.0, -0.8]), torch.tensor([1.5, -1.0])
    for number in range(3 * requests):
        target = torch.randn(3, generator=generator)
        for place in range(1, 13):
            draft = 3 + 2 * torch.randn(2, generator=generator)
            logit = float(a @ target + b @ (draft - 3) / 2 + 1.5)
            accepted = float(torch.rand((), generator=generator)) < 1 / (1 + math.exp(-logit))
            known = target if number % 3 else torch.full((3,), torch.nan)
            rows.append((place, known, draft, float(accepted), number // 3, number))
            if not accepted:
                break
    places, targets, drafts, labels, request, rounds = zip(*rows, strict=True)
    states = torch.stack(targets), torch.stack(drafts)
    return RecordedDrafts(
        torch.tensor(places), *states, torch.tensor(labels), torch.tensor(request), torch.tensor(rounds)
    )


def test_training_foretells_acceptance_and_is_calibrated() -> None:
    trained, judgement = train_calibration(simulated(100), epochs=8, rate=0.03)
    assert judgement.log_loss < 0.9 * judgement.base_loss
    assert judgement.auc > 0.7 and judgement.error < 0.15
    assert 0.05 <= trained.model_deviation < 0.2 < trained.sample_deviation < 0.6
    assert trained.theta0 == pytest.approx(judgement.accepted, abs=0.1)
    one, again = (train_calibration(simulated(10), epochs=2, batch=64)[0] for _ in range(2))
    assert torch.equal(one.model.draft, again.model.draft)


def test_deviations_by_hand() -> None:
    """Two requests whose shares are 0.2 above and below what was predicted; rounds of one draft, two of each."""
    accepted = torch.tensor([1.0, 1.0, 1.0, 0.0] * 25 + [0.0, 0.0, 0.0, 1.0] * 25)
    request, number = torch.arange(200) // 100, torch.arange(200)
    drafts = RecordedDrafts(torch.ones(200).long(), torch.zeros(200, 1), torch.zeros(200, 1), accepted, request, number)
    model, sample = deviations(drafts, torch.full((200,), 0.5))
    assert model == pytest.approx(math.sqrt(0.25**2 - 0.25 / 100))
    assert sample == pytest.approx(math.sqrt(0.75 * 0.25))
    assert deviations(drafts, accepted.clone())[0] == 0.05  # no error at all


def test_too_little_to_train_on() -> None:
    with pytest.raises(ConfigurationError, match=r"drafts of 3 requests cannot be split with held_out 0\.2"):
        train_calibration(simulated(3))
    blind = simulated(20)
    blind = RecordedDrafts(
        blind.place,
        torch.full_like(blind.target, torch.nan),
        *(getattr(blind, n) for n in ("draft", "accepted", "request", "round")),
    )
    with pytest.raises(ConfigurationError, match="no target states were recorded"):
        train_calibration(blind)


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Engine:
    return draftwood.load()


PROMPTS = ["Once there was", "The cat", "Question: who", "def add(a, b):", "3 + 4 =", "SELECT name", "In the morning"]
CHAIN = {"name": "speculative", "gamma": 6}


@pytest.fixture(scope="module")
def path(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibration") / "c.safetensors"
    trained, _ = train_calibration(record(engine, Method.parse(CHAIN), PROMPTS, max_new_tokens=20), epochs=3)
    save_calibration(
        path, trained, fingerprint(engine.target), fingerprint(engine.drafts[0]), {"prompts": len(PROMPTS)}
    )
    return path


def test_recorded_states_are_those_of_the_models(engine: Engine) -> None:
    """chi, the draft's state for each draft, and the target's at the token before the round's root."""
    method = Method.parse(CHAIN)
    drafts = record(engine, method, PROMPTS[:2], (0.0,), 16)
    all_tried = least = 0
    for prompt in PROMPTS[:2]:
        for round_ in engine.generate(prompt, method, {"temperature": 0}, 16).rounds:
            all_tried += round_.attempted
            least += min(
                round_.attempted, round_.drafted - (round_.drafted < 6)
            )  # the request's end may hide one draft
    assert least <= len(drafts) <= all_tried and 0.2 < float(drafts.accepted.mean()) < 0.9
    assert drafts.request.unique().tolist() == [0, 1]
    first = drafts.round == 0
    assert drafts.target[first].isnan().all() and not drafts.target[drafts.round == 2].isnan().any()
    result = engine.generate(PROMPTS[0], method, {"temperature": 0}, 16)
    tokens, rounds = result.prompt_tokens + result.tokens, result.rounds
    target: Any = engine.target
    draft: Any = engine.drafts[0]
    with torch.inference_mode():
        for number, root in ((1, rounds[1].position), (2, rounds[2].position)):
            mine = (drafts.request == 0) & (
                drafts.round == sorted(set(drafts.round[drafts.request == 0].tolist()))[number]
            )
            seen = torch.tensor([tokens[: root + 1]])
            state = target.normed(target.train_layers(target.embed(seen), 0, target.n_layers))[0]
            assert torch.allclose(drafts.target[mine][0], state[root - 1], atol=1e-4)
            state = draft.normed(draft.train_layers(draft.embed(seen), 0, draft.n_layers))[0]
            assert torch.allclose(drafts.draft[mine][0], state[root], atol=1e-4)


def test_round_trip_of_the_file(path: Path, engine: Engine) -> None:
    target, draft = fingerprint(engine.target), fingerprint(engine.drafts[0])
    trained = load_calibration(path, target, draft)
    found = artifact.load(path, "calibration", target=target, draft=draft)
    assert found.about == {"prompts": len(PROMPTS)} and trained.theta0 == found.settings["theta0"]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_file_is_read_once_for_all_requests(path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prints, reads, load = (fingerprint(engine.target), fingerprint(engine.drafts[0])), [0], artifact.load

    def counted(*arguments: Any, **more: Any) -> Any:
        reads[0] += 1
        return load(*arguments, **more)

    monkeypatch.setattr(artifact, "load", counted)
    os.utime(path, ns=(1, 1))  # a change since other tests read it
    first, second = (load_calibration(path, *prints) for _ in range(2))
    assert reads == [1] and first.model is not second.model and first.theta0 == second.theta0
    os.utime(path, ns=(2, 2))
    load_calibration(path, *prints)
    assert reads == [2]


@pytest.mark.parametrize("role", ["target", "draft"])
def test_of_another_model(path: Path, engine: Engine, role: str) -> None:
    prints = {"target": fingerprint(engine.target), "draft": fingerprint(engine.drafts[0])} | {role: "0" * 16}
    with pytest.raises(
        ModelError, match=f"was trained for another {role} .*make one for this {role} with `draftwood train cal"
    ):
        load_calibration(path, **prints)


def test_missing_and_damaged_files(path: Path, tmp_path: Path, engine: Engine) -> None:
    prints = fingerprint(engine.target), fingerprint(engine.drafts[0])
    with pytest.raises(ModelError, match=r"none.safetensors does not exist; make one with"):
        load_calibration(tmp_path / "none.safetensors", *prints)
    copy = tmp_path / "c.safetensors"
    for data in (b"", path.read_bytes()[:-200]):
        copy.write_bytes(data)
        with pytest.raises(ModelError, match=r"c.safetensors cannot be read .*; make it again with"):
            load_calibration(copy, *prints)
    whole = artifact.load(path, "calibration")
    for changes in ({"settings": {}}, {"tensors": {}}, {"tensors": {**whole.tensors, "bias": torch.ones(3)}}):
        replace(whole, **changes).save(copy)
        with pytest.raises(ModelError, match="is damaged"):
            load_calibration(copy, *prints)


def test_greedy_text_is_plain_decodings(path: Path, engine: Engine) -> None:
    cells: list[tuple[dict[str, Any], str]] = [
        (CHAIN, ""),
        (CHAIN, ",shared=true,zero=true"),
        ({"name": "mcsd", "tree": [2, 2, 1]}, ",zero=true"),
        ({**CHAIN, "verify": "coupled"}, ""),
    ]
    for spec, extra in cells:
        verify = spec.get("verify", "rejection")
        options: dict[str, Any] = {
            "sampling": {"temperature": 0.0 if verify == "rejection" else 0.9},
            "max_new_tokens": 12,
        }
        plain = engine.batch(PROMPTS[:2], 2, method={"name": "autoregressive", "verify": verify}, **options)
        found = engine.batch(PROMPTS[:2], 2, method={**spec, "depth": f"cali-ts:{path}{extra}"}, **options)
        assert [one.tokens for one in found] == [one.tokens for one in plain]


def test_beams_refuse_it_and_methods_round_trip(path: Path, engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="reads the draft's hidden states, which beams do not give"):
        engine.generate("The", {"name": "dsbd", "depth": f"cali-ts:{path}"}, max_new_tokens=4)
    method = Method.parse({**CHAIN, "depth": {"name": "cali-ts", "path": str(path), "shared": True}})
    assert method.as_dict()["depth"] == f"cali-ts:path={path},shared=true"
    assert Method.parse(method.as_dict()) == method
    with pytest.raises(ModelError, match="does not exist; make one with `draftwood train calibration`"):
        engine.generate("The", {**CHAIN, "depth": "cali-ts:nowhere"}, max_new_tokens=4)


def test_recording_refuses_what_it_cannot_use(engine: Engine) -> None:
    for method, message in (
        ("lookup", "cali-ts cannot control method lookup"),
        ("dsbd", "cali-ts cannot control method dsbd"),
        ({"name": "mcsd", "tree": [2, 2]}, "trained on chains of drafts"),
        ({"name": "speculative", "gamma": 0}, "no draft was tried"),
    ):
        with pytest.raises(DraftwoodError, match=message):
            record(engine, Method.parse(method), PROMPTS[:1], max_new_tokens=8)


@pytest.mark.parametrize("zero", [False, True])
def test_law_is_exact(zero: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every random number is enumerated; a normal number is one of two values. The prediction reads both states."""
    monkeypatch.setattr("draftwood.depth.calibrated.draw_normal", lambda uniform: 2 * (uniform() < 0.3) - 1.0)
    target, draft = TabularModel.random(3, seed=21), TabularModel.random(3, seed=22)
    model = Calibration(torch.full((PLACES, 3), 0.3), torch.full((3,), -0.4), torch.zeros(PLACES), torch.zeros(3))
    controlled(monkeypatch, lambda: CalibratedThompson(2, model.chance, 0.3, 0.3, zero=zero))
    engine = Engine(target, [draft], end_tokens=frozenset({0}))
    EnumeratedRandomness(monkeypatch).assert_plain(engine, [1, 1], "speculative", 3)


def controlled(patch: pytest.MonkeyPatch, make: Callable[[], CalibratedThompson]) -> None:
    """Let `speculative` draft as a controller made here says."""
    build = Speculative.build
    patch.setattr(Speculative, "build", lambda self, *sessions: build(self, *sessions)._replace(depth=make()))


def test_the_targets_state_is_handed_over_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(TabularModel.random(4, seed=3), [TabularModel.random(4, seed=4)])
    rows: list[bool] = []

    class Looking(CalibratedThompson):
        def observe(self, round_: Any, state: Any = None) -> None:
            rows.append(state is not None)
            super().observe(round_, state)

    controlled(monkeypatch, lambda: Looking(4, lambda state, target: 0.6))
    result = engine.generate([1, 2], "speculative", max_new_tokens=20)
    assert all(rows) and len(rows) == len(result.rounds) > 3
