"""Estimates the `Load` of a request: what passes cost it now, beside the others that run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftwood.core.forest import Forest
from draftwood.depth import ALONE, Load
from draftwood.depth.load import READ_SECONDS
from draftwood.draft import Drafter
from draftwood.engine.request import Request
from draftwood.runtime.cost import NOMINAL_COSTS, NOMINAL_DRAFT_COSTS, Costs, Curve
from draftwood.runtime.session import Session


class LoadEstimate:
    """Estimates the `Load` of one request before each of its rounds.

    For a controller that asks for the load it comes from passes as the engine measured them (`costs`) and from the
    numbers of running requests (`load_counts`: those that draft by the load, the others, and rows of these). For other
    controllers it is nominal: that of a request alone, by the sizes and kernels of its models, the same in every run.
    """

    def __init__(
        self,
        request: Request,
        target: Session,
        drafts: Sequence[Session],
        drafter: Drafter,
        costs: Costs,
        load_counts: Callable[[], tuple[int, int, int]],
        hypotheses: int = 1,
    ) -> None:
        """`hypotheses`: beams of the request, each of which counts as a request of a pass."""
        self._request, self._target, self._drafts, self._drafter = request, target, drafts, drafter
        self._costs, self._load_counts, self._hypotheses = costs, load_counts, hypotheses
        self._load: Load | None = None  # the latest one; a nominal one stays as it is
        self._forest: Forest | None = None  # of the round under way
        self._curves: tuple[Curve, ...] | None = None  # measured ones: of the target, and of what drafts

    def __call__(self, forest: Forest, measured: bool) -> Load:
        """The load as the round over `forest` begins; `measured`: whether the controller asks for it."""
        self._forest = forest
        counts = self._load_counts() if measured else ALONE.counts
        if self._load is None or self._load.counts != counts:
            self._load = self._measured(*counts) if measured else self._nominal()
        return self._load

    def _measured(self, drafting: int, others: int, rows: int) -> Load:
        """The load beside so many requests, by measured costs."""
        verify, *drafts = self._measured_curves()
        deciding = drafting * self._hypotheses
        plain = deciding + rows
        return Load(
            lambda rows: sum(draft.seconds(rows, min(rows, deciding)) for draft in drafts),
            lambda rows: verify.seconds(rows, deciding + others, max(0, min(deciding, rows - plain))),
            drafting,
            others,
            rows,
            self.catch_up_seconds,
            self.tokens_left,
            one_pass=self._one_pass,
            hypotheses=self._hypotheses,
        )

    def _nominal(self) -> Load:
        """The load of a request alone, by the sizes and kernels of its models where they are known."""
        verify, *drafts = curves = self._all_curves(NOMINAL_COSTS, NOMINAL_DRAFT_COSTS)
        if not all(curve.sized for curve in curves):
            return ALONE
        behind = sum(draft.behind(verify) for draft in drafts)
        return Load(
            lambda rows: behind + sum(draft.seconds(rows, self._hypotheses) for draft in drafts),
            lambda rows: verify.seconds(rows, self._hypotheses),
            catch_up_seconds=lambda: self._unread_seconds(drafts),
            tokens_left=self.tokens_left,
            read_seconds=READ_SECONDS if self._drafter.reads else 0.0,
            one_pass=self._one_pass,
            hypotheses=self._hypotheses,
        )

    @property
    def _one_pass(self) -> bool:
        """Whether one pass drafts all layers."""
        return any(hasattr(session.model, "block") for session in self._drafts)

    def _all_curves(self, costs: Costs, drafts: Costs) -> tuple[Curve, ...]:
        """The curve of the target, from `costs`, and those of the models and layers that draft, from `drafts`."""
        target = self._target.model
        models = [(session.model, session.model.n_layers) for session in self._drafts]
        exits = [getattr(model, "layers", None) for model, _ in models]
        models += [(target, layers) for layers in exits if isinstance(layers, int)]
        return costs.curve(target), *(drafts.curve(*model) for model in models)

    def _measured_curves(self) -> tuple[Curve, ...]:
        if self._curves is None:
            self._curves = self._all_curves(self._costs, self._costs)
        return self._curves

    def catch_up_seconds(self) -> float:
        """Seconds until the draft models have read the verified text, and the target has shown them what they need."""
        target, *drafts = self._measured_curves()
        lacks = 0 if self._forest is None else self._drafter.lacks(self._forest)
        return self._unread_seconds(drafts) + (target.marginal(1, lacks) if lacks else 0.0)

    def _unread_seconds(self, drafts: Sequence[Curve]) -> float:
        """Seconds until the draft models have read the verified text, by their curves."""
        rows = [session.unread(self._verified) for session in self._drafts]
        return sum(curve.marginal(1, more) for curve, more in zip(drafts, rows, strict=False) if more)

    @property
    def _verified(self) -> int:
        """Tokens of the verified text, the prompt included."""
        return len(self._request.prompt if self._forest is None else self._forest.trunk)

    def tokens_left(self) -> int:
        """Tokens that may still come."""
        return len(self._request.prompt) + self._request.max_new_tokens - self._verified
