"""Tasks by name: data sets read from their own files, and the embedded corpus's kinds of work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.eval.tasks.base import Instance, Item, ItemScores, Task, TaskMessage
from draftwood.eval.tasks.code import HumanEval
from draftwood.eval.tasks.conversations import Alpaca, MTBench, SpecBench
from draftwood.eval.tasks.databases import Spider
from draftwood.eval.tasks.embedded import EMBEDDED
from draftwood.eval.tasks.reading import Gsm8k, Squad, TriviaQA
from draftwood.eval.tasks.summarising import XSum
from draftwood.util import config

__all__ = ["TASKS", "Instance", "Item", "ItemScores", "Task", "TaskMessage", "parse", "parse_all"]

DATA_SETS: tuple[type[Task], ...] = (Squad, Spider, TriviaQA, Gsm8k, HumanEval, XSum, Alpaca, MTBench, SpecBench)

TASKS: dict[str, type[Task]] = {task.name: task for task in (*EMBEDDED, *DATA_SETS)}


def parse(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """A task from its name and options; raises ConfigurationError for unknown ones."""
    if name not in TASKS:
        raise ConfigurationError(f"there is no task {name!r}" + did_you_mean(name, TASKS))
    return config.parse(TASKS[name], options or {}, f"task {name}")


def parse_all(specs: str) -> list[Task]:
    """Tasks of 'qa,squad:path=FILE;shots=0': a comma before a letter begins the next task. Each name once."""
    tasks = []
    for part in re.split(r",(?=\s*[A-Za-z])", specs):
        name, _, options = part.strip().partition(":")
        tasks.append(parse(name, config.assignments(option for option in options.split(";") if option.strip())))
    names = [task.name for task in tasks]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigurationError(f"task {twice[0]} is named twice; name each task once")
    return tasks
