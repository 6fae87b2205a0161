"""/v1/completions and /v1/chat/completions: whole answers and streams of chunks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import chain, starmap
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from draftwood.serve import answers
from draftwood.serve.answers import ChatForm, CompletionForm, Form, Piece, ReplyFields
from draftwood.serve.conversation import constraints_of, conversation_of
from draftwood.serve.errors import ApiError, validation_error
from draftwood.serve.infill import infill_prompt
from draftwood.serve.protocol import ChatRequest, CompletionRequest, GenerationRequest, StreamOptions
from draftwood.serve.request_mapping import RequestPlan, plan_request, prompts_of
from draftwood.serve.request_run import STREAMED, EventStream, RequestRun, unless_gone
from draftwood.serve.service import Service, check_model


def add_completions(app: FastAPI, service: Service) -> None:
    """Add both endpoints."""

    @app.post("/completions", include_in_schema=False)
    @app.post("/v1/completions", responses=STREAMED)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue a text, or several."""
        check_model(service, body.model)
        form = CompletionForm(
            tokenizer=service.tokenizer,
            spell=service.spell,
            logprobs=body.logprobs is not None,
            ids=bool(body.return_token_ids),
        )
        echoed: list[Piece] = []
        if body.max_tokens == 0 and (body.stream or not body.echo):
            raise ApiError(400, "max_tokens is 0, which is for echo, not streamed; ask for a token", "max_tokens")
        given = body.prompts
        if body.suffix:
            texts = [prompt for prompt in given if isinstance(prompt, str)]
            if len(texts) < len(given):
                raise ApiError(400, "a suffix is for prompts that are texts; give a text", "suffix")
            given = [
                await service.texts.run(infill_prompt, service.tokenizer, text, body.suffix, "suffix") for text in texts
            ]
        plan = plan_request(service, body, given)
        prompts, form.prompt_scores = await unless_gone(request.receive, prompts_of(service, body, given))
        plan = replace(plan, prompts=prompts)
        if body.echo:
            scores = await unless_gone(request.receive, service.scores(prompts, body.logprobs))
            texts = [
                prompt if isinstance(prompt, str) else await service.prompts.run(service.echo, score.tokens)
                for prompt, score in zip(prompts, scores, strict=True)
            ]
            echoed = [
                Piece(text, score.tokens, score.logprobs, score.top_logprobs)
                for text, score in zip(texts, scores, strict=True)
            ]
        if body.max_tokens == 0:
            head, size = _head(form.prefix, request, service), body.choices * sum(piece.size for piece in echoed)
            size += form.prompt_size
            return await service.answers.answer(lambda: _prompts_alone(head, form, body, echoed), size)
        return await _answer(service, request, body, form, plan, echoed)

    @app.post("/chat/completions", include_in_schema=False)
    @app.post("/v1/chat/completions", responses=STREAMED)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, by the checkpoint's chat template."""
        check_model(service, body.model)
        if body.top_logprobs and not body.logprobs:
            raise ApiError(400, "top_logprobs are for logprobs; set logprobs, or leave them out", "top_logprobs")
        form, plan = await prepared_chat(service, request, body)
        return await _answer(service, request, body, form, plan)


async def prepared_chat(service: Service, request: Request, body: ChatRequest) -> tuple[ChatForm, RequestPlan]:
    """How a conversation is answered, and the generations that do."""
    talk, variables, reply = conversation_of(service, body, body.messages, body.tool_choice != "none")
    form = chat_form(service, body)
    if reply.tools or reply.thought:
        form.reply, form.several = reply, body.parallel_tool_calls is not False and body.functions is None
        form.older = body.functions is not None
    constraints = await unless_gone(request.receive, constraints_of(service, body, reply, talk, variables))
    plan = plan_request(service, body, [talk], variables, constraints, form.reply is not None and reply.special)
    prompts, form.prompt_scores = await unless_gone(request.receive, prompts_of(service, body, [talk], variables))
    return form, replace(plan, prompts=prompts)


def chat_form(service: Service, body: ChatRequest) -> ChatForm:
    """How a reply is written that has neither thoughts nor calls."""
    logprobs, ids = bool(body.logprobs), bool(body.return_token_ids)
    return ChatForm(tokenizer=service.tokenizer, spell=service.spell, logprobs=logprobs, ids=ids)


def chat_request(service: Service, given: dict[str, Any], model: str | None) -> ChatRequest:
    """A chat request that another API's one means; ApiError as for a body."""
    check_model(service, model)
    try:
        return ChatRequest.model_validate(given)
    except ValidationError as error:
        errors = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise validation_error(RequestValidationError(errors), ChatRequest) from None


async def whole_chat(run: RequestRun, form: ChatForm) -> ReplyFields:
    """The reply of a run of one generation."""
    async with asyncio.timeout(run.service.settings.request_seconds):
        await run.finish()
    return form.parts(*next(run.choices()))


async def chat_parts(run: RequestRun, form: ChatForm) -> AsyncIterator[ReplyFields]:
    """The parts of that reply as they come."""
    async with asyncio.timeout(run.service.settings.request_seconds), aclosing(run.events()) as batches:
        async for events in batches:
            for index, piece in chain.from_iterable(starmap(run.deltas, events)):
                if index == 0:
                    yield form.parts(index, piece)


def _head(prefix: str, request: Request, service: Service) -> dict[str, Any]:
    return {
        "id": prefix + request.state.request_id,
        "created": int(time.time()),
        "model": service.name,
        "system_fingerprint": service.fingerprint,
    }


async def _answer(
    service: Service,
    request: Request,
    body: GenerationRequest,
    form: Form,
    plan: RequestPlan,
    echoed: Sequence[Piece] = (),
) -> Response:
    """Carry a request out, streamed or not."""
    run = RequestRun(service, plan, request.state.logged)
    head = _head(form.prefix, request, service)
    if body.stream:
        await run.start_for(request)
        return EventStream(_chunks(run, form, head, body.stream_options, echoed), run)
    return await unless_gone(request.receive, _whole_answer(run, form, head, echoed))


def _prompts_alone(
    head: dict[str, Any], form: CompletionForm, body: CompletionRequest, echoed: Sequence[Piece]
) -> dict[str, Any]:
    """An answer of prompts with their log-probabilities, where no token is asked for."""
    for piece in echoed:
        piece.finish = "length"
    repeated = [piece for piece in echoed for _ in range(body.choices)]
    choices = [form.choice(index, piece) for index, piece in enumerate(repeated)]
    form.add_prompt_logprobs({}, choices, body.choices)
    read = sum(len(piece.tokens) for piece in echoed)
    usage = {"prompt_tokens": read, "completion_tokens": 0, "total_tokens": read}
    return {**head, "object": form.object, "choices": choices, "usage": usage}


async def _whole_answer(run: RequestRun, form: Form, head: dict[str, Any], echoed: Sequence[Piece]) -> Response:
    async with asyncio.timeout(run.service.settings.request_seconds):
        await run.finish()
    summary, choices = run.summary, list(run.choices())
    if echoed:
        choices = [(index, answers.joined(echoed[index // run.plan.n], piece)) for index, piece in choices]

    def document() -> dict[str, Any]:
        written = [form.choice(index, piece) for index, piece in choices]
        made = {**head, "object": form.object, "choices": written, **summary}
        form.add_prompt_logprobs(made, written, run.plan.n)
        return made

    return await run.service.answers.answer(document, sum(piece.size for _, piece in choices) + form.prompt_size)


async def _chunks(
    run: RequestRun, form: Form, head: dict[str, Any], options: StreamOptions | None, echoed: Sequence[Piece]
) -> AsyncIterator[str]:
    """Server-sent events of a request that was started: chunks as they come, then usage if it is asked for."""
    usage = bool(options and options.include_usage)
    continuous = usage and bool(options and options.continuous_usage_stats)
    start = "data: " + json.dumps({**head, "object": form.chunk})[:-1] + ', "choices": ['
    begun: set[int] = set()  # choices of which a chunk was sent

    def text(parts: Sequence[tuple[int, Piece]], end: str, last: str) -> str:
        """The chunks of some parts; the last one has another end."""
        lines: list[str] = []
        for place, (index, piece) in enumerate(parts, 1):
            first = index not in begun
            if first:
                begun.add(index)
                piece = answers.joined(echoed[index // run.plan.n], piece) if echoed else piece
            lines += start, form.delta(index, piece, first), last if place == len(parts) else end
        return "".join(lines)

    try:
        async with asyncio.timeout(run.service.settings.request_seconds), aclosing(run.events()) as batches:
            async for events in batches:
                made = chain.from_iterable(starmap(run.deltas, events))
                parts = [part for part in made if part[1].text or part[1].finish or part[1].tokens]
                if not parts:
                    continue
                if usage:
                    last = end = f'], "usage": {json.dumps(run.usage) if continuous else "null"}}}\n\n'
                else:
                    end = "]}\n\n"
                    last = f'], "metrics": {json.dumps(run.summary["metrics"])}}}\n\n' if run.over else end
                if form.logprobs:  # of which there may be many
                    size = sum(piece.size for _, piece in parts)
                    size += sum(echo.size for echo in echoed) * (len(begun) < run.plan.generations)
                    yield await run.service.answers.write(partial(text, parts, end, last), size)
                else:
                    yield text(parts, end, last)
        summary = f"{start}], {json.dumps(run.summary)[1:]}\n\n" if usage else ""
        yield f"{summary}data: [DONE]\n\n"
    except Exception as error:
        yield f"data: {json.dumps(run.service.logged_error(error, 'while it was streamed').document)}\n\n"
