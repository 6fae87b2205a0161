"""`draftwood compare`: the baseline is always there, runs are interleaved, texts checked, the table fits 80 columns."""

from __future__ import annotations

import pytest
from conftest import Command

import draftwood
from draftwood.errors import ConfigurationError
from draftwood.eval.interleaved import Entry, compare, interleave, parse_methods
from draftwood.methods import Method

QUICK = ("--repeat", 1, "--warmup", 0, "--max-new-tokens", 12)


def names(methods: list[Method]) -> list[str]:
    return [method.name for method in methods]


def test_plain_decoding_is_added_and_comes_first() -> None:
    assert names(parse_methods("lookup,mcsd", ())) == ["autoregressive", "lookup", "mcsd"]
    assert names(parse_methods("lookup,autoregressive", ())) == ["autoregressive", "lookup"]
    assert names(parse_methods("lookup,lookup", ())) == ["autoregressive", "lookup"]


def test_options_within_methods() -> None:
    methods = parse_methods("mcsd:tree=4,2,2,1;verify=coupled, speculative:gamma=6,speculative:gamma=2", ())
    assert methods == [
        Method.parse({"name": "autoregressive", "verify": "rejection"}),
        Method.parse({"name": "mcsd", "verify": "coupled", "tree": [4, 2, 2, 1], "replacement": False}),
        Method.parse({"name": "speculative", "verify": "traversal", "gamma": 6}),
        Method.parse({"name": "speculative", "verify": "traversal", "gamma": 2}),
    ]


def test_set_reaches_all_that_have_the_option_and_the_specific_wins() -> None:
    methods = parse_methods("speculative,lookup:gamma=5,mcsd", ["gamma=3", "verify=coupled", "mcsd.verify=rejection"])
    found = {method.name: method for method in methods}
    assert [found[name].as_dict().get("gamma") for name in ("speculative", "lookup", "mcsd")] == [3, 5, None]
    assert {name: method.verify for name, method in found.items()} == {
        "autoregressive": "coupled",
        "speculative": "coupled",
        "lookup": "coupled",
        "mcsd": "rejection",
    }


def test_a_setting_that_nobody_takes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="tree"):
        parse_methods("lookup", ["tree=2"])


def test_runs_are_interleaved() -> None:
    entries = [Entry(method) for method in parse_methods("lookup", ())]
    order: list[str] = []

    def decode(method: Method) -> object:
        order.append(method.name)
        return len(order)

    told: list[str] = []
    interleave(entries, decode, 2, 1, told.append)  # type: ignore[arg-type]
    assert order == told == ["autoregressive", "lookup"] * 3
    assert [entry.runs for entry in entries] == [[3, 5], [4, 6]]


def test_the_table(command: Command, pair: list[str]) -> None:
    shown = command("compare", "Once upon", *pair, *QUICK, "--methods", "speculative:gamma=2,mcsd:tree=3,1,lookup")
    assert shown.code == 0 and shown.err == ""
    lines = shown.out.splitlines()
    text = command("generate", "Once upon", *pair, "--temperature", 0, "--max-new-tokens", 12).out
    assert lines[: len(text.splitlines())] == text.splitlines()
    table = shown.out.removeprefix(text)
    assert max(map(len, table.splitlines())) <= 80
    assert table.count("yes") == 4 and "NO" not in table
    for word in (
        "autoregressive",
        "speculative",
        "gamma=2",
        "tree=3,1",
        "lookup",
        "tokens/s",
        "1.00×",
        "temperature 0",
    ):
        assert word in table


def test_json(command: Command, pair: list[str]) -> None:
    flags = ("--repeat", 3, "--warmup", 1, "--max-new-tokens", 12, "--methods", "speculative:gamma=4,lookup")
    document = command("compare", "Once upon", *pair, *flags, "--json").document
    baseline, speculative, lookup = document["methods"]
    assert document["repeat"] == len(baseline["runs"]) == 3
    assert baseline["speedup"] == 1.0 and baseline["acceptance_rate"] is None and baseline["tau"] == 1.0
    assert baseline["text"] == speculative["text"] == lookup["text"] == document["text"]
    assert [entry["same_text"] for entry in document["methods"]] == [True, True, True]
    rates = sorted(run["tokens_per_second"] for run in speculative["runs"])
    assert speculative["tokens_per_second"] == rates[1]
    assert speculative["speedup"] == pytest.approx(rates[1] / baseline["tokens_per_second"])
    assert speculative["draft_cost_ratio"] > 0 and lookup["draft_cost_ratio"] is None
    assert set(speculative["time_split"]) == {"draft", "verify", "sampling", "other"}


def test_texts_that_must_agree_when_sampling(command: Command, pair: list[str]) -> None:
    """Coupled methods repeat coupled plain decoding; others only share its distribution."""
    flags = (
        "--temperature",
        1,
        "--methods",
        "speculative:gamma=4,mcsd:verify=coupled,lookup:verify=coupled",
        "--seed",
        4,
    )
    document = command("compare", "Once upon", *pair, *QUICK, *flags, "--json").document
    plain, speculative, mcsd, lookup = document["methods"]
    assert [entry["same_text"] for entry in document["methods"]] == [True, None, True, True]
    assert mcsd["text"] == lookup["text"] != plain["text"]
    assert speculative["text"] != plain["text"]
    shown = command("compare", "Once upon", *pair, *QUICK, *flags).out
    assert "same distribution, other draws" in shown


def test_beams(command: Command, pair: list[str]) -> None:
    """Each method with its options; beam search has one text, with drafts and without."""
    chosen = "dsbd:n_best=2,beam-sampling:width=3,speculative-beam-search:width=3,speculative-beam-search:width=2"
    flags = (*QUICK, "--temperature", 1, "--methods", chosen)
    document = command("compare", "Once upon", *pair, *flags, "--json").document
    assert [entry["same_text"] for entry in document["methods"]] == [True, None, None, True, True]
    assert document["methods"][1]["runs"][0]["layers_per_round"] >= 1
    shown = command("compare", "Once upon", *pair, *flags)
    table = shown.out[shown.out.index("draft/verify") :]
    assert max(map(len, table.splitlines())) <= 80
    assert table.count("yes") == 3 and "dsbd has the distribution of beam-sampling" in table
    assert "verify=coupled" not in table  # beams have no such option


@pytest.mark.parametrize("seconds", [0.0, 31.4])
def test_what_compiling_took(
    command: Command, pair: list[str], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    from draftwood.engine.engine import Engine

    monkeypatch.setattr(Engine, "compile_seconds", seconds)
    shown = command("compare", "Once upon", *pair, *QUICK, "--methods", "lookup").out
    assert (" · one run · compiled in 31 s\n" in shown) is bool(seconds)


def test_without_a_draft(command: Command, pair: list[str]) -> None:
    document = command("compare", "Once upon", *pair[:2], *QUICK, "--json").document
    assert [entry["method"]["name"] for entry in document["methods"]] == ["autoregressive", "lookup"]


def test_what_was_measured_is_shown_after_an_interrupt(
    command: Command, pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftwood.engine.engine import Engine

    calls: list[int] = []
    generate = Engine.generate

    def third_time_interrupted(self: Engine, *arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generate(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "generate", third_time_interrupted)
    shown = command("compare", "Once upon", *pair, *QUICK, "--methods", "lookup,mcsd,speculative", "--json")
    assert shown.code == 130
    assert [entry["method"]["name"] for entry in shown.document["methods"]] == ["autoregressive", "lookup"]
    assert [entry["same_text"] for entry in shown.document["methods"]] == [True, True]


def test_lossy_methods_carry_the_word(command: Command, pair: list[str]) -> None:
    options = ("Once upon", *pair, *QUICK, "--temperature", 1)
    shown = command("compare", *options, "--methods", "mcsd:tree=2;initial=2,mcsd-fork:verify=longest,mcsd:tree=2")
    assert shown.code == 0 and shown.out.count("(lossy)") == 2
    told = command("generate", "Once upon", *pair, "--max-new-tokens", 4, "--method", "mcsd", "--set", "initial=2")
    assert "lossy" in told.err and "lossless" not in told.err


@pytest.mark.parametrize("width", [44, 60, 72])
def test_a_narrow_terminal_keeps_the_names_of_methods(
    command: Command, pair: list[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = command("compare", "Once upon", *pair, *QUICK, "--methods", "mcsd,lookup").out
    table = shown[shown.index("method") :].splitlines()
    table = table[: table.index("")]
    assert max(map(len, table)) <= width
    assert [line.split()[0] for line in table if line[0].isalpha()] == ["method", "autoregressive", "mcsd", "lookup"]
    assert all("yes" in line for line in table[2:] if line[0].isalpha())


def test_a_library_call_compares_methods(pair: list[str]) -> None:
    engine = draftwood.load(pair[1], pair[3])
    found = compare(engine, "Once upon", "lookup,speculative:gamma=2", repeat=2, warmup=0, max_new_tokens=6)
    assert names([entry.method for entry in found.entries]) == ["autoregressive", "lookup", "speculative"]
    assert [len(entry.runs) for entry in found.entries] == [2, 2, 2] and not found.interrupted
    assert all(entry.same_text for entry in found.entries)
    assert found.as_dict()["methods"][0]["speedup"] == 1.0
    with pytest.raises(ConfigurationError, match="needs a draft model"):
        compare(draftwood.load(pair[1]), "x", "speculative")
