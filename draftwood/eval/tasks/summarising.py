"""Summaries: XSum, scored by ROUGE."""

from __future__ import annotations

from collections.abc import Sequence

from draftwood.eval.scoring.overlap import require_rouge, rouge
from draftwood.eval.tasks.base import Instance, Item, Scores
from draftwood.eval.tasks.reading import short
from draftwood.eval.tasks.source import FileTask, Row


class XSum(FileTask):
    """News articles in one sentence (Narayan et al. 2018): ROUGE-1, -2 and -L."""

    name = "xsum"
    summary = "XSum: an article in one sentence; ROUGE (extra eval)"
    metric = "rougeL"
    instruction = "Answer with one sentence and nothing else."
    ends = ("\n",)
    usual_tokens = 64
    hub = ("EdinburghNLP/xsum", None, "test")

    def require(self) -> None:
        require_rouge()

    def item(self, row: Row, number: int) -> Item:
        wanted = str(row["summary"] if "summary" in row else row["reference"]).strip()
        question = f"Article: {row['document']}\nSummarise the article in one sentence.\nSummary:"
        return Item(str(row.get("id", number)), (question,), {"summary": wanted}, " " + wanted)

    def score(self, instance: Instance, answers: Sequence[str]) -> Scores:
        return rouge(short(answers[0]), instance.reference["summary"])
