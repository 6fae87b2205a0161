"""draftwood as a model of lm-eval, EleutherAI's Language Model Evaluation Harness: importing this registers it there.

    python -m draftwood.integrations.lm_eval --model draftwood --model_args target=DIR,method=dsbd --tasks gsm8k

is `lm_eval` with the model in its registry; in a program, import this module before `lm_eval.simple_evaluate`. Texts
come from the engine, with any method; likelihoods from `Engine.score`, whatever the method. Needs the package
lm_eval (extra `draftwood[lm-eval]`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from draftwood.engine.engine import Engine
from draftwood.engine.loading import load
from draftwood.errors import ConfigurationError, RequestError

try:
    LM: Any = import_module("lm_eval.api.model").LM
    register_model: Any = import_module("lm_eval.api.registry").register_model
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"the evaluation harness is not installed ({missing.name} is missing); pip install 'draftwood[lm-eval]'"
    ) from None

MODEL = "draftwood"
ANY_DEVICE = "cuda:0"  # what the harness says when nobody chose a device
Scored = tuple[float, bool]  # log-likelihood of a continuation, and whether it is the greedy one
IGNORED = {"do_sample", "num_beams", "use_cache", "until", "max_gen_toks", "max_new_tokens", "max_tokens"}
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@register_model(MODEL)
class Draftwood(LM):  # type: ignore[misc]
    """Model arguments: target, draft (several with +), method (a name or file:PATH), options of the method by name.

    Others: dtype, device, quantize, kv_dtype, compile, max_gen_toks (256), max_length (the target's context), seed.
    Without a target the embedded pair is loaded.
    """

    def __init__(
        self,
        target: str | None = None,
        draft: str | None = None,
        method: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        quantize: str | None = None,
        compile: bool = False,
        kv_dtype: str = "auto",
        max_gen_toks: int = 256,
        max_length: int | None = None,
        seed: int = 0,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        engine: Engine | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        drafts = draft.split("+") if draft else None
        if device == ANY_DEVICE and not torch.cuda.is_available():
            device = None
        self.engine = engine or load(target, drafts, dtype, device, quantize, compile, kv_dtype=kv_dtype)
        self.method = self.engine.method({"name": method, **options} if method and options else method)
        if options and not method:
            raise ConfigurationError(
                f"model argument {next(iter(options))!r} is an option of a method; name the method too"
            )
        if self.engine.tokenizer is None:
            raise ConfigurationError("the harness needs a tokenizer; give a checkpoint directory that has one")
        self.max_gen_toks, self.seed = int(max_gen_toks), int(seed)
        self.max_length = min(self.engine.target.context, int(max_length or self.engine.target.context))
        size = str(batch_size).split(":")[0]
        self.batch_size = 8 if size == "auto" else int(size)  # requests, or sequences, at once

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in the harness's caches."""
        return str(self.engine.names.get("target", MODEL)).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The checkpoint's template, which belongs to what is cached."""
        assert self.engine.tokenizer is not None
        return "\n".join(map(str, self.engine.tokenizer.templates.values())) if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text."""
        assert self.engine.tokenizer is not None
        ending = {"add_generation_prompt": True} if add_generation_prompt else {"continue_final_message": True}
        return self.engine.tokenizer.chat_text(chat_history, **ending)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts by the method; each request's args are (context, {"until": stop strings, sampling options ...}).

        A context that is too long loses its beginning. Sampling needs do_sample, as elsewhere in the harness.
        """
        requested = [self._request(context, dict(options)) for context, options in map(_arguments, requests)]
        texts: list[str] = []
        for some in _parts(requested, self.batch_size):
            results = self.engine.batch(some, self.batch_size, method=self.method, seed=self.seed)
            texts += [result.text for result in results]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", _arguments(request), text)
        return texts

    def _request(self, context: str, options: Mapping[str, Any]) -> dict[str, Any]:
        until = options.get("until") or ()
        limits = (options.get(name) for name in ("max_gen_toks", "max_new_tokens", "max_tokens"))
        limit = int(next((value for value in limits if value is not None), self.max_gen_toks))
        limit = min(limit, self.max_length - 1)
        sampled = options.get("do_sample", bool(options.get("temperature")))
        sampling = {name: options[name] for name in SAMPLING if options.get(name) is not None}
        unknown = options.keys() - IGNORED - set(SAMPLING)
        if unknown:
            raise RequestError(
                f"draftwood does not know the generation option {sorted(unknown)[0]!r} of this task; "
                f"it knows {', '.join(sorted({*IGNORED, *SAMPLING}))}"
            )
        if not sampled:
            sampling["temperature"] = 0.0
        return {
            "prompt": self._tokens(context)[-(self.max_length - limit) :],
            "stop": [until] if isinstance(until, str) else [stop for stop in until if stop],
            "max_new_tokens": limit,
            "sampling": sampling,
        }

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Scored]:
        """Log-likelihoods of continuations behind contexts, natural logarithm; each request's args are both texts."""
        pairs = [self._pair(*_arguments(request)) for request in requests]
        scored = self._scored([(before + after, len(after)) for before, after in pairs])
        for request, answer in zip(requests, scored, strict=True):
            self.cache_hook.add_partial("loglikelihood", _arguments(request), answer)
        return scored

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, each token behind as much context as there is room for."""
        totals = []
        for request in requests:
            (text,) = _arguments(request)
            tokens = self._tokens(text, special=False)
            windows = list(rolling([self._first(), *tokens], self.max_length))
            totals.append(sum(score for score, _ in self._scored(windows)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
        return totals

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both. Spaces between them belong to the continuation, as words carry their space in front."""
        if not context:
            after = self._tokens(continuation, special=False)
            return [self._first()], after
        bare = context.rstrip(" ")
        if bare:
            context, continuation = bare, context[len(bare) :] + continuation
        before = self._tokens(context)
        return before, self._tokens(context + continuation)[len(before) :]

    def _first(self) -> int:
        """The token before a text's first: the one that the tokenizer puts there, else one that ends texts."""
        tokens = self._tokens("a")
        bare = self._tokens("a", special=False)
        if len(tokens) > len(bare):
            return tokens[0]
        if not self.engine.end_tokens:
            raise ConfigurationError("the target has no token for the beginning or end of a text; give a context")
        return min(self.engine.end_tokens)

    def _tokens(self, text: str, special: bool = True) -> list[int]:
        assert self.engine.tokenizer is not None
        bare = self.engine.tokenizer.encode(text, add_special=False)
        full = self.engine.tokenizer.encode(text) if special else bare
        return bare if bare[:1] == full[:1] else full  # a chat template may have written the first token already

    def _scored(self, requested: Sequence[tuple[list[int], int]]) -> list[Scored]:
        """(tokens, how many of the last ones are scored); tokens that do not fit are lost at the beginning."""
        cut = [(tokens[-(self.max_length + 1) :], count) for tokens, count in requested]
        return [score for some in _parts(cut, self.batch_size) for score in self._together(some)]

    def _together(self, requested: Sequence[tuple[list[int], int]]) -> Iterator[Scored]:
        firsts = [max(1, len(tokens) - count) for tokens, count in requested]
        read, build = self.engine.requests.scoring, self.engine.builder.scoring_task
        tasks = [build(*read(tokens, 1, first)) for (tokens, _), first in zip(requested, firsts, strict=True)]
        for first, scores in zip(firsts, self.engine.driver.outcomes(tasks), strict=True):
            best = [top[0][0] for top in scores.top_logprobs[first:]]
            yield math.fsum(score or 0.0 for score in scores.logprobs[first:]), best == scores.tokens[first:]


def rolling(tokens: Sequence[int], room: int) -> Iterator[tuple[list[int], int]]:
    """Windows of at most `room` + 1 tokens over a text whose first token is given: each other one is scored once.

    A window scores its last tokens; all but the first window and the last have no context but one token, and the last
    is as long as the others, so that its tokens have what context there is.
    """
    done = 1
    while done < len(tokens):
        end = min(len(tokens), done + room)
        yield list(tokens[max(0, end - room - 1) : end]), end - done
        done = end


def _arguments(request: Any) -> tuple[Any, ...]:
    return tuple(request.args)


def _parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def main() -> None:
    """The harness's own command line."""
    import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    main()
