"""Requests whose client leaves at any moment end, without the help of the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from draftwood import load
from draftwood.serve.app import create_app
from draftwood.serve.asgi import LOCAL_HEADERS, messages, scope_of

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 7000, "ignore_eos": True, "n": 2},
    "/v1/forest": {"prompt": "a", "max_tokens": 7000, "ignore_eos": True},
    "/v1/responses": {"input": "a", "max_output_tokens": 7000},
}


@pytest.mark.some(3)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_whoever_leaves_is_forgotten(long_target: Path, path: str, stream: bool) -> None:
    """As replicas are told of it: their task is cancelled."""

    async def leave() -> None:
        engine = load(long_target, max_running=8, max_queued=64)
        engine.generate("a", max_new_tokens=2)  # what comes first takes longer
        app = create_app(engine)
        body = json.dumps({**BODIES[path], "stream": stream}).encode()

        async def ask(seconds: float) -> None:
            answer = messages(app, scope_of("POST", path, b"", LOCAL_HEADERS), body)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    async for _ in answer:
                        pass
            await answer.aclose()

        await asyncio.gather(*(ask(0.02 * i) for i in range(30)))
        async with asyncio.timeout(20):
            while engine.scheduler.busy:
                await asyncio.sleep(0.01)
        engine.reset_prefix_cache()
        assert engine.memory["used"] == 0
        await app.state.service.async_engine.aclose()

    gc.disable()
    try:
        asyncio.run(leave())
    finally:
        gc.enable()
