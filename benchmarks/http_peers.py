"""`python -m benchmarks.http_peers OUT NAME=URL ...`: servers side by side, with the same model, prompts and clients.

Every server is asked in turn, repeat by repeat, by 1, 4 and 16 clients that stream greedy texts. Whoever measures
starts them with the same threads and leaves the machine alone. Some keep a core busy while nobody asks them: of servers
whose process group is named, all but the one that is asked are stopped. Tokens are those that each server counts.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any
from urllib.parse import urlsplit

import torch
import typer

from benchmarks.bench import rotated
from benchmarks.intervals import median
from draftwood.certify.server.prompts import PROMPTS
from draftwood.cli.running import check_writable, write_text
from draftwood.errors import ConfigurationError
from draftwood.eval import provenance

LOADS = (1, 4, 16)  # clients


@dataclass(frozen=True, slots=True)
class Stream:
    """One streamed answer: seconds until its first token and until its end, pauses between chunks, and tokens."""

    first: float
    whole: float
    pauses: Sequence[float]
    tokens: int


def streamed(url: str, prompt: str, tokens: int) -> Stream:
    """Ask a server once; raises OSError or ValueError where it does not stream a completion."""
    place = urlsplit(url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=600)
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    began = perf_counter()
    try:
        path = f"{place.path.rstrip('/').removesuffix('/v1')}/v1/completions"
        connection.request("POST", path, json.dumps(body | MORE), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"{url} answers with {answer.status}: {answer.read(300)!r}")
        moments, made = [], 0
        for event in _events(answer):
            made = (event.get("usage") or {}).get("completion_tokens", made)
            if any(choice.get("text") for choice in event["choices"]):
                moments.append(perf_counter() - began)
    finally:
        connection.close()
    if not moments:
        raise ValueError(f"{url} streams no text")
    pauses = [after - before for before, after in pairwise(moments)]
    return Stream(moments[0], perf_counter() - began, pauses, made or len(moments))


MORE = {"stream_options": {"include_usage": True}}  # of a request, beside what every server has


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        kind, _, rest = line.decode("utf-8", "replace").partition(":")
        if kind == "data" and rest.strip() != "[DONE]":
            yield json.loads(rest)


def sample(url: str, clients: int, requests: int, tokens: int) -> dict[str, float]:
    """Tokens per second of so many clients together, and the 50th and 99th percentile of what each waits, in ms."""
    prompts = list(islice(cycle(PROMPTS), requests))
    began = perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        streams = list(pool.map(lambda prompt: streamed(url, prompt, tokens), prompts))
    seconds = perf_counter() - began
    firsts = [one.first for one in streams]
    pauses = [pause for one in streams for pause in one.pauses] or [0.0]
    return {
        "tokens_per_second": sum(one.tokens for one in streams) / seconds,
        "first_ms": 1000 * quantile(firsts, 0.5),
        "first_p99_ms": 1000 * quantile(firsts, 0.99),
        "pause_p99_ms": 1000 * quantile(pauses, 0.99),
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def check_group(name: str, group: int) -> None:
    """Raise ConfigurationError where a server's process group cannot be stopped, or is that of the measurement."""
    try:
        os.killpg(group, 0)
    except OSError:
        group = os.getpgrp()
    if group == os.getpgrp():
        raise ConfigurationError(
            f"{name} has no process group of its own of that number; start it by setsid and give its process id"
        )


@contextmanager
def alone(name: str, groups: Mapping[str, int]) -> Iterator[None]:
    """In this block all process groups but that of a name are stopped."""
    others = [group for other, group in groups.items() if other != name]
    try:
        for group in others:
            os.killpg(group, signal.SIGSTOP)
        yield
    finally:
        for group in others:
            os.killpg(group, signal.SIGCONT)


def measured(
    servers: Mapping[str, str], groups: Mapping[str, int], repeats: int, requests: int, each: int, tokens: int
) -> list[dict[str, Any]]:
    """A row for each load and server: medians over repeats with their intervals."""
    for url in servers.values():
        sample(url, 1, 2, tokens)  # warm
    rows = []
    for clients in LOADS:
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
        for repeat in range(repeats):
            for name in rotated(list(servers), repeat):
                with alone(name, groups):
                    samples[name].append(sample(servers[name], clients, max(requests, each * clients), tokens))
        for name, found in samples.items():
            rows.append(
                {"clients": clients, "server": name} | {key: median([one[key] for one in found]) for key in found[0]}
            )
    return rows


def main(
    out: Annotated[Path, typer.Argument(help="The result file.")],
    servers: Annotated[list[str], typer.Argument(help="NAME=URL of each server.")],
    repeats: int = 5,
    requests: Annotated[int, typer.Option(help="Requests of a sample, at least.")] = 16,
    each: Annotated[int, typer.Option(help="Requests of each client, at least.")] = 3,
    tokens: int = 64,
    group: Annotated[
        list[str] | None, typer.Option(help="NAME=PID: a process group, stopped while other servers are asked.")
    ] = None,
) -> None:
    """Measure servers that run already."""
    named = dict(one.split("=", 1) for one in servers if "=" in one)
    if len(named) != len(servers):
        raise ConfigurationError("name each server once, such as ours=http://localhost:8000")
    groups = {name: int(pid) for name, _, pid in (one.partition("=") for one in group or ()) if pid.isdigit()}
    if len(groups) != len(group or ()) or groups.keys() - named:
        raise ConfigurationError("name the process group of a server once, such as --group ours=1234")
    for name, number in groups.items():
        check_group(name, number)
    check_writable(out, "OUT")
    environment = provenance.session(torch.device("cpu"))
    settings = {"repeats": repeats, "requests": requests, "each": each, "tokens": tokens}
    rows = measured(named, groups, repeats, requests, each, tokens)
    about = {**settings, "loads": LOADS, "stopped": sorted(groups)}
    document = {"environment": environment, "settings": about, "tables": {"peers": rows}}
    write_text(out, json.dumps(document, indent=1) + "\n", "OUT")
    for row in rows:
        print(f"{row['clients']:>2} {row['server']:<24} {row['tokens_per_second']['value']:.1f} tokens/s")


if __name__ == "__main__":
    typer.run(main)
