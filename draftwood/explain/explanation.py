"""Explains an answer: decodes a prompt with a recorder in the verifier's place, which notes the fate of each draft."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from draftwood.core.records import Kind, Round
from draftwood.engine.generation import Generation
from draftwood.engine.results import GenerationResult
from draftwood.engine.stopping import Pieces
from draftwood.explain import page
from draftwood.explain.judging import RoundJudgement, VerdictRecorder
from draftwood.explain.terminal import method_label, percent
from draftwood.explain.text import TextOf, lines, spelling
from draftwood.explain.tree import RoundTree, trees_of
from draftwood.models.text.tokenizer import Tokenizer

FRAME_HEIGHT = 760  # pixels of the page in a notebook


@dataclass(frozen=True, slots=True)
class RecordedGeneration:
    """A generation with a recorder in its verifier's place; it gives the tokens that it would give without one."""

    generation: Generation
    judgements: list[RoundJudgement]  # one for each round; there may be more of them than rounds that were noted
    words: TextOf
    about: dict[str, Any]  # what was asked, of whom
    spelled: Pieces | None

    @classmethod
    def of(cls, generation: Generation, tokenizer: Tokenizer | None, models: Mapping[str, Any]) -> RecordedGeneration:
        """Begin to record; `models` are their names."""
        recorder = generation.verify = VerdictRecorder(generation.verify)
        request = generation.request
        method = request.method.as_dict()
        about = {
            "method": method_label(method),
            "options": method,
            "lossless": request.method.lossless,
            "coupled": recorder.coupled,
            "models": dict(models),
            "sampling": request.params.model_dump(mode="json"),
            "seed": request.seed,
            "greedy": request.params.greedy,
        }
        spelled = (
            None
            if tokenizer is None
            else Pieces(tokenizer.stream(list(request.prompt), not request.skip_special_tokens))
        )
        return cls(generation, recorder.judgements, spelling(tokenizer), about, spelled)

    def pieces(self, round_: Round) -> list[tuple[str, Kind]]:
        """The text that became certain by a round, in pieces with the kinds of their tokens."""
        if self.spelled is None:
            return [(self.words([token]), kind) for token, kind in zip(round_.tokens, round_.kinds, strict=True)]
        return self.spelled.split(round_.text, round_.tokens, round_.kinds)


@dataclass(frozen=True, repr=False)
class Explanation:
    """An answer with every round of it: `text` for a terminal, `html` for a browser, `trees` for programs."""

    result: GenerationResult
    trees: list[RoundTree]
    judgements: list[RoundJudgement]
    words: TextOf
    pieces: list[list[tuple[str, Kind]]]  # of each round: text that became certain by it, and where it came from
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
        """Run a generation and record it."""
        recording = RecordedGeneration.of(generation, tokenizer, models)
        pieces = []
        for round_ in run(generation):
            generation.note(round_)
            pieces.append(recording.pieces(round_))
        result, judgements = generation.result(), recording.judgements
        trees = trees_of(result.rounds, result.prompt_tokens, judgements)
        ends = generation.request.end_tokens
        return cls(result, trees, judgements, recording.words, pieces, ends, recording.about)

    def lines(self, width: int = 80, colour: bool = False) -> list[str]:
        """The rounds as indented trees, in lines of at most `width` columns (76 or more)."""
        rows = lines(self.trees, self.result.prompt_tokens, self.words, self.ends, width, colour)
        if (bound := self.bound) is not None:
            rows += [
                "",
                f"{bound['positions']} positions with independent drafts: {percent(bound['accepted'])} accepted;",
                f"at most {percent(bound['bound'])} by any rule that judges node by node",
            ]
        return rows

    @property
    def bound(self) -> dict[str, float] | None:
        """At nodes with independent draws: how often one was accepted, and the mean of alpha*(n) (verify/bound.py)."""
        bounds = [one for judgement in self.judgements for one in judgement.bounds]
        if not bounds:
            return None
        return {
            "positions": len(bounds),
            "accepted": sum(accepted for _, accepted in bounds) / len(bounds),
            "bound": sum(bound for bound, _ in bounds) / len(bounds),
        }

    @property
    def text(self) -> str:
        """The rounds as indented trees."""
        return "\n".join(self.lines())

    @property
    def html(self) -> str:
        """A page that steps through the rounds; it needs no network."""
        return page.html(self.document)

    @property
    def document(self) -> dict[str, Any]:
        """All that the page shows, as plain data."""
        result, words, rounds, before = self.result, self.words, [], list(self.result.prompt_tokens)
        for tree, judgement, pieces in zip(self.trees, self.judgements, self.pieces, strict=True):
            rounds.append(page.round_document(tree, judgement, before, words, self.ends, pieces))
            before += tree.round_.tokens
        return {**page.start(self.about, result.prompt_tokens, words), "rounds": rounds, **page.end(result)}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Explanation({self.result.text[:40]!r}, {len(self.trees)} rounds)"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, from which it reaches nothing of the notebook."""
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html)}"></iframe>'
