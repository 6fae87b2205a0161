"""Log-probabilities of a given text under the target, as a request beside others: one pass over its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from draftwood.core.forest import Forest
from draftwood.core.records import TopLogprobs
from draftwood.core.row_tops import LogitsRow
from draftwood.core.topology import trunk_node
from draftwood.engine.recording import likeliest
from draftwood.runtime.session import Decoding, Run, Session
from draftwood.sampling.rows import log_prob, normalised

PIECE = 256  # tokens whose logits are held at once
ROWS = 16  # of them, whose log-probabilities are


@dataclass(slots=True)
class PromptScores:
    """Log-probabilities of the tokens of a text under the target, each given those before it; None where not scored."""

    tokens: list[int]
    logprobs: list[float | None]  # under the untouched softmax
    top_logprobs: list[TopLogprobs]  # most probable tokens, where asked for


def scored(session: Session, tokens: list[int], top: int, first: int = 1) -> Decoding[PromptScores]:
    """Score tokens[first:] with a session on the target, yielding `Run` for each piece and the scores at the end."""
    scores = PromptScores(tokens, [None] * first, [[]] * first)
    for start in range(first - 1, len(tokens) - 1, PIECE):
        end = min(start + PIECE, len(tokens) - 1)
        forest = Forest.from_prompt(tokens[: end + 1])
        answer = yield Run(session, forest, [trunk_node(place) for place in range(start, end)])
        assert answer is not None
        for place in range(start, end, ROWS):
            some = range(place - start, min(place + ROWS, end) - start)
            log_sums = [None if answer.tops is None else answer.tops.log_sums[row] for row in some]
            rows = normalised(list(map(LogitsRow, answer.logits[some.start : some.stop], log_sums)))
            following = tokens[place + 1 : place + 1 + len(rows)]
            scores.logprobs += [log_prob(row, token) for row, token in zip(rows, following, strict=True)]
            scores.top_logprobs += likeliest(rows, top) if top else [[]] * len(rows)
    yield scores
