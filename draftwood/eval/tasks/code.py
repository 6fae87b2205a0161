"""Programs: HumanEval, whose tests are run behind walls."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field

from draftwood.eval.sandbox.programs import ProgramLimits, run_program
from draftwood.eval.tasks.base import Instance, Item, ItemScores
from draftwood.eval.tasks.source import FileTask, SourceRow

FENCE = re.compile(r"```(?:[pP]ython\d?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class HumanEval(FileTask):
    """Functions to be completed (Chen et al. 2021): whether the data set's tests pass; pass@k over seeds."""

    name = "humaneval"
    summary = "HumanEval: functions whose tests are run; pass@k, k up to the number of seeds"
    metric = "passed"
    instruction = "Complete the function. Answer with the whole function in a Python code block."
    ends = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n@", "\nassert", "\n\n\n\n")
    usual_tokens = 256
    runs_code = True
    shown = 0
    hub = ("openai/openai_humaneval", None, "test")

    seconds: float = Field(10.0, gt=0, description="time that a program may take")
    memory: int = Field(1 << 29, ge=1 << 27, description="bytes that a program may use")

    def require(self) -> None:
        """Refuses at once where the machine cannot hold a program in."""
        run_program("")

    def item(self, row: SourceRow, number: int) -> Item:
        prompt = str(row["prompt"])
        reference = {"prompt": prompt, "entry_point": str(row["entry_point"]), "test": str(row["test"])}
        name = str(row.get("task_id", row.get("id", number)))
        # Without its last line break: a model that continues text writes it as a part of its next token.
        return Item(name, (prompt.rstrip("\n"),), reference, "\n" + str(row.get("canonical_solution", "")))

    def score(self, instance: Instance, answers: Sequence[str]) -> ItemScores:
        prompt, function = instance.reference["prompt"], instance.reference["entry_point"]
        answer = answers[0] if answers[0].startswith("\n") or instance.chat else "\n" + answers[0]
        program = full_program(prompt.rstrip("\n"), answer, function)
        helpers = prompt.split(f"def {function}(", 1)[0]  # tests may use what stands before the function
        tests = f"{helpers}\n\n{instance.reference['test']}\n\ncheck({function})\n"
        return {
            "passed": float(run_program(program, tests, [function], ProgramLimits(self.seconds, self.memory)).passed)
        }


def full_program(prompt: str, answer: str, entry_point: str) -> str:
    """The function that an answer gives: of chat models the fenced program, of others the prompt and what follows."""
    fenced = FENCE.search(answer)
    if fenced is not None:
        program = fenced[1]
        if re.search(rf"^def {re.escape(entry_point)}\b", program, re.MULTILINE):
            head = prompt.split(f"def {entry_point}", 1)[0]  # imports that the answer may have left out
            return head + "\n" + program
        return prompt + "\n" + program
    return prompt + answer
