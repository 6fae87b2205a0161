"""`python -m benchmarks.clients OUT URL --pid PID`: many clients of all kinds at once, some of which misbehave.

Each of the clients asks again and again for texts, beams, samples, structured output, calls of tools, over all the
server's interfaces; some hang up in the middle, send half a request or nonsense. What is answered is checked: greedy
texts are those that the server gave alone, structured texts and calls are valid, streams end with a reason. Then a
light request's first token is timed alone and beside one client of every heavy kind. The server's model needs a chat
template that knows tools.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Annotated, Any

import httpx
import torch
import typer

from benchmarks.http_peers import quantile
from draftwood.certify.server.prompts import PROMPTS
from draftwood.cli.running import check_writable, write_text
from draftwood.eval import provenance

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Tell it.", "parameters": CITY}}
    for name in ("weather", "trains")
]
ANTHROPIC_TOOLS = [{"name": "weather", "description": "Tell it.", "input_schema": CITY}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
CHAT, TEXT, LIGHT = "/v1/chat/completions", "/v1/completions", 8
Kind = Callable[["Clients", Random], Awaitable[str]]


class Wrong(Exception):
    """An answer that is not as it must be."""


def _talk(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{prompt} Which city, for how long?"}]


def _right(condition: bool, what: object) -> None:
    if not condition:
        raise Wrong(str(what)[:300])


def _valid(arguments: str | dict[str, Any]) -> None:
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    _right(value["city"] in ("Paris", "Rome", "Oslo") and value["days"] in (1, 2, 3) and len(value) == 2, value)


class Clients:
    """The server's address and its greedy texts alone, which all clients share."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.http = httpx.AsyncClient(base_url=url.rstrip("/"), timeout=300, limits=limits)
        self.greedy: dict[str, str] = {}
        self.model = ""  # as the server names it
        self.busy = 0  # answers that asked to come again

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Send until the server has room."""
        while True:
            answer = await self.http.post(path, json=body)
            if answer.status_code != 429:
                return answer
            self.busy += 1
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))

    async def json(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self.post(path, body)
        _right(answer.status_code == 200, answer.text)
        return answer.json()

    async def stream(self, path: str, body: dict[str, Any], stop_after: int | None = None) -> list[dict[str, Any]]:
        """The chunks of a stream, as many as are wanted; then the client hangs up."""
        chunks: list[dict[str, Any]] = []
        async with self.http.stream("POST", path, json=body | {"stream": True}) as answer:
            if answer.status_code == 429:
                self.busy += 1
                return chunks
            _right(answer.status_code == 200, answer.status_code)
            async for line in answer.aiter_lines():
                if line.startswith("data:") and line != "data: [DONE]":
                    chunks.append(json.loads(line[5:]))
                if stop_after is not None and len(chunks) >= stop_after:
                    return chunks
        return chunks

    async def first_token(self, prompt: str) -> float:
        began = perf_counter()
        await self.stream(TEXT, {"prompt": prompt, "max_tokens": LIGHT, "temperature": 0}, stop_after=1)
        return perf_counter() - began


async def greedy(clients: Clients, random: Random) -> str:
    """The text that the server gave alone."""
    prompt = random.choice(PROMPTS)
    answer = await clients.json(TEXT, {"prompt": prompt, "max_tokens": 24, "temperature": 0})
    text = answer["choices"][0]["text"]
    _right(clients.greedy.setdefault(prompt, text) == text, (prompt, text))
    return "answered"


async def sampled_stream(clients: Clients, random: Random) -> str:
    body = {"messages": _talk(random.choice(PROMPTS)), "max_tokens": random.randint(8, 64), "top_p": 0.9}
    chunks = await clients.stream(CHAT, body)
    _right(not chunks or chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length"), chunks[-1:])
    return "answered" if chunks else "busy"


async def samples(clients: Clients, random: Random) -> str:
    answer = await clients.json(TEXT, {"prompt": random.choice(PROMPTS), "n": 4, "max_tokens": 24})
    _right([one["index"] for one in answer["choices"]] == [0, 1, 2, 3], answer)
    return "answered"


async def beams(clients: Clients, random: Random) -> str:
    method = {"name": random.choice(("beam-search", "beam-sampling")), "width": 4}
    body = {"prompt": random.choice(PROMPTS), "max_tokens": 24, "speculation": method}
    answer = await clients.json(TEXT, body | ({"temperature": 0} if method["name"] == "beam-search" else {}))
    _right(answer["choices"][0]["finish_reason"] in ("stop", "length"), answer)
    return "answered"


async def long_prompt(clients: Clients, random: Random) -> str:
    prompt = " ".join(random.choices(PROMPTS, k=20))
    answer = await clients.json(TEXT, {"prompt": prompt, "max_tokens": 8, "truncate_prompt_tokens": 300})
    _right(answer["usage"]["prompt_tokens"] > 0, answer)
    return "answered"


async def structured(clients: Clients, random: Random) -> str:
    body = {"messages": _talk(random.choice(PROMPTS)), "response_format": SCHEMA, "max_tokens": 120}
    answer = await clients.json(CHAT, body)
    _valid(answer["choices"][0]["message"]["content"])
    return "answered"


async def tool_call(clients: Clients, random: Random) -> str:
    body = {"messages": _talk(random.choice(PROMPTS)), "tools": TOOLS, "tool_choice": "required"}
    answer = await clients.json(CHAT, body | {"parallel_tool_calls": False, "max_tokens": 200})
    choice = answer["choices"][0]
    _right(choice["finish_reason"] == "tool_calls", choice)
    (call,) = choice["message"]["tool_calls"]
    _valid(call["function"]["arguments"])
    return "answered"


async def anthropic_call(clients: Clients, random: Random) -> str:
    body = {"model": clients.model, "messages": _talk(random.choice(PROMPTS)), "tools": ANTHROPIC_TOOLS}
    answer = await clients.json(
        "/v1/messages", body | {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 200}
    )
    _right(answer["stop_reason"] == "tool_use", answer)
    _valid(next(block for block in answer["content"] if block["type"] == "tool_use")["input"])
    return "answered"


async def ollama_chat(clients: Clients, random: Random) -> str:
    body = {"model": clients.model, "messages": _talk(random.choice(PROMPTS)), "stream": False, "format": CITY}
    answer = await clients.json("/api/chat", body | {"options": {"num_predict": 120}})
    _valid(answer["message"]["content"])
    return "answered"


async def hang_up(clients: Clients, random: Random) -> str:
    body = {"prompt": random.choice(PROMPTS), "max_tokens": 200, "n": random.choice((1, 4))}
    await clients.stream(TEXT, body, stop_after=random.randint(0, 5))
    return "hung up"


async def half_a_request(clients: Clients, random: Random) -> str:
    url = clients.http.base_url
    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(random.random())
    writer.close()
    return "hung up"


async def nonsense(clients: Clients, random: Random) -> str:
    body: dict[str, Any] = random.choice(
        [
            {"prompt": 3.5},
            {"prompt": "a", "max_tokens": -7},
            {"prompt": "a", "temperature": "hot"},
            {"prompt": "a " * 50000},
            {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "thing"}}}},
        ]
    )
    answer = await clients.post(TEXT, body)
    _right(answer.status_code in (400, 422) and bool(answer.json()["error"]["message"]), answer.text)
    return "refused"


HEAVY: dict[str, Kind] = {
    "samples": samples,
    "beams": beams,
    "long prompt": long_prompt,
    "structured": structured,
    "tool call": tool_call,
}
KINDS: dict[str, Kind] = HEAVY | {
    "greedy": greedy,
    "sampled stream": sampled_stream,
    "anthropic call": anthropic_call,
    "ollama chat": ollama_chat,
    "hang up": hang_up,
    "half a request": half_a_request,
    "nonsense": nonsense,
}


def memory(pid: int) -> float:
    """The memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def crowd(clients: Clients, count: int, seconds: float, counts: Counter[str], wrong: list[str]) -> None:
    """So many clients for so long; each ends what it has begun."""
    end = perf_counter() + seconds

    async def one(seed: int) -> None:
        random = Random(seed)
        while perf_counter() < end:
            name = random.choice(list(KINDS))
            try:
                counts[f"{name}: {await KINDS[name](clients, random)}"] += 1
            except (Wrong, httpx.HTTPError, OSError, ValueError, KeyError, StopIteration) as error:
                counts[f"{name}: lost"] += 1
                wrong.append(f"{name}: {type(error).__name__} {error}")

    await asyncio.gather(*map(one, range(count)))


async def beside(clients: Clients, heavy: Kind | None, requests: int) -> list[float]:
    """Seconds to the first token of light requests, one after the other, beside one heavy client."""
    going = True

    async def work() -> None:
        random = Random(1)
        while going and heavy is not None:
            await heavy(clients, random)

    worker = asyncio.create_task(work())
    await asyncio.sleep(0.5)
    random = Random(2)
    times = []
    for _ in range(requests):
        times.append(await clients.first_token(random.choice(PROMPTS)))
        await asyncio.sleep(0.2 * random.random())
    going = False
    await worker
    return times


async def measured(url: str, pid: int, count: int, seconds: float, light: int) -> dict[str, Any]:
    clients = Clients(url)
    clients.model = (await clients.http.get("/v1/models")).json()["data"][0]["id"]
    for prompt in PROMPTS:
        answer = await clients.json(TEXT, {"prompt": prompt, "max_tokens": 24, "temperature": 0})
        clients.greedy[prompt] = answer["choices"][0]["text"]
    await crowd(clients, count, seconds / 3, Counter(), [])  # until what the server caches has grown to its limit
    await asyncio.sleep(2)
    clients.busy, before = 0, memory(pid)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    began = perf_counter()
    await crowd(clients, count, seconds, counts, wrong)
    took = perf_counter() - began
    await asyncio.sleep(5)
    after = memory(pid)
    rows: list[dict[str, Any]] = []
    for name, heavy in [("alone", None), *HEAVY.items()]:
        times = await beside(clients, heavy, light)
        rows.append(
            {"beside": name, "first_p50_ms": 1000 * quantile(times, 0.5), "first_p95_ms": 1000 * quantile(times, 0.95)}
        )
    for row in rows:
        row["p95_to_alone"] = row["first_p95_ms"] / rows[0]["first_p95_ms"]
    await clients.http.aclose()
    lost = sum(number for name, number in counts.items() if name.endswith("lost"))
    crowd_row = {
        "clients": count,
        "seconds": took,
        "requests": sum(counts.values()),
        "lost": lost,
        "busy": clients.busy,
    }
    crowd_row |= {"memory_before_mb": before, "memory_after_mb": after, "memory_ratio": after / before}
    kinds = [{"kind": name, "requests": number} for name, number in sorted(counts.items())]
    return {"tables": {"crowd": [crowd_row], "kinds": kinds, "first_token": rows}, "wrong": wrong}


def main(
    out: Annotated[Path, typer.Argument(help="The result file.")],
    url: Annotated[str, typer.Argument(help="Of a server that runs.")],
    pid: Annotated[int, typer.Option(help="Its process.")],
    clients: int = 64,
    seconds: float = 120,
    light: Annotated[int, typer.Option(help="Light requests beside each heavy client.")] = 40,
) -> None:
    """Ask a server that runs already; the exit code is 1 where a request was lost or answered wrongly."""
    check_writable(out, "OUT")
    environment = provenance.session(torch.device("cpu"))
    found = asyncio.run(measured(url, pid, clients, seconds, light))
    settings = {"clients": clients, "seconds": seconds, "light": light}
    write_text(out, json.dumps({"environment": environment, "settings": settings} | found, indent=1) + "\n", "OUT")
    print(json.dumps(found, indent=1))
    raise typer.Exit(bool(found["wrong"]))


if __name__ == "__main__":
    typer.run(main)
