"""THE loop: draft, verify, advance, for every method. Written for one request; yields its model runs and its rounds.

Drafters append nodes, verifiers choose the next roots, sessions hold keys and values; a driver answers the runs.
"""

from __future__ import annotations

from collections.abc import Generator

from draftwood.core.forest import Forest, Verdict, advance
from draftwood.core.records import Round
from draftwood.engine.generation import Generation
from draftwood.runtime.session import Answer, Decoding, Run
from draftwood.sampling.distributions import Distributions


def rounds(generation: Generation) -> Decoding[Round]:
    """Decode one request, yielding `Run` (please compute, send an `Answer`) and `Round` (what happened).

    After a round the next roots are chosen but not forwarded (pending): one target forward per round serves both.
    """
    forest, recorder = generation.begin(), generation.recorder()
    while not recorder.over:
        verdict, target = yield from recorder.timed(_round(generation, forest))
        trunk, kept, grown = advance(forest, verdict)
        generation.target.commit(trunk, kept, grown)
        generation.drafter.commit(trunk, kept, grown, target)
        record = recorder.finish_round(forest, verdict, target, trunk, kept, grown)
        generation.depth.observe(record, target.hidden(verdict.parent[0]))
        generation.leading = target.leads
        forest = grown
        yield record
    generation.drafter.finish(forest)


def _round(generation: Generation, forest: Forest) -> Generator[Run, Answer, tuple[Verdict, Distributions]]:
    """One drafting phase and one target forward: the verdict, and the distributions that it was reached with."""
    generation.streams.at(forest.position(forest.live[0]))
    generation.depth.start(generation.streams, generation.current_load(forest))
    yield from generation.drafter.draft(forest, generation.depth, forest.room - 1, generation.propose)
    reads = generation.drafter.reads if generation.depth.prepares else ()
    states, leading = generation.states, generation.leading
    answer = yield Run(generation.target, forest, forest.unforwarded, hidden=states, reads=reads, leading=leading)
    target = generation.distributions(forest, answer)
    return generation.verify(forest, target, generation.streams), target
