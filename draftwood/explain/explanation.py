"""What became of every draft of one answer: decode a prompt with a recorder in the verifier's place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from draftwood.core.records import Round
from draftwood.explain.judging import Judgement, Recorder
from draftwood.explain.terminal import method_label
from draftwood.explain.text import Words, lines, spelling
from draftwood.explain.tree import RoundTree, trees_of
from draftwood.generation import Generation
from draftwood.models.tokenizer import Tokenizer
from draftwood.results import GenerationResult

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
    def of(
        cls,
        generation: Generation,
        run: Callable[[Generation], Iterable[Round]],
        tokenizer: Tokenizer | None,
        models: Mapping[str, Any],
    ) -> Explanation:
        """Run a generation, with a recorder in its verifier's place, to the tokens that it would give without one."""
        recorder = generation.verify = Recorder(generation.verify)
        for round_ in run(generation):
            generation.note(round_)
        result = generation.result()
        about = {
            "method": method_label(result.method),
            "lossless": result.lossless,
            "models": dict(models),
            "sampling": result.sampling,
            "seed": result.seed,
            "greedy": result.sampling["temperature"] == 0,
        }
        trees = trees_of(result.rounds, result.prompt_tokens, recorder.judgements)
        return cls(result, trees, recorder.judgements, spelling(tokenizer), generation.request.end_tokens, about)

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
