"""Load once; then generate, stream and batch with any method.

Knows models, tokenizers and requests. Refuses to know how decoding works (decode.py) and how forwards are batched
(executor.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import torch

from draftwood import config
from draftwood.decode import Request, rounds
from draftwood.depth import Learner
from draftwood.draft import SharedSession
from draftwood.errors import ConfigurationError, ModelError, RequestError
from draftwood.executor import Decoding, drive, drive_together
from draftwood.methods import Method
from draftwood.models import checkpoint
from draftwood.models.base import CausalModel, Part
from draftwood.models.cache import Cache
from draftwood.models.chat import Message
from draftwood.models.compiled import Compiled
from draftwood.models.tokenizer import INCOMPLETE, Tokenizer, TokenStream
from draftwood.sampling import SamplingParams, Streams
from draftwood.session import Session
from draftwood.text import Ending
from draftwood.trace import GenerationResult, Kind, Metrics, Round

ModelSource: TypeAlias = str | Path | CausalModel | Any  # Any: a transformers model object
MethodSpec: TypeAlias = str | Mapping[str, Any] | Method
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]  # text, token ids, or a conversation

THROUGH_TRANSFORMERS = "hf:"  # prefix of a source
EMBEDDED = Path(str(files("draftwood") / "models" / "embedded"))


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """News of one round: text that became certain and the tokens emitted. The last event carries the result."""

    text: str
    tokens: list[int]
    kinds: Sequence[Kind]
    logprobs: list[float]
    round: Round
    result: GenerationResult | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """A checked request."""

    prompt: list[int]
    method: Method
    params: SamplingParams
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...]
    top_logprobs: int
    end_tokens: frozenset[int]
    cancelled: Callable[[], bool] | None


@dataclass(slots=True)
class _Work:
    """One request under way and what has been collected of it."""

    request: Request
    plan: _Plan
    ending: Callable[[_Plan], Ending]
    news: list[Round] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    began: float = 0.0

    def start(self) -> Decoding[Round]:
        """The decoding of this request; its clock starts here."""
        self.began = perf_counter()
        return rounds(self.request)

    def note(self, news: Round) -> None:
        self.news.append(news)
        self.metrics.add(news)

    def result(self) -> GenerationResult:
        self.metrics.seconds = perf_counter() - self.began
        self.metrics.peak_slots = self.request.target.peak
        news, ending = self.news, self.request.ending
        beams = news[-1].beams if news else []
        for beam in beams:
            one = self.ending(self.plan)
            one.feed(beam.tokens)
            cut = ending.reason if beam is beams[0] else None  # of the best only: others need not end as it does
            beam.text, beam.finish_reason = one.text, one.reason or cut or "cancelled"
        return GenerationResult(
            text=ending.text,
            tokens=[token for r in news for token in r.tokens],
            logprobs=[value for r in news for value in r.logprobs],
            warped_logprobs=[value for r in news for value in r.warped_logprobs],
            top_logprobs=[value for r in news for value in r.top_logprobs],
            warped_top_logprobs=[value for r in news for value in r.warped_top_logprobs],
            kinds=[kind for r in news for kind in r.kinds],
            finish_reason=ending.reason or "cancelled",
            metrics=self.metrics,
            rounds=news,
            prompt_tokens=self.request.prompt,
            seed=self.plan.seed,
            method=self.plan.method.as_dict(),
            sampling=self.request.params.model_dump(mode="json"),
            lossless=self.plan.method.lossless,
            beams=beams,
        )


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
        for news in drive(work.start()):
            work.note(news)
        return work.result()

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[StreamEvent]:
        """As `generate`, round by round; bad input is refused at once. Closing the iterator cancels the request."""
        return self._stream(self._plan(prompt, **options))

    def _stream(self, plan: _Plan) -> Iterator[StreamEvent]:
        work = self._begin(plan)  # here, so that an iterator that is never started holds nothing
        for news in drive(work.start()):
            work.note(news)
            ending = work.request.ending
            result = None if ending.reason is None else work.result()
            yield StreamEvent(ending.news(), news.tokens, news.kinds, news.logprobs, news, result)

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
        works: dict[int, _Work] = {}

        def start(index: int) -> Decoding[Round]:
            works[index] = self._begin(plans[index])
            return works[index].start()

        results: dict[int, GenerationResult] = {}
        for index, news in drive_together([partial(start, index) for index in range(len(plans))], concurrency):
            works[index].note(news)
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
            parts = (self.tokenizer.encode if text else self.tokenizer.chat)(parts) if prompt else []
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
    ) -> _Plan:
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
        chosen.refuse(params)
        return _Plan(
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

    def _begin(self, plan: _Plan) -> _Work:
        """Take cache rows and build the method's parts."""
        models = self._models.get(plan.method.drafts_from)
        if models is None:
            models = self._models[plan.method.drafts_from] = plan.method.models(self.target, self.drafts)
        target = Session(self.target, self._cache(self.target))
        sessions = [
            SharedSession(model, target.cache, "draft", target=target)
            if isinstance(model, Part) and model.whole is self.target
            else Session(model, self._cache(model), "draft")
            for model in models
        ]
        drafter, verify, depth, answers = plan.method.build(sessions, target)
        if isinstance(depth, Learner) and depth.shared:
            depth = self._learners.setdefault(plan.method, depth).beside()
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
        return _Work(request, plan, self._ending)

    def _ending(self, plan: _Plan) -> Ending:
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


def load(
    target: ModelSource | None = None,
    draft: ModelSource | Sequence[ModelSource] | None = None,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device | None = None,
    quantize: str | None = None,
    compile: bool = False,
    tokenizer: Tokenizer | str | Path | Any = None,
) -> Engine:
    """An engine from checkpoint directories, hub ids or model objects.

    Without a target the embedded pair is loaded (its draft too, unless `draft` names another). `device` defaults to
    CUDA where there is one. Models may have differently padded vocabularies, but must share a tokenizer. A source that
    begins with "hf:", and a transformers model object, run through transformers (extra hf), whose fast tokenizers are
    taken too. On a CPU, `quantize="int8"` holds weights in a quarter of float32's bytes, which changes what the model
    says a little; methods stay exact to the model so changed. `compile` runs forwards of few cells through
    torch.compile, which takes a C++ compiler, and tens of seconds the first time on a machine.
    """
    place = _place(device)
    if target is None:
        target = EMBEDDED / "target"
        draft = EMBEDDED / "draft" if draft is None else draft
    sources: list[ModelSource] = []
    if draft is not None:
        sources = list(draft) if isinstance(draft, Sequence) and not isinstance(draft, str) else [draft]
    words = Tokenizer.load(Path(tokenizer)) if isinstance(tokenizer, str | Path) else tokenizer
    if words is not None and not isinstance(words, Tokenizer):
        words = _adapter().wrap_tokenizer(words)
    end: frozenset[int] = frozenset()
    how = _How(dtype, place, quantize, compile)
    model, directory = _model(target, how)
    if directory is not None:
        words = words or Tokenizer.load(directory, _name(target))
        end = checkpoint.end_tokens(directory)
    else:
        words = words or getattr(model, "tokenizer", None)
        end = getattr(model, "end_tokens", end)
    drafts, places = [], [directory]
    for source in sources:
        drafted, where = _model(source, how)
        if where is not None and words is not None and not Tokenizer.load(where).agrees_with(words):
            raise ModelError(
                f"target {target} and draft {source} have different tokenizers, so their tokens mean different text; "
                "use a draft of the same family"
            )
        drafts.append(drafted)
        places.append(where)
    used = str(getattr(model, "dtype", dtype)).removeprefix("torch.")
    names: dict[str, Any] = {"target": _name(target), "draft": [_name(source) for source in sources], "dtype": used}
    names |= {"quantize": quantize} if quantize else {}
    names |= {"compiled": True} if compile else {}
    grown = [None if where is None else checkpoint.grown_from(where) for where in places]
    names |= {"grown": {"target": grown[0], "draft": grown[1:]}} if any(grown) else {}
    return Engine(model, drafts, words, end, names)


def _place(device: str | torch.device | None) -> torch.device:
    """The device to load on, checked."""
    try:
        place = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:  # an unknown name; a build without CUDA; an index too high
        raise ConfigurationError(f"device {str(device)!r} is not there; use cpu, or one that torch sees") from error
    return place


@dataclass(frozen=True, slots=True)
class _How:
    """How checkpoints are to be loaded."""

    dtype: str | torch.dtype
    device: torch.device
    quantize: str | None
    compile: bool


def _model(source: ModelSource, how: _How) -> tuple[CausalModel, Path | None]:
    """A model and the directory it came from (None for an object)."""
    own = isinstance(source, str | Path) and not str(source).startswith(THROUGH_TRANSFORMERS)
    if not own and (how.quantize or how.compile):
        option = "quantize" if how.quantize else "compile"
        raise ConfigurationError(
            f"{option} is for checkpoints that draftwood's own decoder loads, not for {_name(source)}; leave it out"
        )
    if how.compile and how.device.type != "cpu":
        raise ConfigurationError(f"compile is for the CPU, not for device {how.device}; leave it out")
    if how.quantize and how.compile:
        raise ConfigurationError("a model is either quantised or compiled; leave out quantize or compile")
    if isinstance(source, str) and not own:
        directory = checkpoint.locate(source.removeprefix(THROUGH_TRANSFORMERS))
        return _adapter().load(directory, how.dtype, how.device), directory
    if isinstance(source, str | Path):
        directory = checkpoint.locate(source)
        decoder = checkpoint.load(directory, how.dtype, how.device, how.quantize, packed=not how.compile)
        return Compiled(decoder) if how.compile else decoder, directory
    if any(base.__name__ == "PreTrainedModel" for base in type(source).__mro__):  # without importing transformers
        return _adapter().HuggingFaceModel(source), None
    if not isinstance(source, CausalModel):
        raise ModelError(f"{type(source).__name__} is not a model: see draftwood.models.base.CausalModel")
    return source, None


def _adapter() -> Any:
    """models/hf.py, imported when a transformers object or source is given."""
    try:
        return import_module("draftwood.models.hf")
    except ImportError as error:
        raise ConfigurationError(
            f"{error}; running models through transformers needs the extra draftwood[hf]"
        ) from error


def _name(source: ModelSource) -> str:
    if isinstance(source, str | Path):
        return "embedded" if Path(source).parent == EMBEDDED else str(source)
    return type(source).__name__
