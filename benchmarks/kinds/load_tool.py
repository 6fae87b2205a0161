"""A public load tool, guidellm, against `draftwood serve`: what somebody else's client measures.

It brings packages of its own, so it runs as a program, which may lie in another environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from benchmarks.kinds.http import own_server, started
from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.util.safe_parsing import parse_json, read_text

PROGRAM = "guidellm"
NAME = "served"  # of the model, to its clients


class LoadTool(Kind):
    """So many clients, each with one request after the other, for each method."""

    methods: dict[str, dict[str, Any]]
    clients: tuple[int, ...] = (1, 4, 16)
    requests: int = 48
    prompt: int = 64  # tokens
    tokens: int = 64
    limit: float = 600  # seconds of one call

    def measure(self, bench: Bench) -> dict[str, Rows]:
        program = shutil.which(PROGRAM)
        if program is None:
            raise ConfigurationError(f"put {PROGRAM} on the PATH: pip install {PROGRAM}, in an environment of its own")
        rows: Rows = []
        with started([*own_server(bench), "--served-model-name", NAME]) as (host, port):
            for name, method in self.methods.items():
                for clients in bench.track(self.clients, name):
                    asked = self.scenario(bench.pair.target, f"http://{host}:{port}", method, clients)
                    found = bench.once([name, clients], partial(self.run, program, asked))
                    rows.append({"method": name, "clients": clients, **found})
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        return {"load": rows, "tool": [{"name": PROGRAM, "version": told.split()[-1] if told.split() else None}]}

    def scenario(self, target: Path, url: str, method: dict[str, Any], clients: int) -> dict[str, Any]:
        """One call of the tool, as its file of settings declares it."""
        body = {"temperature": 0.0, "speculation": method}
        server = {"kind": "openai_http", "target": url, "model": NAME, "request_format": "/v1/completions"}
        return {
            "backend": {**server, "extras": {"body": body}},
            "tokenizer": {"kind": "huggingface_auto", "model": str(target)},
            "profile": {"kind": "concurrent", "streams": clients},
            "constraints": [{"kind": "max_requests", "count": self.requests}],
            "data": [{"kind": "synthetic_text", "prompt_tokens": self.prompt, "output_tokens": self.tokens}],
        }

    def run(self, program: str, asked: dict[str, Any]) -> dict[str, Any]:
        """What the tool reports: milliseconds over requests, tokens per second of all, requests without an answer."""
        with tempfile.TemporaryDirectory() as place:
            settings, report = Path(place) / "settings.json", Path(place) / "report.json"
            settings.write_text(json.dumps({"spec": {**asked, "outputs": [{"kind": "json", "path": str(report)}]}}))
            command = [program, "run", "-c", str(settings), "--disable-console"]
            env = os.environ | {"HF_HUB_OFFLINE": "1"}
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=self.limit, cwd=place)
            if done.returncode or not report.is_file():
                raise DraftwoodError(f"{PROGRAM} ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
            metrics = parse_json(read_text(report), finite=False)["benchmarks"][0]["metrics"]
        totals = metrics["request_totals"]
        if not totals["successful"]:
            raise DraftwoodError(f"none of {PROGRAM}'s requests was answered; run it by hand to see why")
        found = {"requests": totals["successful"], "failed": totals["errored"] + totals["incomplete"]}
        for name, key in (("first_ms", "time_to_first_token_ms"), ("gap_ms", "inter_token_latency_ms")):
            shares = metrics[key]["successful"]["percentiles"]
            found |= {name: shares["p50"], f"slow_{name}": shares["p95"]}
        return found | {"tokens_per_second": metrics["output_tokens_per_second"]["successful"]["mean"]}
