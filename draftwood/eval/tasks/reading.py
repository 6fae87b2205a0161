"""Questions with short answers: SQuAD v1.1 and v2, TriviaQA, GSM8K."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from draftwood.eval.scoring.answers import exact_match, final_number, same_number, squad_golds, trivia_normal, word_f1
from draftwood.eval.tasks.base import Instance, Item, ItemScores, digest
from draftwood.eval.tasks.source import FileTask, SourceRow, texts

UNANSWERABLE = "unanswerable"


def short(answer: str) -> str:
    """The first line that says something: what follows it is no part of a short answer."""
    return next((line.strip() for line in answer.split("\n") if line.strip()), "")


class Squad(FileTask):
    """Extractive question answering (Rajpurkar et al. 2016, 2018): EM and F1 by the official normalisation."""

    name = "squad"
    summary = "SQuAD v1.1 or v2: a span of the passage; EM and F1"
    metric = "f1"
    instruction = "Answer with a span of the passage and nothing else."
    ends = ("\n",)
    usual_tokens = 32
    hub = ("rajpurkar/squad", None, "validation")

    def unpack(self, document: Any) -> Iterator[SourceRow]:
        for entry in super().unpack(document):
            if "paragraphs" not in entry:
                yield entry
                continue
            for paragraph in entry["paragraphs"]:
                for question in paragraph["qas"]:
                    yield {"context": paragraph["context"], **question}

    def item(self, row: SourceRow, number: int) -> Item:
        golds = squad_golds(texts(row["answers"]))
        question = f"Passage: {row['context']}\nQuestion: {row['question']}\nAnswer:"
        return Item(str(row.get("id", number)), (question,), {"answers": golds}, " " + (golds[0] or UNANSWERABLE))

    def cluster(self, instance: Instance) -> str:
        return digest(instance.turns[0].rpartition("\nQuestion: ")[0])  # the passage

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        golds = instance.reference["answers"]
        answer = short(answers[0])
        if answer.lower().rstrip(".") == UNANSWERABLE and golds == [""]:
            answer = ""
        return {"em": exact_match(answer, golds), "f1": word_f1(answer, golds)}


class TriviaQA(FileTask):
    """Questions without a passage (Joshi et al. 2017): EM and F1 against all aliases of the answer."""

    name = "triviaqa"
    summary = "TriviaQA without passages; EM and F1 against all aliases"
    metric = "em"
    instruction = "Answer with the name or term only."
    ends = ("\n",)
    usual_tokens = 24
    hub = ("mandarjoshi/trivia_qa", "rc.nocontext", "validation")

    def unpack(self, document: Any) -> Iterator[SourceRow]:
        yield from super().unpack(document["Data"] if isinstance(document, dict) and "Data" in document else document)

    def item(self, row: SourceRow, number: int) -> Item:
        lower = {str(key).lower(): value for key, value in row.items()}
        answer = lower["answer"]
        if isinstance(answer, dict):
            named = {str(key).lower(): value for key, value in answer.items()}
            kinds = ("value", "aliases", "normalizedaliases", "normalized_aliases", "humananswers")
            golds = [text for kind in kinds for text in texts(named.get(kind))]
        else:
            golds = [*texts(answer), *texts(lower.get("aliases"))]
        if not golds:
            raise ValueError("there is no answer")
        name = str(lower.get("questionid", lower.get("question_id", lower.get("id", number))))
        question = f"Question: {lower['question']}\nAnswer:"
        return Item(name, (question,), {"answers": list(dict.fromkeys(golds))}, " " + golds[0])

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        golds, answer = instance.reference["answers"], short(answers[0])
        return {"em": exact_match(answer, golds, trivia_normal), "f1": word_f1(answer, golds, trivia_normal)}


class Gsm8k(FileTask):
    """Word problems (Cobbe et al. 2021): the final number."""

    name = "gsm8k"
    summary = "GSM8K word problems; the final number"
    metric = "correct"
    instruction = "Solve the problem step by step. End with a line '#### ' and the number."
    ends = ("\nQuestion:",)
    usual_tokens = 256
    hub = ("openai/gsm8k", "main", "test")

    def item(self, row: SourceRow, number: int) -> Item:
        solution = str(row["solution"] if "solution" in row else row["answer"])
        gold = final_number(solution)
        if gold is None:
            raise ValueError("the solution has no number")
        plain = re.sub(r"<<[^>]*>>", "", solution)  # the calculator's notes
        question = f"Question: {row['question']}\nAnswer:"
        return Item(str(row.get("id", number)), (question,), {"number": str(gold)}, " " + plain)

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        return {"correct": same_number(answers[0], instance.reference["number"])}
