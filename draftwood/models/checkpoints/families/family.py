"""Helpers of all readers of families: sizes, windows, and the settings of families similar to Llama.

A family is an entry of `table.FAMILIES`; defaults are those of transformers' classes. What a config asks for and the
decoder cannot do is refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.tensor_names import Names
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.util.safe_parsing import short_repr

MAX_LAYERS = 100_000
NUMBERS = {"i": re.compile(r"^layers\.(\d+)\."), "e": re.compile(r"\.experts\.(\d+)\.")}  # in names of parameters
Order: TypeAlias = Callable[[DecoderConfig], Tensor]  # of a layer's knobs
REQUIRED_VALUES = {"is_causal": True, "is_encoder_decoder": False, "add_cross_attention": False}  # in every config


@dataclass(frozen=True)
class Family:
    """One model family: how its config.json becomes a DecoderConfig and which tensors make up each parameter.

    `prefix` is a beginning of the names that some checkpoints of the family lack. Parameters in `transposed` are
    stored [in, out]; with `either_way` they may also lie as others do, as their shapes tell. `orders` are those of
    parameters whose rows the decoder has in another order than the checkpoint. `variants` are the names that differ
    from config to config. In checkpoints with tensors of `other_parts`, which are not read, names begin otherwise.
    """

    read: Callable[[Raw], DecoderConfig]
    names: Names
    prefix: str = "model."
    transposed: frozenset[str] = frozenset()
    orders: Mapping[str, Order] = field(default_factory=dict)
    either_way: bool = False
    variants: Callable[[Raw, DecoderConfig], Names] | None = None
    other_parts: re.Pattern[str] | None = None

    def config(self, raw: Raw) -> DecoderConfig:
        """The decoder's shape of a config.json; ModelError where it asks for what the decoder cannot do."""
        for key, value in REQUIRED_VALUES.items():
            keys.only(raw, key, value)
        return self.read(raw)

    def named(self, raw: Raw, config: DecoderConfig) -> Family:
        """The same family with the names of one config."""
        if self.variants is None:
            return self
        return replace(self, names={**self.names, **self.variants(raw, config)})

    def sources(self, parameter: str) -> list[str]:
        """The tensors of a checkpoint that form a parameter, in order; "NAME[3]" is number 3 of those in a stack."""
        layer, expert = (NUMBERS[key].search(parameter) for key in ("i", "e"))
        numbers = {key: match[1] for key, match in (("i", layer), ("e", expert)) if match}
        named = self.names[parameter if parameter in self.names else pattern_of(parameter)]  # a layer may have its own
        return [source.format(**numbers) for source in named]

    def order(self, parameter: str, config: DecoderConfig) -> Tensor | None:
        """For each row of a parameter the row of the checkpoint's tensors, one after the other; None: as they lie."""
        made = self.orders.get(pattern_of(parameter))
        if made is None:
            return None
        layer = NUMBERS["i"].search(parameter)
        return made(config.layer(int(layer[1])) if layer else config)

    def without_prefix(self) -> Family:
        """The same family for checkpoints whose names lack the prefix."""
        bare = {key: tuple(name.removeprefix(self.prefix) for name in names) for key, names in self.names.items()}
        return replace(self, names=bare, prefix="")


def pattern_of(parameter: str) -> str:
    """The key of `Family.names` that a parameter belongs to: numbers of layers and experts become {i} and {e}."""
    return NUMBERS["e"].sub(".experts.{e}.", NUMBERS["i"].sub("layers.{i}.", parameter))


def shape_of(
    raw: Raw, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int | None, head_dim: int | None
) -> Raw:
    """Sizes in Llama's spelling; numbers are what absent keys mean.

    A null num_key_value_heads, or one whose default is None, means one for each attention head; a head_dim without
    default is hidden_size // num_attention_heads.
    """
    heads = keys.positive_int(raw, "num_attention_heads", heads)
    null = "num_key_value_heads" in raw and raw["num_key_value_heads"] is None
    kv_heads = keys.positive_int(raw, "num_key_value_heads", heads if kv_heads is None or null else kv_heads)
    hidden = keys.positive_int(raw, "hidden_size", hidden)
    head_dim = keys.positive_int(raw, "head_dim", head_dim or max(1, hidden // heads))
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{heads} attention heads, {kv_heads} key/value heads and head_dim {head_dim} do not fit together; "
            "the first must be a multiple of the second, and the third even"
        )
    return {
        "vocab_size": keys.positive_int(raw, "vocab_size", vocab),
        "hidden_size": hidden,
        "intermediate_size": keys.positive_int(raw, "intermediate_size", inner),
        "num_hidden_layers": keys.positive_int(raw, "num_hidden_layers", layers, MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


def shared_shape(raw: Raw, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int | None) -> Raw:
    """Sizes of a family whose heads share hidden_size out; head_dim may say no other."""
    shape = shape_of({**raw, "head_dim": None}, vocab, hidden, inner, layers, heads, kv_heads, None)
    keys.only(raw, "head_dim", shape["head_dim"])
    return shape


def llama_like(
    raw: Raw,
    shape: Raw,
    context: int,
    eps: float = 1e-6,
    activation: str = "silu",
    tied: bool = False,
    partial: bool = False,
) -> Raw:
    """The settings that families similar to Llama have in common, besides the sizes.

    `partial`: whether the family may rotate a part of each head.
    """
    context = keys.positive_int(raw, "max_position_embeddings", context)
    return {
        **shape,
        **keys.rope(raw, context, shape["head_dim"] if partial else None),
        "max_position_embeddings": context,
        "rms_norm_eps": keys.positive_number(raw, "rms_norm_eps", eps),
        "hidden_act": keys.activation(raw, "hidden_act", activation),
        "tie_word_embeddings": keys.flag(raw, "tie_word_embeddings", tied),
    }


def usual_rope(raw: Raw, theta: float | None = None, part: float | None = None) -> Raw:
    """A config with a family's own rotary base, or part of the heads that is rotated, where it does not say."""
    usual = {"rope_theta": theta, "partial_rotary_factor": part}
    return {**{key: value for key, value in usual.items() if value and raw.get(key) is None}, **_said(raw)}


def _said(raw: Raw) -> Raw:
    """The keys of a config that are not null."""
    return {key: value for key, value in raw.items() if value is not None}


def halves_of_pairs(config: DecoderConfig) -> Tensor:
    """The order of rows of queries, keys and values of which neighbouring components are rotated together."""
    heads = config.num_attention_heads + config.num_key_value_heads
    values = torch.arange(config.num_key_value_heads * config.head_dim) + heads * config.head_dim
    return torch.cat((_halves(config, heads), values))


def _halves(config: DecoderConfig, heads: int) -> Tensor:
    dim, turned = config.head_dim, config.rotated
    one = torch.cat((torch.arange(turned).view(-1, 2).T.reshape(-1), torch.arange(turned, dim)))
    return (torch.arange(heads)[:, None] * dim + one).reshape(-1)


PAIRS: Mapping[str, Order] = {f"layers.{{i}}.mixer.qkv.{x}": halves_of_pairs for x in ("weight", "bias")}
PAIRS_AND_NORMS: Mapping[str, Order] = {  # where each head has norms of its own
    **PAIRS,
    "layers.{i}.mixer.q_norm": lambda config: _halves(config, config.num_attention_heads),
    "layers.{i}.mixer.k_norm": lambda config: _halves(config, config.num_key_value_heads),
}


def attention_bias(raw: Raw) -> Raw:
    bias = keys.flag(raw, "attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias}


def sliding_window(raw: Raw, default: int | None) -> int:
    """Width of the sliding window, 0 where there is none: null, unlike an absent key, switches it off."""
    if raw.get("sliding_window", default) is None:
        return 0
    return keys.positive_int(raw, "sliding_window", default or 0)


def layer_windows(raw: Raw, layers: int, window: int, sliding: Callable[[int], bool]) -> tuple[int, ...]:
    """The window of each layer, from layer_types, else from the family's rule."""
    types = raw.get("layer_types")
    if types is None:
        types = ["sliding_attention" if sliding(layer) else "full_attention" for layer in range(layers)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) < layers or any(kind not in known for kind in types):
        raise ModelError(
            f"layer_types is {short_repr(types)}, but must name {' or '.join(known)} for each of {layers} layers"
        )
    if "sliding_attention" in types[:layers] and not window:
        raise ModelError("layer_types asks for sliding_attention, but sliding_window is not set")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types[:layers])


def no_windows(raw: Raw) -> None:
    """Refuse layers of other types in a family whose layers all see all positions."""
    types = raw.get("layer_types")
    if types is not None and (not isinstance(types, list) or set(map(str, types)) - {"full_attention"}):
        raise ModelError(f"layer_types is {short_repr(types)}, but this family has full_attention alone; leave it out")


def in_windows(windows: tuple[int, ...]) -> Raw:
    """The knobs of layers with windows."""
    alike = len(set(windows)) == 1
    return {"window": windows[0]} if alike else {"layers": per_layer(window=windows)}


def renamed(raw: Raw, **names: str) -> Raw:
    """A config with a family's own names for keys that may have the usual ones, too."""
    for usual, own in names.items():
        if usual in raw and raw.get(own, raw[usual]) != raw[usual]:
            raise ModelError(
                f"{own} is {short_repr(raw[own])}, but {usual} is {short_repr(raw[usual])}; keep the right one"
            )
    return {**{own: raw[usual] for usual, own in names.items() if usual in raw}, **raw}
