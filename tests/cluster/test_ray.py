"""Engines on Ray, as the command line starts them: the same texts, and faults that lose nothing. Run with -m ray."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from conftest import Command
from ray_commands import Process

from draftwood import Engine, load

pytest.importorskip("ray", reason="engines on Ray need the extra scale: pip install 'draftwood[scale]'")
pytestmark = pytest.mark.ray

ENDLESS = {"prompt": "a", "max_tokens": 7000, "ignore_eos": True}


class Server(Process):
    """`draftwood serve` with replicas."""

    def __init__(self, target: Path, replicas: int = 2, *more: object) -> None:
        options = ("--max-running", 8, "--max-queued", 64, "--threads", 1, "--drain-seconds", 60, *more)
        super().__init__("serve", "--target", target, "--port", 0, "--replicas", replicas, "--ray", *options)
        try:
            url = self.wait_for(rf"serves {replicas} replicas on (http://\S+)")[1]
        except BaseException:
            self.close()
            raise
        self.client = httpx.Client(base_url=url, timeout=60)

    def ask(self, **body: Any) -> tuple[str, str]:
        """The text of a completion, and which replica computed it."""
        answer = self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"], answer.headers["x-replica"]

    def running(self) -> float:
        """Requests that run or wait, over all replicas."""
        text = self.client.get("/metrics").text
        return sum(
            float(value) for value in re.findall(r"^vllm:num_requests_(?:running|waiting){.*} (\S+)", text, re.M)
        )

    def pid_of(self, replica: str) -> int:
        """The process of a replica, which writes a log of its name."""
        for pid in self.below("ServeReplica:draftwood:Replica"):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if replica in os.readlink(file):
                        return pid
        raise AssertionError(replica)

    def until(self, count: float, seconds: float = 30) -> None:
        ends = time.monotonic() + seconds
        while self.running() != count:
            assert time.monotonic() < ends, self.running()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def engine(long_target: Path) -> Engine:
    return load(long_target)


@pytest.fixture(scope="module")
def server(long_target: Path) -> Iterator[Server]:
    server = Server(long_target)
    try:
        yield server
    finally:
        server.client.close()
        server.close()


def streamed(
    server: Server, body: dict[str, Any], replicas: list[str] | None = None
) -> tuple[str, list[dict[str, Any]], bool]:
    """The text of a streamed completion, its events, and whether it said that it is complete."""
    with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        if replicas is not None:
            replicas.append(answer.headers["x-replica"])
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    text = "".join(event["choices"][0]["text"] for event in events if event.get("choices"))
    return text, events, lines[-1] == "[DONE]"


def test_texts_of_either_replica_are_the_engines(server: Server, engine: Engine) -> None:
    seen = set()
    for i in range(12):
        alone = engine.generate(f"{i} Story", max_new_tokens=24, seed=i, ignore_eos=True).text
        body = {"prompt": f"{i} Story", "max_tokens": 24, "seed": i, "ignore_eos": True}
        text, replica = server.ask(**body)
        seen.add(replica)
        assert text == alone
        assert streamed(server, body)[::2] == (alone, True)
    assert len(seen) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own
def test_options_of_autoscaling_are_passed_on_or_refused(command: Command) -> None:
    from draftwood.cluster.serving import application
    from draftwood.cluster.spec import ServeSpec

    spec = ServeSpec(autoscaling={"max_replicas": 8, "target_ongoing_requests": 24})
    (replicas, _) = application(spec)._bound_deployment.init_args
    made = replicas._bound_deployment._deployment_config.autoscaling_config
    assert made.max_replicas == 8 and made.target_ongoing_requests == 24
    for option, sentence in (
        ("max_replica=8", "autoscaling has no option 'max_replica' (did you mean 'max_replicas'?)"),
        ("max_replicas=0", "autoscaling: option 'max_replicas' is 0, but must be above 0"),
    ):
        shown = command("serve", "--ray", "--autoscale", option)
        assert shown.code == 2 and sentence in " ".join(shown.err.split())


def test_only_ray_can_take_the_port_while_it_starts() -> None:
    from ray.serve._private.http_util import set_socket_reuse_port

    from draftwood.cluster.running import held_address
    from draftwood.errors import ConfigurationError
    from draftwood.serve.settings import ServeSettings

    with held_address(ServeSettings(port=0)) as held, socket.socket() as other, socket.socket() as proxy:
        address = held.getsockname()
        with pytest.raises(OSError, match="in use"):
            other.bind(address)
        set_socket_reuse_port(proxy)
        proxy.bind(address)
        proxy.listen()
        for _ in range(8):
            with socket.create_connection(address, 5):
                proxy.accept()[0].close()
        with pytest.raises(ConfigurationError, match="cannot be listened on"):
            held_address(ServeSettings(port=address[1]))


def test_refusals_are_the_servers(server: Server) -> None:
    for body, status in (({"prompt": "a", "nonsense": 1}, 400), ({"prompt": "a", "model": "gpt"}, 404)):
        answer = server.client.post("/v1/completions", json=body)
        assert answer.status_code == status and answer.json()["error"]["message"]
    assert server.client.get("/v1/models").json()["data"][0]["object"] == "model"
    assert server.client.get("/ready").status_code == server.client.get("/health").status_code == 200
    assert server.client.get("/none").status_code == 404
    assert "<!doctype html>" in server.client.get("/").text.lower()
    assert server.client.post("/v1/completions", content=b"x" * (5 << 20)).status_code == 413


def test_metrics_of_each_and_of_all(server: Server) -> None:
    each = server.client.get("/metrics/replicas").text
    tokens = re.findall(r'^vllm:generation_tokens_total{.*replica="(\w+)".*} (\S+)', each, re.M)
    (total,) = re.findall(r"^vllm:generation_tokens_total{.*} (\S+)", server.client.get("/metrics").text, re.M)
    assert len(dict(tokens)) == 2
    assert float(total) == sum(float(count) for _, count in tokens) >= 24 * 24
    assert server.client.post("/reset_prefix_cache").status_code == 200


def test_clients_that_leave_end_their_requests(server: Server) -> None:
    def leave(stream: bool) -> None:
        body = {**ENDLESS, "stream": stream}
        with (
            httpx.Client(base_url=server.client.base_url, timeout=2) as client,
            suppress(httpx.TimeoutException),
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            next(answer.iter_raw())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(leave, [True, True, False, False]))
    server.until(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pydantic, in Ray
def test_a_burst_is_shared_out_evenly_and_what_ends_is_not_counted() -> None:
    from ray.serve.request_router import PendingRequest

    from draftwood.cluster.serving import PrefixRouter

    async def asked() -> tuple[list[str], dict[str, str]]:
        router = PrefixRouter.__new__(PrefixRouter)
        router.initialize_state()
        replicas = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in "ab"]
        requests = [
            PendingRequest([], {"blocks": [number]}, SimpleNamespace(internal_request_id=str(number)))
            for number in range(25)
        ]
        taken = [(await router.choose_replicas(replicas, each))[0][0].replica_id for each in requests[:24]]
        for request, replica in zip(requests[:24], taken, strict=True):
            router.on_request_routed(request, replica, None)
            if replica.unique_id == "b":
                router.on_request_completed(replica, request.metadata.internal_request_id)
        last = await router.choose_replicas(replicas, requests[24])
        requests[24].future.cancel()
        await asyncio.sleep(0)
        return [replica.unique_id for replica in [*taken, last[0][0].replica_id]], router.in_flight.replicas

    names, under_way = asyncio.run(asked())
    assert Counter(names[:24]) == {"a": 12, "b": 12}  # none was sent yet
    assert names[24] == "b"  # which has nothing left
    assert Counter(under_way.values()) == {"a": 12}


def test_conversations_stay_where_they_are(server: Server) -> None:
    texts = [f"You are kind. User {i} asks about the sea and the sky, at some length." for i in range(6)]
    homes: dict[int, list[str]] = defaultdict(list)
    for _ in range(5):
        with ThreadPoolExecutor(3) as pool:
            for i, (text, replica) in enumerate(
                pool.map(lambda text: server.ask(prompt=text, max_tokens=16, ignore_eos=True), texts)
            ):
                homes[i].append(replica)
                texts[i] += text + " And then, what became of it?"
    turns = [here == before for found in homes.values() for before, here in pairwise(found)]
    assert sum(turns) / len(turns) >= 0.9


def test_a_replica_that_is_killed(server: Server, engine: Engine) -> None:
    """No part of an answer passes for the whole; what had not begun is computed by the other replica."""
    bodies = [{"prompt": f"{i} Story", "max_tokens": 700, "ignore_eos": True, "seed": i} for i in range(8)]
    alone = [engine.generate(f"{i} Story", max_new_tokens=700, ignore_eos=True, seed=i).text for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        replicas: list[str] = []
        streams = [pool.submit(streamed, server, body, replicas) for body in bodies[:4]]
        wholes = [pool.submit(server.ask, **body) for body in bodies[4:]]
        server.until(8)
        os.kill(server.pid_of(replicas[0]), signal.SIGKILL)
        ended = [stream.result() for stream in streams]
        assert [whole.result()[0] for whole in wholes] == alone[4:]
    for (text, events, complete), right in zip(ended, alone, strict=False):
        if complete:
            assert text == right
        else:
            assert events[-1]["error"]["code"] == "replica_ended" and right.startswith(text) and text != right
    assert not all(complete for _, _, complete in ended)
    until = time.monotonic() + 60
    while len(server.below("ServeReplica:draftwood:Replica")) < 2:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert (
        server.ask(prompt="0 Story", max_tokens=24, seed=0)[0]
        == engine.generate("0 Story", max_new_tokens=24, seed=0).text
    )


def test_sigterm_lets_running_requests_end(server: Server) -> None:
    """Under load, as the last test of this server."""
    body = {"prompt": "a", "max_tokens": 700, "ignore_eos": True}
    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(streamed, server, body) for _ in range(3)]
        wholes = [pool.submit(server.client.post, "/v1/completions", json=body) for _ in range(3)]
        server.until(6)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.client.post("/v1/completions", json=body).status_code == 503
        assert server.client.get("/ready").status_code == 503
        assert all(stream.result()[2] for stream in streams)
        assert [whole.result().json()["usage"]["completion_tokens"] for whole in wholes] == [700] * 3
    assert server.process.wait(60) == 0


def test_a_batch_with_three_kills(engine: Engine, long_target: Path, tmp_path: Path) -> None:
    """Of an engine, twice, and of the command: no request is lost, none is answered twice."""
    lines = [
        {"custom_id": f"{i}", "prompt": f"{i} Story", "max_tokens": 200 + i, "ignore_eos": True, "seed": i}
        for i in range(48)
    ]
    source, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("batch", source, "--target", long_target, "--out", out, "--replicas", 2, "--ray", "--concurrency", 4)

    def made() -> int:
        return out.read_bytes().count(b"\n") if out.exists() else 0

    def reach(process: Process, most: int) -> None:
        until = time.monotonic() + 120
        while made() < most:
            assert time.monotonic() < until and process.process.poll() is None, process.said
            time.sleep(0.02)

    first = Process(*command)
    try:
        for most in (4, 12):
            reach(first, most)
            os.kill(first.below("ray::MapWorker")[0], signal.SIGKILL)
        reach(first, 20)
    finally:
        first.close()
    there = made()
    assert 20 <= there < 48
    second = Process(*command)
    try:
        assert second.process.wait(120) == 0, second.said
    finally:
        second.close()
    answers = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert Counter(line["custom_id"] for line in answers) == Counter(str(i) for i in range(48))
    for line in answers:
        asked = lines[int(line["custom_id"])]
        found = line["response"]["body"]["choices"][0]["text"]
        assert (
            found
            == engine.generate(
                asked["prompt"], max_new_tokens=asked["max_tokens"], ignore_eos=True, seed=asked["seed"]
            ).text
        )


@pytest.mark.slow
def test_a_split_engine_that_lost_a_process_is_replaced(long_target: Path) -> None:
    """It says so to whom it cannot answer, and the next replica has the same text."""
    server = Server(long_target, 1, "--tensor-parallel", 2)
    greedy = {"prompt": "0 Story", "max_tokens": 24, "temperature": 0}
    try:
        text, first = server.ask(**greedy)
        assert (
            text
            == load(long_target, backend="pytorch")
            .generate("0 Story", sampling={"temperature": 0}, max_new_tokens=24)
            .text
        )
        (follower,) = server.below("parallel.follower")
        os.kill(follower, signal.SIGKILL)
        until = time.monotonic() + 120
        while (answer := server.client.post("/v1/completions", json=greedy)).status_code != 200:
            assert answer.status_code in (500, 503) and answer.json()["error"]["message"]
            assert time.monotonic() < until
            time.sleep(0.2)
        assert answer.json()["choices"][0]["text"] == text and answer.headers["x-replica"] != first
        assert server.below("parallel.follower") != [follower]
    finally:
        server.client.close()
        server.close()
