"""Real processes of a split decoder: started, met under torchrun, killed, stopped, interrupted; none is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import draftwood
from draftwood import AsyncEngine, Engine
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import DraftwoodError
from draftwood.models.checkpoints import saving
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.parallel import launch

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads Linux's /proc")
STORY = "Story: Lena had a red kite."
GREEDY = {"sampling": {"temperature": 0}, "max_new_tokens": 24}
COMMAND = [sys.executable, "-m", "draftwood"]
SPLIT = ["--tensor-parallel", "2", "--threads", "1"]


def children(process: int) -> list[int]:
    """Processes that a process started, and that live."""
    lists = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
    return [int(child) for text in lists for child in text.split() if alive(int(child))]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def await_end(processes: list[int], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while any(map(alive, processes)):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def plain() -> str:
    return draftwood.load(backend="pytorch").generate(STORY, "autoregressive", **GREEDY).text  # type: ignore[arg-type]


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = draftwood.load(tensor_parallel=2, device="cpu")
    yield made
    followers = children(os.getpid())
    del made
    gc.collect()
    await_end([pid for pid in followers if "follower" in command_line(pid)])


def command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.slow
def test_a_process_that_dies_ends_the_engine(engine: Engine, plain: str) -> None:
    """The text is right until then; afterwards every request ends with one sentence, at once."""
    assert engine.names["tensor_parallel"] == 2 and engine.names["backend"] == "pytorch"
    assert engine.generate(STORY, "speculative", **GREEDY).text == plain  # type: ignore[arg-type]
    (follower,) = [pid for pid in children(os.getpid()) if "follower" in command_line(pid)]
    os.kill(follower, signal.SIGKILL)
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(DraftwoodError, match="process 1 of tensor_parallel=2 was killed by signal 9; load the mod"):
            engine.generate(STORY, **GREEDY)  # type: ignore[arg-type]

    async def asked() -> None:
        async with AsyncEngine(engine) as served:
            assert served.broken == engine.broken == "process 1 of tensor_parallel=2 was killed by signal 9"
            with pytest.raises(
                DraftwoodError, match="process 1 of tensor_parallel=2 was killed by signal 9; load the mod"
            ):
                await served.generate(STORY)

    asyncio.run(asked())
    assert time.monotonic() - began < 10


def started(*arguments: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A command that goes on for a while, and its followers once it computes."""
    process = subprocess.Popen(
        [*COMMAND, *arguments, *SPLIT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.read(1)  # the first text
    followers = [pid for pid in children(process.pid) if "follower" in command_line(pid)]
    assert len(followers) == 1
    return process, followers


LONG = ["generate", STORY, "--max-new-tokens", "450", "--ignore-eos", "--method", "autoregressive"]


def test_followers_end_with_a_driver_that_is_killed() -> None:
    process, followers = started(*LONG)
    process.kill()
    process.communicate()
    await_end(followers)


@pytest.mark.slow
def test_ctrl_c_ends_all_processes() -> None:
    """A terminal sends it to all of them; the text so far is shown, and nothing else is said."""
    process, followers = started(*LONG)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in err and "out of step" not in err
    await_end(followers)


@pytest.mark.slow
def test_a_process_that_stands_still_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.models.parallel.group.FORWARD_TIMEOUT", 2.0)
    made = draftwood.load(tensor_parallel=2, device="cpu")
    (follower,) = [pid for pid in children(os.getpid()) if "follower" in command_line(pid)]
    os.kill(follower, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(DraftwoodError, match="out of step"):
        made.generate(STORY, **GREEDY)  # type: ignore[arg-type]
    assert time.monotonic() - began < 10
    del made
    gc.collect()
    await_end([follower])


@pytest.mark.slow
def test_the_server_ends_with_a_process_that_dies() -> None:
    server = subprocess.Popen([*COMMAND, "serve", "--port", "0", *SPLIT], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    said = server.stderr.readline()
    while not re.search(r"serves .* on http", said):
        said = server.stderr.readline()
        assert said
    (follower,) = children(server.pid)
    os.kill(follower, signal.SIGKILL)
    _, err = server.communicate(timeout=30)
    assert server.returncode == 2 and "error: the engine is broken: process 1 of tensor_parallel=2 was killed" in err


@pytest.mark.slow
def test_the_server_leaves_nobody_behind() -> None:
    server = subprocess.Popen([*COMMAND, "serve", "--port", "0", *SPLIT], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    said = ""
    while "serves" not in said:
        said = server.stderr.readline()
        assert server.poll() is None
    address = re.findall(r"http://\S+", said)[0]
    assert httpx.get(f"{address}/health").status_code == 200
    followers = children(server.pid)
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=30)
    assert server.returncode == 0
    await_end(followers)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_under_torchrun(size: int, plain: str) -> None:
    """Its processes compute one engine; a number that does not fit is refused in one sentence."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size), "-m", "draftwood"]
    arguments = ["generate", STORY, "--temperature", "0", "--max-new-tokens", "24", *SPLIT, "--device", "cpu"]
    done = subprocess.run([*torchrun, *arguments], capture_output=True, text=True, timeout=120)
    if size == 2:
        assert done.returncode == 0 and done.stdout == plain
    else:
        assert "error: torchrun started 3 processes, but tensor_parallel is 2; give one number" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"source": "gone"}, "process 1 of tensor_parallel could not load its part: gone is not a checkpoint"),
        ({"size": None}, "process 1 of tensor_parallel=2 ended with exit code 1 while it loaded its part"),
    ],
    ids=["refused", "broken"],
)
def test_a_follower_that_cannot_load(changed: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver, which could, says so, and nobody is left."""
    start = launch._Started._start
    monkeypatch.setattr(launch._Started, "_start", lambda self, settings: start(self, {**settings, **changed}))
    with pytest.raises(DraftwoodError, match=says):
        draftwood.load(tensor_parallel=2, device="cpu")
    assert not [pid for pid in children(os.getpid()) if "follower" in command_line(pid)]


PROGRAM = """
import gc, json, os, re, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import draftwood
from draftwood.engine.engine import Engine
from draftwood.models.checkpoints import checkpoint
from draftwood.models.parallel import launch

def status(process, name):
    return int(re.search(name + r":\\s+(\\d+)", Path(f"/proc/{process}/status").read_text())[1]) * 1024

def asked(home, size):
    model = checkpoint.load(home, backend="pytorch") if size == 1 else launch.load(
        home, size, "float32", torch.device("cpu"), None
    )
    Engine(model, kv_cache_bytes=1 << 28).generate(list(range(50)), "autoregressive", {"temperature": 0}, 4)
    pids = [os.getpid(), *map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())]
    return model, [status(pid, "RssAnon") for pid in pids]

large, small, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
_, before = asked(small, size)
del _
gc.collect()
model, after = asked(large, size)
print(json.dumps([b - a for a, b in zip(before, after)]))
"""


def write(directory: Path, width: int, layers: int) -> Path:
    torch.manual_seed(0)
    config = DecoderConfig(2048, width, 4 * width, layers, width // 64, width // 64, 64)
    saving.save(Decoder(config), directory)
    return directory


@pytest.mark.slow
def test_memory_of_each_process(tmp_path: Path) -> None:
    """At most 0.55 of what one process takes, beside the embeddings, which the driver has whole."""
    large, small = write(tmp_path / "large", 768, 5), write(tmp_path / "small", 128, 1)
    found = []
    for size in (1, 2):
        command = [sys.executable, "-c", PROGRAM, str(large), str(small), str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    ((alone,), (driver, follower)) = found
    embeddings = 2048 * 768 * 4
    assert alone > 100 * 2**20
    assert driver - embeddings <= 0.55 * (alone - embeddings) + 4 * 2**20
    assert follower <= 0.55 * (alone - embeddings) + 4 * 2**20


def test_a_draft_on_a_device_of_its_own(plain: str) -> None:
    made = draftwood.load(EMBEDDED / "target", EMBEDDED / "draft", backend="pytorch", draft_device="cpu")
    assert made.names["draft_device"] == "cpu" and made.generate(STORY, **GREEDY).text == plain  # type: ignore[arg-type]
    with pytest.raises(draftwood.ConfigurationError, match="draft_device 'gpu' is not there; use cpu"):
        draftwood.load(EMBEDDED / "target", EMBEDDED / "draft", draft_device="gpu")


@pytest.mark.slow
def test_every_process_stores_keys_and_values_as_it_is_told() -> None:
    """Each part has its own heads, so that scales are those of one process, and the text is too."""
    alone = draftwood.load(backend="pytorch", kv_dtype="int8")
    made = draftwood.load(tensor_parallel=2, device="cpu", kv_dtype="int8")
    assert made.names["kv_dtype"] == "int8"
    options: dict[str, Any] = {**GREEDY, "top_logprobs": 1}
    ours, right = (engine.generate(STORY, "autoregressive", **options) for engine in (made, alone))
    assert ours.text == right.text and ours.logprobs == pytest.approx(right.logprobs, abs=0.02)
    followers = children(os.getpid())
    del made
    gc.collect()
    await_end([pid for pid in followers if "follower" in command_line(pid)])
