"""Generates, streams and batches with any method.

Knows requests and what they share: models, caches, what controllers learn. Refuses to know how models are loaded
(loading.py), how decoding works (decode.py) and how forwards are batched (executor.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from draftwood import config
from draftwood.core.records import Kind, Round
from draftwood.decode import Request
from draftwood.depth import Learner
from draftwood.draft import SharedSession
from draftwood.errors import ConfigurationError, RequestError
from draftwood.methods import Method
from draftwood.models.base import CausalModel, Part
from draftwood.models.cache import Cache
from draftwood.models.chat import Message
from draftwood.models.tokenizer import INCOMPLETE, Tokenizer, TokenStream
from draftwood.results import GenerationResult
from draftwood.runtime.executor import Decoding, drive, drive_together
from draftwood.runtime.session import Session
from draftwood.sampling import SamplingParams, Streams
from draftwood.text import Ending
from draftwood.work import Plan, Work

MethodSpec: TypeAlias = str | Mapping[str, Any] | Method
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]  # text, token ids, or a conversation


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """News of one round: text that became certain and the tokens emitted. The last event carries the result."""

    text: str
    tokens: list[int]
    kinds: Sequence[Kind]
    logprobs: list[float]
    round: Round
    result: GenerationResult | None = None


class Engine:
    """A target model, draft models and a tokenizer, ready to decode. Made by `draftwood.load`."""

    def __init__(
        self,
        target: CausalModel,
        drafts: Sequence[CausalModel] = (),
        tokenizer: Tokenizer | None = None,
        end_tokens: frozenset[int] = frozenset(),
        names: Mapping[str, Any] | None = None,
    ) -> None:
        self.target = target
        self.drafts = list(drafts)
        self.tokenizer = tokenizer
        self.end_tokens = end_tokens
        self.names = dict(names or {})
        self._caches: dict[int, Cache] = {}
        self._models: dict[object, Sequence[CausalModel]] = {}  # what methods draft with; see Method.drafts_from
        self._learners: dict[Method, Learner] = {}  # controllers whose requests learn together

    @property
    def compile_seconds(self) -> float:
        """What torch.compile took so far, all models together; a part of the time of the requests that met it."""
        return float(sum(getattr(model, "compile_seconds", 0.0) for model in (self.target, *self.drafts)))

    def draft_with(self, method: MethodSpec, models: Sequence[CausalModel]) -> None:
        """Have a method draft with `models` in place of what it makes or loads for the target.

        So do all methods that draft from the same (`Method.drafts_from`), such as those with another tree.
        """
        self._models[Method.parse(method).drafts_from] = list(models)

    def generate(
        self,
        prompt: Prompt,
        method: MethodSpec | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        top_logprobs: int = 0,
        ignore_eos: bool = False,
        cancelled: Callable[[], bool] | None = None,
    ) -> GenerationResult:
        """Decode one prompt: text, token ids, or a conversation, which is a list of messages with role and content.

        The checkpoint's chat template makes a prompt of a conversation, up to where the assistant's reply begins;
        `tokenizer.chat` gives token ids likewise and takes the template's variables.

        `method` is a name, {"name": ..., option: value} or a Method; default: `speculative` with a draft model, else
        `autoregressive`. `sampling` holds temperature (0 = greedy), top_k, top_p, ...; see SamplingParams. The same
        seed gives the same text. `cancelled` is asked once per round. Output ends at EOS, at a stop string, after
        `max_new_tokens` or where the context ends.
        """
        work = self._begin(
            self._plan(prompt, method, sampling, max_new_tokens, seed, stop, top_logprobs, ignore_eos, cancelled)
        )
        for round_ in drive(work.start()):
            work.note(round_)
        return work.result()

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[StreamEvent]:
        """As `generate`, round by round; bad input is refused at once. Closing the iterator cancels the request."""
        return self._stream(self._plan(prompt, **options))

    def _stream(self, plan: Plan) -> Iterator[StreamEvent]:
        work = self._begin(plan)  # here, so that an iterator that is never started holds nothing
        for round_ in drive(work.start()):
            work.note(round_)
            ending = work.request.ending
            result = None if ending.reason is None else work.result()
            yield StreamEvent(ending.news(), round_.tokens, round_.kinds, round_.logprobs, round_, result)

    def batch(
        self, prompts: Sequence[Prompt | Mapping[str, Any]], concurrency: int = 8, **options: Any
    ) -> list[GenerationResult]:
        """Decode many prompts, at most `concurrency` at once, one padded forward per model and step.

        A prompt may be a mapping {"prompt": ..., option: value} that overrides the common options, so methods, seeds
        and limits may differ. A request's text does not depend on the others in the batch. Bad input is refused
        before any work is done.
        """
        if concurrency < 1:
            raise RequestError(f"concurrency is {concurrency}, but at least one request must run at a time")
        prompts = list(prompts)
        if any(isinstance(entry, Mapping) and "role" in entry for entry in prompts):
            raise RequestError(
                "batch takes a list of prompts, but found a message of a conversation in it; "
                "wrap the conversation in a list: batch([messages])"
            )
        plans = [
            self._plan(**{**options, **(entry if isinstance(entry, Mapping) else {"prompt": entry})})
            for entry in prompts
        ]
        works: dict[int, Work] = {}

        def start(index: int) -> Decoding[Round]:
            works[index] = self._begin(plans[index])
            return works[index].start()

        results: dict[int, GenerationResult] = {}
        for index, round_ in drive_together([partial(start, index) for index in range(len(plans))], concurrency):
            works[index].note(round_)
            if works[index].request.ending.reason is not None:
                results[index] = works.pop(index).result()
        return [results[index] for index in range(len(plans))]

    def method(self, spec: MethodSpec | None = None) -> Method:
        """The method that a specification means here; refuses one that needs other draft models than there are."""
        if spec is None:
            spec = "speculative" if self.drafts else "autoregressive"
        method = Method.parse(spec)
        fewest, most = method.drafts_needed
        if len(self.drafts) < fewest:
            raise ConfigurationError(
                f"method {method.name} needs a draft model; name one with --draft, or load(target, draft=...)"
            )
        if fewest and len(self.drafts) > most:
            raise ConfigurationError(
                f"method {method.name} works with {most} draft model, but {len(self.drafts)} were loaded; "
                "load one, or use specinfer"
            )
        return method

    def tokens(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt, checked."""
        text = isinstance(prompt, str)
        parts: Any = prompt
        if text or isinstance(next(iter(prompt), None), Mapping):
            if self.tokenizer is None:
                raise RequestError("this engine has no tokenizer; give the prompt as token ids")
            parts = (
                (self.tokenizer.encode if text else self.tokenizer.chat)(parts, most=self.target.context)
                if prompt
                else []
            )
        tokens = [int(part) for part in parts]
        if not tokens:
            raise RequestError("the prompt is empty; give at least one token of text")
        bad = [token for token in tokens if not 0 <= token < self.target.vocab_size]
        if bad:
            raise RequestError(
                f"the prompt has token id {bad[0]}, but the target's ids go from 0 to {self.target.vocab_size - 1}"
            )
        if len(tokens) >= self.target.context:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens, but the target's context holds {self.target.context} with the "
                "output; shorten the prompt"
            )
        return tokens

    def _plan(
        self,
        prompt: Prompt,
        method: MethodSpec | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        top_logprobs: int = 0,
        ignore_eos: bool = False,
        cancelled: Callable[[], bool] | None = None,
    ) -> Plan:
        """Check everything; nothing is allocated yet."""
        params = (
            sampling
            if isinstance(sampling, SamplingParams)
            else config.parse(SamplingParams, sampling or {}, "sampling")
        )
        bias = [token for token in params.logit_bias if not 0 <= token < self.target.vocab_size]
        if bias:
            raise ConfigurationError(
                f"sampling: logit_bias names token {bias[0]}, but ids go from 0 to {self.target.vocab_size - 1}"
            )
        tokens = self.tokens(prompt)
        if max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {max_new_tokens}, but at least one token must be asked for")
        if top_logprobs < 0:
            raise RequestError(f"top_logprobs is {top_logprobs}, but cannot be negative")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in stops:
            raise RequestError("a stop string is empty; leave it out")
        if stops and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this engine has none")
        chosen = self.method(method)
        chosen.check(params)
        return Plan(
            tokens,
            chosen,
            params,
            min(max_new_tokens, self.target.context - len(tokens)),
            seed,
            stops,
            top_logprobs,
            frozenset() if ignore_eos else self.end_tokens,
            cancelled,
        )

    def _begin(self, plan: Plan) -> Work:
        """Take cache rows and build the method's parts."""
        models = self._models.get(plan.method.drafts_from)
        if models is None:
            models = self._models[plan.method.drafts_from] = plan.method.models(self.target, self.drafts)
        target = Session(self.target, self._cache(self.target))
        sessions = [self._drafting(model, target) for model in models]
        drafter, verify, depth, answers = plan.method.build(sessions, target)
        if isinstance(depth, Learner) and depth.shared:
            depth = self._learners.setdefault(plan.method, depth).for_request()
        request = Request(
            plan.prompt,
            target,
            sessions,
            drafter,
            verify,
            depth,
            plan.params,
            Streams(plan.seed),
            self._ending(plan),
            plan.top_logprobs,
            answers,
        )
        return Work(request, plan, self._ending)

    def _drafting(self, model: CausalModel, target: Session) -> Session:
        """A draft model's session: with a cache of its own, unless the model is a part of the target."""
        if isinstance(model, Part) and model.whole is self.target:
            return SharedSession(model, target.cache, "draft", target=target)
        return Session(model, self._cache(model), "draft")

    def _ending(self, plan: Plan) -> Ending:
        """Where one of the plan's texts ends."""
        words = self.tokenizer
        if words is None:
            return Ending(plan.max_new_tokens, plan.end_tokens, cancelled=plan.cancelled)
        before = plan.prompt[-TokenStream.CONTEXT :]  # decides, as in a stream, whether a text begins with a space
        shown = len(words.decode(before).rstrip(INCOMPLETE)) if plan.stop else 0
        return Ending(
            plan.max_new_tokens,
            plan.end_tokens,
            plan.stop,
            words.stream(plan.prompt),
            plan.cancelled,
            lambda tokens: words.decode([*before, *tokens])[shown:],
        )

    def _cache(self, model: CausalModel) -> Cache:
        """The cache of a model, made when it is first needed and shared by all requests."""
        cache = self._caches.get(id(model))
        if cache is None:
            cache = self._caches[id(model)] = model.new_cache(1, min(256, model.context + 64))
        return cache
