"""ROUGE of summaries, through the library rouge-score (extra `eval`)."""

from __future__ import annotations

from functools import cache
from typing import Any

from draftwood.errors import ConfigurationError

KINDS = ("rouge1", "rouge2", "rougeL")


@cache
def _scorer() -> Any:
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise ConfigurationError("ROUGE needs the package rouge-score; install the extra draftwood[eval]") from None
    return rouge_scorer.RougeScorer(list(KINDS), use_stemmer=True)


def require_rouge() -> None:
    """Raise ConfigurationError where the library is missing."""
    _scorer()


def rouge(answer: str, reference: str) -> dict[str, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), with stemming as in the summarisation papers."""
    scores = _scorer().score(reference, answer)
    return {kind: float(scores[kind].fmeasure) for kind in KINDS}
