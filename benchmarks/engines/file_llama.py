"""llama.cpp on a GGUF file, for file_cell.py: its own defaults through llama-cpp-python, tokens chosen by numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.engines.file_cell import longest


def start(threads: int) -> str:
    """Import the binding."""
    import llama_cpp

    return str(llama_cpp.__version__)


class Model:
    """The file in its own types."""

    def __init__(self, job: dict[str, Any]) -> None:
        import llama_cpp
        from llama_cpp import Llama

        if not job.get("repack", True):
            usual = llama_cpp.llama_cpp.llama_model_default_params

            def as_stored() -> Any:
                settings = usual()
                settings.use_extra_bufts = False
                return settings

            llama_cpp.llama_cpp.llama_model_default_params = as_stored
        count: dict[str, Any] = {"n_threads": job["threads"], "n_threads_batch": job["threads"]}
        if job.get("lookup"):
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

            count["draft_model"] = LlamaPromptLookupDecoding()
            count["logits_all"] = True  # else it has room for the rows of `n_batch` tokens alone
        self.model = Llama(job["file"], n_ctx=longest(job), verbose=False, **count)
        lib, own = llama_cpp.llama_cpp, self.model._model.model
        self.forgets = not (lib.llama_model_is_hybrid(own) or lib.llama_model_is_recurrent(own))
        self.end = 0  # of what it has read

    def _read(self, tokens: list[int], first: int, all_logits: bool = False) -> Any:
        """Read tokens at positions from `first` on; the logits [token, vocabulary] of all of them, or of the last."""
        import numpy as np

        model = self.model
        if first != self.end and not model._ctx.kv_cache_seq_rm(-1, first, -1):
            raise RuntimeError(f"llama.cpp cannot forget what is behind {first} tokens")
        for start in range(0, len(tokens), model.n_batch):
            some = tokens[start : start + model.n_batch]
            model._batch.set_batch(some, first + start, all_logits)
            model._ctx.decode(model._batch)
        self.end = first + len(tokens)
        rows = len(some) if all_logits else 1
        return np.ctypeslib.as_array(model._ctx.get_logits(), (rows, model.n_vocab()))

    def decode(self, prompt: list[int], count: int) -> list[int]:
        tokens = [int(self._read(prompt, 0)[0].argmax())]
        while len(tokens) < count:
            tokens.append(int(self._read(tokens[-1:], len(prompt) + len(tokens) - 1)[0].argmax()))
        return tokens

    def answer(self, prompt: list[int], count: int, temperature: float, end: list[int]) -> list[int]:
        """By the binding's own loop, which drafts where there is a `draft_model`."""
        self.model.reset()
        tokens: list[int] = []
        for token in self.model.generate(prompt, top_k=0, top_p=1.0, min_p=0.0, temp=temperature):
            tokens.append(int(token))
            if len(tokens) == count or tokens[-1] in end:
                break
        return tokens

    def forward(self, context: list[int], tokens: list[int]) -> Callable[[], object]:
        """Of a model that cannot forget a part of what it has read, tokens lie one after the other."""

        def read() -> object:
            return self._read(tokens, len(context) if self.forgets else self.end, True)

        self._read(context, 0)
        return read

    def nats(self, text: list[int]) -> float:
        import numpy as np

        nats = 0.0
        for start in range(0, len(text) - 1, self.model.n_batch):
            some = text[start : start + self.model.n_batch]
            following = text[start + 1 : start + len(some) + 1]
            rows = self._read(some, start, True)[: len(following)].astype(np.float64)
            top = rows.max(1)
            sums = top + np.log(np.exp(rows - top[:, None]).sum(1))
            nats += float((sums - rows[np.arange(len(following)), following]).sum())
        return nats
