"""Ray, started on this machine for as long as a command runs, or a cluster that runs already."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from draftwood.errors import ConfigurationError

log = logging.getLogger("draftwood")

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # a busy machine takes longer than the usual 5 seconds
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}
MAX_TRIES = 3  # to start Ray here, which gives up where that takes 30 seconds
OBJECT_STORE_BYTES = 256 << 20  # bytes of memory for what processes hand each other; more is kept on the disk


@contextmanager
def started(address: str | None, cpus: float, gpus: float = 0) -> Iterator[None]:
    """Ray at an address (auto, HOST:PORT, ray://HOST:PORT); None: here, with room for so many CPUs and GPUs."""
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    here = {
        "num_cpus": max(1, os.cpu_count() or 1, int(-(-cpus // 1))),
        "num_gpus": int(-(-gpus // 1)) or None,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    for left in range(0 if address else MAX_TRIES - 1, -1, -1):
        try:
            ray.init(
                address=address or "local",
                namespace="draftwood",
                logging_level=logging.ERROR,
                log_to_driver=log.isEnabledFor(logging.INFO),
                **({} if address else here),
            )
            break
        except Exception as error:  # of many kinds, Exception itself among them
            ray.shutdown()
            if not left:
                where = f"at {address}" if address else "on this machine"
                raise ConfigurationError(f"Ray {where} cannot be used: {' '.join(str(error).split())}") from None
    try:
        yield
    finally:
        ray.shutdown()
