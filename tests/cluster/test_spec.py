"""What replicas are made from. No Ray is needed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import yaml

from draftwood import ConfigurationError, Method, load
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
