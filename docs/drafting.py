"""The picture of an answer being drafted, from a real run of the embedded pair: python docs/drafting.py

Writes docs/assets/drafting.svg: the answer with its tokens coloured by origin, and the trees of some rounds. Its
colours follow the reader's (light or dark); nothing in it is fetched or run.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import draftwood
from draftwood.explain.explanation import Explanation
from draftwood.explain.tree import TreeNode

OUT = Path(__file__).parent / "assets" / "drafting.svg"
PROMPT, TOKENS = "Story: In Corfe there lived a sailor called", 30
ROUNDS = 3, 4, 5, 6  # that are drawn
OPTIONS = {"method": {"name": "mcsd", "tree": [3, 2, 1]}, "sampling": {"temperature": 0.7}, "seed": 9}
WIDTH, EDGE, LINE = 900, 26, 26
STEP, BOX, HIGH, ROW = 99, 82, 20, 25  # of a tree: columns, boxes, lines
LETTER = 9.1  # pixels of a letter of the answer
STYLE = """
svg { --page: #ffffff; --line: #d0d7de; --ink: #1f2328; --faint: #656d76; --lost: #9aa3ad;
  --accepted: #1a7f37; --corrected: #8e24aa; --bonus: #0969da; --rejected: #cf222e; }
@media (prefers-color-scheme: dark) { svg { --page: #0d1117; --line: #30363d; --ink: #e6edf3; --faint: #9198a1;
  --lost: #6e7681; --accepted: #3fb950; --corrected: #d97bef; --bonus: #58a6ff; --rejected: #ff7b72; } }
text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink); }
.label { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; font-size: 13px; }
.answer { font-size: 15px; } .node { font-size: 11.5px; text-anchor: middle; } .faint { fill: var(--faint); }
.page, rect { fill: var(--page); stroke: var(--line); } path { fill: none; stroke: var(--lost); }
""" + "".join(
    f".{kind} {{ stroke: var(--{kind}); }} text .{kind}, text.{kind} {{ fill: var(--{kind}); stroke: none; }}\n"
    for kind in ("accepted", "corrected", "bonus", "rejected", "lost")
)
LEGEND = (
    ("accepted", "drafted, accepted"),
    ("rejected", "drafted, rejected"),
    ("lost", "drafted, not needed"),
    ("corrected", "target's, corrected"),
    ("bonus", "target's, as a bonus"),
)


def answer(found: Explanation, top: float) -> tuple[list[str], float]:
    """Prompt and answer in lines, every token in the colour of its origin; (marks, where they end)."""
    pieces = [(word, "faint") for word in PROMPT.replace(" ", "\0 ").split("\0")]
    pieces += [
        (found.words([token]), kind) for token, kind in zip(found.result.tokens, found.result.kinds, strict=True)
    ]
    lines: list[list[str]] = [[]]
    letters = 0
    for text, kind in pieces:
        if letters + len(text) > (WIDTH - 2 * EDGE) / LETTER:
            lines.append([])
            letters, text = 0, text.lstrip()
        letters += len(text)
        lines[-1].append(f'<tspan class="{kind}">{escape(text)}</tspan>')
    return [
        f'<text class="answer" xml:space="preserve" x="{EDGE}" y="{top + LINE * place}">{"".join(line)}</text>'
        for place, line in enumerate(lines)
    ], top + LINE * len(lines)


def tree(root: TreeNode, found: Explanation, left: float, top: float) -> tuple[list[str], float]:
    """The drafts below a root, which is not drawn itself, left to right; (marks, how high they are)."""
    boxes: list[str] = []
    edges: list[str] = []
    free = top

    def put(node: TreeNode, depth: int) -> float:
        nonlocal free
        y = free  # the first child stands beside its parent
        kind = node.draws[0].fate if node.draws[0].fate in ("accepted", "rejected", "corrected", "bonus") else "lost"
        x = left + depth * STEP
        for child in node.children:
            below, kept = put(child, depth + 1) + HIGH / 2, child.draws[0].fate
            style = f'class="{kept}" stroke-width="2"' if kept in ("accepted", "corrected", "bonus") else ""
            start, end, middle = x + BOX, x + STEP, x + (BOX + STEP) / 2
            edges.append(
                f'<path {style} d="M{start} {y + HIGH / 2}C{middle} {y + HIGH / 2} {middle} {below} {end} {below}"/>'
            )
        free = max(free, y + ROW)
        dashes = ' stroke-dasharray="3 3"' if kind == "lost" else ""
        text = found.words([node.token]).strip() or "␣"
        boxes.append(f'<rect class="{kind}"{dashes} x="{x}" y="{y}" width="{BOX}" height="{HIGH}" rx="5"/>')
        boxes.append(f'<text class="node {kind}" x="{x + BOX / 2}" y="{y + 14}">{escape(text[:11])}</text>')
        return y

    for child in root.children:
        put(child, 0)
    return [*sorted(edges, key=lambda edge: "stroke-width" in edge), *boxes], free - top


def picture(found: Explanation) -> str:
    """The whole SVG document."""
    marks, y = answer(found, EDGE + 14)
    tokens, rounds = found.result.metrics.emitted, found.result.metrics.rounds
    about = f"{tokens} tokens in {rounds} forward passes of the target. Forward passes {ROUNDS[0]} to {ROUNDS[-1]}:"
    marks.append(f'<text class="label faint" x="{EDGE}" y="{y + 8}">{about}</text>')
    y += 34
    columns = [EDGE, WIDTH / 2 + EDGE / 2]
    tallest = 0.0
    for place, number in enumerate(ROUNDS):
        each, left = found.trees[number - 1], columns[place % 2]
        out = escape(found.words(each.round_.tokens).strip())
        marks.append(f'<text class="label" x="{left}" y="{y}">{number}. {out}</text>')
        drawn, high = tree(each.roots[0], found, left, y + 11)
        marks += drawn
        tallest = max(tallest, high)
        if place % 2 or place == len(ROUNDS) - 1:
            y, tallest = y + 11 + tallest + 28, 0.0
    for place, (kind, text) in enumerate(LEGEND):
        x = EDGE + place * (WIDTH - 2 * EDGE + 20) / len(LEGEND)
        marks.append(f'<rect class="{kind}" x="{x}" y="{y - 10}" width="11" height="11" rx="3" stroke-width="2"/>')
        marks.append(f'<text class="label faint" x="{x + 17}" y="{y}">{text}</text>')
    high = y + EDGE - 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high:.0f}" width="{WIDTH}" role="img" '
        f'aria-label="An answer being drafted: trees of drafts, and which of them the target kept">'
        f"<style>{STYLE}</style>"
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{high - 1:.0f}" rx="10"/>'
        + "\n".join(marks)
        + "</svg>\n"
    )


if __name__ == "__main__":
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(picture(draftwood.load().explain(PROMPT, max_new_tokens=TOKENS, **OPTIONS)), "utf-8")
    print(OUT)
