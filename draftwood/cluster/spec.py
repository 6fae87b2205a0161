"""The settings of replicas as plain data, which travel to other machines and stand in files such as serve.yaml."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from draftwood.engine.engine import Engine
from draftwood.engine.loading import load
from draftwood.errors import ConfigurationError
from draftwood.serve.settings import ServeSettings


class EngineSpec(BaseModel):
    """An engine that any process can make: paths must mean the same on every machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Engine")

    models: dict[str, Any] = Field({}, description="Arguments of draftwood.load, as plain data.")
    method: dict[str, Any] | str | None = Field(None, description="For requests that name none.")
    threads: int = Field(1, ge=1, description="Threads of its forwards.")
    cpus: float | None = Field(None, ge=0, allow_inf_nan=False, description="Of the cluster's CPUs; null: its threads.")
    gpus: float = Field(0.0, ge=0, allow_inf_nan=False, description="Of the cluster's GPUs.")

    def engine(self) -> Engine:
        """The engine, in this process."""
        import torch

        torch.set_num_threads(self.threads)
        try:
            return load(**self.models)
        except TypeError as error:
            raise ConfigurationError(f"models: {error}") from None

    @property
    def resources(self) -> dict[str, float]:
        """The resources that Ray reserves for the engine; each process of a split target has `threads` threads."""
        threads = self.threads * int(self.models.get("tensor_parallel", 1))
        return {"num_cpus": threads if self.cpus is None else self.cpus, "num_gpus": self.gpus}


class ServeSpec(EngineSpec):
    """The settings of a Ray Serve application (`draftwood.cluster.serving:application`): `args` in serve.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Serving")

    replicas: int = Field(1, ge=1, description="Engines, each in a process of its own.")
    autoscaling: dict[str, Any] = Field({}, description="Options of Ray Serve's autoscaling; none: `replicas` engines.")
    unbalanced: int = Field(8, ge=0, description="Requests by which a replica's queue may exceed the shortest one.")
    server: ServeSettings = ServeSettings()
