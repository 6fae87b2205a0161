"""The one way to draw: matplotlib in the project's look, as SVG that follows its page's colours or as a file.

Figures are drawn in the colours below. In SVG each of them becomes a CSS variable, of which `STYLE` gives the light and
the dark value. Equal data gives equal bytes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from html import escape
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError
from draftwood.util.files import replacing

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#5b3a8c", "#e69f00")  # Okabe and Ito's
SHADES = ("#26415a", "#54748f", "#8aa4ba", "#bccbd8", "#dde3e9")  # of parts of a whole: no method has them
PLAIN = "#8a8a8a"  # the baseline's
INK, FAINT, LINE, PAGE = "#1f2328", "#59636e", "#d0d7de", "#fffffe"
DARK = dict(
    zip(
        (*PALETTE, *SHADES, PLAIN, INK, FAINT, LINE, PAGE),
        (
            *("#3b8fd6", "#f5833a", "#2dc79c", "#e29ac4", "#c9a227", "#9ad7fa", "#a98be0", "#ffc04d"),
            *("#dbe6f0", "#a9bfd2", "#7893aa", "#4d677e", "#2f4254"),
            *("#9aa0a6", "#e6edf3", "#9198a1", "#30363d", "#0d1117"),
        ),
        strict=True,
    )
)
MARKERS = "os^Dvp"
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "draftwood",
    "text.parse_math": False,
    "font.size": 9,
    "axes.prop_cycle": f"cycler(color={list(PALETTE)})",
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": LINE,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
}


def _variables(dark: bool) -> str:
    return "".join(f"--plot-{light[1:]}:{DARK[light] if dark else light};" for light in DARK)


STYLE = f":root{{{_variables(False)}}}@media(prefers-color-scheme:dark){{:root{{{_variables(True)}}}}}"


def available() -> bool:
    """True where matplotlib is installed."""
    return find_spec("matplotlib") is not None


def figure(paint: Callable[[Any], None], width: float = 4.9, height: float = 3.2) -> Any:
    """A matplotlib figure of so many inches, filled by `paint(figure)`. ConfigurationError without matplotlib."""
    if not available():
        raise ConfigurationError("figures need matplotlib; pip install 'draftwood[plots]'")
    with import_module("matplotlib").rc_context(RC):
        made = import_module("matplotlib.figure").Figure((width, height), layout="constrained")  # no pyplot: no state
        paint(made)
        made.get_layout_engine().execute(made)
        made.set_layout_engine("none")  # laid out once, not again whenever it is saved
    return made


def svg(drawn: Any, name: str) -> str:
    """A figure as an SVG element for a page that has `STYLE`."""
    out = StringIO()
    _save(drawn, out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = re.sub(
        r"(?s)^.*?<svg[^>]*viewBox=\"([^\"]*)\"[^>]*>|<metadata>.*?</metadata>|<style.*?</style>", _head, out.getvalue()
    )
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub("|".join(DARK), lambda match: f"var(--plot-{match[0][1:]},{match[0]})", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*sans-serif", FONTS, text)
    return text.replace("<svg", f'<svg aria-label="{escape(name)}"', 1).strip()


def _head(match: re.Match[str]) -> str:
    if match[1] is None:
        return ""
    _, _, width, height = match[1].split()
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    size = f'viewBox="{match[1]}" width="{width}" height="{height}"'
    return f'<svg role="img" {spaces} {size} style="stroke-linejoin:round">'


def document(element: str) -> str:
    """An element of `svg` as a file that follows light and dark by itself."""
    head, rest = element.split(">", 1)
    return f"{head}><style>{STYLE}svg{{background:var(--plot-{PAGE[1:]})}}</style>{rest}"


def save(drawn: Any, path: Path, name: str = "") -> None:
    """Write a figure; the suffix of `path` says what: .svg, .png or .pdf."""
    kind = path.suffix[1:]
    with replacing(path) as partial:
        if kind == "svg":
            partial.write_text(document(svg(drawn, name)), "utf-8")
        else:
            metadata = {"Software": None} if kind == "png" else None
            _save(drawn, partial, format=kind, dpi=160, facecolor="white", metadata=metadata)


def _save(drawn: Any, out: Any, **options: Any) -> None:
    with import_module("matplotlib").rc_context(RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # in SVG the reader's fonts have it
        drawn.savefig(out, **options)
