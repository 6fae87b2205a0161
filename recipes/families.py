"""Compares a tiny random model of every family with transformers' own class, for the table in docs/models.md.

`python -m recipes.families`, in a clone with what the tests need; takes a few minutes. With names of variants
(tests/helpers/family_variants.py) it prints their lines alone.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from draftwood.core.forest import Forest, Verdict, advance
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.checkpoints.gguf_architectures import ARCHITECTURES
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session
from draftwood.util.files import replacing

ROOT = Path(__file__).parents[1]
PAGE, START, END = ROOT / "docs/models.md", "<!-- families -->\n", "<!-- end of families -->\n"
HEAD = """\
A tiny model of each family, with random weights in every tensor, beside transformers' own class: the greatest
difference of a prompt's logits in float32 (by the native kernels) and float64 (by PyTorch; many of transformers'
classes compute norms, rotary positions or logits in float32 even there, and some cannot compute in it), and whether 40
tokens of greedy text are the same.

| family | kind | float32 | float64 | greedy text | GGUF architectures |
| --- | --- | --- | --- | --- | --- |
"""
FOOT = "\n`python -m recipes.families`. Text parts of models that read images are compared in the tests.\n"
TOKENS = 40


@dataclass(frozen=True, slots=True)
class FamilyComparison:
    """The numbers of one family's model beside those of transformers' class."""

    family: str
    kind: str
    single: float  # greatest difference of logits in float32
    double: float | None  # in float64; None: transformers' class does not compute in it
    same_text: bool

    def line(self) -> str:
        files = ", ".join(name for name, architecture in ARCHITECTURES.items() if architecture.family == self.family)
        double = "-" if self.double is None else f"{self.double:.0e}"
        same = "the same" if self.same_text else "another"
        return f"| `{self.family}` | {self.kind} | {self.single:.0e} | {double} | {same} | {files} |\n"


def compared(makers: Any, name: str) -> FamilyComparison:
    """A variant of tests/helpers/family_variants.py beside transformers."""
    prompt: list[int] = makers.PROMPT
    with TemporaryDirectory() as place, torch.inference_mode():
        reference = makers.write(Path(place), name)
        decoder = checkpoint.load(place)
        single = (_logits(decoder, prompt) - makers.theirs(reference, prompt)).abs().max().item()
        same = _greedy(decoder, prompt) == _greedy_by(lambda tokens: makers.theirs(reference, tokens), prompt)
        exact = _logits(checkpoint.load(place, "float64", packed=False), prompt)
        try:
            double = (exact - makers.theirs(reference.double(), prompt)).abs().max().item()
        except (RuntimeError, TypeError):  # of mixed types
            double = None
        return FamilyComparison(makers.ALL[name][0], kind_of(decoder.config), single, double, same)


def kind_of(config: DecoderConfig) -> str:
    """The marks that tell a family's layers from Llama's, in a few words."""
    each = [config.layer(number) for number in range(config.num_hidden_layers)]
    recurrent = next((layer.recurrent for layer in each if layer.recurrent), None)
    marks = {
        "latent attention": any(layer.latent for layer in each),
        "linear biases": any(layer.alibi for layer in each),
        "learned positions": config.position_offset is not None,
        "windows": any(layer.window for layer in each),
        "parallel": config.joined,
        "sinks": any(layer.sinks for layer in each),
        f"recurrent ({recurrent.kind})" if recurrent else "": recurrent is not None,
        "without attention": not any(layer.attends for layer in each),
        "experts": any(layer.experts for layer in each),
        "per-layer embeddings": config.hidden_size_per_layer_input > 0,
        "borrowed keys": any(layer.kv_layer is not None for layer in each),
        "rows of several vectors": config.altup is not None,
    }
    return ", ".join(mark for mark, there in marks.items() if there) or "dense"


def _logits(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    forest = Forest(trunk=[])
    for token in tokens:
        forest.add(len(forest) - 1, token)
    return execute([Run(Session(decoder, decoder.new_cache()), forest, range(len(forest)))])[0].logits


def _greedy(decoder: Decoder, prompt: list[int]) -> list[int]:
    """Greedy text, token by token through a cache."""
    session, forest = Session(decoder, decoder.new_cache()), Forest.from_prompt(list(prompt))
    made: list[int] = []
    while len(made) < TOKENS:
        made.append(int(execute([Run(session, forest, [0])])[0].logits[-1].argmax()))
        trunk, kept, grown = advance(forest, Verdict([0], [made[-1]], [], {}))
        session.commit(trunk, kept, grown)
        forest = grown
    return made


def _greedy_by(logits: Any, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + TOKENS:
        tokens.append(int(logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", help="print the lines of these alone")
    chosen = parser.parse_args().variants
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/helpers")]
    makers = import_module("family_models")
    lines = []
    for name in chosen or [makers.FIRST[family] for family in FAMILIES if family in makers.FIRST]:
        lines.append(compared(makers, name).line())
        print(lines[-1], end="", flush=True)
    if not chosen:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        behind = rest.partition(END)[2]
        with replacing(PAGE) as temporary:
            temporary.write_text(before + START + HEAD + "".join(lines) + FOOT + END + behind, "utf-8")


if __name__ == "__main__":
    main()
