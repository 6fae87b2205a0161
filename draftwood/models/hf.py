"""Any causal language model of Hugging Face transformers, through its own forward, as a CausalModel.

Each model is checked once: what cannot see a tree through a mask is refused. There are no layer ranges. Nothing else in
the package imports transformers (extra hf); no code from a checkpoint runs and nothing is unpickled.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache as TransformersCache

from draftwood.errors import ModelError, did_you_mean
from draftwood.models import checkpoint
from draftwood.models.base import Batch
from draftwood.models.cache import Cache
from draftwood.models.tokenizer import Tokenizer

ATTENTION = ("eager", "sdpa")  # the implementations that take any mask as a tensor
UNBOUNDED = 1 << 20  # context of a model that names no limit
LONGEST_CHECK = 128  # windows up to this length are crossed by the self-check
SHIFTING_ROPE = "longrope"  # frequencies change at once for all positions past the original context


@dataclass(frozen=True)
class _Attention:
    """What the layers of one type may look back to: a window or a chunk of `reach` positions, or everything."""

    kind: str
    reach: int = 0

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """[B, Q, span] bool by position, from queries [B, Q] and keys [B, span]; None = everything."""
        if self.kind == "sliding_attention":
            return queries[:, :, None] - keys[:, None] < self.reach
        if self.kind == "chunked_attention":
            return queries[:, :, None] // self.reach == keys[:, None] // self.reach
        return None


@dataclass
class _Facts:
    """What a model's first forward tells: key and value shape of each layer that keeps them, and the vocabulary."""

    tails: dict[int, tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=dict)
    vocab_size: int = 0


_CHECKED: WeakKeyDictionary[PreTrainedModel, tuple[object, _Facts]] = WeakKeyDictionary()  # a check is made once


class _Recorder(TransformersCache):
    """Stands in for a cache in the first forward and notes what each layer would keep."""

    def __init__(self, facts: _Facts) -> None:
        super().__init__(layers=[])
        self.facts = facts

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.facts.tails[layer_idx] = tuple((x.shape[1], x.shape[3]) for x in (key_states, value_states))  # type: ignore[assignment]
        return key_states, value_states


class _Slots(TransformersCache):
    """One forward's view of our cache: layers write their cells' slots and read rows and span; nothing is moved."""

    def __init__(self, batch: Batch, cache: Cache, planes: dict[int, int]) -> None:
        super().__init__(layers=[])
        self.batch, self.cache, self.planes = batch, cache, planes

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        plane, batch = self.planes[layer_idx], self.batch
        for offset, states in enumerate((key_states, value_states)):  # [B, heads, Q, head_dim]
            self.cache.write(plane + offset, batch.rows, batch.slots, states.transpose(1, 2))
        keys, values = (self.cache.read(plane + offset, batch.rows, batch.span) for offset in range(2))
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.batch.span - self.batch.tokens.shape[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.batch.span, 0


class HuggingFaceModel:
    """A transformers model in evaluation mode, as it is: same object, same weights, same forward.

    On the first wrapping a tree, a padded batch and reused slots are checked against plain forwards of each path; a
    model that fails (positions bound to the order of slots, such as ALiBi) is refused with a ModelError.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.kind = str(getattr(model.config, "model_type", "") or type(model).__name__)
        self.tokenizer = None if tokenizer is None else wrap_tokenizer(tokenizer)
        _refuse_unfit(model, self.kind)
        self._attention = _layer_types(config, self.kind)
        self._windowed = any(kind.reach for kind in self._attention)
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.n_layers = int(config.num_hidden_layers)
        self.context = _context(config)
        state = (config._attn_implementation, model.dtype, model.device)
        known = _CHECKED.get(model)
        if known is not None and known[0] == state:
            self._learn(known[1])
            return
        try:
            self._learn(self._probe())
            error = self._error()
        except ModelError:
            raise
        except Exception as problem:  # whatever foreign code does when it is handed a mask or a cache
            raise ModelError(
                f"model type {self.kind!r} cannot be driven through masks and slots "
                f"({type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else 'no message'}); "
                "use a model with rotary or learned positions and plain attention"
            ) from problem
        limit = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.15  # half precision rounds logits
        if not error <= limit:  # not a number is no parity either
            raise ModelError(
                f"model type {self.kind!r} gives other logits for a token tree than for its paths (off by {error:.1e} "
                "of their spread), as ALiBi and other models whose positions follow the order of slots do; "
                "use a model with rotary or learned positions"
            )
        _CHECKED[model] = (state, self._facts)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids that end a text, by the model's generation config."""
        ids = getattr(self.model.generation_config, "eos_token_id", None)
        return frozenset() if ids is None else frozenset(ids if isinstance(ids, list) else [ids])

    def cells(self, count: int) -> int:
        return count

    def new_cache(self, rows: int, capacity: int) -> Cache:
        """Keys and values of each layer; where layers have windows, the position of each slot as the last plane."""
        tails = [tail for pair in self._facts.tails.values() for tail in pair]
        cache = Cache(tails, self.dtype, self.device, rows, capacity)
        if self._windowed:
            cache.add((1, 1), torch.int64)
        return cache

    @torch.no_grad()
    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        if batch.start > 0 or (batch.stop is not None and batch.stop < self.n_layers):
            raise ModelError(
                f"a model that runs through transformers ({self.kind}) computes all of its layers at once; methods "
                "that need layer ranges (early exit) need a family of draftwood's own decoder"
            )
        if self.model.training:
            raise ModelError("the transformers model is in training mode; call model.eval() before decoding")
        if self._windowed:
            cache.write(-1, batch.rows, batch.slots, batch.positions[:, :, None, None])
        if batch.states:
            raise ModelError(
                f"a model that runs through transformers ({self.kind}) does not show its last hidden states; methods "
                "that read them (decision models of kind hidden, Medusa) need a family of draftwood's own decoder"
            )
        options: dict[str, Any] = {}
        width, wanted = batch.tokens.shape[1], batch.wanted
        if isinstance(wanted, slice) and wanted.start:
            wanted = torch.arange(batch.tokens.numel(), device=self.device)[wanted]
        if self._selects and isinstance(wanted, Tensor):  # the head is computed for the asked columns only
            columns, place = torch.unique(wanted % width, return_inverse=True)
            wanted = torch.div(wanted, width, rounding_mode="floor") * len(columns) + place
            options["logits_to_keep"] = columns
        logits = self.model(
            input_ids=batch.tokens,
            position_ids=batch.positions,  # left out, they would follow the order of slots
            attention_mask=self._masks(batch, cache),
            past_key_values=_Slots(batch, cache, self._planes),
            use_cache=True,
            return_dict=True,
            **options,
        ).logits.flatten(0, 1)
        out: Tensor = logits[wanted]
        return out if out.dtype == torch.float64 else out.float()

    def _masks(self, batch: Batch, cache: Cache) -> Tensor | dict[str, Tensor]:
        """Additive float masks [B, 1, Q, span], one per layer type: eager attention would misread booleans."""
        shape = (*batch.tokens.shape, batch.span)
        seen = torch.ones(shape, dtype=torch.bool, device=self.device) if batch.mask is None else batch.mask
        places = cache.read(-1, batch.rows, batch.span)[:, 0, :, 0] if self._windowed else batch.positions
        masks = {}
        for kind in self._attention:
            near = kind.sees(batch.positions, places)
            visible = seen if near is None else seen & near
            mask = torch.zeros(shape, dtype=self.dtype, device=self.device)
            masks[kind.kind] = mask.masked_fill_(~visible, torch.finfo(self.dtype).min)[:, None]
        return masks if len(masks) > 1 else masks[self._attention[0].kind]

    def _learn(self, facts: _Facts) -> None:
        self._facts = facts
        self.vocab_size = facts.vocab_size
        self._planes = {layer: 2 * i for i, layer in enumerate(facts.tails)}

    def _probe(self) -> _Facts:
        """A first forward of two tokens, for the shapes."""
        facts = _Facts()
        tokens = torch.tensor([[0, 1]], device=self.device)
        causal = torch.ones(1, 2, 2, device=self.device).tril() > 0
        batch = Batch(tokens, tokens, tokens, slice(0, 1), 2, causal, slice(None))
        cache = Cache([(1, 1)], torch.int64, self.device, 1, 4)
        with torch.no_grad():
            out = self.model(
                input_ids=tokens,
                position_ids=tokens,
                attention_mask=self._masks(batch, cache),
                past_key_values=_Recorder(facts),
                use_cache=True,
                return_dict=True,
            )
        facts.vocab_size = out.logits.shape[-1]
        if not facts.tails:
            raise ModelError(
                f"model type {self.kind!r} keeps no keys and values of its layers, so drafts cannot be taken back; "
                "use an attention model"
            )
        return facts

    def _error(self) -> float:
        """Largest difference from plain forwards, as a part of the logits' spread: padded prompts, a tree, a reuse."""
        length = 6
        for kind in self._attention:
            if kind.reach <= LONGEST_CHECK:
                length = max(length, kind.reach + 3)
        length = min(length, self.context - 4)
        if length < 3:
            raise ModelError(f"model type {self.kind!r} has a context of {self.context} tokens, which is too short")
        cache = self.new_cache(2, length + 8)
        generator = torch.Generator().manual_seed(0)
        draws = torch.randint(self.vocab_size, (2, length + 6), generator=generator).tolist()
        first, second = draws[0][:length], draws[1][: length - 2]
        a, b, c, d, e, f = draws[0][length:]
        errors = []

        def compare(got: Tensor, path: Sequence[int]) -> None:
            """The last len(got) logits of a path."""
            expected = self._plain(path)[-len(got) :]
            spread = float(expected.std(-1).mean()) + 1e-30
            errors.append(float((got.to(expected.dtype) - expected).abs().max()) / spread)

        scratch = cache.capacity - 1
        whole = list(range(length))
        causal = torch.ones(2, length, length).tril() > 0
        places, slots = [whole, [*whole[:-2], 0, 0]], [whole, [*whole[:-2], scratch, scratch]]
        out = self._run(cache, [first, [*second, 0, 0]], places, slots, causal)
        compare(out[:length], first)
        compare(out[length : 2 * length - 2], second)
        # two branches of two tokens, siblings in the wrong order of slots, beside a row that waits
        n = length
        tree = torch.zeros(2, 4, n + 4) > 0
        tree[0, :, :n] = True
        for cell, seen in enumerate(([n + 1], [n], [n + 1, n + 3], [n, n + 2])):
            tree[0, cell, seen] = True
        tree[1, :, 0] = True
        places, slots = [[n, n, n + 1, n + 1], [0] * 4], [[n + 1, n, n + 3, n + 2], [scratch] * 4]
        out = self._run(cache, [[a, b, c, d], [0] * 4], places, slots, tree)
        compare(out[[0, 2]], [*first, a, c])
        compare(out[[1, 3]], [*first, b, d])
        # b and d died: their slots hold what follows a and c now, asked for by number
        later = torch.zeros(1, 2, n + 4) > 0
        later[0, :, [*range(n), n + 1, n + 3, n]] = True
        later[0, 1, n + 2] = True
        out = self._run(cache, [[e, f]], [[n + 2, n + 3]], [[n, n + 2]], later, wanted=[1])
        compare(out, [*first, a, c, e, f])
        out = self._run(cache, [[e]], [[n - 2]], [[n - 2]], None, row=1, span=n - 1)
        compare(out, [*second, e])
        return float(torch.tensor(errors).max())  # not a number if any is

    def _run(
        self,
        cache: Cache,
        tokens: list[list[int]],
        positions: list[list[int]],
        slots: list[list[int]],
        mask: Tensor | None,
        row: int = 0,
        span: int = 0,
        wanted: list[int] | None = None,
    ) -> Tensor:
        """A forward of the self-check; slots are counted within each row."""
        table = torch.tensor([tokens, positions, slots], device=self.device)
        batch = Batch(
            table[0],
            table[1],
            table[2],
            slice(row, row + len(tokens)),
            span if mask is None else mask.shape[-1],
            None if mask is None else mask.to(self.device),
            slice(None) if wanted is None else torch.tensor(wanted, device=self.device),
        )
        return self.forward(batch, cache)

    @torch.no_grad()
    def _plain(self, path: Sequence[int]) -> Tensor:
        """Logits [n, V] of a sequence without cache and mask, as transformers computes them."""
        tokens = torch.tensor([list(path)], device=self.device)
        logits: Tensor = self.model(input_ids=tokens, use_cache=False, return_dict=True).logits[0]
        return logits if logits.dtype == torch.float64 else logits.float()


def _refuse_unfit(model: PreTrainedModel, kind: str) -> None:
    """Models that cannot work, each with its sentence."""
    if model.training:
        raise ModelError("the transformers model is in training mode; call model.eval() before loading it")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"model type {kind!r} is an encoder-decoder; give a causal language model")
    used = model.config.get_text_config()._attn_implementation
    if used not in ATTENTION:
        raise ModelError(
            f"attention implementation {used!r} cannot take a token tree as a mask; "
            "load the model with attn_implementation='sdpa' or 'eager'"
        )
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ModelError(
            f"model type {kind!r} takes no position_ids, so branches of a token tree cannot share positions; "
            "use a model with rotary or learned positions"
        )
    if len({parameter.device for parameter in model.parameters()}) > 1:
        raise ModelError("the transformers model is spread over several devices; load it on one")


def _layer_types(config: Any, kind: str) -> list[_Attention]:
    """The layer types that need masks of their own, by the rules of transformers' create_masks_for_generate."""
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    reaches = {"full_attention": 0, "sliding_attention": window, "chunked_attention": chunk}
    types = getattr(config, "layer_types", None)
    if types is None:
        types = ["sliding_attention" if window else "chunked_attention" if chunk else "full_attention"]
    found = []
    for name in sorted(set(types)):
        reach = reaches.get(name)
        if reach is None:
            raise ModelError(
                f"model type {kind!r} has layers of type {name!r}, whose memory cannot branch into a token tree; "
                "use a model with full, sliding or chunked attention"
            )
        found.append(_Attention(name, int(reach)))
    return found


def _context(config: Any) -> int:
    """Positions that a model can take."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    limit = int(next((value for name in names if (value := getattr(config, name, None))), UNBOUNDED))
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == SHIFTING_ROPE:  # keys from before the change would be wrong after it
        limit = min(limit, int(rope.get("original_max_position_embeddings") or limit))
    return limit


def wrap_tokenizer(tokenizer: Any) -> Tokenizer:
    """The tokenizer that a transformers tokenizer of the fast kind holds."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{type(tokenizer).__name__} is not a fast tokenizer of transformers; give one with a tokenizer.json"
        )
    copy = type(backend).from_str(backend.to_str())  # limits set here must not reach the user's object
    copy.no_truncation()
    copy.no_padding()
    settings = {**tokenizer.special_tokens_map, "chat_template": tokenizer.chat_template}
    return Tokenizer(copy, str(getattr(tokenizer, "name_or_path", "")), settings)


def load(
    source: str | Path, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu"
) -> HuggingFaceModel:
    """Any causal model from a directory or hub id by AutoModelForCausalLM: safetensors only, no code of its own."""
    directory = checkpoint.locate(source)
    wanted = "auto" if dtype == "auto" else checkpoint.DTYPES.get(str(dtype).removeprefix("torch."))
    if wanted is None:
        known = [*checkpoint.DTYPES, "auto"]
        raise ModelError(f"dtype {str(dtype)!r} is not supported" + did_you_mean(str(dtype), known))
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=wanted, use_safetensors=True, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # transformers raises many kinds; the sentence is the same
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"{source}: transformers cannot load it as a causal model ({reason[0] if reason else type(error).__name__})"
        ) from error
    return HuggingFaceModel(model.to(device).eval().requires_grad_(False))
