"""The options of methods that are worth searching, and a seeded search over them by optuna (extra `tune`).

Trees have a search of their own (search.py).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from draftwood.errors import ConfigurationError

Space: TypeAlias = Mapping[str, tuple[Any, ...]]  # option -> the values to try; numbers in order

# The first two options of a space span its heat map.
SPACES: dict[str, Space] = {
    "speculative": {"gamma": tuple(range(1, 17))},
    "mcsd-fork": {"width": tuple(range(1, 17)), "gamma": tuple(range(1, 9))},
    "dsbd": {
        "draft_width": tuple(range(2, 13)),
        "gamma": tuple(range(1, 7)),
        "threshold": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
        "min_width": tuple(range(1, 5)),
        "root_weights": ("draft", "target"),
    },
    "speculative-beam-search": {"draft_width": tuple(range(2, 17)), "gamma": tuple(range(1, 7))},
    "lookup": {"gamma": tuple(range(1, 33)), "min_ngram": tuple(range(1, 5))},
}


def space(name: str, fixed: Mapping[str, Any]) -> Space:
    """The options of a method that are still open where some are fixed."""
    left = {option: values for option, values in SPACES[name].items() if option not in fixed}
    if name == "dsbd" and fixed.get("width") is not None:  # these are about dynamic widths
        left = {option: values for option, values in left.items() if option not in ("threshold", "min_width")}
    if not left:
        raise ConfigurationError(f"every option of {name} that could be tuned is fixed; leave one of them open")
    return left


def size(options: Space) -> int:
    """The number of combinations."""
    return math.prod(map(len, options.values()))


def combinations(options: Space) -> list[dict[str, Any]]:
    """All values of a space."""
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


class GridSearch:
    """A search that asks for each of some values once, in an order drawn from the seed."""

    def __init__(self, values: Iterable[dict[str, Any]], seed: int) -> None:
        self._left = list(values)
        random.Random(seed).shuffle(self._left)

    def ask(self) -> dict[str, Any] | None:
        """Values to try; None when all were."""
        return self._left.pop() if self._left else None

    def tell(self, score: float | None) -> None:
        """Take a score; it changes nothing."""


class TPESearch:
    """A search by TPE (tree-structured Parzen estimator): `ask` for values, `tell` their score, and so on.

    It begins with the `usual` values, tries random ones for a third of the `runs`, and then values that are similar to
    the best. The same seed and scores give the same values.
    """

    def __init__(self, options: Space, seed: int, runs: int, usual: Mapping[str, Any]) -> None:
        try:
            import optuna
        except ImportError:
            raise ConfigurationError(
                "tuning these options needs optuna; install the extra: pip install 'draftwood[tune]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.options = options
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(2, runs // 3))
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._failed = optuna.trial.TrialState.FAIL
        # numbers are places in order, so that near ones are alike; words have no order
        self._kinds: dict[str, Any] = {
            option: optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
            if isinstance(values[0], str)
            else optuna.distributions.IntDistribution(0, len(values) - 1)
            for option, values in options.items()
        }
        first = {
            option: values.index(usual[option]) for option, values in options.items() if usual.get(option) in values
        }
        if first:
            self._study.enqueue_trial(first)
        self._trial: Any = None

    def ask(self) -> dict[str, Any] | None:
        """Values to try; never None, but the same ones may come again."""
        self._trial = self._study.ask(self._kinds)
        return {option: self.options[option][place] for option, place in self._trial.params.items()}

    def tell(self, score: float | None) -> None:
        """The score, higher is better; None where the values do not go together."""
        if score is None:
            self._study.tell(self._trial, state=self._failed)
        else:
            self._study.tell(self._trial, score)
