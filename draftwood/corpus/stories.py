"""Short stories: a wish, an obstacle, a helper and an end."""

from __future__ import annotations

import random
from collections.abc import Iterator

from draftwood.corpus.document import Document, Split, article, lead, others, stream
from draftwood.corpus.names import COLOURS, DAYS, FEELINGS, GOODS, JOBS, MONTHS, PEOPLE, PLACES, SPOTS, THINGS, WEATHER


def _openings(rng: random.Random, who: str, place: str) -> str:
    job, month = rng.choice(JOBS), rng.choice(MONTHS)
    return rng.choice(
        (
            f"Once there was {article(job)} in {place} whose name was {who}.",
            f"In {place} there lived {article(job)} called {who}.",
            f"{who} was {article(job)} who lived near the {rng.choice(SPOTS)} of {place}.",
            f"It was {month} in {place}, and {who} the {job} was {rng.choice(FEELINGS)}.",
            f"Everybody in {place} knew {who} the {job}.",
        )
    )


def _wishes(rng: random.Random, who: str, thing: str) -> str:
    colour, spot = rng.choice(COLOURS), rng.choice(SPOTS)
    return rng.choice(
        (
            f"More than anything, {who} wanted {article(colour)} {thing}.",
            f"One {rng.choice(DAYS)} {who} lost {article(colour)} {thing} at the {spot}.",
            f"One day {who} dreamed of {article(colour)} {thing} under the {spot}.",
            f"For years {who} had kept {article(colour)} {thing} and told nobody about it.",
            f"A letter said that {article(colour)} {thing} was hidden at the {spot}.",
        )
    )


def _obstacles(rng: random.Random, who: str, thing: str, friend: str) -> str:
    weather, spot, days = rng.choice(WEATHER), rng.choice(SPOTS), rng.randint(2, 9)
    return rng.choice(
        (
            f"But the {weather} came, and the way to the {spot} was closed for {days} days.",
            f"But {friend} had taken the {thing} to the {spot} and would not give it back.",
            f"{who} looked at the {spot}, then at the {rng.choice(SPOTS)}, and found nothing.",
            f"There was so much {weather} that nobody left the {spot}.",
            f"The {thing} cost {days * 10} coins, and {who} had only {days}.",
        )
    )


def _helps(rng: random.Random, who: str, thing: str, friend: str) -> str:
    job, goods = rng.choice(JOBS), rng.choice(GOODS)
    return rng.choice(
        (
            f'"I can help you," said {friend} the {job}. "But I want {goods} for it."',
            f"Then {friend} the {job} came by and asked why {who} was so {rng.choice(FEELINGS)}.",
            f'{who} asked {friend} for help. "Go to the {rng.choice(SPOTS)}," said {friend}.',
            f"{friend} gave {who} some {goods} and {article(rng.choice(COLOURS))} map.",
            f'"Wait until {rng.choice(DAYS)}," said {friend}, and {who} waited.',
        )
    )


def _middles(rng: random.Random, who: str, thing: str, friend: str) -> str:
    return rng.choice(
        (
            f"So they walked through the {rng.choice(WEATHER)} to the {rng.choice(SPOTS)}.",
            f"That night {who} could not sleep and thought of {friend}.",
            f"They carried {rng.choice(GOODS)} and {rng.choice(GOODS)} to the {rng.choice(SPOTS)}.",
            f"{friend} sang, and {who} was no longer {rng.choice(FEELINGS)}.",
            f"At the {rng.choice(SPOTS)} they met a {rng.choice(('man', 'woman', 'child'))} "
            f"with {article(rng.choice(THINGS))}.",
        )
    )


def _endings(rng: random.Random, who: str, thing: str, friend: str, place: str) -> str:
    return rng.choice(
        (
            f"In the end {who} had the {thing} again and was {rng.choice(FEELINGS)}.",
            f"Since then {who} and {friend} have been friends, and {place} still talks of it.",
            f"{who} gave the {thing} to {friend} and went home {rng.choice(FEELINGS)}.",
            f"The {thing} was never found, but {who} stayed in {place} with {friend}.",
            f'"Keep the {thing}," said {who}. And that was the end of it.',
        )
    )


def stories(split: Split, seed: int) -> Iterator[Document]:
    """Yield stories without end; the first sentence is the prompt."""
    rng = stream("stories", split, seed)
    while True:
        who, place = lead(rng, split, PEOPLE, PLACES)
        friend = others(rng, PEOPLE, 1, who)[0]
        thing = rng.choice(THINGS)
        lines = [_wishes(rng, who, thing), _obstacles(rng, who, thing, friend)]
        lines.append(_helps(rng, who, thing, friend))
        for _ in range(rng.randrange(3)):
            lines.append(_middles(rng, who, thing, friend))
        lines.append(_endings(rng, who, thing, friend, place))
        opening = _openings(rng, who, place)
        yield Document("stories", f"Story: {opening}", " " + " ".join(lines))
