"""Short reports with a summary of one sentence."""

from __future__ import annotations

from collections.abc import Iterator

from draftwood.corpus.document import Document, Split, lead, others, stream
from draftwood.corpus.names import DAYS, EVENTS, JOBS, MONTHS, PEOPLE, PLACES, SPOTS, WORDS
from draftwood.corpus.templates import filled, written

_SENTENCES = WORDS["summaries"]


def summaries(split: Split, seed: int) -> Iterator[Document]:
    """Yield reports without end; the completion is the summary: event, town and outcome in one of a few wordings."""
    rng = stream("summaries", split, seed)
    choose = rng.choice
    while True:
        who, place = lead(rng, split, PEOPLE, PLACES)
        words: dict[str, object] = {"who": who, "place": place, "friend": others(rng, PEOPLE, 1, who)[0]}
        words |= {"event": choose(EVENTS), "day": choose(DAYS), "spot": choose(SPOTS), "job": choose(JOBS)}
        crowd = rng.randint(10, 99)
        words |= {"crowd": crowd, "half": crowd // 2, "month": choose(MONTHS)}
        lines = [written(rng, _SENTENCES["news"], **words)]
        details = filled(rng, _SENTENCES["details"], **words)
        lines += rng.sample(details, choose((2, 3, 4)))
        outcome = written(rng, _SENTENCES["outcomes"], elsewhere=others(rng, PLACES, 1, place)[0], **words)
        short = written(rng, _SENTENCES["summaries"], outcome=outcome, **words)
        report = " ".join([*lines, f"In the end {outcome}."])
        yield Document("summaries", f"Report: {report}\nSummary:", " " + short, {"summary": short})
