"""Maps what a client asks for to generations of the engine, and these to choices of the answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood.depth import parse_depth
from draftwood.engine.request import Prompt
from draftwood.engine.scoring import PromptScores
from draftwood.errors import DraftwoodError
from draftwood.methods import Method
from draftwood.methods.beams import BeamMethod
from draftwood.serve.errors import ApiError
from draftwood.serve.protocol import MAX_CHOICES, GenerationRequest
from draftwood.serve.public import check_options
from draftwood.serve.service import Service

MAX_METHOD_LENGTH = 4096  # characters of JSON
SAMPLING_FIELDS = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("top_k", "logit_bias"),
)


@dataclass(frozen=True)
class RequestPlan:
    """The generations of a request: `each` of every prompt, in order; `n` of them, or `n` beams of one, are choices."""

    options: Mapping[str, Any]  # of all of them, as `Engine.generation` takes them
    prompts: Sequence[Prompt]
    n: int
    each: int
    method: Method
    seed: int
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the chat template

    @property
    def generations(self) -> int:
        """The number of generations."""
        return len(self.prompts) * self.each

    def requests(self, prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Keywords of each generation for `AsyncEngine.together`, from the ids of each prompt."""
        return [{"prompt": ids, "seed": self.seed + i, **self.options} for ids in prompts for i in range(self.each)]

    @property
    def beams(self) -> bool:
        return isinstance(self.method, BeamMethod)


def plan_request(
    service: Service,
    body: GenerationRequest,
    prompts: Sequence[Prompt],
    variables: Mapping[str, Any] | None = None,
    constraints: Sequence[Mapping[str, Any]] | None = None,
    special: bool = False,
) -> RequestPlan:
    """The generations that answer a request; ApiError where it cannot be carried out, before anything is computed.

    `variables` are for the chat template, `constraints` are on the text, if not the body's own; `special` tokens have
    text.
    """
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options are for streams; set stream, or leave them out", "stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise ApiError(400, "prompt_logprobs are not streamed; leave out stream, or them", "prompt_logprobs")
    n, best_of = body.choices, body.best_of or body.choices
    if best_of < n:
        raise ApiError(400, f"best_of is {best_of}, but n, the choices wanted, is {n}; raise it", "best_of")
    method = method_of(service, body)
    beams = isinstance(method, BeamMethod)
    if isinstance(method, BeamMethod):
        n = method.n_best
        best_of = max(best_of, n)
    if best_of > n and body.stream and not beams:
        raise ApiError(400, "the best of several cannot be streamed; leave out stream or best_of", "best_of")
    each = 1 if beams else best_of
    width = max(method.widest, getattr(method, "draft_width", None) or 0) if isinstance(method, BeamMethod) else best_of
    _check_sequences(service, body, width, len(prompts), beams)
    max_tokens, requested = service.settings.max_tokens, body.limit
    if max_tokens is not None and requested is not None and requested > max_tokens:
        raise ApiError(
            400, f"{requested} tokens are asked for, but this server gives {max_tokens} at most", "max_tokens"
        )
    seed = secrets.randbelow(1 << 31) if body.seed is None else body.seed
    options: dict[str, Any] = {
        "method": method,
        "sampling": ({} if beams else service.sampling_defaults) | sampling_fields(body),
        "max_new_tokens": requested or max_tokens or service.engine.target.context,
        "min_new_tokens": body.min_tokens or 0,
        "stop": body.stop or (),
        "stop_token_ids": body.stop_token_ids or (),
        "ignore_eos": bool(body.ignore_eos),
        "top_logprobs": body.top or 0,
        "skip_special_tokens": body.skip_special_tokens is not False and not special,
        "include_stop_str_in_output": bool(body.include_stop_str_in_output),
        "bad_words": body.bad_words or (),
        "allowed_token_ids": body.allowed_token_ids,
        "priority": body.priority or 0,
    }
    constraints = body.structured if constraints is None else constraints
    if len(constraints) > 1:
        raise ApiError(400, "structured output is asked for more than once; give exactly one", "response_format")
    for structured in constraints:
        options["structured"] = structured
    return RequestPlan(options, prompts, n, each, method, seed, variables or {})


async def prompts_of(
    service: Service, body: GenerationRequest, prompts: Sequence[Prompt], variables: Mapping[str, Any] | None = None
) -> tuple[Sequence[Prompt], list[PromptScores]]:
    """The prompts, as ids where a request cuts them or asks for their log-probabilities, and these."""
    kept, top = body.truncate_prompt_tokens, body.prompt_logprobs
    if kept == -1:
        kept = max(1, service.engine.target.context - (body.limit or 1))
    if kept is not None or top is not None:
        prompts = [await service.read(prompt, None, variables, kept) for prompt in prompts]
    return prompts, [] if top is None else await service.scores(prompts, top)


def _check_sequences(service: Service, body: GenerationRequest, width: int, prompts: int, beams: bool) -> None:
    """Raise ApiError for more texts or beams than a client may ask for, per prompt and over all prompts."""
    limit, what = service.settings.max_sequences, "beams" if beams else "texts"
    field = "best_of" if body.best_of else "speculation" if beams and not body.use_beam_search else "n"
    if width > limit:
        fix = "lower the width" if beams else "lower n and best_of"
        raise ApiError(
            400, f"{width} {what} are asked for, but this server takes {limit} (--max-sequences) at most; {fix}", field
        )
    if prompts * width > (total := max(limit, MAX_CHOICES)):
        raise ApiError(
            400, f"{prompts} prompts with {width} {what} each are more than {total}; send fewer at once", field
        )


def sampling_fields(body: GenerationRequest) -> dict[str, Any]:
    """The fields of `SamplingParams` that a request sets."""
    given = {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    if given.get("top_k") == -1:  # all, as vLLM has it
        given["top_k"] = 0
    if "logit_bias" in given:
        try:
            given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
        except ValueError:
            raise ApiError(400, "the keys of logit_bias are token ids", "logit_bias") from None
    return given


def method_of(service: Service, body: GenerationRequest) -> Method:
    """The method of a request. `n` says how many beams it returns."""
    spec = body.speculation
    searched = body.use_beam_search and spec in (None, "off")
    for name in ("length_penalty", "early_stopping"):
        if getattr(body, name) is not None and not searched:
            raise ApiError(400, f"{name} is for use_beam_search; set it, or make it an option of speculation", name)
    try:
        default = service.method if spec is None else parse_method(spec)
        method = _beam_search(service, body) if searched else default
        if isinstance(method, BeamMethod):
            if body.best_of is not None and not searched:
                raise ApiError(400, f"best_of is for texts; of beams, set the width of {method.name}", "best_of")
            if body.n is not None and method.n_best not in (1, body.n):
                raise ApiError(400, f"n is {body.n}, but n_best of the method {method.n_best}; leave out one", "n")
            method = Method.parse(method, {} if body.n is None else {"n_best": body.n})
        elif body.use_beam_search:
            raise ApiError(400, f"{method.name} has no beams; leave out speculation or use_beam_search", "speculation")
        if len(service.engine.drafts) < method.drafts_needed[0]:
            lacking = f"{method.name} needs a draft model, and this server has none; /v1/methods lists what is usable"
            raise ApiError(400, lacking, "speculation")
        return service.engine.method(method)
    except DraftwoodError as error:
        raise ApiError(400, str(error), "speculation") from None


def _beam_search(service: Service, body: GenerationRequest) -> Method:
    """Beam search as vLLM is asked for it, speculative where there is a draft model; at least 4 beams if none said."""
    drafted = body.speculation is None and bool(service.engine.drafts)
    options = {"width": body.best_of or max(body.choices, 4)}
    for name in ("length_penalty", "early_stopping"):
        if getattr(body, name) is not None:
            options[name] = getattr(body, name)
    return Method.parse("speculative-beam-search" if drafted else "beam-search", options)


def parse_method(spec: str | Mapping[str, Any]) -> Method:
    """The method that a client names; ApiError for methods that read files of this machine or share text."""
    if spec == "off":
        return Method.parse("autoregressive")
    if isinstance(spec, str) and spec.startswith("file:"):
        raise ApiError(400, "method files are not read for clients; send the options", "speculation")
    if len(json.dumps(spec)) > MAX_METHOD_LENGTH:
        raise ApiError(400, f"speculation has more than {MAX_METHOD_LENGTH:,} characters", "speculation")
    if not isinstance(spec, str):
        check_options(spec)
    method = Method.parse(spec)
    if method.files:
        raise ApiError(400, "options that name files of the server are not for clients; leave them out", "speculation")
    if getattr(method, "shared", False) or getattr(parse_depth(getattr(method, "depth", "fixed")), "shared", False):
        raise ApiError(400, "what requests share would tell clients of each other; leave out shared", "speculation")
    return method
