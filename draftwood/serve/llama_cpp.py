"""llama.cpp's own endpoints: /completion, /infill, /apply-template, /props and /slots, thin forms over completions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from itertools import chain, starmap
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.responses import JSONResponse, Response

from draftwood import __version__
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.serve.answers import Piece, finite
from draftwood.serve.conversation import conversation_of
from draftwood.serve.errors import ApiError, validation_error
from draftwood.serve.fields import MAX_TOP_LOGPROBS, Every, Loose, Name, Text, WritableSchema
from draftwood.serve.infill import infill_prompt
from draftwood.serve.messages import Conversation, Messages
from draftwood.serve.protocol import CompletionRequest
from draftwood.serve.request_mapping import plan_request
from draftwood.serve.request_run import STREAMED, EventStream, RequestRun, unless_gone
from draftwood.serve.service import Service, check_model

SAME = ("stream", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_eos", "speculation")
OTHER_NAMES = {"n_predict": "max_tokens", "repeat_penalty": "repetition_penalty", "grammar": "guided_grammar"}
OTHER_NAMES |= {"json_schema": "guided_json", "presence_penalty": "presence_penalty"}
OTHER_NAMES |= {"frequency_penalty": "frequency_penalty", "n_probs": "logprobs"}
STOP_TYPES = {"eos": "eos", "stop": "word", "length": "limit", "cancelled": "none"}


class LlamaCompletionRequest(Loose):
    """llama.cpp's fields that mean something here; the others are about its cache and its samplers."""

    prompt: Any = None
    model: Name | None = None
    stream: bool | None = None
    n_predict: Annotated[int, Field(ge=-2, lt=1 << 31)] | None = None
    n_probs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Any = None
    ignore_eos: bool | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Every[Any] | dict[str, Any] | None = None
    json_schema: WritableSchema | None = None
    grammar: Text | None = None
    return_tokens: bool | None = None
    speculation: Any = None

    def completion(self, prompt: Any) -> CompletionRequest:
        """The same as a body of /v1/completions; ApiError where a field is none there."""
        given: dict[str, Any] = {"prompt": prompt, **{name: getattr(self, name) for name in SAME}}
        given |= {other: value for name, other in OTHER_NAMES.items() if (value := getattr(self, name)) is not None}
        given["max_tokens"] = -1 if self.n_predict is None or self.n_predict < 0 else self.n_predict
        given["seed"] = None if self.seed == -1 else self.seed
        given["stop"] = self.stop or None
        given["top_k"] = -1 if self.top_k == 0 else self.top_k
        given["logprobs"] = self.n_probs or None
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias or ()
        try:
            given["logit_bias"] = {str(id): -100.0 if bias is False else bias for id, bias in pairs} or None
            return CompletionRequest.model_validate(given)
        except ValidationError as error:
            errors = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
            raise validation_error(RequestValidationError(errors), CompletionRequest) from None
        except (TypeError, ValueError):
            raise ApiError(400, "logit_bias is a list of pairs of a token id and a number", "logit_bias") from None


class InputFile(Loose):
    filename: Text | None = None
    text: Text


class InfillRequest(LlamaCompletionRequest):
    input_prefix: Text = ""
    input_suffix: Text = ""
    input_extra: Annotated[Every[InputFile], Field(max_length=256)] | None = None


class TemplateRequest(Conversation):
    model: Name | None = None
    messages: Messages


def add_llama_cpp(app: FastAPI, service: Service) -> None:
    """Add the endpoints."""

    @app.post("/completion", responses=STREAMED)
    async def completion(body: LlamaCompletionRequest, request: Request) -> Response:
        """Continue a text, as llama.cpp's server has it."""
        return await answer(body, request, await service.texts.run(mixed_prompt, service.tokenizer, body.prompt))

    @app.post("/infill", responses=STREAMED)
    async def infill(body: InfillRequest, request: Request) -> Response:
        """Fill in what stands between two texts, where the model has tokens for that."""
        return await answer(body, request, await service.texts.run(_infill_prompt, service.tokenizer, body))

    async def answer(body: LlamaCompletionRequest, request: Request, prompt: Any) -> Response:
        check_model(service, body.model)
        same = body.completion(prompt)
        if same.max_tokens == 0:
            same.max_tokens = 1  # llama.cpp computes the prompt alone
        run = RequestRun(service, plan_request(service, same, same.prompts), request.state.logged)
        reply = _Reply(run, body)
        if body.stream:
            await run.start_for(request)
            return EventStream(reply.events(), run)
        await unless_gone(request.receive, reply.finish())
        return await service.answers.answer(reply.whole, sum(piece.size for _, piece in run.choices()))

    @app.post("/apply-template")
    async def apply_template(body: TemplateRequest, request: Request) -> Response:
        """A conversation as the text that the model continues."""
        check_model(service, body.model)
        conversation, variables, _ = conversation_of(service, body, body.messages)
        work = service.conversations.run(partial(service.tokenizer.chat_text, **variables), conversation)
        return JSONResponse({"prompt": await unless_gone(request.receive, work)})

    @app.get("/props")
    async def props() -> dict[str, Any]:
        """Facts of the server and its model, as llama.cpp names them."""
        engine = service.engine
        template = service.tokenizer.templates.get("default")
        return {
            "default_generation_settings": {"n_ctx": engine.target.context, "params": {"speculation": method_name()}},
            "total_slots": engine.scheduler.calls.running,
            "model_path": service.name,
            "model_alias": service.name,
            "chat_template": "" if template is None else template.source,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"draftwood {__version__}",
            "is_sleeping": False,
        }

    @app.get("/slots")
    async def slots() -> list[dict[str, Any]]:
        """The places for requests that run at once, and which of them are taken."""
        scheduler, context = service.engine.scheduler, service.engine.target.context
        taken = len(scheduler.active)
        return [
            {"id": place, "n_ctx": context, "speculative": method_name() != "autoregressive", "is_processing": used}
            for place, used in enumerate(place < taken for place in range(max(taken, scheduler.calls.running)))
        ]

    def method_name() -> str:
        return service.method.name

    @app.post("/embedding", include_in_schema=False)
    @app.post("/api/embed", include_in_schema=False)
    @app.post("/api/embeddings", include_in_schema=False)
    @app.post("/embeddings", include_in_schema=False)
    @app.post("/v1/embeddings", include_in_schema=False)
    async def embeddings() -> Response:
        """There are none."""
        raise ApiError(404, "this server generates text and has no embeddings; ask a server of an embedding model")


def mixed_prompt(tokenizer: Tokenizer, prompt: Any) -> Any:
    """A prompt as it is, or as ids where texts and ids are mixed in one list."""
    if not isinstance(prompt, list) or len({type(one) for one in prompt}) < 2:
        return prompt if prompt is not None else ""
    if not all(isinstance(one, str) or (isinstance(one, int) and not isinstance(one, bool)) for one in prompt):
        return prompt  # for the list's own error
    ids: list[int] = []
    for one in prompt:
        ids += tokenizer.encode(one, not ids) if isinstance(one, str) else [one]
    return ids


def _infill_prompt(tokenizer: Tokenizer, body: InfillRequest) -> list[int]:
    """Ids of a request's texts, other files first."""
    extra = "".join(f"{file.text}\n" for file in body.input_extra or ())
    prompt = body.prompt if isinstance(body.prompt, str) else ""
    return infill_prompt(tokenizer, extra + body.input_prefix + prompt, body.input_suffix, "input_suffix")


class _Reply:
    """The answer of a run, whole or as it grows; of several prompts the whole one is a list."""

    def __init__(self, run: RequestRun, body: LlamaCompletionRequest) -> None:
        self.run, self.body = run, body

    async def finish(self) -> None:
        async with asyncio.timeout(self.run.service.settings.request_seconds):
            await self.run.finish()

    def whole(self) -> Any:
        """The finished document."""
        parts = [self._part(index, piece) | self._end(index) for index, piece in self.run.choices()]
        return parts if len(parts) > 1 else parts[0]

    def _part(self, index: int, piece: Piece) -> dict[str, Any]:
        tokens = list(piece.tokens) if self.body.return_tokens or self.body.stream else []
        part: dict[str, Any] = {"index": index, "content": piece.text, "tokens": tokens, "stop": False}
        if self.body.n_probs:
            part["completion_probabilities"] = [
                {**self._token(token, logprob), "top_logprobs": [self._token(*other) for other in top]}
                for token, logprob, top in piece.scored
            ]
        return part

    def _token(self, token: int, logprob: float | None) -> dict[str, Any]:
        service = self.run.service
        spelled = list(service.tokenizer.bytes_of(token) or b"")
        return {"id": token, "token": service.spell([token]), "bytes": spelled, "logprob": finite(logprob)}

    def _end(self, index: int) -> dict[str, Any]:
        """Fields of the last part alone; times in milliseconds."""
        run = self.run
        result = run.finished[index // run.plan.n]
        spent = 1000 * (time.perf_counter() - run.start_time)
        cached, made = result.metrics.reused_tokens, len(result.tokens)
        timings: Mapping[str, Any] = {
            "cache_n": cached,
            "prompt_n": len(result.prompt_tokens) - cached,
            "predicted_n": made,
            "predicted_ms": spent,
            "predicted_per_token_ms": spent / max(1, made),
            "predicted_per_second": 1000 * made / spent,
            "draft_n": result.metrics.drafted,
            "draft_n_accepted": result.metrics.accepted,
        }
        return {
            "stop": True,
            "model": run.service.name,
            "tokens_predicted": made,
            "tokens_evaluated": len(result.prompt_tokens),
            "tokens_cached": cached,
            "truncated": False,
            "has_new_line": "\n" in result.text,
            "stop_type": STOP_TYPES[result.finish_reason],
            "stopping_word": "",
            "generation_settings": {**result.sampling, "seed": result.seed, "speculation": result.method},
            "timings": timings,
            "metrics": run.summary["metrics"],
        }

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: parts as they come, each text's last one with its figures."""
        run = self.run
        try:
            limit = asyncio.timeout(run.service.settings.request_seconds)
            async with limit, aclosing(run.events()) as batches:
                async for events in batches:
                    for index, piece in chain.from_iterable(starmap(run.deltas, events)):
                        if piece.text or piece.tokens:
                            yield f"data: {json.dumps(self._part(index, piece))}\n\n"
            for index, _ in run.choices():
                yield f"data: {json.dumps(self._part(index, Piece()) | self._end(index))}\n\n"
        except Exception as error:
            shown = run.service.logged_error(error, "while it was streamed")
            yield f"data: {json.dumps({'error': {**shown.document['error'], 'code': shown.status}})}\n\n"
