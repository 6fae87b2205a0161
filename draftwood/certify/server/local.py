"""A model that is loaded here, as the other side of a comparison: it answers as a server would, without drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.certify.server.client import ServerAnswer
from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError
from draftwood.explain.text import spelling
from draftwood.sampling.params import SamplingParams

TOP = 20
FINISHES = {"eos": "stop", "stop": "stop", "length": "length"}


class LocalModel:
    """An engine that decodes token by token."""

    def __init__(self, engine: Engine) -> None:
        if engine.tokenizer is None:
            raise ConfigurationError("the model to compare with has no tokenizer; give a checkpoint that has one")
        self.engine, self.name = engine, str(engine.names.get("target", "the model"))
        self._spell = spelling(engine.tokenizer)

    def ask(self, requests: Sequence[Mapping[str, Any]]) -> list[list[ServerAnswer]]:
        """The texts of requests, one after another."""
        return [[self._one(request)] for request in requests]

    def _one(self, request: Mapping[str, Any]) -> ServerAnswer:
        given = {name: value for name, value in request.items() if name in SamplingParams.model_fields}
        given["logit_bias"] = {int(token): value for token, value in given.get("logit_bias", {}).items()}
        result = self.engine.generate(
            request["prompt"],
            "autoregressive",
            given,
            request["max_tokens"],
            request.get("seed", 0),
            top_logprobs=TOP,
        )
        tokens = [self._spell([token]) for token in result.tokens]
        top = [
            {self._spell([token]): value for token, value in best} | {word: logprob}
            for word, logprob, best in zip(tokens, result.logprobs, result.top_logprobs, strict=True)
        ]
        finish = FINISHES[result.finish_reason]
        return ServerAnswer(result.text, tokens, result.logprobs, top, finish, len(result.prompt_tokens), len(tokens))
