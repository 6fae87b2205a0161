"""Training a draft model: some layers of the target, cut to its frequent tokens, learn to write as it does.

The run, its saved state and several processes are those of an exit layer's training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from draftwood.models.decoder import Decoder
from draftwood.models.heads.pruned import PrunedDraft, check_kept, save
from draftwood.train.distillation import UNKNOWN, chosen
from draftwood.train.exit_layer import STATE, ExitRun, Place
from draftwood.train.settings import DraftSettings
from draftwood.train.texts import Tokens, tokens_of

COVERED = 0.98  # of the texts' tokens that the draft knows unless told otherwise


class DraftRun(ExitRun):
    """A draft model in training, as an `ExitRun` trains an exit layer.

    The target's probabilities stay as they are, so those of tokens that the draft does not know count as rejected.
    """

    settings: DraftSettings
    kind = "draft"

    @classmethod
    def settled(cls, target: Decoder, settings: DraftSettings) -> DraftSettings:
        layers = settings.layers or (len(settings.kept) if settings.kept else max(1, round(target.n_layers / 5)))
        kept = None if settings.kept is None else sorted(settings.kept)
        check_kept(target, kept or range(layers))
        return settings.model_copy(update={"layers": layers, "kept": kept})

    def made(self) -> PrunedDraft:
        self.target.requires_grad_(False)
        words = self.texts.frequent(self.settings.vocabulary, COVERED)
        kept = self.settings.kept or self._saved_layers() or self._best_layers(words)
        self.settings = self.settings.model_copy(update={"kept": kept, "vocabulary": len(words)})
        return PrunedDraft.of(self.target, kept, words)

    def _saved_layers(self) -> list[int] | None:
        """The layers of a run that is to go on; None: there is none."""
        if not (self.out / STATE).is_file():
            return None
        try:
            with safe_open(str(self.out / STATE), "pt") as stored:
                kept: list[int] = json.loads((stored.metadata() or {})["settings"])["kept"]
        except Exception:  # it is damaged, or of another kind: said when the run is read
            return None
        return kept

    def _best_layers(self, words: Tensor) -> list[int]:
        """Of sets of layers that with which a draft is nearest to the target after a few steps, on held-out rows."""
        sets = layer_sets(self.target.n_layers, self.settings.layers or 1)
        if len(sets) == 1 or not self.settings.search:
            return sets[0]
        drafts = [PrunedDraft.of(self.target, kept, words).train() for kept in sets]
        optimizers = [
            torch.optim.AdamW(draft.parameters(), lr=self.settings.rate, betas=(0.9, 0.95)) for draft in drafts
        ]
        for step in range(self.settings.search):
            rows = self.rows(step)
            for draft, optimizer, loss in zip(drafts, optimizers, self._losses(drafts, rows), strict=True):
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            losses = [loss.item() for loss in self._losses(drafts, self.texts.held_out[: self.settings.batch])]
        return sets[int(np.argmin(losses))]

    def _losses(self, drafts: Sequence[PrunedDraft], rows: Tokens) -> list[Tensor]:
        """How far each draft's distributions are from the target's, on rows of tokens."""
        tokens = tokens_of(torch.from_numpy(rows.astype(np.int64)).to(self.target.device))
        self.exit = drafts[0]  # all have the same tokens
        ids, answer = self._read(tokens, True)
        assert answer is not None
        losses = []
        for draft in drafts:
            with self._autocast():
                log_q = torch.log_softmax(draft.train_forward(ids).float(), -1)
            log_p = answer[..., draft.words]
            losses.append(F.kl_div(log_q, log_p, reduction="sum", log_target=True) / tokens.numel())
        return losses

    def write(self, stored: torch.dtype, trained: dict[str, float]) -> None:
        save(self.exit.weights(), self.out, self.facts["target"], self.exit.kept, stored, trained=trained)

    @property
    def reads(self) -> Sequence[int]:
        return ()

    @property
    def layers_below(self) -> int:
        return 0

    def inputs(self, states: Mapping[int, Tensor], tokens: Tensor) -> Tensor:
        ids: Tensor = self.exit.place[tokens]
        return ids

    def _places(self, logits: Tensor, rows: Tensor, answer: Tensor | None) -> list[Place]:
        """As for an exit, in the draft's tokens; log p is not renormalised to them."""
        (here,) = self.counted(rows)
        draft: PrunedDraft = self.exit
        ahead = draft.place[rows[:, 1:][here]]
        ahead = ahead.masked_fill(ahead == len(draft.words), UNKNOWN)
        log_p = None if answer is None else answer[:, :-1][here][:, draft.words]
        return [(chosen(logits, here), ahead, log_p)]


def layer_sets(layers: int, count: int) -> list[list[int]]:
    """Sets of `count` of so many layers to try: evenly spread; half of them from each end; the first and the last."""
    spread = [round(place) for place in np.linspace(0, layers - 1, count)] if count > 1 else [0]
    ends = [*range((count + 1) // 2), *range(layers - count // 2, layers)]
    first = [*range(count - 1), layers - 1] if count > 1 else [layers - 1]
    return list(map(list, dict.fromkeys(map(tuple, (spread, ends, first)))))
