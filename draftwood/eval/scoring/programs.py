"""Programs: the part of an answer that is one, and pass@k. Nothing is run here (sandbox/programs.py does)."""

from __future__ import annotations

import math
import re

FENCE = re.compile(r"```(?:[pP]ython\d?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def pass_at(n: int, correct: int, k: int) -> float:
    """The unbiased estimate of the chance that one of k samples passes, of n of which `correct` did.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021, Eq. 1), in whole numbers. Raises ValueError where k is not in 1..n.
    """
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"pass@{k} of {n} samples, {correct} correct, means nothing")
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


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
