"""Experiments with many requests and on HTTP; stand-ins for another server and a load tool."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.engines import Cell, Unavailable, llama_cpp_server
from benchmarks.execute import execute
from benchmarks.experiment import Run, load
from benchmarks.kinds.serving import Serving
from benchmarks.pairs import Pair
from benchmarks.tables import markdown
from draftwood.errors import ConfigurationError

BENCH = Path(__file__).parents[2] / "benchmarks" / "experiments"
TOOL = """#!{python}
import json, sys, urllib.request
if sys.argv[1:] == ["--version"]:
    sys.exit(print("guidellm version: 1.2.3"))
asked = json.load(open(sys.argv[3]))["spec"]
count, backend = asked["constraints"][0]["count"], asked["backend"]
body = {{"prompt": "a", "max_tokens": asked["data"][0]["output_tokens"], "model": backend["model"]}}
for _ in range(count):
    content = json.dumps(body | backend["extras"]["body"]).encode()
    url, headers = backend["target"] + backend["request_format"], {{"content-type": "application/json"}}
    urllib.request.urlopen(urllib.request.Request(url, content, headers)).read()
times = {{"successful": {{"mean": 3.0, "percentiles": {{"p50": 1.0, "p95": 2.0}}}}}}
metrics = {{name: times for name in ("time_to_first_token_ms", "inter_token_latency_ms", "output_tokens_per_second")}}
metrics["request_totals"] = {{"successful": count, "errored": 0, "incomplete": 0}}
with open(asked["outputs"][0]["path"], "w") as file:
    json.dump({{"benchmarks": [{{"metrics": metrics}}]}}, file)
"""
SERVER = """#!{python}
import json, pathlib, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/v1/completions" and not asked["cache_prompt"] and "speculation" not in asked
        self.send_response(200)
        self.end_headers()
        usage = json.dumps({{"usage": {{"completion_tokens": asked["max_tokens"]}}}})
        if not asked.get("stream"):
            return self.wfile.write(usage.encode())
        for _ in range(asked["max_tokens"]):
            self.wfile.write(b"data: {{}}\\n\\n")
        self.wfile.write(f"data: {{usage}}\\n\\ndata: [DONE]\\n\\n".encode())
    def log_message(self, *about): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with pathlib.Path(__file__).with_name("said").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
print(f"main: server is listening on http://127.0.0.1:{{server.server_port}}", flush=True)
server.serve_forever()
"""


def test_a_load_tool(long_target: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in, which asks what it is told to ask."""
    path, models = BENCH / "load.yaml", Pair("tiny", long_target, draft, tmp_path / "made")
    experiment = load(path)
    program = tmp_path / "guidellm"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ConfigurationError, match="put guidellm on the PATH"):
        execute(experiment, path, "none", Run(pair=None), tmp_path, smoke=True, models=models)
    program.write_text(TOOL.format(python=sys.executable))
    program.chmod(0o755)
    tables = execute(experiment, path, "tiny", Run(pair=None), tmp_path, smoke=True, models=models)["tables"]
    assert [(row["method"], row["requests"], row["failed"]) for row in tables["load"]] == [
        ("plain", 4, 0),
        ("load-aware", 4, 0),
    ]
    assert tables["load"][0]["slow_first_ms"] == 2.0 and tables["tool"][0]["version"] == "1.2.3"


@pytest.mark.slow
def test_what_http_adds(long_target: Path, draft: Path, tmp_path: Path) -> None:
    path, models = BENCH / "http.yaml", Pair("tiny", long_target, draft, tmp_path / "made")
    found = execute(load(path), path, "tiny", Run(pair=None), tmp_path, smoke=True, models=models)
    rows = found["tables"]["http"]
    assert [(row["method"], row["clients"]) for row in rows] == [
        (method, clients) for method in ("plain", "load-aware") for clients in (1, 2)
    ]
    assert all(0 < row["outside_ms"]["value"] < row["http_first_ms"]["value"] for row in rows)
    assert all(row["engine_first_ms"]["value"] > 0 and row["ratio_tokens_per_second"]["value"] > 0 for row in rows)


@pytest.fixture
def llama_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in, which writes how it was called to the file `said` beside it."""
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def test_parallel_decoding_of_another_server(
    long_target: Path, draft: Path, tmp_path: Path, llama_server: Path
) -> None:
    path, models = BENCH / "serving.yaml", Pair("tiny", long_target, draft, tmp_path / "made")
    experiment = load(path)
    peers = {"Hugging Face": [], "OpenVINO GenAI": [], "llama.cpp": ["plain", "lookup"]}
    experiment = experiment.model_copy(update={"smoke": {**experiment.smoke, "peers": peers}})
    tables = execute(experiment, path, "tiny", Run(pair=None), tmp_path, smoke=True, models=models)["tables"]
    failed, *rows = tables["serving"]
    assert failed["method"] == "llama.cpp, lookup" and "plain and speculation" in failed["failure"]
    found = {row["load"]: row["tokens_per_second"]["value"] for row in rows if row["method"] == "llama.cpp, plain"}
    assert set(found) == {1, 2} and min(found.values()) > 0
    (flags,) = map(json.loads, llama_server.with_name("said").read_text().splitlines())
    assert flags[flags.index("--parallel") + 1] == "2"


def test_other_servers(long_target: Path, draft: Path, tmp_path: Path, llama_server: Path) -> None:
    path, models = BENCH / "http-peers.yaml", Pair("tiny", long_target, draft, tmp_path / "made")
    experiment = load(path)
    asked = {**experiment.smoke, "methods": {}, "peers": {"llama.cpp": ["plain", "speculation"]}}
    experiment = experiment.model_copy(update={"smoke": asked})
    program = llama_server
    tables = execute(experiment, path, "tiny", Run(pair=None), tmp_path, smoke=True, models=models)["tables"]
    assert len(tables["servers"]) == 2 * 4 and len(tables["ratios"]) == 2 * 3
    assert all(row["tokens_per_second"]["value"] > 0 for row in tables["servers"])
    plain, speculative = map(json.loads, program.with_name("said").read_text().splitlines())
    assert "-md" not in plain and speculative[speculative.index("--spec-draft-n-max") + 1] == "4"
    assert plain[plain.index("--ctx-size") + 1] == str(2 * 128)
    for flag in ("--model", "-md"):
        assert Path(speculative[speculative.index(flag) + 1]).is_file()
    program.unlink()
    with pytest.raises(Unavailable, match="llama-server on the PATH"):
        llama_cpp_server.command(Cell("llama.cpp", "plain", "float32", "", "", ""), 1)
    tables["servers"].append({"server": "llama.cpp", "mode": "other", "failure": "why"})  # is not in the table
    assert markdown(experiment.tables[0], [{"models": {}, "environment": {}, "tables": tables}]).count("\n") == 5


def test_small_loads_decode_as_many_requests_as_large_ones() -> None:
    """One load after the other, each with the next prompts; a large load comes once."""
    serving = Serving(methods={"plain": {"name": "autoregressive"}}, requests=5)
    assert serving.batches([[1], [2], [3], [4]], 2) == [[[1], [2]], [[3], [4]], [[1], [2]]]
    assert serving.batches([[1], [2], [3], [4], [5], [6]], 6) == [[[1], [2], [3], [4], [5], [6]]]
