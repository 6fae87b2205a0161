"""Tasks: rows of a data set as prompts with references, and a score for each answer."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from draftwood.errors import ConfigurationError

TaskMessage = dict[str, str]  # role and content
ItemScores = dict[str, float]


@dataclass(frozen=True, slots=True)
class Item:
    """One row: what the user says, turn by turn, and what the scorer needs to know."""

    id: str
    turns: tuple[str, ...]
    reference: Mapping[str, Any] = field(default_factory=dict)  # plain data
    answer: str = ""  # a right one, if the item is to be shown as an example
    group: str = ""  # category within the data set


@dataclass(frozen=True, slots=True)
class Instance:
    """An item as it is asked: everything that decides the prompt, where the answer ends, and how it is scored."""

    task: str
    version: int
    item: str
    turns: tuple[str, ...]
    examples: tuple[tuple[str, str], ...]  # (question, answer), asked before
    chat: bool  # through the checkpoint's chat template
    stop: tuple[str, ...]
    max_new_tokens: int  # of each turn
    reference: Mapping[str, Any]
    group: str = ""

    @property
    def hash(self) -> str:
        """A digest of all of it: equal hashes mean that results may be compared."""
        return digest(asdict(self))

    def prompt(self, answers: Sequence[str] = ()) -> str | list[TaskMessage]:
        """The prompt of the turn behind `answers`: text, or a conversation."""
        questions = [*self.examples, *zip(self.turns, answers, strict=False), (self.turns[len(answers)], "")]
        if not self.chat:
            return "\n\n".join(question + answer for question, answer in questions)
        messages = []
        for question, answer in questions:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer.strip()}]
        return messages[:-1]


class Task(BaseModel):
    """A data set with its options. One class per data set; `tasks.parse` makes one from a name and options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    summary: ClassVar[str]
    metric: ClassVar[str]  # the score that stands for the task
    version: ClassVar[int] = 1  # goes up when prompts or scores change
    instruction: ClassVar[str] = ""  # for chat models, before the first question
    frame: ClassVar[str] = "{}"  # what is put around a turn for models that only continue text
    ends: ClassVar[tuple[str, ...]] = ()  # stop strings, for models that only continue text
    usual_tokens: ClassVar[int] = 128
    runs_code: ClassVar[bool] = False

    max_new_tokens: int | None = Field(None, ge=1, description="most tokens of each answer; default: the task's own")

    @abstractmethod
    def items(self) -> Iterator[Item]:
        """All rows, in the data set's order. Raises ConfigurationError where files are missing or not understood."""

    @abstractmethod
    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        """Named scores of the answers to an instance's turns; empty where there is nothing to compare."""

    def cluster(self, instance: Instance) -> str:
        """A name that an instance shares with those that intervals draw together with it; empty: it is drawn alone."""
        return ""

    @property
    def headline(self) -> str:
        """The score that stands for the task as its options are."""
        return self.metric

    @property
    def example_count(self) -> int:
        """The number of rows that are shown as examples before each question."""
        return 0

    def require(self) -> None:
        """Raise ConfigurationError now where scoring will need something that is missing."""

    def examples(self, rows: Iterator[Item]) -> list[Item]:
        """Rows to show: the first ones, which are then not asked."""
        return list(islice(rows, self.example_count))

    def instances(self, limit: int | None, chat: bool = False) -> list[Instance]:
        """The first `limit` rows as they are asked."""
        self.require()
        rows = self.items()
        examples = self.examples(rows)
        items = list(rows if limit is None else islice(rows, limit))
        if not items:
            raise ConfigurationError(f"task {self.name} has no items to ask; see its file or its shots")
        return [self.instance(item, examples, chat) for item in items]

    def instance(self, item: Item, items: Sequence[Item], chat: bool) -> Instance:
        """An item behind its examples."""

        def framed(turn: str) -> str:
            return turn if chat else self.frame.format(turn)

        examples = [(framed(one.turns[0]), one.answer) for one in items]
        turns = [framed(turn) for turn in item.turns]
        if chat and self.instruction:
            first = f"{self.instruction}\n\n"
            if examples:
                examples[0] = (first + examples[0][0], examples[0][1])
            else:
                turns[0] = first + turns[0]
        return Instance(
            self.name,
            self.version,
            item.id,
            tuple(turns),
            tuple(examples),
            chat,
            () if chat else self.ends,
            self.max_new_tokens or self.usual_tokens,
            item.reference,
            item.group,
        )

    def as_dict(self) -> dict[str, Any]:
        """Name, version and options, as they head result files."""
        return {"name": self.name, "version": self.version, **self.model_dump(mode="json")}


def digest(value: Any) -> str:
    """A short digest of plain data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=list)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()
