"""Fixtures of all tests: one thread, so that sums do not depend on the machine; a tiny pair; the command line."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of two workers that spin take the cores from each other

import pytest
import tiny_models
import torch
from tabular import TabularExit, TabularHead, random_heads

from draftwood import TabularModel, load
from draftwood.certify.tables import StandInBlock
from draftwood.cli.main import run
from draftwood.models.heads import dflash, eagle, medusa, mtp, skip
from draftwood.models.heads import exit as exits
from recipes import real_models

if TYPE_CHECKING:
    from servers import Running

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # workers and commands need not compile what one of them has
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
gc.disable()  # while tests are collected: hardly anything is garbage, and it would be looked for dozens of times


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test with the marker `some(n)`, n evenly spaced ones run by default, and the others are slow.

    Names of tests are the same in every process: workers compare them, and one that holds an address differs.
    """
    groups: dict[tuple[Path, str, int], list[pytest.Item]] = {}
    for item in items:
        marker = item.get_closest_marker("some")  # a keyword of that name may be a file's or a test's
        if marker is not None and item.get_closest_marker("slow") is None:
            groups.setdefault((item.path, item.name.split("[")[0], marker.args[0]), []).append(item)
    for (_, _, count), cases in groups.items():
        kept = {index * len(cases) // count for index in range(count)}
        for index in set(range(len(cases))) - kept:
            cases[index].add_marker("slow")
    unsteady = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unsteady:
        raise pytest.UsageError(f"give these tests names with ids=...: {unsteady[:3]}")


def pytest_collection_finish() -> None:
    """Libraries and tests stay until the end: the garbage collector need not look through them again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def guessed_costs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of passes are guessed by sizes, not measured: how much is drafted by them does not depend on the clock."""
    if "measured" not in request.keywords:
        monkeypatch.setattr("draftwood.runtime.cost.Costs.add", lambda *given: None)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write(tmp_path_factory.mktemp("models") / "target", seed=1)


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write(tmp_path_factory.mktemp("models") / "draft", seed=2)


@pytest.fixture(scope="session")
def pair(target: Path, draft: Path) -> list[str]:
    """The flags that load both."""
    return ["--target", str(target), "--draft", str(draft)]


def _real(model: real_models.RealModel) -> Path:
    try:
        return real_models.fetch(model)
    except real_models.Unavailable as missing:
        pytest.skip(f"a real model cannot be fetched: {missing}")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, a GGUF file of 98 MB; tests that load it are marked `real`."""
    return _real(real_models.SMOLLM2)


@pytest.fixture(scope="session")
def gemma() -> Path:
    """Gemma 3 270M, a GGUF file of 253 MB; tests that load it are marked `real`."""
    return _real(real_models.GEMMA)


@pytest.fixture
def copy_of_target(target: Path, tmp_path: Path) -> Path:
    """A target that a test may damage, without what another test has quantised beside it."""
    return Path(shutil.copytree(target, tmp_path / "copy", ignore=shutil.ignore_patterns("int4")))


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as the one JSON document that it must be; NaN and infinities are refused."""

        def refuse(constant: str) -> None:
            raise ValueError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `draftwood ...` in this process, its output captured as by a pipe."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("draftwood.cli.running.LINE_DELAY", 600)  # a slow machine is not told that a command is waiting

    def call(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as left:
            run([str(argument) for argument in arguments])
        code = left.value.code
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        yield


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts for tabular targets, each a table of its own: skipped sublayers, heads of all kinds, an exit."""

    def skipping(target: TabularModel, skipped: object) -> TabularModel:
        part = TabularModel.random(target.vocab_size, seed=99)
        part.full_model = target  # type: ignore[attr-defined]
        return part

    @cache
    def exit_of(vocab: int) -> TabularModel:
        return TabularExit.random(vocab, seed=12, order=3)

    @cache
    def eagle_of(vocab: int) -> TabularModel:
        return TabularHead.random(vocab, seed=12, n_layers=2)

    @cache
    def block_of(vocab: int) -> TabularModel:
        return StandInBlock(TabularModel.random(vocab, seed=12, n_layers=2))

    monkeypatch.setattr(skip, "skipping", skipping)
    monkeypatch.setattr(medusa, "find", lambda target, where: random_heads(target.vocab_size, target.vocab_size, 3))
    monkeypatch.setattr(exits, "find", lambda target, where: exit_of(target.vocab_size))
    monkeypatch.setattr(eagle, "find", lambda target, where: eagle_of(target.vocab_size))
    monkeypatch.setattr(dflash, "find", lambda target, where: block_of(target.vocab_size))
    monkeypatch.setattr(mtp, "find", lambda target: eagle_of(target.vocab_size))


TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}|{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="session")
def talker(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target with a chat template."""
    place = tmp_path_factory.mktemp("talker")
    for file in filter(Path.is_file, target.iterdir()):
        (place / file.name).write_bytes(file.read_bytes())
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return place


@pytest.fixture(scope="session")
def served(talker: Path, draft: Path) -> Iterator[Running]:
    """A server on tiny models."""
    from servers import running

    with running(load(talker, draft)) as found:
        yield found


@pytest.fixture(scope="session")
def long_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target that can write for seconds."""
    return tiny_models.write(tmp_path_factory.mktemp("models") / "long", seed=3, context=8000)
