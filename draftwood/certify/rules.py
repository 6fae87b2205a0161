"""The rules that rounds of a method exercise, and those that the cases of a certificate must have exercised.

Read from the forest and the verdict of each round, as they are: nothing in the algorithms reports to a certificate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from draftwood.core.forest import FINISHED, Forest, Proposal, Verdict
from draftwood.depth.rules import UNCAPPED
from draftwood.methods import Lookup, Method
from draftwood.methods.beams import BeamMethod, DynamicWidth, PlainBeamSearch, SpeculativeBeamSearch
from draftwood.methods.sequences import Autoregressive
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.verify import Verifier, VerifierProxy

DRAFTED_ROUNDS = frozenset({"round with drafts"})
COPY_OUTCOMES = frozenset({"copy accepted", "copy rejected"})
DRAFT_BEHIND_COPY = frozenset({"draft behind a copy"})
ROOT_REUSED = frozenset({"target's row of a root used again"})
KEPT_REUSED = ROOT_REUSED | {"target's row of a kept draft used again"}


class Tally(VerifierProxy):
    """Counts what the rounds of a method exercise, in the place of its verifier."""

    def __init__(self, verify: Verifier, counts: Counter[str]) -> None:
        super().__init__(verify)
        self.counts = counts

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        verdict = self.verify(forest, target, streams)
        result = _of_beams(forest, verdict) if verdict.layers else _of_tokens(forest, verdict)
        self.counts.update(dict.fromkeys(result, 1))
        return verdict


def _of_tokens(forest: Forest, verdict: Verdict) -> Iterator[str]:
    """The rules that a round of chains and trees exercised."""
    yield "round with drafts" if forest.proposals else "round without drafts"
    path = forest.path(verdict.parent[0])
    for node, child in pairwise([*path, -1]):
        for proposal in forest.proposals.get(node, ()):
            yield from _at(forest, proposal, child)
            if node in forest.copied and proposal.nodes[0] not in forest.copied:
                yield "draft behind a copy"
        if len(forest.proposals.get(node, ())) > 1:
            yield "drafts of several models"
    last = path[-1]
    if last in forest.proposals:
        if len(path) > 1:
            yield "rejected behind accepted drafts"
        if any(child in forest.proposals for made in forest.proposals[last] for child in made.nodes):
            yield "rejected with drafts below"
    elif forest.proposals:
        yield "token behind accepted drafts"
    if verdict.token[0] in forest.end:
        yield "end of text"
    if any(node not in forest.finished and not forest.grows(node) for node in forest.unforwarded):
        yield "drafts up to the limit"


def _at(forest: Forest, proposal: Proposal, child: int) -> Iterator[str]:
    """The rules that one node's drafts exercised; `child` follows the node on the accepted path, -1: nothing does."""
    nodes = proposal.nodes
    if nodes[0] in forest.forced:
        yield "forced token"
        return
    what = "copy" if nodes[0] in forest.copied else "best draft" if proposal.q is None else "drawn draft"
    if len(set(nodes)) < len(nodes):
        yield "equal draws"
    if child not in nodes:
        yield "draft rejected"
        yield f"{what} rejected"
        if len(nodes) > 1:
            yield "several siblings rejected"
        return
    yield "draft accepted"
    yield f"{what} accepted"
    if nodes[0] != child:
        yield "accepted behind a rejected sibling"
    if child in forest.finished:
        yield "end of text inside a run"


def _of_beams(forest: Forest, verdict: Verdict) -> Iterator[str]:
    """The rules that a round of beams exercised."""
    yield "round with drafts" if forest.layers else "round without drafts"
    alive = forest.roots
    if len(alive) > 1:
        yield "several beams"
    if any(root in forest.finished for root in alive):
        yield "finished beam"
    for number, layer in enumerate(verdict.layers):
        if any(node in forest.known for node in alive):
            yield f"target's row of a {'kept draft' if number else 'root'} used again"
        fates = [one.fate for one in layer.judged]
        yield from (f"{what} {fate}" for fate in fates for what in ("draw", "draft"))
        if fates.count("rejected") > 1:
            yield "several draws rejected"
        if len({one.outcome for one in layer.judged}) < len(fates):
            yield "equal draws"
        if any(one.outcome[1] == FINISHED and one.fate == "accepted" for one in layer.judged):
            yield "finished beam accepted"
        if number and fates:
            yield "layer below accepted drafts"
        if forest.layers and not fates:
            yield "layer behind accepted drafts"
        if fates and layer.accepted < len(layer.beams):
            yield "beams completed" if layer.accepted else "all drafts of a layer rejected"
            if len(layer.beams) - layer.accepted > 1:
                yield "several beams completed"
        alive = [node for beam in layer.distinct if (node := _node(forest, *beam)) is not None]


def _node(forest: Forest, parent: int, token: int) -> int | None:
    return parent if token == FINISHED else forest.child.get((parent, token))


def looks(method: Method) -> bool:
    """True where a method drafts by lookup, alone or beside models."""
    return copies_alone(method) or bool(getattr(method, "lookup", False))


def copies_alone(method: Method) -> bool:
    """True where lookup is all that drafts, by copies."""
    return isinstance(method, Lookup) and method.drafts == "copied"


def _written(method: Method) -> bool:
    """True where a draft's text is cut by the target's tokenizer: its tokens are drafted without chance."""
    return getattr(method, "vocabulary", None) == "text"


def required(method: Method) -> frozenset[str]:
    """The rules that rounds of a method must have exercised for its certificate to count; none of a lossy one."""
    if not method.lossless:
        return frozenset()
    if not type(method).__module__.startswith("draftwood."):
        drafts = "depth" in type(method).model_fields or method.drafts_needed[1]  # all that is known of others' methods
        return DRAFTED_ROUNDS | {"draft accepted", "draft rejected"} if drafts else frozenset()
    return _required_of_beams(method) if isinstance(method, BeamMethod) else _required_of_tokens(method)


def _required_of_tokens(method: Method) -> frozenset[str]:
    options = method.as_dict()
    max_depth = options.get("gamma", len(_widths(method)))
    max_depth = UNCAPPED if max_depth is None else max_depth
    if isinstance(method, Autoregressive) or not max_depth:
        return frozenset({"round without drafts", "end of text"})
    kinds = {"copy"} if looks(method) else set()
    result = DRAFTED_ROUNDS | {
        "token behind accepted drafts",
        "end of text",
        "end of text inside a run",
        "drafts up to the limit",
    }
    if not copies_alone(method):
        undrawn = method.verifier().coupled or options.get("drafts") == "best" or _written(method)
        kinds |= {"best draft" if undrawn else "drawn draft"}
        if options.get("draws") == "greedy" and max(_widths(method)) > 1:
            kinds |= {"best draft"}
    result |= {f"{kind} {fate}" for kind in kinds for fate in ("accepted", "rejected")}
    if looks(method) and not (copies_alone(method) or _written(method)):
        result |= DRAFT_BEHIND_COPY
    if max(max_depth, len(_widths(method))) > 1:
        result |= {"rejected behind accepted drafts", "rejected with drafts below"}
    if max(_widths(method), default=1) > 1:
        result |= {"accepted behind a rejected sibling", "several siblings rejected"}
        if options.get("replacement", method.name == "specinfer"):
            result |= {"equal draws"}
    if method.drafts_needed[1] > 1:
        result |= {"drafts of several models"}
    return frozenset(result)


def _widths(method: Method) -> tuple[int, ...]:
    """Children per node, layer by layer, as far as options say."""
    options = method.as_dict()
    if "heads" in options:
        return tuple(options["tree"] or (3, 2, 1))
    return tuple(options.get("tree") or options.get("expansion") or (options.get("width") or 1,))


def _required_of_beams(method: BeamMethod) -> frozenset[str]:
    several = method.widest > 1
    result = {"finished beam"} if isinstance(method, PlainBeamSearch) else set()
    if several:
        result |= {"several beams", "finished beam"}
    if not isinstance(method, DynamicWidth | SpeculativeBeamSearch) or not method.gamma:
        return frozenset(result | {"round without drafts"})
    result |= {"draw accepted", "draw rejected", "all drafts of a layer rejected", "layer behind accepted drafts"}
    if several:
        result |= {"beams completed", "target's row of a root used again"}
    if method.gamma > 1:
        seldom = method.drafter in ("skip", "lookup")  # too many outcomes; the rule is the same whatever drafts
        result |= {"layer below accepted drafts"} | (KEPT_REUSED if several and not seldom else set())
    if isinstance(method, DynamicWidth):
        draws = method.draft_width
        if draws > 1:
            result |= {"several draws rejected", "draw discarded"} | ({"equal draws"} if method.replacement else set())
            if method.gamma > 1:
                result |= {"draw unreached"}
    return frozenset(result)
