"""Energy as it is read, from counters as files and a library that plays NVML; and what is estimated in their place."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from draftwood.engine.metrics import Metrics
from draftwood.eval import energy
from draftwood.eval.energy import PRICES, Meter, Nvml, Rapl, estimated, operations
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig


def zone(root: Path, name: str, joules: float, span: float = 1000.0) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{int(joules * 1e6)}\n")
    (folder / "max_energy_range_uj").write_text(f"{int(span * 1e6) - 1}\n")
    return folder


def test_rapl_sums_packages_leaves_out_their_parts_and_undoes_a_wrap(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 990)
    zone(tmp_path, "intel-rapl:1", 5)
    zone(tmp_path, "intel-rapl:0:0", 1)  # the cores of package 0
    counter = Rapl(tmp_path)
    assert counter.joules() == 0
    zone(tmp_path, "intel-rapl:0", 10)  # 20 J later, over the end
    zone(tmp_path, "intel-rapl:1", 8)
    zone(tmp_path, "intel-rapl:0:0", 500)
    assert counter.joules() == pytest.approx(23)
    assert counter.joules() == pytest.approx(23)


def test_a_machine_without_counters_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="no RAPL"):
        Rapl(tmp_path / "no")
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "no")
    assert energy.counters(torch.device("cpu")) == []
    zone(tmp_path, "intel-rapl:0", 1)
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    assert [counter.name for counter in energy.counters(torch.device("cpu"))] == ["cpu"]


def library(millijoules: list[int]) -> Any:
    """NVML with two GPUs."""
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-uuid-{handle}",
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: millijoules[handle],
    )


def test_nvml_counts_millijoules_of_the_gpu_that_torch_computes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = [1000, 5000]
    fake = library(millijoules)
    assert Nvml(1, fake).joules() == 5
    monkeypatch.setattr(energy, "import_module", lambda name: {"pynvml": fake}[name])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="uuid-1"))
    monkeypatch.setattr(energy, "POWERCAP", Path("/nowhere"))
    (counter,) = energy.counters(torch.device("cuda", 0))
    millijoules[1] += 250
    assert counter.joules() == 5.25
    fake.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 1 / 0  # an older GPU: not supported
    assert energy.counters(torch.device("cuda", 0)) == []


def test_the_meter_reads_differences_and_idle_power() -> None:
    class Clockwork:
        name = "cpu"
        value = 100.0

        def joules(self) -> float:
            self.value += 2.0
            return self.value

    meter = Meter([Clockwork()])
    meter.start()
    assert meter.stop() == {"cpu": 2.0}
    meter.rest(0.02)
    assert 0 < meter.idle["cpu"] <= 2.0 / 0.02 and math.isfinite(meter.idle["cpu"])
    meter.counters[0].joules = lambda: 1 / 0  # type: ignore[method-assign]
    meter.start()
    assert meter.stop() == {}  # not there, and nobody's run fails for it
    nothing = Meter([])
    nothing.rest(1000)  # returns at once
    nothing.start()
    assert nothing.stop() == {} == nothing.idle


def test_an_estimate_is_what_forwards_read_and_rows_compute() -> None:
    config = DecoderConfig(50, 32, 48, 3, 4, 2, 16)
    target, draft = Decoder(config), Decoder(DecoderConfig(50, 16, 24, 1, 2, 1, 8))
    made = [Metrics(rounds=3, draft_forwards=4, target_rows=9.0, draft_rows=5.0), Metrics(rounds=1, target_rows=2.0)]
    size, own = target.weight_bytes, draft.weight_bytes
    each = operations(config, 0, 1, 1) / size
    byte, operation = PRICES["cpu"]
    wanted = byte * (4 * size + 4 * own) + operation * each * (11 * size + 5 * own)
    assert estimated(made, target, [draft]) == pytest.approx(wanted)
    exit = SimpleNamespace(weight_bytes=100, layers=1)  # reads the target's first layer, too
    wanted = byte * (4 * size + 4 * (100 + size / 3)) + operation * each * (11 * size + 5 * 100)
    assert estimated(made, target, [exit]) == pytest.approx(wanted)  # type: ignore[list-item]
    assert estimated(made, SimpleNamespace(device="cpu"), [draft]) is None  # type: ignore[arg-type]


def test_operations_of_a_forward_are_those_that_pytorch_counts() -> None:
    c = DecoderConfig(50, 32, 48, 3, 4, 2, 16)
    rows = 9
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        Decoder(c).eval().train_forward(torch.zeros(1, rows, dtype=torch.long))
    masked = c.num_hidden_layers * 4 * (rows * (rows - 1) // 2) * c.num_attention_heads * c.head_dim
    assert operations(c, 0, rows, rows) + masked == counted.get_total_flops()
    assert operations(c, rows, 1, 1) == operations(c, 0, rows + 1, rows + 1) - operations(c, 0, rows, rows)
