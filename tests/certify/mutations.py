"""Wrong rules (mutations.yaml): the package with one of them, and what the certificate says of it."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import yaml

from draftwood import Method
from draftwood.certify import Budget
from draftwood.certify.constrained import constrained_check
from draftwood.certify.enumeration import NotDiscrete
from draftwood.certify.exactness import MAX_ROUNDING_ERROR, enumerate_cases, rule_check, sampled_check
from draftwood.certify.rules import required
from draftwood.certify.streams import stream_check

BUDGET = Budget()
SEEDS = 20_000  # of random numbers: fewer than a certificate has, which finds whatever they find


@dataclass(frozen=True, slots=True)
class Mutation:
    """One wrong rule: the function `where` ("module:Class.name") with `old` replaced by `new` in its source."""

    where: str
    rule: str
    method: dict[str, Any]
    old: str
    new: str
    check: str = "law"
    fast: bool = False

    @property
    def function(self) -> FunctionType:
        module, names = self.where.split(":")
        owner = import_module(f"draftwood.{module}")
        found: Any = reduce(inspect.getattr_static, names.split("."), owner)
        found = getattr(found, "__func__", getattr(found, "fget", found))
        assert isinstance(found, FunctionType), f"{self.where} is no function"
        return found

    def code(self) -> CodeType:
        """The function's code with the mutation; fails where `old` is not there exactly once."""
        function = self.function
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self.where} has {source.count(self.old)} times: {self.old}"
        flags = __future__.annotations.compiler_flag
        whole = compile(source.replace(self.old, self.new), self.where, "exec", flags, dont_inherit=True)
        (found,) = (one for one in whole.co_consts if isinstance(one, CodeType) and one.co_name == function.__name__)
        return found

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The package with the wrong rule, whoever holds the function, until the block ends."""
        function, before = self.function, self.function.__code__
        function.__code__ = self.code()
        try:
            yield
        finally:
            function.__code__ = before

    def caught(self) -> str:
        """Which check of the certificate fails with the wrong rule; nothing where all pass.

        law: an enumerated law is off; rule: a rule that no law shows (widths, predictions, the beam that one-cache
        keeps); unseen: a rule of the method does not occur any more; text, hypotheses, samples: see exactness.py;
        streams: random numbers; demands: what a request may demand of its text, and what is said of texts; else the
        name of the error that fails the certificate.
        """
        method = Method.parse(self.method)
        with self.applied():
            try:
                if self.check == "streams":
                    return self.check if stream_check(1, SEEDS, lambda: None).verdict == "FAIL" else ""
                if self.check in ("demands", "RequestError"):
                    return (
                        self.check
                        if constrained_check(method, 1, BUDGET.replays, BUDGET.identities, lambda: None).verdict
                        == "FAIL"
                        else ""
                    )
                if self.check == "samples":
                    return self.check if sampled_check(method, 1, BUDGET.runs, lambda: None).verdict == "FAIL" else ""
                if self.check in ("text", "hypotheses"):
                    return (
                        self.check if rule_check(method, 1, BUDGET.replays, 100, lambda: None).verdict == "FAIL" else ""
                    )
                unseen = set(required(method))
                for one in enumerate_cases(method, 1, BUDGET.replays):  # as `rule_check`
                    if one.wrong:
                        return "law" if one.claimed and one.distance >= MAX_ROUNDING_ERROR else "rule"
                    unseen -= one.counts.keys()
                return "unseen" if unseen else ""
            except (NameError, TypeError, AttributeError, NotDiscrete):
                raise  # the row's own fault
            except Exception as error:
                return type(error).__name__


def table(name: str = "mutations.yaml") -> list[Mutation]:
    """All rows of a file; methods have the names of mutations.yaml."""
    here = Path(__file__).parent
    document = yaml.safe_load((here / name).read_text("utf-8"))
    methods = yaml.safe_load((here / "mutations.yaml").read_text("utf-8"))["methods"]
    for rows in document["mutations"].values():
        for row in rows:
            if isinstance(row["method"], str):
                row["method"] = methods[row["method"]]
    return [Mutation(where, **row) for where, rows in document["mutations"].items() for row in rows]
