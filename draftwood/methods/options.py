"""Options that several methods have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from draftwood.depth import Auto, AutoBeams, DepthController, depth_text, parse_depth
from draftwood.depth.acceptance import MEASURED_TRIALS
from draftwood.depth.rules import UNCAPPED
from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints.artifact import fingerprint, fingerprints
from draftwood.models.delegate import undelegated
from draftwood.runtime.session import Session


def listed(value: object) -> object:
    """'4,2,2,1' or [4, 2, 2, 1]."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, str) or value is None:  # None: nothing behind the = sign
        try:
            return tuple(int(part) for part in (value or "").split(","))
        except ValueError:
            raise ValueError("give whole numbers with commas between, such as 4,2,2,1") from None
    return value


MOST_ROWS = UNCAPPED + 1  # tokens that one forward verifies
DEEPEST = 32  # layers that lookup drafts unless told otherwise

Initial = Annotated[
    int, Field(ge=1, le=256, description="tokens of the target that a round begins with; more than 1: lossy")
]
Gamma = Annotated[int, Field(ge=0, le=64, description="draft tokens per round")]
Chain = Annotated[
    int | None,
    Field(ge=0, le=64, description="draft tokens per round; null, as beta-ts and cali-ts have it: until they stop"),
]
Depth = Annotated[
    str,
    BeforeValidator(depth_text),
    Field(
        description="depth controller: auto, fixed, confidence:0.4, adaptive-confidence, entropy, decision:PATH, "
        "beta-ts, cali-ts:PATH, speedup-ts, optimal-stopping; auto becomes fixed where a size is named"
    ),
]
Mixed = Annotated[
    bool, Field(description="also draft what prompt lookup finds; the model goes on where the match may end")
]
Width = Annotated[int, Field(ge=1)]
Widths = Annotated[
    tuple[Width, ...], BeforeValidator(listed), Field(min_length=1, description="children per node, layer by layer")
]


def check_ends(gamma: int | None, depth: str) -> None:
    """Raise ValueError where nothing would end a round's drafts."""
    if gamma is None and depth.partition(":")[0] in ("fixed", "auto"):
        raise ValueError(
            f"gamma=null leaves the end of drafts to depth=beta-ts or the like, but depth is {depth}; name gamma"
        )


def check_rows(rows: int, what: str, fix: str = "make it narrower or shallower") -> None:
    """Raise ValueError where one forward cannot verify so many tokens."""
    if rows > MOST_ROWS:
        raise ValueError(f"{what} has {rows} tokens, but at most {MOST_ROWS} are verified at once; {fix}")


def _built(depth: str, most: int, drafts: Sequence[Session], target: Session, hidden: bool = True) -> DepthController:
    """The controller that a setting names; `hidden`: whether drafts give hidden states."""
    settings = parse_depth(depth)
    if drafts:
        made = settings.build(
            most, lambda: fingerprints([session.model for session in drafts]), lambda: fingerprint(target.model)
        )
    else:
        made = settings.build(most)
    if not hidden and "hidden" in made.needs:
        raise ConfigurationError(
            f"depth {depth} reads the draft's hidden states, which beams do not give; use "
            "another controller, or a decision model trained with --kind output"
        )
    return made


def controller(
    depth: str,
    most: int | None,
    drafts: Sequence[Session],
    target: Session,
    widths: Sequence[int] = (1,),
    roots: int = 1,
    hidden: bool = True,
    lookup: bool = False,
) -> DepthController:
    """The controller that decides whether to draft a layer more, at most `most` of them; None is no cap.

    `hidden`: whether hidden states are given.

    A layer has `widths` children per node of the one before, the last width again and again, the first one `roots`
    times as many. `lookup`: whether lookup drafts too, or alone where there are no `drafts`.
    """
    made = _built(depth, UNCAPPED if most is None else most, drafts, target, hidden)
    if isinstance(made, Auto):
        made.widths, made.roots, made.lookup, made.model = tuple(widths), roots, lookup, bool(drafts) or not lookup
        measured = getattr(undelegated(drafts[0].model), "acceptance", None) if drafts else None
        if measured is not None:
            made.prior, made.prior_trials = measured, MEASURED_TRIALS
    return made


def beam_controller(
    depth: str,
    most: int,
    drafts: Sequence[Session],
    target: Session,
    roots: int,
    hypotheses: int,
    memory: bool,
) -> DepthController:
    """The same for layers of `roots` drafted beams; a round begins with `hypotheses`.

    `memory`: whether they are drafted from what the target said before, as they are where there are no `drafts`.
    """
    made = _built(depth, most, drafts, target, hidden=False)
    if isinstance(made, Auto):
        return AutoBeams(most, roots, hypotheses, bool(drafts), memory or not drafts, made.shared, made.discount)
    return made
