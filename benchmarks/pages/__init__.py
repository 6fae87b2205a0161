"""The pages that show results, a module each; all numbers come from benchmarks/results."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pages import depth, files, model_card, readme, results, servers
from benchmarks.papers import page as papers
from draftwood.errors import ConfigurationError


def made(root: Path) -> dict[Path, str]:
    """All pages of a clone with their results: docs/results.md, and others whose tables stand between comments."""
    rules, models = root / "docs/depth.md", root / "docs/models.md"
    serving = root / "docs/serving.md"
    card, first, claims = root / "draftwood/models/embedded/README.md", root / "README.md", root / "docs/papers.md"
    return {
        root / "docs/results.md": results.page(),
        first: filled(first, {"speed table": readme.speed_table(), "real model": readme.real_table()}),
        card: filled(card, model_card.tables()),
        rules: filled(rules, {"rules": depth.table(), "choices": depth.choices()}),
        models: filled(models, {"files": files.table(), "mixtures": files.mixtures(), "hybrids": files.hybrids()}),
        serving: filled(serving, {"servers": servers.side_by_side(), "clients": servers.crowds()}),
        claims: papers.filled(contents(claims)),
    }


def filled(path: Path, tables: dict[str, str]) -> str:
    """A page with its tables made anew, each between `<!-- NAME -->` and `<!-- end of NAME -->`.

    Raises ConfigurationError where a marker is missing.
    """
    text = contents(path)
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        head, marker, rest = text.partition(begin)
        _, other, rest = rest.partition(end)
        if not (marker and other):
            raise ConfigurationError(f"{path} has no markers of {name!r}; put {begin.strip()} and {end.strip()} there")
        text = head + begin + table + end + rest
    return text


def contents(path: Path) -> str:
    """A page as it is; raises ConfigurationError where it cannot be read."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}); --root is the clone's directory") from None
