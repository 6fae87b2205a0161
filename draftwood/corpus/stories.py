"""Short stories, with a wish, an obstacle, a helper and an end; short reports with a summary of one sentence."""

from __future__ import annotations

from collections.abc import Iterator

from draftwood.corpus.document import Document, Split, lead, others, stream
from draftwood.corpus.names import PEOPLE, PLACES, POOLS, WORDS
from draftwood.corpus.templates import filled, written


def stories(split: Split, seed: int) -> Iterator[Document]:
    """Yield stories without end; the first sentence is the prompt."""
    rng = stream("stories", split, seed)

    def draw(pool: str) -> str:
        return rng.choice(POOLS[pool])

    while True:
        who, place = lead(rng, split, PEOPLE, PLACES)
        words = {"who": who, "place": place, "friend": others(rng, PEOPLE, 1, who)[0], "thing": draw("THINGS")}
        lines = [
            written(rng, WORDS["stories"]["wishes"], colour=draw("COLOURS"), spot=draw("SPOTS"), **words),
            written(
                rng,
                WORDS["stories"]["obstacles"],
                weather=draw("WEATHER"),
                spot=draw("SPOTS"),
                days=rng.randint(2, 9),
                **words,
            ),
            written(rng, WORDS["stories"]["helps"], job=draw("JOBS"), goods=draw("GOODS"), **words),
        ]
        for _ in range(rng.randrange(3)):
            lines.append(written(rng, WORDS["stories"]["middles"], **words))
        lines.append(written(rng, WORDS["stories"]["endings"], **words))
        opening = written(rng, WORDS["stories"]["openings"], job=draw("JOBS"), month=draw("MONTHS"), **words)
        yield Document("stories", f"Story: {opening}", " " + " ".join(lines))


def summaries(split: Split, seed: int) -> Iterator[Document]:
    """Yield reports without end; the completion is the summary: event, town and outcome in one of a few wordings."""
    rng = stream("summaries", split, seed)

    def draw(pool: str) -> str:
        return rng.choice(POOLS[pool])

    while True:
        who, place = lead(rng, split, PEOPLE, PLACES)
        words: dict[str, object] = {"who": who, "place": place, "friend": others(rng, PEOPLE, 1, who)[0]}
        words |= {"event": draw("EVENTS"), "day": draw("DAYS"), "spot": draw("SPOTS"), "job": draw("JOBS")}
        crowd = rng.randint(10, 99)
        words |= {"crowd": crowd, "half": crowd // 2, "month": draw("MONTHS")}
        lines = [written(rng, WORDS["summaries"]["news"], **words)]
        details = filled(rng, WORDS["summaries"]["details"], **words)
        lines += rng.sample(details, rng.choice((2, 3, 4)))
        outcome = written(rng, WORDS["summaries"]["outcomes"], elsewhere=others(rng, PLACES, 1, place)[0], **words)
        short = written(rng, WORDS["summaries"]["summaries"], outcome=outcome, **words)
        report = " ".join([*lines, f"In the end {outcome}."])
        yield Document("summaries", f"Report: {report}\nSummary:", " " + short, {"summary": short})
