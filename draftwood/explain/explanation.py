"""What became of every draft of one answer: decode a prompt with a recorder in the verifier's place."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from draftwood.engine import Engine, Prompt
from draftwood.explain.judging import Judgement, Recorder
from draftwood.explain.terminal import method_label
from draftwood.explain.text import Words, lines, spelling
from draftwood.explain.tree import RoundTree, trees_of
from draftwood.results import GenerationResult
from draftwood.runtime.executor import drive

HEIGHT = 760  # pixels of the page in a notebook


@dataclass(frozen=True, repr=False)
class Explanation:
    """An answer with every round of it: `text` for a terminal, `html` for a browser, `trees` for programs."""

    result: GenerationResult
    trees: list[RoundTree]
    judgements: list[Judgement]
    words: Words
    ends: frozenset[int]
    about: dict[str, Any]  # what was asked, of whom

    @classmethod
    def of(cls, engine: Engine, prompt: Prompt, **options: Any) -> Explanation:
        """Decode a prompt as `engine.generate(prompt, **options)` does, and to the same tokens."""
        work = engine._begin(engine._plan(prompt, **options))
        recorder = work.request.verify = Recorder(work.request.verify)
        for round_ in drive(work.start()):
            work.note(round_)
        result = work.result()
        about = {
            "method": method_label(result.method),
            "lossless": result.lossless,
            "models": {**engine.names, "device": str(engine.target.device)},
            "sampling": result.sampling,
            "seed": result.seed,
            "greedy": result.sampling["temperature"] == 0,
        }
        trees = trees_of(result.rounds, result.prompt_tokens, recorder.judgements)
        return cls(result, trees, recorder.judgements, spelling(engine.tokenizer), engine.end_tokens, about)

    def lines(self, width: int = 80, colour: bool = False) -> list[str]:
        """The rounds as indented trees, in lines of at most `width` columns (76 or more)."""
        return lines(self.trees, self.result.prompt_tokens, self.words, self.ends, width, colour)

    @property
    def text(self) -> str:
        """The rounds as indented trees."""
        return "\n".join(self.lines())

    @property
    def html(self) -> str:
        """A page that steps through the rounds; it needs no network."""
        from draftwood.explain.page import html

        return html(self)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Explanation({self.result.text[:40]!r}, {len(self.trees)} rounds)"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, from which it reaches nothing of the notebook."""
        style = f"width:100%;height:{HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html)}"></iframe>'
