"""Generates, streams and batches with any method: requests, and the models, caches and posteriors that they share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

from draftwood.core.records import Kind, Round
from draftwood.depth import LOAD, Auto, Learner
from draftwood.draft import EagleSession, EarlierAnswers, SharedSession
from draftwood.engine.batching import BatchFailed, BatchInterrupted, completed, entries
from draftwood.engine.decode import rounds
from draftwood.engine.generation import Generation
from draftwood.engine.intake import Intake, whole
from draftwood.engine.request import Limits, MethodSpec, Options, Prompt, Request
from draftwood.engine.results import GenerationResult
from draftwood.engine.scoring import PromptScores, scored
from draftwood.engine.stopping import Ending, StopStrings
from draftwood.errors import ConfigurationError, RequestError
from draftwood.methods import Method
from draftwood.methods.default import default_method
from draftwood.models.base import CausalModel
from draftwood.models.cache import Cache
from draftwood.models.memory_budget import MemoryBudget, free_bytes
from draftwood.models.text.tokenizer import Tokenizer, TokenStream
from draftwood.runtime.policy import SHORT_RUN
from draftwood.runtime.prefix import PrefixCache
from draftwood.runtime.resident import give_back
from draftwood.runtime.scheduler import Scheduler
from draftwood.runtime.session import Session
from draftwood.runtime.task import Task
from draftwood.sampling.grammar import Grammar, Grammars
from draftwood.sampling.params import RuntimeParams, SamplingParams, Structured
from draftwood.util import config
from draftwood.util.safe_parsing import short_repr

if TYPE_CHECKING:
    from draftwood.explain.explanation import Explanation

MOST_METHODS = 256  # different settings whose models and learned state an engine keeps

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One round of a stream: text that became certain and the tokens emitted. The last event carries the result."""

    text: str
    tokens: list[int]
    kinds: Sequence[Kind]
    logprobs: list[float]
    round: Round
    result: GenerationResult | None = None


class Engine(Intake):
    """A target model, draft models and a tokenizer, ready to decode. Made by `draftwood.load`."""

    def __init__(
        self,
        target: CausalModel,
        drafts: Sequence[CausalModel] = (),
        tokenizer: Tokenizer | None = None,
        end_tokens: frozenset[int] = frozenset(),
        names: Mapping[str, Any] | None = None,
        kv_cache_bytes: int | None = None,
        max_running: int = 64,
        max_queued: int | None = None,
        reuse_prefixes: bool = True,
        load_aware: bool = False,
    ) -> None:
        """See `draftwood.sampling.params.RuntimeParams` for the last five."""
        runtime = config.parse(
            RuntimeParams,
            {
                "kv_cache_bytes": kv_cache_bytes,
                "max_running": max_running,
                "max_queued": max_queued,
                "reuse_prefixes": reuse_prefixes,
                "load_aware": load_aware,
            },
            "engine",
        )
        if not isinstance(names, Mapping | None):
            raise ConfigurationError(f"engine: names are {short_repr(names)}, but must be a mapping of what was loaded")
        self.target = target
        self.drafts = list(drafts)
        self.tokenizer = tokenizer
        self.end_tokens = end_tokens
        self.names = dict(names or {})
        self._budget = MemoryBudget(runtime.kv_cache_bytes or free_bytes(target.device) // 2)
        self.scheduler = Scheduler(
            PrefixCache(runtime.reuse_prefixes),
            running=runtime.max_running,
            queue=runtime.max_queued,
            memory=self._budget.limit,
        )
        self.load_aware = runtime.load_aware
        self._building = RLock()
        self._caches: WeakKeyDictionary[CausalModel, Cache] = WeakKeyDictionary()
        self._given: dict[object, Sequence[CausalModel]] = {}  # what methods draft with; see Method.drafts_from
        self._models: dict[object, Sequence[CausalModel]] = {}  # the same, as methods make or load it
        self._learners: dict[Method, Learner] = {}  # controllers whose requests learn together
        self._earlier = EarlierAnswers()  # of requests that share theirs
        self._usual: Method | None = None
        self._grammars: Grammars | None = None

    def __repr__(self) -> str:
        names = ", ".join(f"{key}={value!r}" for key, value in self.names.items() if isinstance(value, str))
        return f"Engine({names or type(self.target).__name__}, {len(self.drafts)} drafts, method={self.usual.name!r})"

    @property
    def usual(self) -> Method:
        """What decodes a request that names no method: the best of what is there."""
        with self._building:
            if self._usual is None:
                self._usual, models = default_method(len(self.drafts), self.target, self.drafts)
                if models is not None:
                    self._models.setdefault(self._usual.drafts_from, models)
            return self._usual

    @property
    def broken(self) -> str | None:
        """Why the target cannot compute any more, where it is split among processes and one of them is gone."""
        return getattr(self.target, "broken", None)

    @property
    def compile_seconds(self) -> float:
        """What torch.compile took so far, all models together; a part of the time of the requests that met it."""
        return float(sum(getattr(model, "compile_seconds", 0.0) for model in (self.target, *self.drafts)))

    @property
    def prefix_hit_rate(self) -> float:
        """Share of all prompt tokens, of all models, that was not computed since others had begun alike."""
        prefixes = self.scheduler.prefixes
        return prefixes.hits / prefixes.asked if prefixes.asked else 0.0

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of keys and values: `held` by all models' caches, and `used` by tokens in them, kept prefixes too."""
        caches = list(self._caches.values())
        return {
            "held": sum(cache.bytes for cache in caches),
            "used": sum(cache.used * cache.slot_bytes for cache in caches),
        }

    def reset_prefix_cache(self) -> None:
        """Give back the keys and values that finished requests left for others."""
        self.scheduler.exclusively(self.scheduler.prefixes.reset)
        give_back()

    def forget_answers(self) -> None:
        """Forget the answers that requests with `lookup`, shared=true, left for others."""
        self._earlier = EarlierAnswers()

    def draft_with(self, method: MethodSpec, models: Sequence[CausalModel]) -> None:
        """Have a method draft with `models` in place of what it makes or loads for the target.

        So do all methods that draft from the same (`Method.drafts_from`), such as those with another tree.
        """
        parsed = Method.parse(method)
        if not isinstance(models, Sequence) or not all(isinstance(model, CausalModel) for model in models):
            raise ConfigurationError(f"{parsed.name} drafts with a list of models, not with {short_repr(models)}")
        self._given[parsed.drafts_from] = list(models)

    def generate(
        self,
        prompt: Prompt,
        method: MethodSpec | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        **limits: Unpack[Limits],
    ) -> GenerationResult:
        """Decode one prompt: text, token ids, or a conversation, which is a list of messages with role and content.

        The checkpoint's chat template makes a prompt of a conversation, up to where the assistant's reply begins;
        `tokenizer.chat` gives token ids likewise and takes the template's variables.

        `method` is a name, {"name": ..., option: value} or a Method; default: `usual`, which the result names.
        `sampling` holds temperature (0 = greedy), top_k, top_p, ...; see SamplingParams. The same
        `seed` gives the same text. `top_logprobs` asks for the most probable tokens at each place, `ignore_eos` goes on
        behind an end token, `structured` says what the text must be ({"json_schema": ...}, {"json_object": True},
        {"regex": ...}, {"choice": [...]} or {"grammar": ...}), `cancelled` is asked once per round. Output ends at EOS
        or one of `stop_token_ids`, at a `stop` string, after `max_new_tokens` or where the context ends; the first
        `min_new_tokens` tokens are none that would end it. Raises RequestError or ConfigurationError where something
        asked for is wrong, before any work is done.
        """
        generation = self.generation(
            prompt, method=method, sampling=sampling, max_new_tokens=max_new_tokens, seed=seed, **limits
        )
        with closing(self._rounds(generation)) as rounds:
            for round_ in rounds:
                generation.note(round_)
        return generation.result()

    def grammar(self, structured: Structured) -> Callable[[], Grammar]:
        """What begins to follow a grammar, which is compiled, or was before."""
        assert self.tokenizer is not None
        with self._building:
            if self._grammars is None:
                self._grammars = Grammars(self.tokenizer, self.end_tokens, self.target.vocab_size, self.target.device)
        return self._grammars.compiled(structured)

    def _rounds(self, generation: Generation) -> Generator[Round, None, None]:
        """A request's rounds as they come; others go on meanwhile. Closing the iterator cancels the request."""
        yield from self.scheduler.events(self.submit(generation))

    def submit(self, generation: Generation) -> Task[Round]:
        """Queue a request. Raises RequestError where it can never fit, Overloaded where the queue is full."""
        return self.scheduler.submit(self.task(generation))

    def task(
        self, generation: Generation, notify: Callable[[], object] | None = None, call: object | None = None
    ) -> Task[Round]:
        """A request as the engine's scheduler takes it; `notify` is called when there is a round, and at the end.

        Requests with the same `call` share the machine with others as one; by default it is alone. Raises RequestError
        where its keys and values can never fit into the memory.
        """
        prompt, sessions = len(generation.request.prompt), (generation.target, *generation.drafts)
        most = prompt + generation.request.max_new_tokens + SHORT_RUN
        task = Task(partial(rounds, generation), sessions, prompt, most, notify)
        task.call = task.call if call is None else call
        task.adapts = generation.depth.needs >= LOAD
        task.behind = lambda: (generation.behind(), generation.left())
        self.scheduler.check(task)
        return task

    def score(self, prompt: Prompt, top_logprobs: int = 0, first: int = 1) -> PromptScores:
        """The log-probability of each token of a text from number `first` on, under the target, given those before."""
        (found,) = self.scheduler.events(self.scheduler.submit(self.scoring(prompt, top_logprobs, first)))
        return found

    def scoring(self, prompt: Prompt, top_logprobs: int = 0, first: int = 1) -> Task[PromptScores]:
        """What `score` submits. The last token is predicted only, so there may be one more than the context holds."""
        tokens = self.tokens(prompt, self.target.context + 1)
        top, first = whole("top_logprobs", top_logprobs, 0), min(whole("first", first, 1), len(tokens))
        session = Session(self.target, self._cache(self.target), prefixes=self.scheduler.prefixes)
        return Task(partial(scored, session, tokens, top, first), (session,), len(tokens), len(tokens))

    def explain(self, prompt: Prompt, **options: Unpack[Options]) -> Explanation:
        """As `generate`, and keep what became of every draft.

        The explanation has `text` (rounds as indented trees), `html` (a page that steps through them, shown by itself
        in a notebook), `trees` and `result`.
        """
        from draftwood.explain.explanation import Explanation

        generation = self.generation(prompt, **options)
        return Explanation.of(
            generation, self._rounds, self.tokenizer, {**self.names, "device": str(self.target.device)}
        )

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Iterator[StreamEvent]:
        """As `generate`, round by round; bad input is refused at once. Closing the iterator cancels the request."""
        generation = self.generation(prompt, **options)
        return self._stream(generation, self.task(generation))

    def _stream(self, generation: Generation, task: Task[Round]) -> Iterator[StreamEvent]:
        with closing(self.scheduler.events(self.scheduler.submit(task))) as rounds:
            for round_ in rounds:
                yield self.event(generation, round_)

    @staticmethod
    def event(generation: Generation, round_: Round) -> StreamEvent:
        """What a stream shows of a round, however far the generation is by now."""
        generation.note(round_)
        result = None if round_.finish is None else generation.result()
        return StreamEvent(round_.text, round_.tokens, round_.kinds, round_.logprobs, round_, result)

    def batch(
        self,
        prompts: Sequence[Prompt | Mapping[str, Any]],
        concurrency: int = 8,
        progress: Callable[[int, int], object] | None = None,
        **options: Unpack[Options],
    ) -> list[GenerationResult]:
        """Decode many prompts, at most `concurrency` at once, one forward per model and step.

        A prompt may be a mapping {"prompt": ..., option: value} that overrides the common options, so methods, seeds
        and limits may differ. A request's text does not depend on the others in the batch. Bad input is refused
        before any work is done. `progress(finished, all)` is told of each request that ends. Ctrl-C raises
        BatchInterrupted, which holds the finished results.
        """
        results: dict[int, GenerationResult] = {}
        prompts = entries(prompts)
        if progress is not None and not callable(progress):
            raise RequestError(f"progress is {short_repr(progress)}, but must be a function of (finished, all)")
        try:
            with closing(self.as_completed(prompts, concurrency, **options)) as completed:
                for index, result in completed:
                    results[index] = result
                    if progress is not None:
                        progress(len(results), len(prompts))
        except KeyboardInterrupt:
            raise BatchInterrupted(results) from None
        except BatchFailed as failed:
            failed.results = results
            raise
        return [results[index] for index in range(len(prompts))]

    def as_completed(
        self, prompts: Sequence[Prompt | Mapping[str, Any]], concurrency: int = 8, **options: Unpack[Options]
    ) -> Generator[tuple[int, GenerationResult], None, None]:
        """As `batch`, but (place among the prompts, result) as each request ends; bad input is refused at once."""
        whole("concurrency", concurrency, 1)
        requests, call = [self.request(**{**options, **entry}) for entry in entries(prompts)], object()
        queue = deque(
            (index, generation, self.task(generation, call=call))
            for index, generation in enumerate(map(self._generation, requests))
        )
        return completed(self.scheduler, queue, concurrency)

    def models_of(self, method: Method) -> Sequence[CausalModel]:
        """The models that a method drafts with, made or loaded once."""
        given = self._given.get(method.drafts_from)
        if given is not None:
            return given
        return _kept(self._models, method.drafts_from, lambda: method.models(self.target, self.drafts))

    def generation(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """What carries a request out: checked, its parts made, no memory taken."""
        return self._generation(self.request(prompt, **options))

    def _generation(self, request: Request) -> Generation:
        """Build the method's parts; memory is taken when it first runs."""
        with self._building:
            return self._built(request)

    def _built(self, request: Request) -> Generation:
        models = self.models_of(request.method)
        target = Session(self.target, self._cache(self.target), prefixes=self.scheduler.prefixes)
        drafts = [self._drafting(model, target) for model in models]
        drafter, verify, depth, ranking = request.method.build(drafts, target)
        drafter.share(self._earlier)
        if getattr(depth, "shared", False):
            learner = cast(Learner, depth)
            depth = _kept(self._learners, request.method, lambda: learner).for_request()
        if isinstance(depth, Auto) and not (self.load_aware or request.method.repeats(request.params.greedy)):
            depth = depth.repeatable()
        return Generation(
            request=request,
            target=target,
            drafts=drafts,
            drafter=drafter,
            verify=verify,
            depth=depth,
            ranking=ranking,
            ending=self._ending(request),
            stop=self._stop(request),
            new_ending=partial(self._ending, request),
            costs=self.scheduler.costs,
            running=lambda: self.scheduler.load,
        )

    def _drafting(self, model: CausalModel, target: Session) -> Session:
        """A draft model's session: with a cache of its own, unless the model is a part of the target."""
        if getattr(model, "full_model", None) is self.target:
            return SharedSession(model, target.cache, "draft", target=target)
        if hasattr(model, "reads"):
            return EagleSession(model, self._cache(model), "draft", self.scheduler.prefixes)
        return Session(model, self._cache(model), "draft", self.scheduler.prefixes)

    def _ending(self, request: Request) -> Ending:
        """Where one of the request's texts ends."""
        stream = None if self.tokenizer is None else self.tokenizer.stream(list(request.prompt))
        least = request.min_new_tokens
        return Ending(request.max_new_tokens, request.end_tokens, request.stop, stream, request.cancelled, least)

    def _stop(self, request: Request) -> StopStrings | None:
        """The check for stop strings of texts that are not emitted yet."""
        words = self.tokenizer
        if words is None or not request.stop:
            return None
        return StopStrings(request.stop, words.stream, TokenStream.CONTEXT)

    def _cache(self, model: CausalModel) -> Cache:
        """The cache of a model, made when it is first needed and shared by all requests."""
        cache = self._caches.get(model)
        if cache is None:
            cache = self._caches[model] = model.new_cache(budget=self._budget)
        return cache


def _kept(known: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """The value of a key, made where it is not known; of too many the one that was used longest ago is forgotten."""
    value = known.pop(key) if key in known else make()
    known[key] = value
    if len(known) > MOST_METHODS:
        del known[next(iter(known))]
    return value
