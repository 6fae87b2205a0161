"""The native backend in hard conditions: threads, forks, many models, damaged numbers, wrong batches."""

from __future__ import annotations

import copy
import importlib.util
import json
import multiprocessing
import os
import pickle
import shutil
import weakref
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import VOCAB, write
from native_library import KV_TYPES, TYPES, chain, check_tops, embedded, needs_native, python

import draftwood
from draftwood.errors import ModelError
from draftwood.models.backend import native
from draftwood.models.base import Batch, Segment
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.extents import Extent
from draftwood.util import native_library

TEXT = [3, 94, 17, 17, 60, 5, 0, 41, 8, 77, 2, 29]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("native") / "model"
    write(place)
    return place


@pytest.fixture
def model(directory: Path) -> Decoder:
    return checkpoint.load(directory, backend="native")


def test_the_library_is_built_where_there_is_a_compiler() -> None:
    """Or all that is tested here would be skipped unseen; scripts/setup builds it."""
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("no C++ compiler")
    assert importlib.util.find_spec("draftwood_native") is not None
    assert native_library.unavailable() is None


# -- wrong batches ----------------------------------------------------------------------------------------------------


def damaged(change: Callable[[Batch], object]) -> Callable[[Decoder], None]:
    """A forward of a batch in which something is changed."""

    def run(model: Decoder) -> None:
        cache = model.new_cache()
        segment = Segment.causal(cache.lend(len(TEXT)), 0, len(TEXT))
        segment.slots, segment.seen, segment.paths = list(segment.slots), list(segment.seen), list(segment.paths)
        batch = Batch.of(model, TEXT, range(len(TEXT)), [segment])
        change(batch)
        model.forward(batch, cache)

    return run


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "a token above": (lambda b: b.tokens.__setitem__(3, VOCAB), "a token is not in the vocabulary"),
    "a token below": (lambda b: b.tokens.__setitem__(3, -1), "a token is not in the vocabulary"),
    "a position above": (lambda b: b.positions.__setitem__(3, 128), "not below the model's context"),
    "a position below": (lambda b: b.positions.__setitem__(3, -1), "not below the model's context"),
    "a slot above": (lambda b: b.segments[0].slots.__setitem__(2, 5000), "a slot lies outside"),
    "a slot below": (lambda b: b.segments[0].slots.__setitem__(2, -1), "a slot lies outside"),
    "a trunk": (lambda b: b.segments[0].trunk.__setitem__(2, 5000), "seen lies outside"),
    "a short trunk": (
        lambda b: setattr(b.segments[0], "trunk", array("i", [0, 0, 0])),
        "sees what is not there",
    ),
    "seen": (lambda b: b.segments[0].seen.__setitem__(0, 0), "sees what is not there"),
    "a path": (lambda b: b.segments[0].paths.__setitem__(2, (5000,)), "seen lies outside"),
    "an extent": (lambda b: setattr(b.segments[0], "extent", Extent(1 << 20, 32)), "outside of its cache"),
    "an extent below": (lambda b: setattr(b.segments[0], "extent", Extent(-32, 32)), "outside of its cache"),
    "wanted": (lambda b: setattr(b, "wanted", torch.tensor([99])), "wanted is not there"),
    "layers": (lambda b: setattr(b, "stop", 9), "no such layers"),
    "too few slots": (lambda b: b.segments[0].slots.pop(), "give one for each token"),
    "too few positions": (lambda b: b.numbers.pop(), "give one for each token"),
    "hidden states": (lambda b: setattr(b, "hidden", torch.zeros(2, 32)), r"must be \[12, 32\], not \[2, 32\]"),
}


@needs_native
@pytest.mark.parametrize("wrong", WRONG)
def test_a_batch_that_the_cache_does_not_hold_is_refused(wrong: str, model: Decoder) -> None:
    """A read or write out of bounds is refused with one sentence, and the model goes on."""
    change, sentence = WRONG[wrong]
    right = chain(model, TEXT)[0]
    with pytest.raises(ModelError, match=sentence):
        damaged(change)(model)
    assert torch.equal(chain(model, TEXT)[0], right)


# -- models that come and go ------------------------------------------------------------------------------------------


@needs_native
def test_a_model_goes_when_it_is_dropped(directory: Path) -> None:
    """At once, not when garbage is next collected: its weights are large."""
    model = checkpoint.load(directory, backend="native")
    chain(model, TEXT)
    gone, matrix = weakref.ref(model), weakref.ref(model.head)
    del model
    assert gone() is None and matrix() is None


@needs_native
@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, pickle.dumps], ids=["deepcopy", "copy", "pickle"])
def test_packed_weights_are_not_copied(way: Callable[[Any], Any], model: Decoder) -> None:
    """Two owners of one handle would free it twice."""
    with pytest.raises(ModelError, match="load it again"):
        way(model.head)
    chain(model, TEXT)


@needs_native
def test_heads_know_their_device_and_dtype() -> None:
    engine = draftwood.load(backend="native")
    result = engine.generate("def f(x):", "medusa", max_new_tokens=4, ignore_eos=True)
    assert len(result.tokens) == 4


# -- threads and processes --------------------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_native
@pytest.mark.parametrize("kind", [*TYPES, *KV_TYPES])
def test_any_number_of_threads_computes_the_same_bits(kind: str, threads: Callable[[int], None]) -> None:
    model = embedded(kind)
    found = []
    for count in (1, 2, 3, 8):
        threads(count)
        found.append([chain(model, TEXT[:rows])[0] for rows in (1, 5, 12)])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert torch.equal(one, other)


@needs_native
def test_what_is_told_of_rows_does_not_depend_on_their_company(model: Decoder) -> None:
    logits, batch = chain(model, TEXT)
    check_tops(batch, logits)
    cache = model.new_cache()
    for place, token in enumerate(TEXT):
        alone = chain(model, [token], place, cache)[1].tops
        assert alone is not None and batch.tops is not None
        assert (alone.best[0], alone.log_sums[0]) == (batch.tops.best[place], batch.tops.log_sums[place])
        assert alone.leading[0] == batch.tops.leading[place]


@needs_native
def test_of_equal_logits_the_first_is_told(model: Decoder) -> None:
    model.head = native.NativeMatrix(torch.zeros(model.vocab_size, model.config.hidden_size), None)
    logits, batch = chain(model, TEXT)
    check_tops(batch, logits)
    assert batch.tops is not None and not any(batch.tops.best)


@needs_native
def test_engines_in_several_threads(directory: Path, threads: Callable[[int], None]) -> None:
    """Two models of two threads each, and two engines of one model, all at once."""
    threads(2)
    shared = checkpoint.load(directory, backend="native")
    models = [shared, shared, checkpoint.load(directory, backend="native")]
    options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True}

    def write_text(model: Decoder, first: int) -> list[list[int]]:
        engine = draftwood.Engine(model)
        return [engine.generate([first, i], "autoregressive", seed=i, **options).tokens for i in range(4)]

    expected = [write_text(model, i) for i, model in enumerate(models)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(write_text, models, range(3))) == expected


def forked(model: Decoder, place: Any) -> None:
    """In a child: what the parent's model computes."""
    place.send(chain(model, TEXT)[0].tolist())


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_computes_with_threads_of_its_own(model: Decoder, threads: Callable[[int], None]) -> None:
    threads(3)
    expected = chain(model, TEXT)[0]
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=forked, args=(model, there))
    child.start()
    assert here.poll(60), "the child computes nothing"
    assert torch.equal(torch.tensor(here.recv()), expected)
    child.join(60)
    assert child.exitcode == 0
    assert torch.equal(chain(model, TEXT)[0], expected)


# -- memory -----------------------------------------------------------------------------------------------------------

HELD = """
import gc, json, re, sys, threading, time
import draftwood
from draftwood.models.checkpoints import checkpoint
from draftwood.engine.loading import EMBEDDED

def held(engines=0):
    gc.collect()  # else it depends on the moment how many engines wait for it
    until = time.monotonic() + 10  # the threads of those that were dropped let go of them, and end
    while sum(one.name == "draftwood" for one in threading.enumerate()) > engines and time.monotonic() < until:
        time.sleep(0.01)
        gc.collect()
    gc.collect()
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

def use(engine, seed):
    engine.generate([3 + seed] + [5] * (seed * 7 % 90), "autoregressive", seed=seed, max_new_tokens=3, ignore_eos=True)

def dropped(times):
    for seed in range(times):
        use(draftwood.load(backend="native"), seed)

dropped(4)
first = held()
dropped(int(sys.argv[1]))
loads = held() - first
engine = draftwood.load(EMBEDDED / "target", backend="native", kv_cache_bytes=1 << 23)
for seed in range(20):
    use(engine, seed)
first = held(1)
for seed in range(int(sys.argv[2])):
    use(engine, seed)
print(json.dumps([loads, held(1) - first]))
"""


@pytest.mark.slow
@needs_native
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize(("loads", "prompts"), [(5, 30), pytest.param(30, 200, marks=pytest.mark.slow)])
def test_memory_is_given_back(loads: int, prompts: int) -> None:
    """After engines that were made and dropped: less than half of one model more; after prompts, hardly more."""
    engines, texts = json.loads(python(HELD, loads, prompts).stdout)
    assert engines < 10 << 20 and texts < 4 << 20


@needs_native
def test_a_library_of_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that lacks what this version calls."""
    other = next((Path(torch.__file__).parent / "lib").glob("libc10.*"))
    monkeypatch.setattr("draftwood_native.library", lambda: other)
    found = native_library.library.__wrapped__()
    assert found == "draftwood-native is of another version than draftwood; install it again: pip install ./native"
