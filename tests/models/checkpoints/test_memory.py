"""A checkpoint is never held twice while it is loaded, and generating needs the cache and little else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.models.checkpoints import saving
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.memory_budget import free_bytes

MIB = 2**20

PROGRAM = """
import json, re, sys
import torch
import draftwood
from draftwood.engine.engine import Engine
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints import saving

def status(name):  # not ru_maxrss, which a process inherits
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

directory, small, how = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
torch.set_num_threads(1)
options = dict(sampling={"temperature": 0}, max_new_tokens=8)
Engine(checkpoint.load(small, **how)).generate([1, 2, 3], "autoregressive", **options)  # what libraries take at first
before = status("VmRSS")
model = checkpoint.load(directory, **how)
loaded, held = status("VmHWM"), status("VmRSS")
engine = Engine(model)
engine.generate(list(range(200)), "autoregressive", **options)
cache = sum(c.bytes for c in engine.builder.caches.values())
print(json.dumps([before, loaded, held, status("VmHWM"), model.weight_bytes, cache]))
"""


def write(directory: Path, width: int, layers: int) -> Path:
    torch.manual_seed(0)
    config = DecoderConfig(2048, width, 4 * width, layers, width // 64, width // 64, 64)
    saving.save(Decoder(config), directory)
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("memory")
    return write(place / "large", 768, 5), write(place / "small", 64, 1)


def shard(source: Path, directory: Path, count: int) -> Path:
    """The same weights in several files and an index."""
    directory.mkdir()
    (directory / "config.json").write_bytes((source / "config.json").read_bytes())
    weights = load_file(source / "model.safetensors")
    places = {name: f"model-{i % count + 1:05d}-of-{count:05d}.safetensors" for i, name in enumerate(sorted(weights))}
    for place in set(places.values()):
        save_file({name: weights[name] for name in weights if places[name] == place}, directory / place)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), "utf-8")
    return directory


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize(
    "how",
    [{}, pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.slow), {"quantize": "int8"}],
    ids=["float32", "bfloat16", "int8"],
)
def test_a_checkpoint_is_held_once(models: tuple[Path, Path], how: dict[str, str], tmp_path: Path) -> None:
    """From one file, and for float32 from several."""
    if not how:
        models = shard(models[0], tmp_path / "sharded", 4), models[1]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, models), json.dumps(how)], capture_output=True, text=True, check=True
    )
    before, loaded, held, peak, weights, cache = json.loads(done.stdout)
    embeddings = 2048 * 768 * (2 if how.get("dtype") else 4)
    largest = 2 * 4 * 768 * 768 * 4  # bytes of the largest matrix as stored: gate and up
    assert weights > 40 * MIB
    assert 0.9 * weights < held - before < (weights + embeddings) * 1.05 + 16 * MIB
    # one matrix at a time is there as stored, as converted and as packed, and what its packing needs
    assert loaded - before < (weights + embeddings) * 1.05 + 4 * largest
    activations = 200 * 8 * 768 * 4 * 2 + 200 * 2048 * 4
    assert peak <= max(loaded, (held + cache + activations) * 1.05) + 32 * MIB  # of what libraries keep
    stored = sum(path.stat().st_size for path in models[0].glob("*.safetensors"))
    assert 4 * largest < 0.4 * stored  # so nothing like twice


def test_cached_files_are_free_memory_and_a_control_group_has_its_limit(tmp_path: Path) -> None:
    proc, group, cpu = tmp_path / "proc", tmp_path / "group", torch.device("cpu")
    proc.mkdir()
    group.mkdir()
    assert free_bytes(cpu, proc, group) == 4 << 30  # a system that does not tell
    (proc / "meminfo").write_text("MemTotal: 3000 kB\nMemFree: 100 kB\nMemAvailable: 2000 kB\n")
    assert free_bytes(cpu, proc, group) == 2000 * 1024
    (group / "memory.current").write_text("900000\n")
    (group / "memory.stat").write_text("anon 500000\ninactive_file 300000\n")
    (group / "memory.max").write_text("max\n")
    assert free_bytes(cpu, proc, group) == 2000 * 1024
    (group / "memory.max").write_text("1000000\n")
    assert free_bytes(cpu, proc, group) == 1_000_000 - (900_000 - 300_000)
    (group / "memory.max").write_text("500000\n")
    assert free_bytes(cpu, proc, group) == 0
