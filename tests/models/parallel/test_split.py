"""A decoder that several processes compute says what it says in one: logits, layer ranges, states, texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import ours
from family_models import PROMPT, grow, write
from family_variants import VARIANTS
from split_models import Split, split

import draftwood
from draftwood import Engine, methods
from draftwood.core.forest import Forest, Verdict, advance
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import DraftwoodError, ModelError
from draftwood.models import partition
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.heads import eagle, medusa
from draftwood.models.heads.eagle_head import EagleHead
from draftwood.models.heads.skip import Skipped, SkippedDecoder
from draftwood.models.other_device import OnOtherDevice
from draftwood.models.parallel.group import ProcessGroup
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"name": "autoregressive"},
    "chain": {"name": "speculative", "gamma": 3},
    "tree": {"name": "mcsd", "tree": [3, 2]},
    "lookup": {"name": "lookup"},
    "exit": {"name": "eesd", "gamma": 3},
    "exit-tree": {"name": "eesd", "tree": [2, 2]},
    "self": {"name": "self-spec", "gamma": 3, "depth": "fixed"},
    "medusa": {"name": "medusa", "tree": [2, 1]},
    "eagle": {"name": "eagle", "gamma": 3},
    "specinfer": {"name": "specinfer", "expansion": [2, 2]},
    "fork": {"name": "mcsd-fork", "width": 2, "gamma": 2},
    "beams": {"name": "beam-sampling", "width": 3},
    "dsbd": {"name": "dsbd", "draft_width": 3, "gamma": 2},
    "beam-search": {"name": "beam-search", "width": 2},
    "search": {"name": "speculative-beam-search", "width": 2, "depth": "fixed"},
}
STORY = "Story: Lena had a red kite."
GREEDY = {"temperature": 0}


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 1e-5 of the largest logit: the parts' sums are rounded in another order."""
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


def walk(decoder: Decoder) -> list[torch.Tensor]:
    """Logits of a prompt, and of trees in rounds that reuse the slots of dead branches."""
    session, forest = Session(decoder, decoder.new_cache()), Forest.from_prompt(list(PROMPT))
    found = []
    for token in (50, 51, 52):
        leaf = grow(forest)
        found.append(ours(decoder, forest, session))
        trunk, kept, grown = advance(forest, Verdict([leaf], [token], [], {}))
        session.commit(trunk, kept, grown)
        forest = grown
    return found


WHOLE = (
    *("olmo2", "olmo3", "mixtral", "olmoe", "glm4_moe", "granitemoe", "gpt_oss", "qwen2_moe", "qwen3_moe"),
    *("ernie4_5_moe", "dots1", "minimax_m2", "hunyuan_v1_moe", "granitemoeshared", "phimoe", "bloom", "mpt", "bitnet"),
    *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu", "minicpm3", "llama4_text", "gemma3n_text"),
    *("gemma4_per_layer", "gemma4_experts"),
)
USUAL = ("mistral", "qwen3", "phi3", "gemma", "gemma3", "opt", "gpt2", "gpt_neox", "cohere")
SHARED = [name for name, (kind, knobs) in VARIANTS.items() if not {kind, name} & {*WHOLE} and not knobs.get("alibi")]
BY_TWO = [pytest.param(name, 2, marks=[] if name in USUAL else pytest.mark.slow) for name in SHARED]
BY_FOUR = [pytest.param(name, 4, marks=[] if name == "gemma2" else pytest.mark.slow) for name in SHARED]


@pytest.mark.parametrize(
    "name", ["olmo2", "qwen3_moe", "bloom", "bitnet", "youtu", "llama4", "gemma3n", "gemma4_per_layer"]
)
def test_what_cannot_be_shared_out_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    with pytest.raises(ModelError, match="which processes cannot share out; leave out tensor_parallel"):
        partition.check(checkpoint.described(tmp_path)[2], 2, tmp_path)


@pytest.mark.some(4)
@pytest.mark.parametrize(("name", "size"), [*BY_TWO, *BY_FOUR])
def test_logits_of_each_family(name: str, size: int, tmp_path: Path) -> None:
    """By two processes key/value heads are split, of Gemma's one a copy each; by four all are held by two at least."""
    write(tmp_path, name)
    partition.check(checkpoint.described(tmp_path)[2], size, tmp_path)
    expected = walk(checkpoint.load(tmp_path, backend="pytorch"))
    with split(tmp_path, size) as parts:
        for found, wanted in zip(walk(parts.driver), expected, strict=True):
            near(found, wanted)


@pytest.fixture(scope="module")
def whole() -> Decoder:
    return checkpoint.load(EMBEDDED / "target", backend="pytorch")


@pytest.fixture(scope="module")
def parts() -> Iterator[Split]:
    with split(EMBEDDED / "target") as made:
        yield made


@pytest.fixture(scope="module")
def draft() -> Decoder:
    return checkpoint.load(EMBEDDED / "draft", backend="pytorch")


def engine(target: Decoder, draft: Decoder, **options: Any) -> Engine:
    return Engine(
        target, [draft], Tokenizer.load(EMBEDDED / "target"), checkpoint.end_tokens(EMBEDDED / "target"), **options
    )


QUICK = ("chain", "tree", "exit", "self", "medusa", "dsbd")


REST = [pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name not in QUICK]


@pytest.mark.some(2)
@pytest.mark.parametrize("name", [*QUICK, *REST])
def test_every_method_has_the_same_text(name: str, whole: Decoder, parts: Split, draft: Decoder) -> None:
    """Greedy, and sampled under a seed: exits, heads and skipped sublayers of the embedded target too."""
    samplings = [{"temperature": 0}, {"temperature": 0.9}] if "search" not in name else [{"temperature": 0}]
    for sampling in samplings:
        texts = [
            engine(target, draft).generate(STORY, METHODS[name], sampling, max_new_tokens=16, seed=5).tokens
            for target in (whole, parts.driver)
        ]
        assert texts[0] == texts[1]


def test_no_method_is_left_out() -> None:
    alone = {"mtp", "dflash"}  # they read layers of the checkpoint, or the head, which processes share
    assert {method["name"] for method in METHODS.values()} == set(methods.METHODS) - alone


@pytest.mark.parametrize("name", ["mtp", "dflash"])
def test_what_drafts_for_one_process_alone_says_so(name: str, parts: Split, draft: Decoder, tmp_path: Path) -> None:
    method = {"name": name, "block": str(tmp_path)} if name == "dflash" else {"name": name}
    with pytest.raises(ModelError, match="leave out tensor_parallel"):
        engine(parts.driver, draft).generate(STORY, method, max_new_tokens=4)


@pytest.mark.slow
def test_many_requests_in_little_memory(whole: Decoder, parts: Split, draft: Decoder) -> None:
    """Extents that move, grow and are taken over: the followers' caches do what the driver's does."""
    requests = [
        {"prompt": STORY * (1 + i % 3), "method": METHODS[name], "seed": i, "max_new_tokens": 8 + 6 * i}
        for i, name in enumerate(("plain", "tree", "self", "chain", "plain", "exit"))
    ]
    budget = 12 * 32 * whole.new_cache().slot_bytes
    texts = []
    for target in (whole, parts.driver):
        made = engine(target, draft, kv_cache_bytes=budget)
        texts.append([result.tokens for result in made.batch(requests, concurrency=4, sampling={"temperature": 0})])
        assert made.scheduler.prefixes.hits > 0
    assert texts[0] == texts[1]


def test_layer_ranges_and_states(whole: Decoder, parts: Split) -> None:
    found = []
    for decoder in (whole, parts.driver):
        session, forest = Session(decoder, decoder.new_cache()), Forest.from_prompt([5, 6, 7, 8])
        with torch.inference_mode():
            lower = execute([Run(session, forest, [0], upto=3)])[0].hidden[3]
            answer = execute([Run(session, forest, [0], hidden=(8, 12))])[0]
        found.append([lower, answer.hidden[8], answer.hidden[12], answer.logits])
    for split_, alone in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(split_, alone, atol=1e-5 * float(alone.abs().max()), rtol=0)


def test_the_target_without_some_sublayers(whole: Decoder, parts: Split) -> None:
    skipped = Skipped((2, 5), (3, 5, 11))
    texts = [ours(SkippedDecoder(one, skipped), Forest.from_prompt([5, 6, 7])) for one in (whole, parts.driver)]
    near(texts[1], texts[0])


def test_heads_that_share_the_targets(whole: Decoder, parts: Split, draft: Decoder, tmp_path: Path) -> None:
    """The split head is asked beside the target's forwards."""
    plain = checkpoint.load(EMBEDDED / "target", packed=False)
    torch.manual_seed(0)
    made = medusa.Heads.of(plain, 2, shared=True)
    torch.nn.init.normal_(made.lift[0].weight, std=0.05)
    medusa.save(made.weights(), tmp_path, made.target, torch.float32)
    method = {"name": "medusa", "heads": str(tmp_path), "tree": [2, 1]}
    texts = [engine(target, draft).generate(STORY, method, {"temperature": 0}, 24) for target in (whole, parts.driver)]
    assert texts[0].tokens == texts[1].tokens and texts[0].metrics.as_dict()["rounds"] == len(texts[1].rounds)


@pytest.mark.slow
def test_a_head_that_reads_states_of_three_layers(whole: Decoder, parts: Split, draft: Decoder, tmp_path: Path) -> None:
    made = EagleHead.of(checkpoint.load(EMBEDDED / "target", packed=False))
    eagle.save(made.weights(), tmp_path, made.target, made.reads, torch.float32)
    for method in ({"name": "eagle", "head": str(tmp_path)}, {"name": "eagle", "head": str(tmp_path), "width": 3}):
        texts = [engine(one, draft).generate(STORY, method, GREEDY, 16).tokens for one in (whole, parts.driver)]
        assert texts[0] == texts[1]


def test_rows_have_the_same_bits_beside_others(parts: Split) -> None:
    """As in one process: what a token's logits are does not depend on what else is in the forward."""
    tokens = [7, 40, 301, 9, 55, 1200, 3, 17]
    alone = ours(parts.driver, Forest.from_prompt(tokens))
    forest = Forest.from_prompt(tokens)
    forest.propose(forest.roots[0], [11, 12, 13, 14, 15], None)
    assert torch.equal(ours(parts.driver, forest)[:1], alone)


def test_all_processes_have_the_same_bits(parts: Split, draft: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has its own copy of what every layer reads, and samples from it: none drifts from another.

    Keys and values too: positions and slots of one process are those of all.
    """
    seen: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    run = Decoder.run

    def noted(self: Decoder, *given: Any) -> torch.Tensor:
        out = run(self, *given)
        if self.parallel.size > 1:
            seen[self.parallel.rank].append(out.clone())
        return out

    monkeypatch.setattr(Decoder, "run", noted)
    for method in ("chain", "self", "dsbd"):
        engine(parts.driver, draft).generate(STORY, METHODS[method], {"temperature": 0.8}, 20, seed=3)
    ours(parts.driver, Forest.from_prompt([1, 2]))  # the follower is through with all before
    assert len(seen[0]) - len(seen[1]) in (0, 1) and len(seen[1]) > 20
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[1], strict=False))


def test_each_holds_its_share(whole: Decoder, parts: Split) -> None:
    one, other = parts.driver, parts.followers[0]
    for mine in (one, other):
        assert mine.weight_bytes <= 0.55 * whole.weight_bytes
    assert len(other.embed.weight) == 0 and len(one.embed.weight) == whole.vocab_size
    assert one.new_cache().slot_bytes == whole.new_cache().slot_bytes  # both processes' count
    cache = one.new_cache(64)
    assert sum(plane.nbytes for plane in cache.planes) * 2 == cache.room * cache.slot_bytes


@pytest.mark.parametrize("how", [{"dtype": "bfloat16"}, {"dtype": "float64"}, {"quantize": "int8"}], ids=str)
def test_other_ways_to_hold_weights(how: dict[str, Any]) -> None:
    """As near to the exact model as one process."""
    forest, home = Forest.from_prompt([5, 6, 7, 8]), EMBEDDED / "target"
    exact = ours(checkpoint.load(home, "float64"), forest)
    alone = ours(checkpoint.load(home, **how, backend="pytorch"), forest)
    with split(home, **how) as parts:
        found = ours(parts.driver, forest)
    errors = [float((logits - exact).abs().mean() / exact.std()) for logits in (found, alone)]
    assert errors[0] < 1.5 * errors[1] + 1e-12


def test_three_processes(whole: Decoder, tmp_path: Path) -> None:
    """Six query heads, but two key/value heads: three cannot share these. Four could not share the query heads."""
    with pytest.raises(draftwood.ModelError, match=r"6 attention heads, 2 key/value heads .* use tensor_parallel=2"):
        draftwood.load(EMBEDDED / "target", tensor_parallel=3)
    with pytest.raises(draftwood.ModelError, match="use tensor_parallel=2"):
        draftwood.load(EMBEDDED / "target", tensor_parallel=4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": EMBEDDED / "target", "compile": True}, "compile is for one process"),
        ({"target": EMBEDDED / "target", "backend": "native"}, "backend native is for one process"),
        ({"target": EMBEDDED / "target", "quantize": "int4"}, "quantize int4 is for one process"),
        ({"target": "hf:" + str(EMBEDDED / "target")}, "tensor_parallel is for checkpoints that draftwood's own"),
        ({"target": EMBEDDED / "target", "tensor_parallel": 0}, "tensor_parallel is 0, but must be at least 1"),
        ({"target": EMBEDDED / "target", "tensor_parallel": 2.5}, "tensor_parallel is 2.5, but must be a whole number"),
    ],
)
def test_what_cannot_be_split(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DraftwoodError, match=says):
        draftwood.load(**{"tensor_parallel": 2, **options})


def test_parts_are_not_trained(parts: Split) -> None:
    with pytest.raises(draftwood.ModelError, match="split among processes cannot be given heads; leave out"):
        medusa.Heads.of(parts.driver)


def test_a_process_that_does_not_answer_ends_the_engine(draft: Decoder) -> None:
    """It is waited for, but not for ever; after that nothing is computed, and everybody learns why."""
    with split(EMBEDDED / "target", patience=0.5, work=lambda decoder, group: None) as parts:
        made = engine(parts.driver, draft)
        for _ in range(2):
            with pytest.raises(DraftwoodError, match=r"tensor_parallel=2 are out of step .*; load the model again"):
                made.generate(STORY, max_new_tokens=4)
        assert made.broken is not None and "out of step" in made.broken


def test_an_error_within_a_forward_ends_the_engine(draft: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes would be out of step; one before it ends the request alone."""
    with split(EMBEDDED / "target", patience=10) as parts:
        made = engine(parts.driver, draft)
        with monkeypatch.context() as patch:
            patch.setattr(parts.driver, "embedded", lambda *given: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                made.generate(STORY, max_new_tokens=4)
        assert made.broken is None and len(made.generate(STORY, max_new_tokens=4).tokens) == 4
        monkeypatch.setattr(parts.driver, "normed", lambda *given: 1 / 0)
        with pytest.raises(DraftwoodError, match=r"out of step \(ZeroDivisionError"):
            made.generate(STORY, max_new_tokens=4)
        assert made.broken is not None


def test_caches_that_are_gone_are_forgotten(parts: Split) -> None:
    group = parts.driver.parallel
    assert isinstance(group, ProcessGroup)
    cache = parts.driver.new_cache()
    ours(parts.driver, Forest.from_prompt([1]), Session(parts.driver, cache))
    number = cache.change_log.cache if cache.change_log else 0
    del cache
    assert number in group._gone
    ours(parts.driver, Forest.from_prompt([1]))
    assert number not in group._gone


def test_gguf_files_are_read_in_parts(tmp_path: Path) -> None:
    gguf_files = pytest.importorskip("gguf_files")
    from checkpoint_files import write as write_llama

    pytest.importorskip("gguf")
    write_llama(tmp_path, intermediate_size=64)
    path = gguf_files.write(tmp_path, tmp_path / "x.gguf", gguf_files.matrices("Q8_0"))
    forest = Forest.from_prompt([3, 5, 8])
    expected = ours(checkpoint.load(path, backend="pytorch"), forest)
    with split(path) as parts:
        near(ours(parts.driver, forest), expected)


def test_answers_of_a_draft_elsewhere_come_to_the_target(draft: Decoder) -> None:
    """To a device without memory, which every machine has; what is asked of the model is asked where it is."""
    placed = OnOtherDevice(draft, torch.device("meta"))
    forest = Forest.from_prompt([5, 6])
    session = Session(placed, placed.new_cache())
    with torch.inference_mode():
        answer = execute([Run(session, forest, forest.roots, hidden=(draft.n_layers,))])[0]
    assert answer.logits.device.type == answer.hidden[draft.n_layers].device.type == "meta"
    assert placed.device.type == "cpu" and placed.weight_bytes == draft.weight_bytes
