"""The pools of words and the sentences that the corpus is made of, from words.yaml."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

WORDS: dict[str, Any] = yaml.safe_load((files(__package__) / "words.yaml").read_text("utf-8"))
POOLS: dict[str, tuple[str, ...]] = {name: tuple(words.split()) for name, words in WORDS["pools"].items()}

PEOPLE, PLACES, THINGS, JOBS = (POOLS[name] for name in ("PEOPLE", "PLACES", "THINGS", "JOBS"))
COLOURS, DAYS, ANIMALS, GOODS = (POOLS[name] for name in ("COLOURS", "DAYS", "ANIMALS", "GOODS"))
MONTHS, SPOTS, WEATHER, FEELINGS = (POOLS[name] for name in ("MONTHS", "SPOTS", "WEATHER", "FEELINGS"))
EVENTS = POOLS["EVENTS"]
