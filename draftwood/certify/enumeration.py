"""Exact laws by enumeration: every random choice of an experiment is replayed once with its probability.

The engine itself is the experiment: its random streams are replaced by scripted choices, the loop is left as it is.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import Tensor

from draftwood.certify.distances import OutcomeT
from draftwood.sampling import distributions
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.verify import joint

Law: TypeAlias = dict[OutcomeT, float]
Replace: TypeAlias = Callable[[Any, str, Any], None]  # setattr, undone later by whoever gave it

CLEAR_FACTOR = 4  # times: an estimate that is so far below a limit needs no other

ENUMERATED = ("draft", "accept")  # purposes of random numbers; others (depth control) keep their seeded ones


class TooLarge(Exception):
    """An experiment has more outcomes than were allowed."""


class NotDiscrete(Exception):
    """An experiment asks for continuous noise, which cannot be enumerated."""


class ScriptedChoices:
    """Scripted randomness of one replay: `choose` follows the script, then takes the first possible option.

    An experiment that ends with the token that was drawn last, whichever it is, says that it is `closed`: outcomes that
    differ in this token only are then known without replays.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.others: list[list[int]] = []  # per choice beyond the script: the options left for later replays
        self.weight = 1.0
        self.closed = False
        self._drawn: Sequence[float] = ()  # weights of the last choice, where it was of a token

    def choose(self, weights: Sequence[float]) -> int:
        """The index of one option of positive weight; weights may have any sum."""
        total = math.fsum(weights)
        place = len(self.taken)
        if place < len(self.script):
            option, rest = self.script[place], []
        else:
            option, *rest = [i for i, weight in enumerate(weights) if weight > 0]
        self.taken.append(option)
        self.others.append(rest)
        self.weight *= weights[option] / total
        self._drawn = ()
        return option

    def token(self, weights: Sequence[float]) -> int:
        """`choose` for a token that may end the outcome."""
        option = self.choose(weights)
        self._drawn = weights
        return option

    def coin(self, chance: float) -> bool:
        """True with that chance."""
        return self.choose((chance, 1.0 - chance)) == 0

    def outcomes(self, outcome: Any) -> list[tuple[float, Any]]:
        """(probability, outcome) of this replay, and of all that differ in the last token of a closed one."""
        if not (self.closed and self._drawn and len(self.taken) > len(self.script) and outcome[-1] == self.taken[-1]):
            return [(self.weight, outcome)]
        self.others[-1] = []
        share = self.weight / self._drawn[outcome[-1]]
        return [(share * w, (*outcome[:-1], token)) for token, w in enumerate(self._drawn) if w > 0]


def replays(
    experiment: Callable[[ScriptedChoices], OutcomeT],
    max_outcomes: int | None = None,
    advance: Callable[[], None] | None = None,
) -> Iterator[tuple[float, OutcomeT]]:
    """(probability, outcome) of every sequence of choices, depth first; raises TooLarge when there are more.

    `advance` is called after each replay.
    """
    todo: list[list[int]] = [[]]
    done = 0
    while todo:
        if max_outcomes is not None and done >= max_outcomes:
            raise TooLarge
        choices = ScriptedChoices(todo.pop())
        outcomes = choices.outcomes(experiment(choices))
        done += len(outcomes)
        if advance is not None:
            advance()
        yield from outcomes
        for place, options in enumerate(choices.others):
            todo += [[*choices.taken[:place], option] for option in options]


class _Dive(ScriptedChoices):
    """One replay that takes options at random and counts them."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__([])
        self.rng = rng
        self.leaves = 1

    def choose(self, weights: Sequence[float]) -> int:
        options = [i for i, weight in enumerate(weights) if weight > 0]
        self.leaves *= len(options)
        return self.rng.choice(options)


def fits(experiment: Callable[[ScriptedChoices], object], max_outcomes: int, dives: int = 5) -> bool:
    """True where an experiment has an estimated `max_outcomes` or fewer, by random dives (Knuth 1975).

    Two replays are enough where it has far fewer.
    """
    rng, leaves = random.Random(0), 0
    for number in range(dives):
        dive = _Dive(rng)
        experiment(dive)
        leaves += dive.leaves
        if leaves > max_outcomes * dives:
            return False
        if number and leaves * CLEAR_FACTOR < max_outcomes:
            return True
    return True


def law_of(
    experiment: Callable[[ScriptedChoices], OutcomeT],
    max_outcomes: int | None = None,
    advance: Callable[[], None] | None = None,
) -> Law[OutcomeT]:
    """The exact distribution of an experiment's outcome."""
    law: Law[OutcomeT] = {}
    for weight, outcome in replays(experiment, max_outcomes, advance):
        law[outcome] = law.get(outcome, 0.0) + weight
    return law


def sequences(choices: ScriptedChoices, q: Tensor, count: int, replacement: bool) -> list[int]:
    """Up to `count` draws from q [V], one after the other; without replacement, drawn tokens are out."""
    weights = q.tolist()
    drawn: list[int] = []
    while len(drawn) < count and any(weight > 0 for weight in weights):
        token = choices.choose(weights)
        drawn.append(token)
        if not replacement:
            weights[token] = 0.0
    return drawn


class Scripted:
    """`Choices` as the randomness of beams (verify/joint.py)."""

    def __init__(self, choices: ScriptedChoices) -> None:
        self.choices = choices

    def coin(self, chance: float) -> bool:
        return self.choices.coin(chance)

    def pick(self, probs: Tensor) -> int:
        return self.choices.choose(probs.tolist())

    def picks(self, probs: Tensor, count: int) -> list[int]:
        return [self.pick(probs) for _ in range(count)]

    def distinct(self, probs: Tensor, count: int) -> list[int]:
        return sequences(self.choices, probs, count, False)


class Reused(Exception):
    """A random number decided two things."""


class _Coin:
    """A uniform number that is compared with a chance, or handed to `draw`, once."""

    def __init__(self, choices: ScriptedChoices, purpose: str) -> None:
        self.choices = choices
        self.purpose = purpose
        self.used = False

    def use(self) -> ScriptedChoices:
        if self.used:
            raise Reused("one random number decides two things")
        self.used = True
        return self.choices

    def __lt__(self, chance: float) -> bool:
        return self.use().coin(chance)

    def draw(self, weights: Sequence[float]) -> int:
        """A token; that of a verifier may be the last."""
        choices = self.use()
        return choices.token(weights) if self.purpose == "accept" else choices.choose(weights)


class EnumeratedRandomness:
    """Puts `Choices` in the place of the random streams of some purposes, for the code as it runs.

    `replace(owner, name, value)` sets an attribute and whoever gave it sets it back; `enumerated()` does both.
    """

    def __init__(self, replace: Replace, purposes: Sequence[str] = ENUMERATED) -> None:
        self.choices = ScriptedChoices([])
        uniform, draw = Streams.uniform, distributions.draw

        def scripted_uniform(streams: Streams, purpose: str) -> Any:
            return _Coin(self.choices, purpose) if purpose in purposes else uniform(streams, purpose)

        def scripted_draw(probs: Tensor, u: Any) -> int:
            return u.draw(probs.tolist()) if isinstance(u, _Coin) else draw(probs, u)

        def drawn_after(target: Distributions, node: int, u: Any) -> int:
            return scripted_draw(target.probs(node), u)

        def scripted_draws(probs: Tensor, us: Sequence[Any]) -> list[int]:
            return [scripted_draw(probs, u) for u in us]

        def scripted_distinct(probs: Tensor, count: int, streams: Streams) -> list[list[int]]:
            return [sequences(self.choices, row, count, False) for row in probs]

        def noise(streams: Streams, *where: Any) -> Tensor:
            raise NotDiscrete

        replace(Streams, "uniform", scripted_uniform)
        replace(Streams, "arrivals", noise)
        replace(Distributions, "draw", drawn_after)
        for original, scripted in (
            (draw, scripted_draw),
            (distributions.draws, scripted_draws),
            (distributions.draw_distinct, scripted_distinct),
            (joint.Seeded, lambda streams, purpose: Scripted(self.choices)),
        ):
            for module, name in _holders(original):
                replace(module, name, scripted)

    def law_of(
        self, run: Callable[[], OutcomeT], max_outcomes: int | None = None, advance: Callable[[], None] | None = None
    ) -> Law[OutcomeT]:
        """The exact distribution of what `run` returns."""
        return law_of(self._experiment(run), max_outcomes, advance)

    def fits(self, run: Callable[[], object], max_outcomes: int) -> bool:
        """True where `law_of` takes an estimated `max_outcomes` replays or fewer."""
        return fits(self._experiment(run), max_outcomes)

    def _experiment(self, run: Callable[[], OutcomeT]) -> Callable[[ScriptedChoices], OutcomeT]:
        def experiment(choices: ScriptedChoices) -> OutcomeT:
            self.choices = choices
            return run()

        return experiment


def _holders(value: Any) -> list[tuple[Any, str]]:
    """Every module of the package that has `value` under a name of its own."""
    name = value.__name__
    return [
        (module, name)
        for path, module in list(sys.modules.items())
        if path.startswith("draftwood.") and getattr(module, name, None) is value
    ]


@contextmanager
def enumerated() -> Iterator[EnumeratedRandomness]:
    """Randomness that is enumerated until the block ends. Not for engines that other threads use meanwhile."""
    before: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        yield EnumeratedRandomness(replace)
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)
