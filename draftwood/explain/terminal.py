"""How results look: coloured tokens, the summary line, percentages, tables and JSON."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.style import Style

from draftwood.engine.stopping import Pieces

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from draftwood.core.records import Kind
    from draftwood.engine.results import GenerationResult
    from draftwood.engine.stopping import TextDecoder
    from draftwood.methods import Method

# Apart for the colour-blind too: corrections are underlined, bonus tokens bold, forced ones italic.
KIND_STYLES = {
    "accepted": Style.parse("green"),
    "corrected": Style.parse("magenta underline"),
    "bonus": Style.parse("bold cyan"),
    "forced": Style.parse("italic yellow"),
    "plain": Style.null(),
}
DIM = Style.parse("dim")
SEPARATOR = " · "

# Control characters are shown as pictures, but for line feeds and tabs.
PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {0x7F: "\u2421"}
PICTURES |= {code: "\ufffd" for code in range(0x80, 0xA0)}


def colourful(stream: TextIO, wanted: bool | None) -> bool:
    """Whether to colour what is written to `stream`: the flag decides, else the terminal and NO_COLOR."""
    if wanted is not None:
        return wanted
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console(wanted: bool | None = None, stderr: bool = False) -> Console:
    """A console for tables and progress; without colour it writes no escape codes at all."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    coloured = colourful(stream, wanted)
    return Console(
        file=stream,
        color_system="auto" if coloured and stream.isatty() else "standard" if coloured else None,
        force_terminal=True if coloured else None,
        no_color=not coloured,
        highlight=False,
    )


def visible(text: str) -> str:
    """A text that cannot steer the terminal."""
    return text.translate(PICTURES)


def paint(text: str, style: Style, colour: bool) -> str:
    """`text` in a style, if there is colour."""
    return style.render(text, color_system=ColorSystem.STANDARD) if colour and text else text


@dataclass(slots=True)
class Painter:
    """Writes text to a stream as it becomes certain, each token in the colour of its kind."""

    stream: TextIO
    decoder: InitVar[TextDecoder]
    colour: bool
    kinds: Counter[str] = field(init=False, default_factory=Counter)
    _pieces: Pieces = field(init=False)
    _line_open: bool = field(init=False, default=False)

    def __post_init__(self, decoder: TextDecoder) -> None:
        self._pieces = Pieces(decoder)

    def show(self, text: str, tokens: Sequence[int], kinds: Sequence[Kind]) -> None:
        """Take the tokens of a round and write `text`, what became certain by them."""
        self.kinds.update(kinds)
        painted = [self._paint(piece, kind) for piece, kind in self._pieces.split(text, tokens, kinds)]
        if painted:
            self.stream.write("".join(painted))
            self.stream.flush()
            self._line_open = not painted[-1].endswith("\n")

    def _paint(self, piece: str, kind: str) -> str:
        if self.stream.isatty():
            piece = visible(piece)
        return paint(piece, KIND_STYLES[kind], self.colour)

    def close(self) -> None:
        """End the last line on a terminal; a pipe gets exactly the text."""
        if self.stream.isatty():
            self.end_line()
        self.stream.flush()

    def end_line(self) -> None:
        """Begin a new line, if the last one is open."""
        if self._line_open:
            self.stream.write("\n")
            self._line_open = False


def legend(kinds: Mapping[str, int], colour: bool) -> str:
    """'green 12 accepted · ...': what the colours of a text mean, with counts of tokens."""
    return SEPARATOR.join(
        paint(f"{kinds[kind]} {kind}", style, colour) for kind, style in KIND_STYLES.items() if kinds.get(kind)
    )


def summary(result: GenerationResult) -> list[str]:
    """The parts of the line that closes a generation."""
    metrics = result.metrics
    count = len(result.tokens)
    parts = [
        f"{count} token{'s' * (count != 1)} in {metrics.seconds:.2f} s",
        f"{metrics.tokens_per_second:.1f} tokens/s",
        f"tau {metrics.tau:.2f}",
        f"acceptance {percent(metrics.acceptance_rate)}" if metrics.drafted else "nothing drafted",
        " ".join(f"{name} {percent(share)}" for name, share in metrics.time_shares.items()),
        *_layers(result),
        f"finish {result.finish_reason}",
        method_label(result.method),
        f"seed {result.seed}",
        "lossless" if result.lossless else "lossy",
    ]
    return parts


def _layers(result: GenerationResult) -> list[str]:
    """Parts of the line about beams: layers per round beside Theorem 3.2, width, cache; none without beams."""
    metrics = result.metrics
    if not metrics.layers:
        return []
    predicted = result.predicted_layers
    layers = f"{metrics.layers_per_round:.2f} layers/round"
    width = f"mean width {metrics.mean_width:.1f}"
    return [
        layers if predicted is None else f"{layers} (Theorem 3.2: {predicted:.2f})",
        f"{width}, {metrics.mean_accepted_width:.1f} accepted" if metrics.attempted else width,
        f"cache {metrics.peak_slots} slots at most",
    ]


def compiled(seconds: float) -> list[str]:
    """'compiled in 31 s', where models were."""
    return [f"compiled in {seconds:.0f} s" if seconds >= 10 else f"compiled in {seconds:.1f} s"] if seconds else []


def beams(result: GenerationResult, width: int) -> list[str]:
    """The answer's beams, best first, one line of at most `width` columns each; none where one was asked for."""
    if len(result.beams) < 2:
        return ["no further beams: all became equal", ""] if result.method.get("n_best", 1) > 1 else []
    heads = ("beam", "perplexity", "log-likelihood", "score", "finish")
    rows = [
        (
            str(rank),
            _significant(beam.perplexity),
            f"{beam.log_likelihood:.2f}",
            f"{beam.score:.3f}",
            beam.finish_reason,
        )
        for rank, beam in enumerate(result.beams, 1)
    ]
    sizes = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    texts = ["text", "(above)"] + [beam.text for beam in result.beams[1:]]
    lines: list[str] = []
    for row, text in zip([heads, *rows], texts, strict=True):
        line = "  ".join(cell.rjust(size) for cell, size in zip(row, sizes, strict=True)) + "  "
        lines.append(line + (text if len(lines) < 2 else _differing(text, result.text, width - len(line))))
    return [*lines, ""]


def _differing(text: str, first: str, width: int) -> str:
    """A beam's text in at most `width` columns; where it is longer, from about where it leaves the first beam's."""
    if cell_len(repr(text)) > width:
        shared = next(
            (i for i, (a, b) in enumerate(zip(text, first, strict=False)) if a != b), min(len(text), len(first))
        )
        begin = text.rfind(" ", 0, shared)
        text = "…" * (begin > 0) + text[max(begin, 0) :]
    return shortened(repr(text), width)


def _significant(value: float) -> str:
    return f"{value:.2f}" if value < 1000 else f"{value:.3g}"


def shortened(text: str, width: int, from_left: bool = False) -> str:
    """A quoted text in at most `width` columns, cut at its end or its beginning; the quotes stay."""
    if cell_len(text) <= width:
        return text
    first, text, last = text[:1], text[1:-1], text[-1:]
    while text and cell_len(text) > width - 3:
        text = text[1:] if from_left else text[:-1]
    return f"{first}…{text}{last}" if from_left else f"{first}{text}…{last}"


def terminal_width() -> int:
    """Columns that COLUMNS says, else those of the terminal, else 80."""
    return shutil.get_terminal_size().columns


def origins(names: Mapping[str, Any]) -> list[str]:
    """'computed in int8 and bfloat16', 'drafts in int8', 'keys and values in int8', 'target grown from 12x192, draft
    from 2x128', 'target dequantised from Q4_K'."""
    types = " and ".join(filter(None, (names.get("quantize"), names.get("dtype"))))
    notes = [f"computed in {types}"] if types else []
    if held := names.get("draft_quantize"):
        notes.append("drafts not quantised" if held == "none" else f"drafts in {held}")
    if names.get("kv_dtype") not in (None, names.get("dtype")):
        notes.append(f"keys and values in {names['kv_dtype']}")
    for how in ("grown", "dequantised"):
        sources = names.get(how, {})
        parts = [("target", sources.get("target")), *(("draft", origin) for origin in sources.get("draft", ()))]
        text = ", ".join(f"{role} from {origin}" for role, origin in parts if origin)
        notes += [text.replace(" from", f" {how} from", 1)] if text else []
    return notes


def flow(parts: Sequence[str], stream: TextIO) -> str:
    """Parts with separators; on a terminal lines break between parts only."""
    if not stream.isatty():
        return SEPARATOR.join(parts)
    width = terminal_width()
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(SEPARATOR) + len(part) <= width:
            lines[-1] += SEPARATOR + part
        else:
            lines.append(part)
    return "\n".join(lines)


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def method_label(method: Mapping[str, Any]) -> str:
    """Name and the options that differ from the method's defaults: 'speculative gamma=6'."""
    from draftwood.methods import METHODS

    name = str(method["name"])
    defaults = METHODS[name].model_construct().model_dump(mode="json") if name in METHODS else {}
    keys = [key for key in method if key != "name" and (key not in defaults or method[key] != defaults[key])]
    for implied in ("gamma", "depth"):  # Thompson sampling has no size, a size that is named says fixed
        rest = {key: method[key] for key in keys if key != implied}
        if implied in keys and _parsed(METHODS[name], rest).get(implied, rest) == method[implied]:
            keys.remove(implied)
    own = METHODS[name].__annotations__ if name in METHODS else {}
    keys.sort(key=lambda key: key not in own)  # the method's own options first
    return " ".join([name, *(f"{key}={option_text(method[key])}" for key in keys)])


def _parsed(kind: type[Method], options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a method of which some are given; none where these alone are refused."""
    try:
        return kind.model_validate(options).model_dump(mode="json")
    except ValueError:
        return {}


def option_text(value: Any) -> str:
    """A value as --set takes it: 4,2,2,1 and true."""
    if isinstance(value, list | tuple):
        return ",".join(map(option_text, value))
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)


def simple_table(*headings: str, rows: Iterable[Sequence[str | Text]] = (), first: int = 0) -> Table:
    """A table in the one style of all commands: no frame, two spaces between columns.

    A column whose heading begins with > is one of numbers; the others fold, the first at `first` columns or more.
    """
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in headings:
        if heading.startswith(">"):
            made.add_column(heading[1:], justify="right", no_wrap=True)
        else:
            made.add_column(heading, overflow="fold", min_width=first if not made.columns else None)
    for row in rows:
        made.add_row(*row)
    return made


def as_json(value: Any) -> str:
    """One JSON document, without NaN and infinities: those are null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
