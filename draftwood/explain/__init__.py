"""How an answer came about: every draft of every round, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwood.engine import Engine, Prompt
    from draftwood.explain.explanation import Explanation


def explain(engine: Engine, prompt: Prompt, **options: Any) -> Explanation:
    """Decode a prompt as `engine.generate(prompt, **options)` does, and keep what became of every draft.

    The explanation has `text` (rounds as indented trees), `html` (a page that steps through them, shown by itself in a
    notebook), `trees` and `result`. Errors are those of `generate`.
    """
    from draftwood.explain.explanation import Explanation

    return Explanation.of(engine, prompt, **options)
