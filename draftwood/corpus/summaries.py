"""Short reports with a summary of one sentence."""

from __future__ import annotations

from collections.abc import Iterator

from draftwood.corpus.document import Document, Split, article, lead, others, stream
from draftwood.corpus.names import COLOURS, DAYS, EVENTS, FEELINGS, GOODS, JOBS, MONTHS, PEOPLE, PLACES, SPOTS, WEATHER


def summaries(split: Split, seed: int) -> Iterator[Document]:
    """Yield reports without end; the completion is the summary.

    A summary names the event, the town and one of the two outcomes that the
    report tells, in one of a few wordings.
    """
    rng = stream("summaries", split, seed)
    while True:
        who, place = lead(rng, split, PEOPLE, PLACES)
        friend = others(rng, PEOPLE, 1, who)[0]
        event, day, spot = rng.choice(EVENTS), rng.choice(DAYS), rng.choice(SPOTS)
        job, crowd = rng.choice(JOBS), rng.randint(10, 99)
        month = rng.choice(MONTHS)
        lines = [
            rng.choice(
                (
                    f"{who}, {article(job)}, told us about the {event} in {place} on {day}.",
                    f"{who} of {place} will not forget the {event} of last {day}.",
                    f"There was {article(event)} in {place} on {day}, says {who} the {job}.",
                )
            )
        ]
        details = [
            f"It took place at the {spot} in spite of the {rng.choice(WEATHER)}.",
            f"About {crowd} people came to the {spot}.",
            f"Some of them brought {rng.choice(GOODS)} and {rng.choice(GOODS)}.",
            f"{friend} was {rng.choice(FEELINGS)} about it.",
            f"The last {event} was in {month}.",
            f"A {rng.choice(COLOURS)} flag stood at the {rng.choice(SPOTS)}.",
        ]
        lines += rng.sample(details, rng.choice((2, 3, 4)))
        won = rng.choice(
            (
                f"{friend} helped at the {spot}",
                f"{friend} lost {crowd // 2} coins",
                f"{friend} thanked {who}",
                f"{friend} left for {others(rng, PLACES, 1, place)[0]}",
            )
        )
        lines.append(f"In the end {won}.")
        short = rng.choice(
            (
                f"After the {event} in {place}, {won}.",
                f"On {day} there was {article(event)} in {place}, and {won}.",
                f"{who} told of the {event} in {place}.",
            )
        )
        yield Document("summaries", f"Report: {' '.join(lines)}\nSummary:", " " + short, {"summary": short})
