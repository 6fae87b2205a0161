"""lm-eval and LangChain work unchanged; each where it is installed, in this environment or another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pydantic
import pytest
from servers import Running

pytestmark = pytest.mark.slow

QUESTIONS = [
    {"question": "The fox is", "choices": ["red", "blue", "quick"], "answer": 0},
    {"question": "Pears are", "choices": ["ripe", "not ripe"], "answer": 1},
]
TASKS = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
doc_to_text: question
"""
CHOICES = """\
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}]
"""
TEXTS = """\
output_type: generate_until
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 12, temperature: 0}
metric_list: [{metric: exact_match}]
"""


def test_lm_eval(served: Running, talker: Path, tmp_path: Path) -> None:
    """Log-likelihoods and greedy texts are the engine's."""
    program = shutil.which("lm_eval")
    if program is None:
        pytest.skip("lm_eval is not on the PATH; pip install 'lm-eval[api]', here or in another environment")
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in QUESTIONS))
    for name, kind in (("fruit_choices", CHOICES), ("fruit_texts", TEXTS)):
        (tmp_path / f"{name}.yaml").write_text(TASKS.format(name=name, file=file) + kind)
    about = f"model={served.service.name},base_url={served.url}/v1/completions,num_concurrent=4"
    command = [program, "--model", "local-completions", "--tasks", "fruit_choices,fruit_texts"]
    command += ["--model_args", f"{about},tokenizer_backend=huggingface,tokenizer={talker},max_length=96"]
    command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"), "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": ""}
    done = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    samples = {
        name: list(map(json.loads, next(tmp_path.glob(f"out/**/samples_{name}_*.jsonl")).read_text().splitlines()))
        for name in ("fruit_choices", "fruit_texts")
    }
    engine = served.engine
    for sample in samples["fruit_choices"]:
        question = sample["doc"]["question"]
        for choice, (found,) in zip(sample["doc"]["choices"], sample["resps"], strict=True):
            scores = engine.score(f"{question} {choice}").logprobs[len(question) :]
            assert float(found[0]) == pytest.approx(sum(value or 0.0 for value in scores), rel=1e-4)
    for sample in samples["fruit_texts"]:
        expected = engine.generate(sample["doc"]["question"], None, {"temperature": 0}, 12, stop="\n\n").text
        assert sample["resps"] == [[expected]]


class Fruit(pydantic.BaseModel):
    """What the model must say."""

    name: str = pydantic.Field(max_length=3)


def test_langchain(served: Running) -> None:
    """Whole, streamed, structured."""
    langchain = pytest.importorskip("langchain_openai", reason="LangChain is missing; pip install langchain-openai")
    expected = served.engine.generate("u:hi|a:", max_new_tokens=20, seed=3)
    options = {"base_url": f"{served.url}/v1", "api_key": "none", "model": served.service.name, "max_tokens": 60}
    chat = langchain.ChatOpenAI(**options, seed=3).bind(max_tokens=20)
    answer = chat.invoke("hi")
    assert answer.content == expected.text and answer.usage_metadata["output_tokens"] == len(expected.tokens)
    assert "".join(chunk.content for chunk in chat.stream("hi")) == expected.text
    strict = langchain.ChatOpenAI(**options, seed=3).with_structured_output(Fruit, method="json_schema")
    assert len(strict.invoke("hi").name) <= 3
    text = langchain.OpenAI(**options, seed=3, temperature=1.0).invoke("Story: a fox")
    assert text == served.engine.generate("Story: a fox", max_new_tokens=60, seed=3).text
