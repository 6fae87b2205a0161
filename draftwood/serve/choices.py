"""Maps the results and events of a request's generations to its choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from draftwood.engine.engine import StreamEvent
from draftwood.engine.results import GenerationResult
from draftwood.serve.answers import FINISH_REASONS, Piece, pieces
from draftwood.serve.request_mapping import RequestPlan
from draftwood.serve.request_run import RequestRun


def choices_of(plan: RequestPlan, results: Sequence[GenerationResult]) -> Iterator[tuple[int, Piece]]:
    """(index, choice), `n` for each prompt: beams, texts in the order of their seeds, or the best of the texts."""
    for prompt in range(len(plan.prompts)):
        mine = results[prompt * plan.each : (prompt + 1) * plan.each]
        if plan.each > plan.n:
            mine = sorted(mine, key=lambda one: -sum(one.logprobs) / max(1, len(one.logprobs)))[: plan.n]
        yield from enumerate((piece for result in mine for piece in pieces(result)), prompt * plan.n)


Deltas = Callable[[int, StreamEvent], list[tuple[int, Piece]]]


def deltas_of(run: RequestRun) -> Deltas:
    """A function that turns an event of a generation into the next parts of its choices, (index, part)."""
    return _beam_deltas(run) if run.plan.beams else lambda index, event: [(index, _next_part(run, index, event))]


def _next_part(run: RequestRun, index: int, event: StreamEvent) -> Piece:
    finish = None if event.result is None else FINISH_REASONS[event.result.finish_reason]
    before = run.generations[index].request.prompt
    return Piece(event.text, event.tokens, event.logprobs, event.round.top_logprobs, finish, before=before)


def _beam_deltas(run: RequestRun) -> Deltas:
    """The hypotheses of a generation are choices: the first grows by what all share, the others come at the end."""
    sent = [(0, 0)] * run.plan.generations  # characters and tokens

    def deltas(index: int, event: StreamEvent) -> list[tuple[int, Piece]]:
        first, (characters, tokens) = index * run.plan.n, sent[index]
        if event.result is None:
            sent[index] = characters + len(event.text), tokens + len(event.tokens)
            return [(first, _next_part(run, index, event))]
        beams = pieces(event.result)
        best = beams[0]
        beams[0] = replace(
            best,
            text=best.text[characters:],
            tokens=best.tokens[tokens:],
            logprobs=best.logprobs[tokens:],
            top=best.top[tokens:],
        )
        return [(first + i, piece) for i, piece in enumerate(beams)]

    return deltas
