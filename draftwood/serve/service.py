"""The served engine with its limits, threads and metrics, which all endpoints share."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

from starlette.responses import JSONResponse, Response

from draftwood import __version__
from draftwood.engine.async_engine import AsyncEngine
from draftwood.engine.engine import Engine
from draftwood.engine.request import MethodSpec, Prompt
from draftwood.engine.scoring import PromptScores
from draftwood.errors import ConfigurationError, ModelError, RequestError
from draftwood.explain.text import spelling
from draftwood.methods import Method
from draftwood.serve.errors import ApiError, ServerEnded, api_error
from draftwood.serve.front import Front
from draftwood.serve.metrics import ServerMetrics
from draftwood.serve.public import PublicView
from draftwood.serve.settings import ServeSettings

POOL_THREADS = 2  # the computer's cores are for the models
MAX_INLINE_VALUES = 2048  # values of an answer (such as log-probabilities) that are written in a thread
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

T = TypeVar("T")
Given = TypeVarTuple("Given")


class WorkerPool:
    """Threads for one kind of work, which makes no other kind wait. What is cancelled while it waits is never done."""

    def __init__(self, name: str, threads: int, seconds: float) -> None:
        self._threads, self._seconds = ThreadPoolExecutor(threads, f"draftwood-{name}"), seconds
        self._closed = False

    async def run(self, work: Callable[[Unpack[Given]], T], *given: *Given) -> T:
        """Call `work` in the pool and return its result; TimeoutError after the pool's `seconds`, waiting included."""
        if self._closed:
            raise ServerEnded
        done = asyncio.get_running_loop().run_in_executor(self._threads, work, *given)
        try:
            async with asyncio.timeout(self._seconds):
                return await done
        except asyncio.CancelledError:
            if self._closed and done.cancelled():
                raise ServerEnded from None
            raise

    def close(self) -> None:
        """Let go of the threads; what waits ends with ServerEnded."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def write(self, make: Callable[[], str], size: int) -> str:
        """A text of about `size` values; it is made at once where these are few."""
        return make() if size <= MAX_INLINE_VALUES else await self.run(make)

    async def answer(self, make: Callable[[], Any], size: int) -> Response:
        """A document of about `size` values as JSON."""
        if size <= MAX_INLINE_VALUES:
            return JSONResponse(make())
        text = await self.run(lambda: "".join(ENCODER.iterencode(make())).encode())
        return Response(text, media_type="application/json")


class Service(Front):
    """An engine that is served, alone or as a model of a `front`."""

    def __init__(
        self, engine: Engine, settings: ServeSettings, method: MethodSpec | None = None, front: Front | None = None
    ) -> None:
        if engine.tokenizer is None:
            raise ConfigurationError("a server needs a tokenizer; serve a checkpoint directory that has one")
        super().__init__(settings)
        self.engine, self.tokenizer = engine, engine.tokenizer
        if front is not None:
            self.draining = front.draining
        self.method: Method = engine.method(method)
        self.sampling_defaults = engine.generation_config if settings.generation_config == "auto" else {}
        target = str(engine.names.get("target", "model"))
        self.name = settings.served_model_name or (Path(target).name if Path(target).exists() else target)
        self.public = PublicView(engine, self.name, self.method)
        self.created = int(time.time())
        facts = json.dumps(self.public.value(engine.names), sort_keys=True, default=str)
        self.fingerprint = f"fp_{sha256(f'{__version__} {self.name} {facts}'.encode()).hexdigest()[:10]}"
        self.async_engine = AsyncEngine(engine)
        self.metrics = ServerMetrics(engine, self.name)
        spell = spelling(self.tokenizer)
        cached = lru_cache(1 << 16)(lambda token: spell([token]))
        self.spell: Callable[[Sequence[int]], str] = lambda tokens: (
            cached(*tokens) if len(tokens) == 1 else spell(tokens)
        )
        seconds = settings.request_seconds
        self.prompts = WorkerPool("prompts", POOL_THREADS, seconds)
        self.texts = WorkerPool("texts", POOL_THREADS, seconds)  # for requests of ids, or of the text of some ids
        self.conversations = WorkerPool("conversations", 1, seconds)  # one process renders all templates
        self.grammars = WorkerPool("grammars", 1, seconds)
        self.answers = WorkerPool("answers", POOL_THREADS, seconds)

    @property
    def broken(self) -> str | None:
        return self.async_engine.broken

    async def aclose(self) -> None:
        self.ended = True
        await self.async_engine.aclose(ServerEnded())
        for pool in (self.prompts, self.texts, self.conversations, self.grammars, self.answers):
            pool.close()

    def load(self) -> dict[str, float]:
        return self.metrics.load()

    def client_error(self, error: BaseException) -> ApiError:
        """An error as a client may read it: without paths of this machine or advice that only its owner can follow."""
        raw, text = api_error(error), self.public.sentence(str(error))
        if raw is not error and str(raw) != str(error):
            text = str(raw)
        elif isinstance(error, ModelError):
            text = text.partition("; ")[0] + "; only who runs this server can mend that"
        return ApiError(raw.status, text, raw.param, raw.code, raw.headers)

    def echo(self, prompt: Sequence[int]) -> str:
        """The text of a prompt as far as it is certain: an answer completes a character that ends inside."""
        return "".join(map(self.tokenizer.stream().step, prompt))

    async def read(
        self,
        prompt: Prompt,
        max_tokens: int | None = None,
        variables: Mapping[str, Any] | None = None,
        kept: int | None = None,
    ) -> list[int]:
        """Token ids of a prompt, as `Engine.tokens`; RequestError where it is longer than this server takes.

        `variables` are for the chat template of a conversation. Of a prompt the last `kept` tokens count (None: all).
        """
        if not isinstance(prompt, str) and bool(prompt) and not isinstance(prompt[0], int):
            context = self.engine.target.context if kept is None else None
            read = partial(self.tokenizer.chat, max_tokens=context, **(variables or {}))
            prompt = await self.conversations.run(read, prompt)
        elif kept is not None and isinstance(prompt, str):
            prompt = await self.prompts.run(self.tokenizer.encode, prompt)
        if kept is not None:
            prompt = prompt[max(0, len(prompt) - kept) :]
        tokens = await self.prompts.run(self.engine.tokens, prompt, max_tokens)
        if (limit := self.settings.max_prompt_tokens) is not None and len(tokens) > limit:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens, but this server takes {limit} at most; shorten it"
            )
        return tokens

    async def compile(self, options: Mapping[str, Any]) -> None:
        """Have the grammar of a request ready, if it has one; RequestError where it is none."""

        def compile_() -> None:
            if (structured := self.engine.requests.structured(options)) is not None:  # type: ignore[arg-type]
                self.engine.requests.grammar(structured)

        if options.get("structured") is not None:
            await self.grammars.run(compile_)

    async def scores(self, prompts: Sequence[Prompt], top: int | None) -> list[PromptScores]:
        """Each prompt with its log-probabilities and the `top` most probable tokens; None: without any of them."""
        most = self.engine.target.context + 1  # the last one is predicted only
        async with asyncio.timeout(self.settings.request_seconds):
            tokens = [await self.read(prompt, most) for prompt in prompts]
            if top is None:
                return [PromptScores(one, [None] * len(one), [[]] * len(one)) for one in tokens]
            return [await self.async_engine.score(one, top) for one in tokens]


def check_model(service: Service, name: str | None) -> None:
    """Raise ApiError where a request names another model."""
    if name is not None and name != service.name:
        raise ApiError(404, f"there is no model {name!r}; this server has {service.name!r}", "model", "model_not_found")
