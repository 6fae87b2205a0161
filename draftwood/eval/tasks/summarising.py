"""Summaries: XSum, scored by ROUGE."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from draftwood.errors import ConfigurationError
from draftwood.eval.tasks.base import Instance, Item, ItemScores
from draftwood.eval.tasks.reading import short
from draftwood.eval.tasks.source import FileTask, SourceRow

ROUGE_KINDS = ("rouge1", "rouge2", "rougeL")


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
        _scorer()

    def item(self, row: SourceRow, number: int) -> Item:
        wanted = str(row["summary"] if "summary" in row else row["reference"]).strip()
        question = f"Article: {row['document']}\nSummarise the article in one sentence.\nSummary:"
        return Item(str(row.get("id", number)), (question,), {"summary": wanted}, " " + wanted)

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        return rouge(short(answers[0]), instance.reference["summary"])


@cache
def _scorer() -> Any:
    """The scorer of the library rouge-score (extra `eval`); ConfigurationError where it is missing."""
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise ConfigurationError("ROUGE needs the package rouge-score; install the extra draftwood[eval]") from None
    return rouge_scorer.RougeScorer(list(ROUGE_KINDS), use_stemmer=True)


def rouge(answer: str, reference: str) -> dict[str, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), with stemming as in the summarisation papers."""
    scores = _scorer().score(reference, answer)
    return {kind: float(scores[kind].fmeasure) for kind in ROUGE_KINDS}
