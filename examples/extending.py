"""A drafter, a depth controller, a verifier, a method and a task of your own; docs/extending.md explains them."""

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field

import draftwood
from draftwood.certify import Budget, certify
from draftwood.depth import CONTROLLERS, NOTHING, DepthController, DraftState
from draftwood.depth.settings import DepthSettings
from draftwood.draft import Drafter
from draftwood.eval.tasks import TASKS, Instance, Item, Task
from draftwood.methods import METHODS, Parts
from draftwood.methods.options import Depth, Gamma, controller
from draftwood.methods.sequences import OneHypothesis
from draftwood.verify import Rejection
from draftwood.verify.tree import end_of_path


# -- drafter
@dataclass
class BigramDrafter(Drafter):
    """Drafts a chain: below each token the one that followed it most often so far."""

    needs = NOTHING

    def draft(self, forest, depth, limit, propose) -> Generator[Any, Any, None]:
        (node,) = forest.roots
        after = defaultdict(Counter)
        for token, following in pairwise(forest.sequence(node)):
            after[token][following] += 1
        layer = 0
        while layer < limit and node not in forest.finished and depth.deeper(DraftState(layer, (node,))):
            known = after[forest.token[node]].most_common(1)
            if not known:
                break
            (node,) = forest.propose(node, [known[0][0]], None)  # None: not drawn, a point mass
            layer += 1
        yield from ()  # a drafter with a model yields its runs here


# -- controller
@dataclass
class OneMore(DepthController):
    """Drafts one layer more than the last round accepted."""

    most: int
    wanted: int
    needs = NOTHING

    def deeper(self, state) -> bool:
        return state.depth < min(self.most, self.wanted)

    def observe(self, round_, state=None) -> None:
        self.wanted = round_.depth_accepted + 1


class OneMoreDepth(DepthSettings):
    name = "one-more"

    first: int = Field(2, ge=0, description="layers of the first round")

    def build(self, most, draft=None, target=None) -> OneMore:
        return OneMore(most, self.first)


CONTROLLERS["one-more"] = OneMoreDepth


# -- verifier
@dataclass(frozen=True)
class AmongBest:
    """Accepts a draft that is among the target's `k` most probable tokens, so it is lossy."""

    k: int
    name = "among-best"
    lossless = False
    coupled = False

    def __call__(self, forest, target, streams):
        path = [forest.roots[0]]
        while True:
            most = target.probs(path[-1]).topk(self.k)  # of T∘p [V] after the node
            best = most.indices[most.values > 0].tolist()  # what is impossible may be forbidden by a grammar
            drafts = [node for made in forest.proposals.get(path[-1], ()) for node in made.nodes]
            accepted = next((node for node in drafts if forest.token[node] in best), None)
            if accepted is None:
                return end_of_path(forest, path, best[0], target.log_prob)
            path.append(accepted)


# -- method
class Bigram(OneHypothesis):
    """The method `bigram` with its options, as a user names it."""

    name = "bigram"
    summary = "the token that followed most often so far, as drafts"

    gamma: Gamma = 4
    depth: Depth = "one-more"
    verify: Literal["rejection", "among-best"] = "rejection"
    k: int = Field(2, ge=1, description="of verify=among-best")

    def verifier(self) -> Rejection | AmongBest:
        return Rejection() if self.verify == "rejection" else AmongBest(self.k)

    def build(self, drafts, target) -> Parts:
        return Parts(BigramDrafter(), self.verifier(), controller(self.depth, self.gamma, drafts, target))


METHODS["bigram"] = Bigram


# -- task
class Jobs(Task):
    """Say what somebody does, from a passage about several people."""

    name = "jobs"
    summary = "a passage about people and their jobs, and a question about one of them"
    metric = "right job"
    ends = ("\n",)

    def items(self) -> Iterator[Item]:
        people = {"Dina": "gardener", "Leo": "baker", "Petra": "teacher"}
        passage = ". ".join(f"{name} works as a {job} in Arden" for name, job in people.items())
        for name, job in people.items():
            yield Item(name, (f"Passage: {passage}.\nQuestion: What is the job of {name}?\nAnswer:",), {"job": job})

    def score(self, instance: Instance, answers: Sequence[str]) -> dict[str, float]:
        return {"right job": float(instance.reference["job"] in answers[0])}


TASKS["jobs"] = Jobs

# -- use
if __name__ == "__main__":
    engine = draftwood.load()
    task = Jobs()
    for instance in task.instances(limit=3):
        prompt, stop = instance.prompt(), instance.stop
        plain = engine.generate(prompt, "autoregressive", {"temperature": 0}, stop=stop)
        print(f"{instance.turns[0][-32:]!r}{plain.text!r}", task.score(instance, [plain.text]))
        for options in ({}, {"depth": "fixed"}, {"verify": "among-best"}):
            result = engine.generate(prompt, {"name": "bigram", **options}, {"temperature": 0}, stop=stop)
            print(
                f"  {result.method['verify']:10} {result.method['depth']:8} tau {result.metrics.tau:.2f},",
                f"lossless {result.lossless}, the text of plain decoding: {result.text == plain.text}",
            )

    few = Budget(runs=20, replays=50, identities=10, seeds=2000)  # the defaults do more
    for method in (Bigram(), Bigram(verify="among-best")):
        print(f"certified, verify={method.verify}: {certify(method, budget=few).verdict}")
