"""The law that a server claims for a token: its reported log-probabilities and what the request asked for.

Servers report a few of the most probable tokens. That is enough for the law among these: temperature, penalties and
biases change it by factors that are known, and the unknown sum over all tokens cancels.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftwood.certify.server.evidence import ClaimedLaw

REST = "\0the rest"  # the outcome "a token that is not among those reported"
SPECIAL = re.compile(r"(<[^\s<>]*>)?")  # spellings of tokens that have no text; not all servers report one that ends it
MIN_REST = 1e-6  # its probability at least: sums of what is reported are rounded
MARGIN = 0.02  # relative; a truncation that is nearer to its bound than this may fall on either side, by rounding
MIN_CHOICE = 1e-4  # of the second outcome; a law that leaves no choice says nothing


@dataclass(frozen=True, slots=True)
class LawOptions:
    """The options of a request that change the law of a token."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: Mapping[str, float] = field(default_factory=dict)  # by the tokens' spelling

    @property
    def truncates(self) -> bool:
        return bool(self.top_k or self.top_p < 1 or self.min_p)

    @property
    def penalises(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty)

    def fields(self, ids: Mapping[str, int]) -> dict[str, Any]:
        """The fields of the request that differ from a plain one."""
        changed: dict[str, Any] = {
            name: getattr(self, name)
            for name, usual in (
                ("top_k", 0),
                ("top_p", 1.0),
                ("min_p", 0.0),
                ("presence_penalty", 0.0),
                ("frequency_penalty", 0.0),
            )
            if getattr(self, name) != usual
        }
        if self.bias:
            changed["logit_bias"] = {str(ids[token]): value for token, value in self.bias.items()}
        return {"temperature": self.temperature, **changed}


def most_probable(top: Mapping[str, float], count: int) -> list[tuple[str, float]]:
    """The reported tokens, most probable first, without the drawn one where it is named besides these."""
    return sorted(top.items(), key=lambda one: (-one[1], one[0]))[:count]


def claimed(
    top: Mapping[str, float], count: int, options: LawOptions, prompt: str, before: Sequence[str]
) -> tuple[ClaimedLaw, bool] | None:
    """(law, whether it is that of all tokens); None where what was reported does not tell it.

    `top` are log-probabilities of the model before all that was `asked`, of `count` tokens; `before` are the tokens
    that the answer has before this one. A law that is not of all tokens is one given that the token is among its names;
    every law is one given that the token is not SPECIAL.
    """
    best = most_probable(top, count)
    names = [name for name, _ in best]
    logs = np.array([value for _, value in best])
    p = np.exp(logs)
    if options.truncates:
        kept = _kept(p, options)
        return None if kept is None else _law(names[:kept], logs[:kept], kept < len(p))
    if options.penalises:  # tokens of the prompt may count or not, so the law is taken among those that are none of its
        known = [i for i, name in enumerate(names) if (name.strip() or name) not in prompt]
        made = Counter(before)
        names, logs = [names[i] for i in known], logs[known]
        logs = logs - [
            options.presence_penalty * (made[name] > 0) + options.frequency_penalty * made[name] for name in names
        ]
    logs = logs + [options.bias.get(name, 0.0) for name in names]
    if options == LawOptions():
        return _law([*names, REST], np.append(logs, math.log(max(MIN_REST, 1 - float(p.sum())))), True)
    return _law(names, logs / options.temperature, False)


def _law(names: Sequence[str], logs: Any, whole: bool) -> tuple[ClaimedLaw, bool] | None:
    ordinary = [i for i, name in enumerate(names) if not SPECIAL.fullmatch(name)]
    if len(ordinary) < 2:
        return None
    names, logs = [names[i] for i in ordinary], logs[ordinary]
    p = np.exp(logs - logs.max())
    p = np.maximum(p / p.sum(), 1e-12)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if p[order[1]] < MIN_CHOICE:
        return None
    return ClaimedLaw([names[i] for i in order], p[order]), whole


def _kept(p: Any, options: LawOptions) -> int | None:
    """How many of the most probable tokens remain, of those reported; None where rounding may decide."""
    k = options.top_k or len(p)
    bounds = [k] if k < len(p) else []
    if options.top_p < 1:
        sums = np.cumsum(p)
        if (np.abs(sums - options.top_p) < MARGIN * (1 - options.top_p)).any():
            return None
        bounds.append(int((sums < options.top_p).sum()) + 1)
    if options.min_p:
        least = options.min_p * p[0]
        if (np.abs(p / least - 1) < MARGIN).any():
            return None
        bounds.append(int((p >= least).sum()))
    kept = min([*bounds, len(p)])
    return None if kept < len(p) and p[kept] > p[kept - 1] * (1 - MARGIN) else kept
