"""Loaders and scorers on samples of the real data sets, where they lie beside the checkout; else on rows made by hand.

The directory is named by DRAFTWOOD_DATA, or lies beside the checkout as shared/data.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwood.errors import ConfigurationError
from draftwood.eval.tasks import parse

FILES = {
    "squad": "squad/squad_v1.1_dev_subset.jsonl",
    "spider": "spider/spider_dev.jsonl",
    "triviaqa": "triviaqa/triviaqa_subset.jsonl",
    "gsm8k": "gsm8k/gsm8k_test_subset.jsonl",
    "humaneval": "humaneval/humaneval.jsonl",
    "xsum": "xsum/xsum_test_subset.jsonl",
    "alpaca": "alpaca/alpaca_eagle80.jsonl",
    "mt_bench": "mt_bench/mt_bench.jsonl",
    "spec_bench": "spec_bench/spec_bench.jsonl",
}
MADE: dict[str, dict[str, Any]] = {
    "squad": {"id": "1", "context": "Ash is red.", "question": "What is red?", "answers": ["Ash"]},
    "spider": {"id": "1", "db_id": "towns", "question": "How many?", "query": "SELECT 1"},
    "triviaqa": {"id": "1", "question": "What is red?", "answer": "Ash", "aliases": ["Ash", "The Ash"]},
    "gsm8k": {"id": "1", "question": "One and one?", "solution": "1+1=<<1+1=2>>2\n#### 2", "answer": "2"},
    "humaneval": {
        "id": "H/1",
        "prompt": "def two():\n",
        "entry_point": "two",
        "canonical_solution": "    return 2\n",
        "test": "def check(candidate):\n    assert candidate() == 2\n",
    },
    "xsum": {"id": "1", "document": "A cat sat.", "reference": "A cat sat."},
    "alpaca": {"id": "1", "prompt": "Count.", "reference": "1, 2"},
    "mt_bench": {"id": "1", "category": "math", "turns": ["One?", "Two?"], "reference": None},
    "spec_bench": {"id": "1", "category": "rag", "turns": ["One?"], "reference": None},
}
TABLES = {
    "db_id": "towns",
    "table_names_original": ["town"],
    "column_names_original": [[-1, "*"], [0, "id"]],
    "column_types": ["text", "number"],
    "primary_keys": [],
    "foreign_keys": [],
}


@pytest.fixture
def sample(tmp_path: Path) -> Callable[[str], Path]:
    """The file of a data set: a real sample if there is one, else three rows of its format."""
    root = Path(os.environ.get("DRAFTWOOD_DATA") or Path(__file__).parents[3] / "shared" / "data")

    def found(name: str) -> Path:
        if (root / FILES[name]).is_file():
            return root / FILES[name]
        if name == "spider":
            (tmp_path / "tables.json").write_text(json.dumps([TABLES]))
            (tmp_path / "database" / "towns").mkdir(parents=True)
            (tmp_path / "database" / "towns" / "towns.sqlite").write_bytes(b"")
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({**MADE[name], "id": str(i)}) + "\n" for i in range(3)), "utf-8")
        return path

    return found


@pytest.mark.parametrize("name", FILES)
def test_all_rows_are_understood_and_gold_answers_score_in_full(name: str, sample: Callable[[str], Path]) -> None:
    task = parse(name, {"path": str(sample(name))})
    try:
        instances = task.instances(None)
    except ConfigurationError as error:  # programs run only where they can be held in
        assert task.runs_code and "is not run" in str(error)
        return
    golds = {item.id: item.answer for item in task.items()}
    assert len(instances) == len(golds) - task.example_count >= 2
    assert len({instance.hash for instance in instances}) == len(instances)
    for instance in instances[:6]:
        if len(instance.turns) == 1 and golds[instance.item]:
            scores = task.score(instance, [golds[instance.item]])
            assert all(score == pytest.approx(1) for score in scores.values()), (instance.item, scores)
