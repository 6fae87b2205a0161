"""Short stories: a wish, an obstacle, a helper and an end."""

from __future__ import annotations

from collections.abc import Iterator

from draftwood.corpus.document import Document, Split, lead, others, stream
from draftwood.corpus.names import COLOURS, GOODS, JOBS, MONTHS, PEOPLE, PLACES, SPOTS, THINGS, WEATHER, WORDS
from draftwood.corpus.templates import written

_SENTENCES = WORDS["stories"]


def stories(split: Split, seed: int) -> Iterator[Document]:
    """Yield stories without end; the first sentence is the prompt."""
    rng = stream("stories", split, seed)
    choose = rng.choice
    while True:
        who, place = lead(rng, split, PEOPLE, PLACES)
        words = {"who": who, "place": place, "friend": others(rng, PEOPLE, 1, who)[0], "thing": choose(THINGS)}
        lines = [
            written(rng, _SENTENCES["wishes"], colour=choose(COLOURS), spot=choose(SPOTS), **words),
            written(
                rng,
                _SENTENCES["obstacles"],
                weather=choose(WEATHER),
                spot=choose(SPOTS),
                days=rng.randint(2, 9),
                **words,
            ),
            written(rng, _SENTENCES["helps"], job=choose(JOBS), goods=choose(GOODS), **words),
        ]
        for _ in range(rng.randrange(3)):
            lines.append(written(rng, _SENTENCES["middles"], **words))
        lines.append(written(rng, _SENTENCES["endings"], **words))
        opening = written(rng, _SENTENCES["openings"], job=choose(JOBS), month=choose(MONTHS), **words)
        yield Document("stories", f"Story: {opening}", " " + " ".join(lines))
