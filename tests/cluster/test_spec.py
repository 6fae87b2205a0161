"""Descriptions of replicas. No Ray is needed."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest
import yaml
from conftest import Command

from draftwood import ConfigurationError, Method, load
from draftwood.cli.groups import ModelOptions
from draftwood.cli.scaling import RayOptions
from draftwood.cluster.spec import EngineSpec, ServeSpec

PAGE = Path(__file__).parent.parent.parent / "docs" / "scale.md"


def test_the_file_on_the_page_is_understood() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (application,) = yaml.safe_load(shown)["applications"]
    spec = ServeSpec.model_validate(application["args"])
    assert set(spec.models) <= set(inspect.signature(load).parameters)
    assert Method.parse(spec.method or "").name == "speculative"
    assert spec.resources == {"num_cpus": 8, "num_gpus": 1.0}


def test_it_travels_as_plain_data(target: Path, draft: Path) -> None:
    made = EngineSpec(models={"target": str(target), "draft": [str(draft)]}, method=Method.parse("mcsd").as_dict())
    again = EngineSpec.model_validate(made.model_dump(mode="json"))
    assert again == made
    engine = again.engine()
    assert engine.method(again.method).name == "mcsd" and len(engine.drafts) == 1
    with pytest.raises(ConfigurationError, match=r"models: .*'nonsense'"):
        EngineSpec(models={"nonsense": 1}).engine()


def test_paths_of_options_are_absolute(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("A fox", "utf-8")
    Path("model").symlink_to(target)
    options = ModelOptions(target="model", quantize="int4", calibration=Path("mine.txt"))
    made = EngineSpec.model_validate(RayOptions().engine(options, None))
    assert made.models["target"] == str(target.resolve())
    assert made.models["calibration"] == str(tmp_path.resolve() / "mine.txt")


def test_an_engine_of_several_processes_needs_the_cpus_of_all() -> None:
    spec = EngineSpec(models={"tensor_parallel": 2}, threads=3)
    assert spec.resources["num_cpus"] == 6
    assert spec.model_copy(update={"cpus": 1.0}).resources["num_cpus"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve",),
        ("batch", "requests.jsonl", "--out", "answers.jsonl"),
        ("eval", "--out", "results", "--limit", 1, "--tasks", "qa"),
        ("train", "corpus", "--out", "texts.jsonl", "--count", 1),
        ("train", "eesd", "--out", "exit"),
    ],
    ids=["serve", "batch", "eval", "corpus", "training"],
)
def test_without_the_extra_it_is_one_sentence(
    arguments: tuple[object, ...], command: Command, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("draftwood.cluster")]:
        monkeypatch.delitem(sys.modules, name)
    shown = command(*arguments, "--target", target, "--ray")
    assert shown.code == 2 and not shown.out and shown.err.count("\n") == 1
    assert "Ray need" in shown.err and "ray, which is missing; pip install 'draftwood[scale]'" in shown.err
