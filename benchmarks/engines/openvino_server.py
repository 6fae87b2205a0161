"""`python openvino_server.py MODEL.gguf PORT [--lookup]`: OpenVINO GenAI's batching behind /v1/completions.

Its package brings no server for Python; this one does the least that `benchmarks.http_peers` asks for: greedy streams,
of which the pipeline decodes all at once. It needs openvino-genai alone, in an environment of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any

import openvino_genai as genai  # type: ignore[import-not-found]


class OpenVinoDecoder:
    """One thread that steps the pipeline for as long as there are requests."""

    def __init__(self, path: str, lookup: bool) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2  # GB
        more = {"prompt_lookup": True} if lookup else {}
        self.lookup = lookup
        self.pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": 2, **more})
        self.tokenizer = self.pipeline.get_tokenizer()
        self.waiting = Condition()
        self.new: list[tuple[str, int, SimpleQueue[list[int] | None]]] = []
        Thread(target=self.run, daemon=True).start()

    def tokens(self, prompt: str, limit: int) -> Iterator[list[int]]:
        """The tokens of each step, as they come."""
        queue: SimpleQueue[list[int] | None] = SimpleQueue()
        with self.waiting:
            self.new.append((prompt, limit, queue))
            self.waiting.notify()
        while (ids := queue.get()) is not None:
            yield ids

    def run(self) -> None:
        numbers = count()
        running: list[Any] = []
        while True:
            with self.waiting:
                while not self.new and not running:
                    self.waiting.wait()
                new, self.new = self.new, []
            for prompt, limit, queue in new:
                config = genai.GenerationConfig()
                config.max_new_tokens, config.apply_chat_template = limit, False
                if self.lookup:
                    config.num_assistant_tokens, config.max_ngram_size = 4, 3
                running.append((self.pipeline.add_request(next(numbers), prompt, config), queue))
            self.pipeline.step()
            for handle, queue in running:
                while handle.can_read():
                    queue.put(list(handle.read()[0].generated_ids))
            ended = [one for one in running if one[0].get_status() != genai.GenerationStatus.RUNNING]
            for one in ended:
                one[1].put(None)
                running.remove(one)


class Handler(BaseHTTPRequestHandler):
    decoder: OpenVinoDecoder

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        made, shown = list[int](), ""
        for ids in self.decoder.tokens(body["prompt"], body["max_tokens"]):
            made += ids
            text = self.decoder.tokenizer.decode(made)
            self.event({"choices": [{"index": 0, "text": text[len(shown) :]}]})
            shown = text
        self.event({"choices": [], "usage": {"completion_tokens": len(made)}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *given: object) -> None:
        """Nothing is logged."""


if __name__ == "__main__":
    Handler.decoder = OpenVinoDecoder(sys.argv[1], "--lookup" in sys.argv)
    ThreadingHTTPServer.request_queue_size = 64
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
