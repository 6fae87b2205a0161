"""A server of OpenAI's protocol whose model is a table, written apart from the package: right, or wrong as told."""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = [" the", " cat", " sat", " on", " a", " mat", " and", " ran", " to", " us", ".", " now", " red", " hat", " Bo"]


@dataclass
class Table:
    """Laws of the next word given the last one, and the ways to be wrong."""

    wrong: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset({"logprobs", "top_k", "min_p", "logit_bias", "seed"})
    sharpness: float = 1.3
    shift: float = 0.0  # of each logit by other bits of the weights
    processed: bool = False  # log-probabilities are those after temperature and all else
    dies_after: int | None = None
    other_tokens: int = 0  # more of the prompt than words
    chats: bool = False  # it has /v1/chat/completions alone
    busy: int = 0  # requests that are refused first
    asked: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def logits(self, before: list[str], noise: random.Random | None = None) -> dict[str, float]:
        """The model's logits of each word, after the last word."""
        last = before[-1] if before else ""
        key = random.Random(zlib.crc32(last.encode()))
        values = {word: self.sharpness * key.gauss(0, 1) for word in WORDS}
        other = random.Random(zlib.crc32(b"other" + last.encode()))
        return {
            word: value + self.shift * other.gauss(0, 1) + (noise.gauss(0, 1) if noise else 0.0)
            for word, value in values.items()
        }

    def law(self, raw: dict[str, float], body: dict[str, Any], made: list[str]) -> dict[str, float]:
        """The law that a request asks for."""
        counts = Counter(made)
        if "penalties see drafts" in self.wrong:
            counts += Counter(WORDS[:4])
        bias = {WORDS[int(token)]: value for token, value in (body.get("logit_bias") or {}).items()}
        values = {
            word: value
            - body.get("presence_penalty", 0) * (counts[word] > 0)
            - body.get("frequency_penalty", 0) * counts[word]
            + bias.get(word, 0)
            for word, value in raw.items()
        }
        temperature = body.get("temperature", 1.0)
        if temperature == 0:
            return {max(values, key=lambda word: values[word]): 1.0}
        if "temperature twice" in self.wrong:
            temperature **= 2
        p = softmax({word: value / temperature for word, value in values.items()})
        ranked = sorted(p, key=lambda word: -p[word])
        kept, total = [], 0.0
        for word in ranked:
            if total >= body.get("top_p", 1.0) or p[word] < body.get("min_p", 0) * p[ranked[0]]:
                break
            kept.append(word)
            total += p[word]
        kept = kept[: body.get("top_k") or None]
        if "truncation after acceptance" in self.wrong:  # the first part is drawn without it
            kept = ranked if made and len(made) % 2 else kept
        total = sum(p[word] for word in kept)
        return {word: p[word] / total for word in kept}

    def text(self, body: dict[str, Any], seed: int) -> dict[str, Any]:
        """One choice of an answer."""
        draw = random.Random(seed)
        noise = random.Random() if "not deterministic" in self.wrong else None
        made: list[str] = []
        scores, tops = [], []
        prompt = words(body["prompt"])
        stops = body.get("stop") or []
        while len(made) < body.get("max_tokens", 16) + ("one too many" in self.wrong):
            raw = self.logits(prompt + made, noise)
            law = self.law(raw, body, made)
            if "drafts accepted" in self.wrong and made:  # another law behind the first token
                law = self.law({word: 0.5 * value for word, value in raw.items()}, body, made)
            word = draw.choices(list(law), list(law.values()))[0]
            if "second best" in self.wrong and body.get("temperature") == 0 and len(made) == 5:
                word = sorted(raw, key=lambda one: -raw[one])[1]
            told = softmax(self.logits((prompt + made)[:-1])) if "scores of the row before" in self.wrong else None
            told = told or ({one: max(law.get(one, 0), 1e-30) for one in raw} if self.processed else softmax(raw))
            made.append(word)
            best = sorted(told, key=lambda one: -told[one])[: body.get("logprobs") or 1]
            scores.append(math.log(told[word]))
            tops.append({one: math.log(told[one]) for one in best} | {word: math.log(told[word])})
            if any(stop in "".join(made) for stop in stops) and "stop after the round" not in self.wrong:
                break
        text = "".join(made)
        cut = min((text.find(stop) for stop in stops if stop in text), default=-1)
        finish = "length" if cut < 0 else "stop"
        if cut >= 0 and "stop after the round" not in self.wrong:
            text = text[:cut]
        choice: dict[str, Any] = {"text": text, "finish_reason": finish, "index": 0, "logprobs": None}
        if body.get("logprobs") is not None:
            choice["logprobs"] = {"tokens": made, "token_logprobs": scores, "top_logprobs": tops}
        return choice

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        seed = body.get("seed", random.getrandbits(40))
        if "seeds without effect" in self.wrong:
            seed = 5
        if "seeds do not repeat" in self.wrong:
            seed = random.getrandbits(40)
        count = body.get("n", 1)
        choices = [self.text(body, seed + (0 if "equal choices" in self.wrong else i)) for i in range(count)]
        made = sum(len(words(choice["text"])) for choice in choices)
        read = len(words(body["prompt"])) + 1 + self.other_tokens
        usage = {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
        return {"choices": [{**choice, "index": i} for i, choice in enumerate(choices)], "usage": usage}


def softmax(values: dict[str, float]) -> dict[str, float]:
    total = sum(map(math.exp, values.values()))
    return {word: math.exp(value) / total for word, value in values.items()}


def words(text: str) -> list[str]:
    """A text as words of the table, other letters one by one."""
    found: list[str] = []
    while text:
        word = max((word for word in WORDS if text.startswith(word)), key=len, default=text[0])
        found.append(word)
        text = text[len(word) :]
    return found


def in_chat_form(document: dict[str, Any]) -> dict[str, Any]:
    """An answer of /v1/completions as one of /v1/chat/completions."""
    for choice in document["choices"]:
        choice["message"] = {"role": "assistant", "content": choice.pop("text")}
        if choice["logprobs"]:
            rows = zip(
                *(choice["logprobs"][name] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True
            )
            choice["logprobs"]["content"] = [
                {"token": token, "logprob": value, "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()]}
                for token, value, top in rows
            ]
    return document


def handler(table: Table) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *given: object) -> None:
            """Nothing is logged."""

        def send(self, status: int, document: Any, **headers: str) -> None:
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in {"Content_Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                return self.send(200, {"data": [{"id": "table"}]})
            self.send(404, {"error": {"message": "no such page"}})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            table.asked += 1
            if table.dies_after is not None and table.asked > table.dies_after:
                self.close_connection = True
                return None
            if self.path == "/tokenize":
                known = [WORDS.index(word) for word in words(body["prompt"]) if word in WORDS]
                return self.send(200, {"tokens": known})
            if table.chats and self.path == "/v1/chat/completions":
                talk = {"prompt": body["messages"][0]["content"], "logprobs": body.get("top_logprobs")}
                return self.send(200, in_chat_form(table.answer(body | talk)))
            if table.chats or self.path != "/v1/completions":
                return self.send(404, {"error": {"message": "no such page"}})
            if table.busy:
                table.busy -= 1
                return self.send(429, {"error": {"message": "wait"}}, Retry_After="0")
            optional = {"logprobs", "top_k", "min_p", "logit_bias", "seed", "repeat_penalty", "return_token_ids"}
            if unknown := sorted((optional & body.keys()) - table.offered):
                return self.send(400, {"error": {"message": f"unknown field {unknown[0]}"}})
            document = table.answer(body)
            if not body.get("stream"):
                return self.send(200, document)
            chunks = [document, {"choices": [], "usage": document["usage"]}]
            lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
            broken = "streams break" in table.wrong
            self.send(200, lines.encode(), **({"Content_Length": str(len(lines) + 9)} if broken else {}))
            self.close_connection = broken

    return Handler


class Crowded(ThreadingHTTPServer):
    """A server at which many clients may knock at once."""

    request_queue_size = 64


@contextlib.contextmanager
def speaking(table: Table) -> Iterator[str]:
    """The address of a server of the table."""
    server = Crowded(("127.0.0.1", 0), handler(table))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
