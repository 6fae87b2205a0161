"""Rules of verification on the very same drafts: tokens of a round, with every coin summed over instead of tossed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows, Strict
from benchmarks.kinds.methods import ALL
from draftwood.core.forest import Forest, Verdict
from draftwood.engine.generation import Generation
from draftwood.eval.intervals import ratio
from draftwood.eval.tasks import Instance, parse
from draftwood.methods.sequences import RULES
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.train.recording import WatchedEngine
from draftwood.verify import Verifier, VerifierProxy


class Toss(float):
    """A number of `Coins`, which decides when it is compared with a chance; to draw a token it is 0."""

    coins: Coins

    def __lt__(self, chance: float) -> bool:
        return self.coins.heads(chance)


@dataclass(slots=True)
class Coins:
    """Stands for a request's streams: the outcomes of `script`, then heads wherever they are possible."""

    script: Sequence[bool] = ()
    weight: float = 1.0  # chance of the outcomes so far
    taken: list[bool] = field(default_factory=list)
    others: list[list[bool]] = field(default_factory=list)  # scripts that go on otherwise

    def uniform(self, purpose: str) -> float:
        """The stream's next number."""
        toss = Toss()
        toss.coins = self
        return toss

    def heads(self, chance: float) -> bool:
        """The next outcome."""
        place = len(self.taken)
        outcome = self.script[place] if place < len(self.script) else chance > 0
        if place >= len(self.script) and 0 < chance < 1:
            self.others.append([*self.taken, False])
        self.taken.append(outcome)
        self.weight *= chance if outcome else 1 - chance
        return outcome


def expected_tokens(verify: Verifier, forest: Forest, target: Distributions) -> float:
    """Mean tokens of a round with these drafts: each outcome of the rule's coins by its chance."""
    scripts: list[list[bool]] = [[]]
    mean = 0.0
    while scripts:
        coins = Coins(scripts.pop())
        verdict = verify(forest, target, cast(Streams, coins))
        mean += coins.weight * (verdict.accepted + (verdict.parent[0] not in forest.finished))
        scripts += coins.others
    return mean


@dataclass(slots=True)
class Weighed(VerifierProxy):
    """Passes another verifier's verdicts on, and sums up the mean tokens of its rounds with drafts by several rules."""

    rules: Mapping[str, Verifier]
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        if forest.proposals:
            self.sums["rounds"] += 1
            for name, rule in self.rules.items():
                self.sums[name] += expected_tokens(rule, forest, target)
        return self.verify(forest, target, streams)


class Drafts(Strict, extra="allow"):
    """A method that drafts, and the rules that its drafts are judged by; ratios are over the first."""

    label: str
    rules: tuple[str, ...] = ("rejection", "traversal")


class Rules(Kind):
    """Mean tokens of a round by each rule, over the rounds of the method as it is."""

    drafts: list[Drafts]
    tasks: list[str]
    sampling: list[dict[str, Any]]
    limit: int = 4
    tokens: int = 64

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """`rules`: a row for each temperature, kind of drafts, rule and kind of text."""
        rows: Rows = []
        for sampling in self.sampling:
            for drafts in self.drafts:
                sums = {task: self._sums(bench, task, drafts, sampling) for task in self.tasks}
                sums[ALL] = [one for each in sums.values() for one in each]
                about = {"temperature": sampling.get("temperature", 1), "drafts": drafts.label}
                for task, each in sums.items():
                    rounds, first = ([one[name] for one in each] for name in ("rounds", drafts.rules[0]))
                    for number, rule in enumerate(drafts.rules):
                        mine = [one[rule] for one in each]
                        row = {**about, "task": task, "rule": rule, "tokens": ratio(mine, rounds)}
                        rows.append(row | ({"ratio": ratio(mine, first)} if number else {}))
        return {"rules": rows}

    def _sums(self, bench: Bench, task: str, drafts: Drafts, sampling: dict[str, Any]) -> list[dict[str, float]]:
        """Rounds with drafts, and each rule's mean tokens in them, of every item's answer."""
        asked = parse(task, {"max_new_tokens": min(self.tokens, parse(task).usual_tokens)})
        rules = {name: RULES[name]() for name in drafts.rules}
        weighed: list[Weighed] = []

        def watch(generation: Generation, number: int) -> None:
            weighed.append(Weighed(generation.verify, rules))
            generation.verify = weighed[-1]

        engine = WatchedEngine(bench.engine, watch)

        def weigh(item: Instance) -> dict[str, float]:
            engine.generate(item.prompt(), drafts.model_extra, sampling, item.max_new_tokens)
            return {name: weighed[-1].sums[name] for name in ("rounds", *rules)}

        return [
            bench.once(["rules", drafts.model_dump(), sampling, task, item.hash], partial(weigh, item))
            for item in bench.track(asked.instances(self.limit), f"{drafts.label}: {task}")
        ]
