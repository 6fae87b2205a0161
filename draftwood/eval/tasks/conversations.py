"""Open-ended questions: Alpaca, MT-Bench and Spec-Bench. There is no right answer: a judge rates, if one is named.

The perplexity of answers under the target is measured of every task (eval/running.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import Field

from draftwood.errors import ConfigurationError
from draftwood.eval.scoring.judge import Judge
from draftwood.eval.tasks.base import Instance, Item, ItemScores
from draftwood.eval.tasks.source import FileTask, SourceRow, texts

FRAME = "User: {}\nAssistant:"


class OpenQuestions(FileTask):
    """Questions of a user, one or two turns each."""

    metric = "perplexity"
    frame = FRAME
    ends = ("\nUser:",)
    usual_tokens = 256
    shown = 0

    judge: str | None = Field(None, description="address of an OpenAI-compatible endpoint, up to /v1")
    judge_model: str | None = Field(None, description="the model that judges there")

    @property
    def headline(self) -> str:
        return self.metric if self.judge is None else "rating"

    def require(self) -> None:
        self._judge()

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        judge = self._judge()
        if judge is None:
            return {}
        questions = instance.reference["turns"]
        rights = instance.reference.get("right") or []
        turns = list(zip(questions, [answer.strip() for answer in answers], strict=True))
        ratings = [
            judge.rate(turns[: last + 1], rights[last] if last < len(rights) else None) for last in range(len(turns))
        ]
        each = {f"rating_{number}": rating for number, rating in enumerate(ratings, 1)} if len(ratings) > 1 else {}
        return {"rating": sum(ratings) / len(ratings), **each}

    def _judge(self) -> Judge | None:
        if self.judge is None:
            return None
        if self.judge_model is None:
            raise ConfigurationError(f"task {self.name} has a judge but no judge_model; name the model that judges")
        return Judge(self.judge, self.judge_model)


class Alpaca(OpenQuestions):
    """Instructions (Taori et al. 2023), some with an input."""

    name = "alpaca"
    summary = "Alpaca instructions, open-ended; rating if a judge is named"
    hub = ("tatsu-lab/alpaca", None, "train")

    def item(self, row: SourceRow, number: int) -> Item:
        question = str(row["instruction"] if "instruction" in row else row["prompt"])
        if row.get("input"):
            question += f"\n\n{row['input']}"
        right = row.get("output", row.get("reference"))
        answer = "" if right is None else f" {right}"
        return Item(str(row.get("id", number)), (question,), {"turns": [question], "right": texts(right)}, answer)


class MTBench(OpenQuestions):
    """Eighty questions in two turns (Zheng et al. 2023); the rating is the mean over turns."""

    name = "mt_bench"
    summary = "MT-Bench, two turns; rating if a judge is named"
    hub = ("HuggingFaceH4/mt_bench_prompts", None, "train")

    def item(self, row: SourceRow, number: int) -> Item:
        turns = row["turns"] if "turns" in row else row["prompt"]
        if isinstance(turns, str) or not turns:
            raise ValueError("turns is no list of questions")
        name = str(row.get("question_id", row.get("prompt_id", row.get("id", number))))
        turns = [str(turn) for turn in turns]
        reference = {"turns": turns, "right": texts(row.get("reference"))}
        return Item(name, tuple(turns), reference, group=str(row.get("category", "")))


class SpecBench(MTBench):
    """The questions of Spec-Bench (Xia et al. 2024): six kinds of work, MT-Bench's among them."""

    name = "spec_bench"
    summary = "Spec-Bench's question file, six kinds of work; for speed"

    def rows(self) -> Iterator[SourceRow]:
        if self.path is None:
            raise ConfigurationError("task spec_bench reads Spec-Bench's question.jsonl; give 'spec_bench:path=FILE'")
        yield from super().rows()
