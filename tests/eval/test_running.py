"""Methods on tasks: what is recorded, in which order, and that neither kills nor failing items change the rest."""

import itertools
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from draftwood.engine.engine import Engine
from draftwood.engine.loading import EMBEDDED, load
from draftwood.errors import ConfigurationError
from draftwood.eval import running
from draftwood.eval.energy import NOT_AVAILABLE, Meter
from draftwood.eval.evaluation import check_code, evaluate
from draftwood.eval.running import EvalJob, EvalPlan, Runner
from draftwood.eval.store import Store, failed, read_run, records_of
from draftwood.eval.summary import summary_of
from draftwood.eval.tasks import Instance, Item, ItemScores, Task, parse
from draftwood.methods import Method
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.heads import exit as exits
from draftwood.sampling.params import SamplingParams

CLOCKWORK = ("timing", "energy")


class Colours(Task):
    """Short prompts; the bad ones fail where they are told to."""

    name: ClassVar[str] = "colours"
    summary: ClassVar[str] = "for tests"
    metric: ClassVar[str] = "length"
    usual_tokens: ClassVar[int] = 6

    too_long: int = -1  # the place of an item that cannot be decoded
    unjudged: int = -1  # the place of one that cannot be scored

    def items(self) -> Iterator[Item]:
        for number, colour in enumerate(("red", "green", "blue", "white", "black")):
            again = 3000 if number == self.too_long else 1
            yield Item(str(number), (f"Story: Once there was a {colour} kite." * again,), {"number": number})

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        if instance.reference["number"] == self.unjudged:
            raise ValueError("nobody\njudges this")
        return {"length": float(len(answers[0])), "short": float(len(answers[0]) < 20)}


class Talk(Colours):
    """Two turns."""

    name: ClassVar[str] = "talk"

    def items(self) -> Iterator[Item]:
        yield Item("t", ("Story: A kite flew.", "Story: It was lost."), {"number": 0})


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load()


def plan(*tasks: Task, seeds: Sequence[int] = (0, 1), temperature: float = 1.0, limit: int | None = None) -> EvalPlan:
    methods = [Method.parse("autoregressive"), Method.parse({"name": "speculative", "gamma": 2})]
    asked = [(task, task.instances(limit)) for task in tasks]
    return EvalPlan(methods, asked, SamplingParams(temperature=temperature), seeds, warmup=0)


def steady(document: dict[str, Any]) -> dict[str, Any]:
    """A summary without what clocks and sessions say."""
    found = {key: value for key, value in document.items() if key not in ("sessions", "energy")}
    found["rows"] = []
    for row in document["rows"]:
        kept = {key: value for key, value in row.items() if key not in CLOCKWORK}
        if kept["paired"]:
            kept["paired"] = {k: v for k, v in kept["paired"].items() if k in ("same_tokens", "score_difference")}
        found["rows"].append(kept)
    return found


@pytest.fixture(scope="module")
def unbroken(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return evaluate(engine, plan(Colours()), tmp_path_factory.mktemp("unbroken"))


def test_every_method_item_and_seed_is_run_once_and_recorded(engine: Engine, tmp_path: Path) -> None:
    wanted = plan(Colours(), Talk())
    document = evaluate(engine, wanted, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text("utf-8").splitlines()]
    assert len({line["key"] for line in lines}) == len(lines) == 2 * 2 * (5 + 1)
    assert document["complete"] and document["runs"] == {"expected": 24, "made": 24, "failed": 0}
    assert document == json.loads((tmp_path / "summary.json").read_text("utf-8"))
    line = next(line for line in lines if line["task"] == "colours" and line["item"] == "2" and line["seed"] == 1)
    instance = wanted.tasks[0][1][2]
    (seed,) = line["request_seeds"]
    result = engine.generate(instance.turns[0], wanted.methods[line["method"]], wanted.sampling, 6, seed)
    assert line["output"] == result.text and line["tokens"] == len(result.tokens)
    assert line["instance"] == instance.hash and line["scores"]["length"] == len(result.text)
    assert line["rounds"]["rounds"] == result.metrics.rounds and line["rounds"]["drafted"] == result.metrics.drafted
    assert line["rounds"]["later_rounds"] == result.metrics.rounds - 1 and line["rounds"]["later_verify_seconds"] > 0
    assert line["nats"] == pytest.approx(-sum(result.logprobs)) and line["seconds"] > 0
    prompts = {(line["task"], line["item"], line["prompt_hash"]) for line in lines if line["task"] == "colours"}
    assert len(prompts) == 5  # all methods and seeds got the same prompts
    seeds = {(line["task"], line["item"], line["seed"]): tuple(line["request_seeds"]) for line in lines}
    assert all(seeds[line["task"], line["item"], line["seed"]] == tuple(line["request_seeds"]) for line in lines)
    assert len({each for turns in seeds.values() for each in turns}) == 2 * (5 + 2)  # of each item and turn its own


def test_the_second_turn_hears_the_first_answer(engine: Engine, tmp_path: Path) -> None:
    evaluate(engine, plan(Talk(), seeds=[3]), tmp_path)
    for line in map(json.loads, (tmp_path / "items.jsonl").read_text("utf-8").splitlines()):
        first, second = line["output"]
        method = plan(Talk()).methods[line["method"]]
        prompt = f"Story: A kite flew.{first}\n\nStory: It was lost."
        assert second == engine.generate(prompt, method, SamplingParams(), 6, line["request_seeds"][1]).text
        assert line["tokens"] == 12 and len(line["finish"]) == 2


def test_methods_take_turns_in_orders_of_their_own() -> None:
    jobs = plan(Colours(), seeds=range(8)).jobs()
    turns = [[job.number for job in jobs[i : i + 2]] for i in range(0, len(jobs), 2)]
    assert all(sorted(turn) == [0, 1] for turn in turns)
    assert 10 < sum(turn == [0, 1] for turn in turns) < 30  # of 40
    assert [job.place for job in jobs] == sorted(job.place for job in jobs)  # all of an item before the next


@pytest.mark.parametrize("seed", range(3))
def test_interrupted_and_resumed_it_says_the_same(
    engine: Engine, unbroken: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    stops = random.Random(seed).sample(range(1, 20), 5)
    wanted = plan(Colours())
    made: list[str] = []
    told = itertools.count()

    def stop_sometimes(job: EvalJob) -> None:
        if next(told) in stops:
            raise KeyboardInterrupt
        made.append(job.key)

    interrupts = 0
    while True:
        try:
            document = evaluate(engine, wanted, tmp_path, on_job=stop_sometimes)
            break
        except KeyboardInterrupt:
            interrupts += 1
            left = json.loads((tmp_path / "summary.json").read_text("utf-8"))
            assert not left["complete"] and left["runs"]["made"] == len(made)
            with (tmp_path / "items.jsonl").open("ab") as file:
                file.write(b'{"key": "to')  # as a kill leaves it
    assert interrupts == 5 and len(set(made)) == len(made) == 20
    assert steady(document) == steady(unbroken)


def test_a_failing_item_is_recorded_and_shifts_no_other(
    engine: Engine, unbroken: dict[str, Any], tmp_path: Path
) -> None:
    document = evaluate(engine, plan(Colours(too_long=1, unjudged=3)), tmp_path)
    evaluate(engine, plan(Colours()), tmp_path / "whole")

    def outputs(path: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
        lines = map(json.loads, (path / "items.jsonl").read_text("utf-8").splitlines())
        return {(line["item"], line["method"], line["seed"]): line for line in lines}

    broken, whole = outputs(tmp_path), outputs(tmp_path / "whole")
    assert broken.keys() == whole.keys()
    for key, line in broken.items():
        if key[0] == "1":
            assert (line["status"], line["stage"]) == ("failed", "decode")
            assert line["error"].startswith("RequestError: the prompt has") and "output" not in line
        elif key[0] == "3":
            assert (line["status"], line["stage"]) == ("failed", "score")
            assert line["error"] == "ValueError: nobody judges this" and line["output"] == whole[key]["output"]
        else:
            assert line["status"] == "ok" and line["output"] == whole[key]["output"]
            assert line["scores"] == whole[key]["scores"]
    for row, good in zip(document["rows"], unbroken["rows"], strict=True):
        assert row["runs"] == {"made": 10, "failed_to_decode": 2, "failed_to_score": 2}
        assert sum(row["errors"].values()) == 4
        lengths = [line["scores"]["length"] for line in whole.values() if line["method"] == document["rows"].index(row)]
        assert good["quality"]["length"]["value"] == pytest.approx(sum(lengths) / 10)
        kept = [
            line["scores"]["length"]
            for line in broken.values()
            if line["method"] == document["rows"].index(row) and line["status"] == "ok"
        ]
        assert row["quality"]["length"]["value"] == pytest.approx(sum(kept) / 8)  # 3 items scored, 1 that counts 0


def test_greedy_methods_say_the_same_and_counts_agree(engine: Engine, tmp_path: Path) -> None:
    document = evaluate(engine, plan(Colours(), seeds=[0], temperature=0.0), tmp_path)
    plain, drafted = document["rows"]
    assert plain["baseline"] and plain["paired"] is None and plain["decoding"]["tau"]["value"] == 1
    assert drafted["paired"]["same_tokens"]["value"] == 1
    assert drafted["paired"]["score_difference"]["value"] == 0
    assert drafted["quality"]["perplexity"]["value"] == pytest.approx(plain["quality"]["perplexity"]["value"], rel=1e-4)
    assert drafted["decoding"]["tokens"] == plain["decoding"]["tokens"] == 30
    assert drafted["decoding"]["drafted"] > 0 and drafted["paired"]["speed_up"]["n"] == 5
    assert drafted["configuration"]["models"]["dtype"] == "float32" and drafted["lossless"] is True
    assert plain["energy"] == document["energy"] == NOT_AVAILABLE or plain["energy"].keys() <= {"cpu", "gpu"}


def test_runs_are_read_between_meter_readings(engine: Engine, tmp_path: Path) -> None:
    class Counting:
        name = "cpu"
        value = 0.0

        def joules(self) -> float:
            self.value += 3.0
            return self.value

    wanted = plan(Talk(), seeds=[0])
    with Store(tmp_path, wanted.configuration(engine)) as store:
        Runner(engine, wanted, Meter([Counting()])).run(store)
        assert [record["joules"] for record in store.records.values()] == [{"cpu": 3.0}] * 2
        store.note_session({"idle_watts": {"cpu": 0.5}})
        document = summary_of(tmp_path, store.records)
    row = document["rows"][1]
    seconds = row["timing"]["seconds"]
    assert row["energy"]["cpu"]["joules"] == 3
    assert row["energy"]["cpu"]["joules_without_idle"] == pytest.approx(3 - 0.5 * seconds)
    assert row["energy"]["cpu"]["joules_per_token"]["value"] == pytest.approx(3 / 12)
    assert sum(row["energy"]["cpu"]["split_by_time"].values()) == pytest.approx(3)
    assert row["paired"]["joules_per_token"]["cpu"]["value"] == 1


def test_free_memory_goes_back_between_items(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before all methods of an item and seed, where nothing is timed."""
    events: list[str] = []
    record = Runner.record

    def recorded(self: Runner, job: EvalJob) -> Any:
        events.append(f"{job.place} {job.seed}")
        return record(self, job)

    monkeypatch.setattr(running, "give_back", lambda: events.append("back"))
    monkeypatch.setattr(Runner, "record", recorded)
    evaluate(engine, plan(Colours(), limit=2), tmp_path)
    assert events == ["back", *2 * ["0 0"], "back", *2 * ["0 1"], "back", *2 * ["1 0"], "back", *2 * ["1 1"]]


def test_failed_runs_are_tried_again(engine: Engine, tmp_path: Path) -> None:
    """Their new lines stand behind the old ones and count; runs that went well are not made again."""
    wanted = plan(Colours(), seeds=[0], limit=3)
    broken = replace(wanted, tasks=[(Colours(unjudged=1), wanted.tasks[0][1])])
    with Store(tmp_path, wanted.configuration(engine)) as store:
        Runner(engine, broken).run(store)
    before = (tmp_path / "items.jsonl").read_bytes()
    counts: list[int] = []
    document = evaluate(engine, wanted, tmp_path, lambda made, expected: counts.extend((made, expected)))
    assert counts == [4, 6] and document["runs"] == {"expected": 6, "made": 6, "failed": 0} and document["complete"]
    after = (tmp_path / "items.jsonl").read_bytes()
    lines = [json.loads(line) for line in after.removeprefix(before).splitlines()]
    assert [(line["place"], line["status"]) for line in lines] == 2 * [(1, "ok")]
    assert len(records_of(tmp_path)) == 6 and not any(map(failed, records_of(tmp_path).values()))
    evaluate(engine, wanted, tmp_path)
    assert (tmp_path / "items.jsonl").read_bytes() == after


def test_a_directory_of_other_models_or_options_is_refused(engine: Engine, tmp_path: Path) -> None:
    evaluate(engine, plan(Talk(), seeds=[0]), tmp_path)
    with pytest.raises(ConfigurationError, match=r"different: seeds"):
        evaluate(engine, plan(Talk(), seeds=[1]), tmp_path)
    with pytest.raises(ConfigurationError, match=r"different: tasks"):
        evaluate(engine, plan(Talk(max_new_tokens=3), seeds=[0]), tmp_path)


def write_exit(directory: Path, target: CausalModel, scale: float) -> None:
    """The embedded target's exit with its weights times a number."""
    weights = exits.load(EMBEDDED / "target" / "exit", target, packed=False).weights()
    exits.save({name: part * scale for name, part in weights.items()}, directory, fingerprint(target), 1)


def test_a_directory_knows_learned_files_by_content(tmp_path: Path) -> None:
    """Another exit in the same place is another one: named, or found next to the weights."""
    shutil.copytree(EMBEDDED / "target", home := tmp_path / "target", ignore=shutil.ignore_patterns("exit"))
    shutil.copytree(EMBEDDED / "draft", tmp_path / "draft")
    engine = load(home, tmp_path / "draft")
    plain, named = Method.parse("autoregressive"), tmp_path / "named"
    for directory, method in ((named, {"name": "eesd", "exit": str(named)}), (home / "exit", {"name": "eesd"})):
        write_exit(directory, engine.target, 1.0)
        wanted = replace(plan(Talk(), seeds=[0]), methods=[plain, Method.parse(method)])
        out = tmp_path / f"of {directory.name}"
        before = evaluate(engine, wanted, out)["configuration"]["contents"]
        assert before.keys() == {str(home), str(tmp_path / "draft"), str(directory)}
        write_exit(directory, engine.target, 1.0)
        assert evaluate(engine, wanted, out)["configuration"]["contents"] == before
        write_exit(directory, engine.target, 1.5)
        with pytest.raises(ConfigurationError, match=rf"\(different: what is in {directory}\)"):
            evaluate(engine, wanted, out)


def test_a_directory_grows_by_items_and_seeds(engine: Engine, tmp_path: Path) -> None:
    """Runs that are there stay, and the whole is what one go would have made; a plan of fewer is refused."""
    small, grown = tmp_path / "small", tmp_path / "grown"
    evaluate(engine, plan(Colours(), seeds=[3], limit=2), small)
    before = (small / "items.jsonl").read_bytes()
    document = evaluate(engine, plan(Colours(), seeds=[3, 4], limit=5), small)
    assert (small / "items.jsonl").read_bytes().startswith(before) and document["runs"]["made"] == 2 * 5 * 2
    assert steady(document) == steady(evaluate(engine, plan(Colours(), seeds=[3, 4], limit=5), grown))
    texts = [{key: run["output"] for key, run in records_of(where).items()} for where in (small, grown)]
    assert texts[0] == texts[1] and len(read_run(small / "run.json")["sessions"]) == 2
    for fewer in (plan(Colours(), seeds=[3], limit=5), plan(Colours(), seeds=[3, 4], limit=2)):
        with pytest.raises(ConfigurationError, match=r"another configuration \(different: (seeds|tasks)\)"):
            evaluate(engine, fewer, small)


def test_code_runs_only_if_confirmed() -> None:
    for name in ("humaneval", "code"):
        with pytest.raises(ConfigurationError, match="confirm with --run-code"):
            check_code([parse("qa"), parse(name)], False)
        check_code([parse(name)], True)
