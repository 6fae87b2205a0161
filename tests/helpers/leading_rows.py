"""The most probable tokens of rows, as a target tells them to beam search."""

from collections.abc import Callable

from torch import Tensor

from draftwood.sampling.rows import Leading, as_rows, leading


def among(log_probs: Tensor) -> Callable[[int], list[Leading]]:
    """Of log-probabilities [n, V] as many of each row as asked for."""
    return lambda count: leading(as_rows(log_probs), count)
