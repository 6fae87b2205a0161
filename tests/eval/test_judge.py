"""A judge behind an endpoint: a server of this process plays it."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from draftwood.errors import ConfigurationError
from draftwood.eval.scoring.judge import Judge, JudgeError
from draftwood.eval.tasks import parse


class Endpoint:
    """Answers each request with the next of `replies`: a text, or a status that is an error."""

    def __init__(self) -> None:
        self.replies: list[str | int] = []
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.asked.append((self.path, dict(self.headers), body))
                reply = endpoint.replies.pop(0)
                self.send_response(reply if isinstance(reply, int) else 200)
                self.end_headers()
                if isinstance(reply, str):
                    said = {"choices": [{"message": {"role": "assistant", "content": reply}}]}
                    self.wfile.write(json.dumps(said).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_a_rating_is_read_from_the_end_of_the_judgement(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    endpoint.replies = ["Not [[10]], it is wrong. [[3.5]]"]
    assert Judge(endpoint.url, "m").rate([("1+1?", "3")], "2") == 3.5
    ((path, headers, body),) = endpoint.asked
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret"
    assert body["model"] == "m" and body["temperature"] == 0
    text = body["messages"][0]["content"]
    assert "[User]\n1+1?" in text and "[Assistant]\n3" in text and text.endswith("question]\n2")


def test_a_busy_server_is_asked_again_and_a_refusal_is_not(endpoint: Endpoint) -> None:
    endpoint.replies = [503, 429, "[[7]]"]
    assert Judge(endpoint.url, "m", pause=0.001).rate([("q", "a")]) == 7
    endpoint.replies = [401]
    with pytest.raises(JudgeError, match="HTTP status 401"):
        Judge(endpoint.url, "m", pause=0.001).rate([("q", "a")])
    endpoint.replies = [500, 500]
    with pytest.raises(JudgeError, match="HTTP status 500"):
        Judge(endpoint.url, "m", tries=2, pause=0.001).rate([("q", "a")])


@pytest.mark.parametrize("reply", ["Good.", "[[0]]", "[[11]]", "[[ten]]"])
def test_a_judgement_without_a_rating_is_an_error(endpoint: Endpoint, reply: str) -> None:
    endpoint.replies = [reply]
    with pytest.raises(JudgeError, match="gave no rating"):
        Judge(endpoint.url, "m").rate([("q", "a")])


def test_nobody_there(endpoint: Endpoint) -> None:
    with pytest.raises(JudgeError, match="cannot be asked"):
        Judge("http://127.0.0.1:1/v1", "m", tries=1).rate([("q", "a")])
    with pytest.raises(ConfigurationError, match="begins with http"):
        Judge("localhost:8000", "m")


def test_both_turns_of_mt_bench_are_judged_each_with_what_went_before(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    row = {"question_id": 1, "category": "math", "turns": ["One?", "Two?"], "reference": ["r1", "r2"]}
    file.write_text(json.dumps(row) + "\n")
    options = {"path": str(file), "judge": endpoint.url, "judge_model": "m"}
    task = parse("mt_bench", options)
    assert task.headline == "rating" and parse("mt_bench", {"path": str(file)}).headline == "perplexity"
    (instance,) = task.instances(None)
    endpoint.replies = ["[[8]]", "[[5]]"]
    assert task.score(instance, [" first", " second"]) == {"rating": 6.5, "rating_1": 8, "rating_2": 5}
    first, second = (body["messages"][0]["content"] for _, _, body in endpoint.asked)
    assert "One?" in first and "Two?" not in first and first.endswith("r1")
    assert "first" in second and "second" in second and "Two?" in second and second.endswith("r2")
    with pytest.raises(ConfigurationError, match="no judge_model"):
        parse("mt_bench", {"path": str(file), "judge": endpoint.url}).instances(None)
