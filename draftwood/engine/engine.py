"""The engine: generates, streams and batches with any method, many requests at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from draftwood.core.records import Kind, Round
from draftwood.engine.batching import BatchFailed, BatchInterrupted, completed, entries
from draftwood.engine.builder import GenerationBuilder
from draftwood.engine.generation import Generation
from draftwood.engine.request import MethodSpec, MoreOptions, Options, Prompt, lists_options
from draftwood.engine.request_parser import RequestParser, check_int, entry_options
from draftwood.engine.results import GenerationResult
from draftwood.engine.scoring import PromptScores
from draftwood.errors import ConfigurationError, RequestError
from draftwood.methods import Method
from draftwood.methods.base import trained_head
from draftwood.models.base import CausalModel
from draftwood.models.delegate import undelegated
from draftwood.models.memory_budget import MemoryBudget, free_bytes
from draftwood.models.modules import bytes_of
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.runtime.driver import Driver
from draftwood.runtime.prefix import PrefixCache
from draftwood.runtime.scheduler import Scheduler
from draftwood.runtime.task import DecodingTask
from draftwood.sampling.params import RuntimeParams, SamplingParams
from draftwood.util import config
from draftwood.util.resident import give_back
from draftwood.util.safe_parsing import short_repr

if TYPE_CHECKING:
    from draftwood.explain.explanation import Explanation


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One round of a stream: text that became certain and the tokens emitted. The last event carries the result."""

    text: str
    tokens: list[int]
    kinds: Sequence[Kind]
    logprobs: list[float]
    round: Round
    result: GenerationResult | None = None


class Engine:
    """A target model, draft models and a tokenizer, ready to decode. Made by `draftwood.load`.

    All methods may be called from any thread. One worker thread computes for all requests; it begins with the first
    and ends with the engine.
    """

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
        generation_config: Mapping[str, Any] | None = None,
    ) -> None:
        """See `draftwood.sampling.params.RuntimeParams` for the five before the last.

        `generation_config` is what the target's makers recommend for `sampling`; requests do not follow it unasked.
        """
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
        self.names, self.generation_config = dict(names or {}), dict(generation_config or {})
        budget = MemoryBudget(runtime.kv_cache_bytes or free_bytes(target.device) // 2)
        self.scheduler = Scheduler(
            PrefixCache(runtime.reuse_prefixes),
            running=runtime.max_running,
            queue=runtime.max_queued,
            memory=budget.limit,
        )
        self.driver = Driver(self.scheduler)
        self.builder = GenerationBuilder(target, self.drafts, tokenizer, self.scheduler, budget, runtime.load_aware)
        self.requests = RequestParser(self.builder, end_tokens)

    def __repr__(self) -> str:
        names = ", ".join(f"{key}={value!r}" for key, value in self.names.items() if isinstance(value, str))
        method = self.default_method.name
        return f"Engine({names or type(self.target).__name__}, {len(self.drafts)} drafts, method={method!r})"

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Makes tokens of texts and conversations; None: prompts are token ids."""
        return self.builder.tokenizer

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end a text."""
        return self.requests.end_tokens

    @property
    def default_method(self) -> Method:
        """The method of requests that name none: the best one for the models that there are."""
        return self.builder.default_method()

    @property
    def context(self) -> int:
        """The most tokens that the target and all drafts that read them can hold; Medusa heads read none."""
        drafts = (draft.context for draft in self.drafts if trained_head(draft) != "heads")
        return min([self.target.context, *drafts])

    @property
    def broken(self) -> str | None:
        """Why nothing can be computed any more: the worker failed, or a process of a split target is gone."""
        return self.driver.broken or getattr(self.target, "broken", None)

    @property
    def compile_seconds(self) -> float:
        """Seconds that torch.compile took so far, all models together; the requests that met it took longer by it."""
        return float(sum(getattr(model, "compile_seconds", 0.0) for model in (self.target, *self.drafts)))

    @property
    def prefix_hit_rate(self) -> float:
        """Share of all prompt tokens, of all models, that was not computed since others had begun alike."""
        prefixes = self.scheduler.prefixes
        return prefixes.hits / prefixes.tokens_sought if prefixes.tokens_sought else 0.0

    @property
    def weight_bytes(self) -> int:
        """The bytes of its models' weights, as far as these are draftwood's own."""
        models = [one for one in map(undelegated, (self.target, *self.drafts)) if isinstance(one, nn.Module)]
        parts = {part for model in models for part in model.modules() if part not in models}
        return sum(bytes_of(part, recurse=False) for part in parts)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of keys, values and states: `held` by all models' caches, `used` of them, by kept prefixes too."""
        caches = list(self.builder.caches.values())
        states = [cache.states for cache in caches if cache.states is not None]
        return {
            "held": sum(cache.bytes for cache in caches) + sum(each.bytes for each in states),
            "used": sum(cache.used * cache.slot_bytes for cache in caches) + sum(each.used_bytes for each in states),
        }

    def method(self, spec: MethodSpec | None = None) -> Method:
        """The method that a specification means here; refuses one that needs another number of draft models."""
        return self.requests.method(spec)

    def tokens(self, prompt: Prompt, limit: int | None = None) -> list[int]:
        """Ids of a prompt, checked: at most `limit` of them; by default one fewer than the target's context holds."""
        return self.requests.tokens(prompt, limit)

    def set_draft_models(self, method: MethodSpec, models: Sequence[CausalModel]) -> None:
        """Have a method draft with `models` in place of those that it makes or loads for the target.

        So do all methods that draft from the same (`Method.drafts_from`), such as those with another tree.
        """
        parsed = Method.parse(method)
        if not isinstance(models, Sequence) or not all(isinstance(model, CausalModel) for model in models):
            raise ConfigurationError(f"{parsed.name} drafts with a list of models, not with {short_repr(models)}")
        self.builder.set_models(parsed, models)

    def reset_prefix_cache(self) -> None:
        """Give back the keys and values that finished requests left for others."""
        self.driver.call(self.scheduler.prefixes.reset)
        give_back()

    def forget_answers(self) -> None:
        """Forget the answers that requests with `lookup`, shared=true, left for others."""
        self.builder.earlier_answers = self.builder.earlier_answers.emptied()

    @lists_options
    def generate(
        self,
        prompt: Prompt,
        method: MethodSpec | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        **options: Unpack[MoreOptions],
    ) -> GenerationResult:
        """Decode one prompt: text, token ids, or a conversation, which is a list of messages with role and content.

        The checkpoint's chat template makes a prompt of a conversation, up to where the assistant's reply begins;
        `tokenizer.chat` gives token ids likewise and takes the template's variables.

        `method` is a name, {"name": ..., option: value} or a Method; default: `default_method`, which the result
        names. `temperature` (0 = greedy), `top_k`, `top_p`, ... say how tokens are drawn, or `sampling` does, as a
        mapping of them or a SamplingParams. The same `seed` gives the same text. Output ends at EOS or one of
        `stop_token_ids`, at a `stop` string, after `max_new_tokens` or where the context ends; the first
        `min_new_tokens` tokens are none that would end it, and `ignore_eos` goes on behind an end token. Special tokens
        have no text, unless `skip_special_tokens` is False; stop strings are no part of the text, unless
        `include_stop_str_in_output` is True. `bad_words` are never generated, as far as they are spelled in their own
        tokens, and only `allowed_token_ids` are, if there are any. Of requests that wait, those with the smallest
        `priority` begin first.
        `structured` says what the text must be ({"json_schema": ...}, {"json_object": True}, {"regex": ...},
        {"choice": [...]} or {"grammar": ...}). `top_logprobs` asks for the most probable tokens at each place.
        `cancelled` is asked once per round, in the thread that computes. Raises RequestError or ConfigurationError
        where something asked for is wrong, before any work is done.
        """
        generation = prepare(
            self, prompt, method=method, sampling=sampling, max_new_tokens=max_new_tokens, seed=seed, **options
        )
        for round_ in self._rounds(generation):
            generation.note(round_)
        return generation.result()

    @lists_options
    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Iterator[StreamEvent]:
        """As `generate`, round by round; bad input is refused at once.

        The request begins with the first event that is asked for, and goes on however late the others are taken.
        Closing the iterator cancels it.
        """
        generation = prepare(self, prompt, **options)
        return self._stream(generation, self.builder.task(generation))

    def _stream(self, generation: Generation, task: DecodingTask[Round]) -> Iterator[StreamEvent]:
        with closing(self.driver.events(task)) as rounds:
            for round_ in rounds:
                yield stream_event(generation, round_)

    @lists_options
    def explain(self, prompt: Prompt, **options: Unpack[Options]) -> Explanation:
        """As `generate`, and keep what became of every draft.

        The explanation has `text` (rounds as indented trees), `html` (a page that steps through them, shown by itself
        in a notebook), `trees` and `result`.
        """
        from draftwood.explain.explanation import Explanation

        generation = prepare(self, prompt, **options)
        models = {**self.names, "device": str(self.target.device)}
        return Explanation.of(generation, self._rounds, self.tokenizer, models)

    @lists_options
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
        before any work is done. `progress(finished, all)` is called as each request ends. Ctrl-C raises
        BatchInterrupted, which holds the finished results.
        """
        results: dict[int, GenerationResult] = {}
        prompts = entries(prompts)
        if progress is not None and not callable(progress):
            raise RequestError(f"progress is {short_repr(progress)}, but must be a function of (finished, all)")
        try:
            with closing(self.as_completed(prompts, concurrency, **options)) as finished:
                for index, result in finished:
                    results[index] = result
                    if progress is not None:
                        progress(len(results), len(prompts))
        except KeyboardInterrupt:
            raise BatchInterrupted(results) from None
        except BatchFailed as failed:
            failed.results = results
            raise
        return [results[index] for index in range(len(prompts))]

    @lists_options
    def as_completed(
        self, prompts: Sequence[Prompt | Mapping[str, Any]], concurrency: int = 8, **options: Unpack[Options]
    ) -> Generator[tuple[int, GenerationResult], None, None]:
        """As `batch`, but (place among the prompts, result) as each request ends; bad input is refused at once."""
        check_int("concurrency", concurrency, 1)
        requests = [self.requests.request(**entry_options(options, entry)) for entry in entries(prompts)]
        generations, call = map(self.builder.generation, requests), object()
        queue = deque((i, one, self.builder.task(one, call)) for i, one in enumerate(generations))
        return completed(self.driver, queue, concurrency)

    def score(self, prompt: Prompt, top_logprobs: int = 0, first: int = 1) -> PromptScores:
        """The log-probability of each token of a text from number `first` on, under the target, given those before."""
        task = self.builder.scoring_task(*self.requests.scoring(prompt, top_logprobs, first))
        (scores,) = self.driver.outcomes([task])
        return scores

    def _rounds(self, generation: Generation) -> Iterator[Round]:
        """All rounds of a generation, when it has ended."""
        return self.driver.events(self.builder.task(generation), each=False)


def prepare(engine: Engine, prompt: Prompt, **options: Unpack[Options]) -> Generation:
    """The generation of a request, with options as of `Engine.generate`: checked, its parts built, no memory taken."""
    return engine.builder.generation(engine.requests.request(prompt, **options))


def stream_event(generation: Generation, round_: Round) -> StreamEvent:
    """Collect a round of a generation and make the event that a stream shows of it.

    It has the result if it is the last round, however far the thread that computes has come meanwhile.
    """
    generation.note(round_)
    result = None if round_.finish is None else generation.result()
    return StreamEvent(round_.text, round_.tokens, round_.kinds, round_.logprobs, round_, result)
