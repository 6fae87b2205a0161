"""Energy as it is read, from counters as files and a library that plays NVML; and what is estimated in their place."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.eval import energy
from draftwood.eval.energy import Meter, Nvml, Rapl


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
