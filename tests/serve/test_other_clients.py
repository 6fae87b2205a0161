"""lm-eval and LangChain work unchanged; each where it is installed, in this environment or another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

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


def lm_eval(
    served: Running, folder: Path, model: str, path: str, tasks: list[str], *flags: str, **about: Any
) -> list[list[dict[str, Any]]]:
    """The log of each sample of each task."""
    program = shutil.which("lm_eval")
    if program is None:
        pytest.skip("lm_eval is not on the PATH; pip install 'lm-eval[api]', here or in another environment")
    file, out = folder / "questions.jsonl", folder / model
    file.write_text("".join(json.dumps(line) + "\n" for line in QUESTIONS))
    for name, kind in (("fruit_choices", CHOICES), ("fruit_texts", TEXTS)):
        (folder / f"{name}.yaml").write_text(TASKS.format(name=name, file=file) + kind)
    about |= {"model": served.service.name, "base_url": f"{served.url}/v1/{path}", "num_concurrent": 4}
    command = [program, "--model", model, "--tasks", ",".join(tasks), "--include_path", str(folder), *flags]
    command += ["--model_args", ",".join(f"{key}={value}" for key, value in about.items())]
    command += ["--output_path", str(out), "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home"), "PYTHONPATH": ""}
    done = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    logged = [next(out.glob(f"**/samples_{name}_*.jsonl")).read_text() for name in tasks]
    return [[json.loads(line) for line in text.splitlines()] for text in logged]


def test_lm_eval(served: Running, talker: Path, tmp_path: Path) -> None:
    """Log-likelihoods and greedy texts are the engine's."""
    about = {"tokenizer_backend": "huggingface", "tokenizer": talker, "max_length": 96}
    tasks = ["fruit_choices", "fruit_texts"]
    choices, texts = lm_eval(served, tmp_path, "local-completions", "completions", tasks, **about)
    engine = served.engine
    for sample in choices:
        question = sample["doc"]["question"]
        for choice, (found,) in zip(sample["doc"]["choices"], sample["resps"], strict=True):
            scores = engine.score(f"{question} {choice}").logprobs[len(question) :]
            assert float(found[0]) == pytest.approx(sum(value or 0.0 for value in scores), rel=1e-4)
    for sample in texts:
        expected = engine.generate(sample["doc"]["question"], None, {"temperature": 0}, 12, stop="\n\n").text
        assert sample["resps"] == [[expected]]


def test_lm_eval_chats(served: Running, tmp_path: Path) -> None:
    way = "local-chat-completions", "chat/completions", ["fruit_texts"], "--apply_chat_template"
    (texts,) = lm_eval(served, tmp_path, *way)
    for sample in texts:
        asked = [{"role": "user", "content": sample["doc"]["question"]}]
        assert sample["resps"] == [[served.engine.generate(asked, None, {"temperature": 0}, 12, stop="\n\n").text]]


class Fruit(pydantic.BaseModel):
    """The text that the model must write."""

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
