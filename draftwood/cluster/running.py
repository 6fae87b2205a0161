"""Runs the server on Ray in the foreground: starts it, and drains it when it is told to end."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from types import FrameType

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from draftwood.cluster.serving import APPLICATION_NAME, application
from draftwood.cluster.spec import ServeSpec
from draftwood.cluster.starting import started
from draftwood.errors import DraftwoodError
from draftwood.serve.run import listen
from draftwood.serve.settings import ServeSettings

log = logging.getLogger(__name__)


def run(spec: ServeSpec, address: str | None) -> None:
    """Serve until SIGTERM or Ctrl-C, which let running requests end first; a second one does not.

    Raises KeyboardInterrupt after Ctrl-C, DraftwoodError where the replicas cannot be started.
    """
    ray_application = application(spec)
    signals: list[int] = []
    ended, impatient = threading.Event(), threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        (impatient if signals else ended).set()
        signals.append(number)

    max_replicas = int(spec.autoscaling.get("max_replicas", spec.replicas))
    cpus, gpus = max_replicas * spec.resources["num_cpus"] + 1, max_replicas * spec.gpus
    with held_address(spec.server) as held, started(address, cpus, gpus):
        port = held.getsockname()[1]
        try:
            where = "EveryNode" if address else "HeadOnly"
            serve.start(proxy_location=where, http_options={"host": spec.server.host, "port": port})
            front = serve.run(ray_application, name=APPLICATION_NAME, route_prefix="/")
        except (RuntimeError, RayError, RayServeException, TimeoutError) as error:
            raise DraftwoodError(f"the replicas cannot be started: {_why() or error}") from None
        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            print(
                f"draftwood serves {spec.replicas} replicas on http://{spec.server.host}:{port} (Ctrl-C ends it)",
                file=sys.stderr,
                flush=True,
            )
            ended.wait()
            draining = front.drain.remote()
            while not impatient.wait(0.1):
                try:
                    left = draining.result(timeout_s=0)
                    log.info("%d requests were left", left)
                    break
                except TimeoutError:
                    continue
                except (RayError, RayServeException):  # the front has ended: nothing runs
                    break
            serve.shutdown() if address is None else serve.delete(APPLICATION_NAME)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if signals[0] == signal.SIGINT:
        raise KeyboardInterrupt


def held_address(settings: ServeSettings) -> socket.socket:
    """The server's address, bound so that only Ray's proxy, which shares it, can take it.

    Raises ConfigurationError where it is taken: Ray would not say what is wrong with it.
    """
    held = listen(settings)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # after binding: another server's port is not shared
    return held


def _why() -> str:
    """Why the first replica failed: the last line of its traceback."""
    status = serve.status().applications.get(APPLICATION_NAME)
    lines = [line for one in (status.deployments if status else {}).values() for line in one.message.splitlines()]
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
