"""Makes what carries requests out: sessions, a method's parts, tasks. Keeps what the requests of an engine share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from draftwood.core.records import Round
from draftwood.depth import LOAD, Auto, AutoBeams, Learner
from draftwood.draft import (
    AssistantSession,
    BlockSession,
    EarlierAnswers,
    HeadSession,
    SharedSession,
    TranslatedSession,
)
from draftwood.engine.decode import rounds
from draftwood.engine.generation import Generation
from draftwood.engine.load_estimate import LoadEstimate
from draftwood.engine.request import Request
from draftwood.engine.scoring import PromptScores, scored
from draftwood.engine.stopping import Ending, StopStrings
from draftwood.methods import Method
from draftwood.methods.default import default_method
from draftwood.models.base import CausalModel
from draftwood.models.cache import Cache
from draftwood.models.heads.state_head import StateHead
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.text.tokenizer import Tokenizer, TokenStream
from draftwood.runtime.policy import SHORT_RUN
from draftwood.runtime.scheduler import Scheduler
from draftwood.runtime.session import Session
from draftwood.runtime.task import DecodingTask

MAX_METHODS = 256  # different settings whose models and learned state an engine keeps

K = TypeVar("K")
V = TypeVar("V")


class GenerationBuilder:
    """Builds generations and tasks for one target. All methods may be called from any thread.

    It keeps one cache for each model, the models that methods load or make, what controllers learned, and the answers
    that requests left for others.
    """

    def __init__(
        self,
        target: CausalModel,
        drafts: Sequence[CausalModel],
        tokenizer: Tokenizer | None,
        scheduler: Scheduler,
        budget: MemoryBudget,
        load_aware: bool = False,
    ) -> None:
        """`load_aware`: whether `depth=auto` follows the load where that changes a sampled text, too."""
        self.target, self.drafts, self.tokenizer = target, drafts, tokenizer
        self.scheduler, self.budget, self.load_aware = scheduler, budget, load_aware
        self.caches: WeakKeyDictionary[CausalModel, Cache] = WeakKeyDictionary()
        self.prepare: Callable[[Generation], object] | None = None  # called with each generation; may change its parts
        self.earlier_answers = EarlierAnswers(encode=None if tokenizer is None else self._encoded)
        self._lock = RLock()
        self._given_models: dict[object, Sequence[CausalModel]] = {}  # see `set_models`; by `Method.drafts_from`
        self._models: dict[object, Sequence[CausalModel]] = {}  # as methods make or load them
        self._learners: dict[Method, Learner] = {}  # controllers whose requests learn together
        self._default_method: Method | None = None

    def default_method(self) -> Method:
        """The method of requests that name none: the best one for the models that there are."""
        with self._lock:
            if self._default_method is None:
                self._default_method, models = default_method(len(self.drafts), self.target, self.drafts)
                if models is not None:
                    self._models.setdefault(self._default_method.drafts_from, models)
            return self._default_method

    def set_models(self, method: Method, models: Sequence[CausalModel]) -> None:
        """Have a method, and all that draft from the same, draft with these models instead of their own."""
        self._given_models[method.drafts_from] = list(models)

    def models_of(self, method: Method) -> Sequence[CausalModel]:
        """The models that a method drafts with, made or loaded once."""
        given = self._given_models.get(method.drafts_from)
        if given is not None:
            return given
        return _kept(self._models, method.drafts_from, lambda: method.models(self.target, self.drafts))

    def generation(self, request: Request) -> Generation:
        """Build the parts of a request's method; memory is taken when the generation first runs."""
        with self._lock:
            generation = self._built(request)
        if self.prepare is not None:
            self.prepare(generation)
        return generation

    def _built(self, request: Request) -> Generation:
        models = self.models_of(request.method)
        target = Session(self.target, self.cache(self.target), prefixes=self.scheduler.prefixes)
        drafts = [self._draft_session(model, target) for model in models]
        drafter, verify, depth, ranking = request.method.build(drafts, target)
        drafter.share(self.earlier_answers)
        if getattr(depth, "shared", False):
            learner = cast(Learner, depth)
            depth = _kept(self._learners, request.method, lambda: learner).for_request()
        if isinstance(depth, Auto | AutoBeams) and not (
            self.load_aware or request.method.repeats(request.params.greedy)
        ):
            depth = depth.repeatable()
        scheduler = self.scheduler
        hypotheses = depth.hypotheses if isinstance(depth, AutoBeams) else 1
        estimate = LoadEstimate(
            request, target, drafts, drafter, scheduler.costs, lambda: scheduler.load_counts, hypotheses
        )
        return Generation(
            request=request,
            target=target,
            drafts=drafts,
            drafter=drafter,
            verify=verify,
            depth=depth,
            ranking=ranking,
            load=estimate,
            ending=self._ending(request),
            stop=self._stop(request),
            new_ending=partial(self._ending, request),
        )

    def _draft_session(self, model: CausalModel, target: Session) -> Session:
        """A draft model's session: with a cache of its own, unless the model is a part of the target."""
        if getattr(model, "full_model", None) is self.target:
            shared = AssistantSession if hasattr(model, "reads") else SharedSession
            return shared(model, target.cache, "draft", target=target)
        words = getattr(model, "vocabulary_map", None)
        if words is not None:
            return TranslatedSession(
                model, self.cache(model), "draft", self.scheduler.prefixes, words=words, target=target
            )
        if hasattr(model, "reads"):
            kind = BlockSession if hasattr(model, "block") else HeadSession
            return kind(model, self.cache(model), "draft", self.scheduler.prefixes)
        return Session(model, self.cache(model), "draft", self.scheduler.prefixes)

    def _ending(self, request: Request) -> Ending:
        """A new follower of one of the request's texts, which says where it ends."""
        special = not request.skip_special_tokens
        stream = None if self.tokenizer is None else self.tokenizer.stream(list(request.prompt), special)
        return Ending(
            request.max_new_tokens,
            request.end_tokens,
            request.stop,
            stream,
            request.cancelled,
            request.min_new_tokens,
            request.include_stop_str_in_output,
        )

    def _encoded(self, text: str) -> list[int]:
        """Tokens of a text that is searched for matches: nothing begins with it."""
        assert self.tokenizer is not None
        return self.tokenizer.encode(text, add_special=False)

    def _stop(self, request: Request) -> StopStrings | None:
        """The check for stop strings of texts that are not emitted yet."""
        if self.tokenizer is None or not request.stop:
            return None
        stream = partial(self.tokenizer.stream, special=not request.skip_special_tokens)
        return StopStrings(request.stop, stream, TokenStream.CONTEXT)

    def cache(self, model: CausalModel) -> Cache:
        """The cache of a model, made when it is first needed and shared by all requests."""
        cache = self.caches.get(model)
        if cache is None:
            cache = self.caches[model] = model.new_cache(budget=self.budget)
        return cache

    def task(self, generation: Generation, call: object | None = None) -> DecodingTask[Round]:
        """The task that carries a generation out, whose events are its rounds.

        Requests with the same `call` share the machine with others as one; by default it is alone. Raises RequestError
        where its keys and values can never fit into the memory.
        """
        request = generation.request
        task: DecodingTask[Round] = DecodingTask(
            partial(rounds, generation),
            (generation.target, *generation.drafts),
            first_slots=len(request.prompt),
            max_slots=len(request.prompt) + request.max_new_tokens + SHORT_RUN,
            prompt=request.prompt,
            reading_events=2 if any(isinstance(one.model, StateHead) for one in generation.drafts) else 1,
            follows_load=generation.depth.needs >= LOAD,
            priority=request.priority,
        )
        if call is not None:
            task.call = call
        self.scheduler.check(task)
        return task

    def scoring_task(self, tokens: list[int], top_logprobs: int, first: int) -> DecodingTask[PromptScores]:
        """The task that scores tokens[first:] of a text under the target; its one event is the scores."""
        session = Session(self.target, self.cache(self.target), prefixes=self.scheduler.prefixes)
        return DecodingTask(partial(scored, session, tokens, top_logprobs, first), (session,), len(tokens), len(tokens))


def _kept(known: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """The value of a key, made where it is not known; beyond MAX_METHODS the one unused for longest is forgotten."""
    value = known.pop(key) if key in known else make()
    known[key] = value
    if len(known) > MAX_METHODS:
        del known[next(iter(known))]
    return value
