"""Figures on held-out documents while a model trains.

Greedy output equals a text exactly when every token of that text is the most
probable one after the tokens before it, so one forward pass without any
generation tells the exact match of greedy decoding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from draftwood.corpus import DOMAINS, Document, documents
from recipes.rows import end_token


@dataclass(frozen=True)
class DocumentBatch:
    """Documents of one domain, padded at the right.

    ``tokens`` [B, T] int64; ``scored`` [B, T-1] bool, the targets that count;
    ``completed`` [B, T-1] bool, the targets that belong to a completion.
    """

    tokens: Tensor
    scored: Tensor
    completed: Tensor


def expected(document: Document) -> str:
    """Return the completion that the scorer takes as right."""
    match document.domain:
        case "qa":
            return f" {document.reference['answers'][0]}"
        case "sql":
            return f" {document.reference['sql']};"
    return document.completion


def batch_of(
    tokenizer: Tokenizer, chosen: Sequence[Document], context: int, *, reference: bool = False
) -> DocumentBatch:
    """Tokenise documents, with their reference completions where asked.

    A reference counts as completed without the end of the text: the answer
    ends with its line, and one more question may well follow.
    """
    eos = end_token(tokenizer)
    rows, starts = [], []
    for document in chosen:
        prompt = tokenizer.encode(document.prompt).ids
        completion = expected(document) if reference else document.completion
        rows.append([*prompt, *tokenizer.encode(completion).ids, eos][:context])
        starts.append(len(prompt))
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), eos)
    scored = torch.zeros(len(rows), width - 1, dtype=torch.bool)
    completed = torch.zeros_like(scored)
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        tokens[i, : len(row)] = torch.tensor(row)
        scored[i, : len(row) - 1] = True
        completed[i, start - 1 : len(row) - (2 if reference else 1)] = True
    return DocumentBatch(tokens, scored, completed)


def held_out(domain: str, count: int, seed: int = 0) -> list[Document]:
    """Return the first held-out documents of a domain."""
    return list(itertools.islice(documents(domain, "held-out", seed), count))


class Monitor:
    """Held-out loss per domain, and greedy exact match where there is one answer."""

    def __init__(self, tokenizer: Tokenizer, context: int, count: int) -> None:
        self._texts = {
            d: batch_of(tokenizer, held_out(d, count if d != "library" else count // 4), context) for d in DOMAINS
        }
        self._answers = {
            d: batch_of(tokenizer, held_out(d, 2 * count), context, reference=True) for d in ("qa", "sql", "math")
        }

    @torch.no_grad()
    def measure(self, forward: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Return ``loss/<domain>`` in nats per token and ``exact/<domain>`` from 0 to 1.

        ``forward`` maps tokens [B, T] to logits [B, T, V].
        """
        found: dict[str, float] = {}
        for domain, batch in self._texts.items():
            logits = forward(batch.tokens)[:, :-1].float()
            chosen = logits.log_softmax(-1).gather(-1, batch.tokens[:, 1:, None])[..., 0]
            found[f"loss/{domain}"] = -chosen[batch.scored].mean().item()
        for domain, batch in self._answers.items():
            right = forward(batch.tokens)[:, :-1].argmax(-1) == batch.tokens[:, 1:]
            found[f"exact/{domain}"] = (right | ~batch.completed).all(-1).float().mean().item()
        return found
