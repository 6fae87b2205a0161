"""A language model as judge of open answers, over any endpoint that speaks OpenAI's chat completions.

The key is read from the environment.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.util.safe_parsing import parse_json

KEY_VARIABLE = "OPENAI_API_KEY"
RATING = re.compile(r"\[\[\s*(\d+(?:\.\d+)?)\s*\]\]")
MIN_RATING, MAX_RATING = 1.0, 10.0
MAX_REPLY_BYTES = 1 << 20  # bytes
RETRIED_STATUSES = {408, 409, 429, 500, 502, 503, 504}  # answers of a busy server

INSTRUCTIONS = (
    "You judge how well an assistant answered a user. Weigh whether the answer helps, whether it is correct, to the "
    "point, thorough and as creative as the question wants. Its length is no merit. Say in two or three sentences "
    "what is good and what is not, then end with a whole number from 1 (useless) to 10 (perfect) in double brackets, "
    "such as [[4]]."
)


class JudgeError(DraftwoodError):
    """The judge could not be asked, or gave no rating."""


@dataclass(frozen=True, slots=True)
class Judge:
    """An endpoint's address up to /v1, the model that judges there, seconds per call, and tries."""

    url: str
    model: str
    seconds: float = 120.0
    tries: int = 3
    pause: float = 1.0  # before the second try; twice as long before each further one

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"the judge's address is {self.url!r}, but begins with http:// or https://")

    def rate(self, turns: Sequence[tuple[str, str]], reference: str | None = None) -> float:
        """The rating of the last answer, 1 to 10; `turns` are (user, assistant), `reference` a right last answer.

        Raises JudgeError where the endpoint fails `tries` times or gives no rating.
        """
        talk = "\n\n".join(f"[User]\n{asked}\n\n[Assistant]\n{reply}" for asked, reply in turns)
        right = f"\n\n[A right answer to the last question]\n{reference}" if reference else ""
        which = "the assistant's last answer" if len(turns) > 1 else "the assistant's answer"
        reply = self._ask(f"{INSTRUCTIONS}\n\nJudge {which}.\n\n{talk}{right}")
        ratings = RATING.findall(reply)
        if not ratings or not MIN_RATING <= float(ratings[-1]) <= MAX_RATING:
            raise JudgeError(f"the judge gave no rating from 1 to 10: {' '.join(reply.split())[-120:]!r}")
        return float(ratings[-1])

    def _ask(self, text: str) -> str:
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {os.environ[KEY_VARIABLE]}"
        request = Request(f"{self.url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
        for attempt in range(self.tries):
            if attempt:
                time.sleep(self.pause * 2 ** (attempt - 1))
            try:
                with urlopen(request, timeout=self.seconds) as reply:
                    return _said(parse_json(reply.read(MAX_REPLY_BYTES), finite=False))
            except HTTPError as error:
                error.close()
                problem = f"HTTP status {error.code}"
                if error.code not in RETRIED_STATUSES:
                    break
            except (URLError, OSError, ValueError) as error:
                problem = str(getattr(error, "reason", error))
        raise JudgeError(f"the judge at {self.url} cannot be asked: {problem}")


def _said(document: Any) -> str:
    try:
        return str(document["choices"][0]["message"]["content"])
    except (KeyError, IndexError, TypeError):
        raise ValueError("the reply is no chat completion") from None
