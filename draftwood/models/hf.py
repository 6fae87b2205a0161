"""Any causal language model of Hugging Face transformers, through its own forward, as a CausalModel.

Each model is checked once: what cannot see a tree through a mask is refused. There are no layer ranges. Requests
share a forward, save those of models that do not look their attention function up in transformers' table. Nothing but
this and `groupwise` imports transformers (extra hf); no code from a checkpoint runs and nothing is unpickled.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from draftwood.errors import ModelError, did_you_mean
from draftwood.models.backend.matrix import computed
from draftwood.models.base import Batch, Segment
from draftwood.models.cache import Cache, Plane
from draftwood.models.checkpoints import checkpoint
from draftwood.models.extents import Extent
from draftwood.models.flat import written_rows
from draftwood.models.groupwise import ATTENTION_NAMES, AttentionReach, CacheRecorder, ForwardCache, grouped, groupwise
from draftwood.models.memory_budget import MemoryBudget
from draftwood.models.text.tokenizer import Tokenizer

UNBOUNDED_CONTEXT = 1 << 20  # context of a model that names no limit
LONGEST_CHECK = 128  # windows up to this length are crossed by the self-check
SHIFTING_ROPE_TYPE = "longrope"  # frequencies change at once for all positions past the original context


@dataclass
class _Facts:
    """Facts that the first forwards of a model showed, and the lock for its attention function."""

    tails: dict[int, list[tuple[int, int]]]  # (heads, width) of a layer's keys, of its values
    vocab_size: int
    together: bool = True  # whether groups of requests can share a forward
    lock: Lock = field(default_factory=Lock)


class _Rows(NamedTuple):
    """The rows of one request in the self-check."""

    extent: Extent
    tokens: list[int]
    positions: list[int]
    slots: list[int]
    seen: list[list[int]]  # the slots that each row sees beside its own


_CHECKED: WeakKeyDictionary[PreTrainedModel, tuple[object, _Facts]] = WeakKeyDictionary()  # a check is made once


class HuggingFaceModel:
    """A transformers model in evaluation mode, as it is: same object, same weights, same forward.

    On the first wrapping a tree, a batch and reused slots are checked against plain forwards of each path; a model that
    fails (positions bound to the order of slots, such as ALiBi) is refused with a ModelError.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.kind = str(getattr(model.config, "model_type", "") or type(model).__name__)
        self.tokenizer = None if tokenizer is None else wrap_tokenizer(tokenizer)
        _check_fit(model, self.kind)
        self._attention = _layer_types(config, self.kind)
        self._types = (getattr(config, "layer_types", None) if len(self._attention) > 1 else None) or [
            self._attention[0].kind
        ]
        self._windowed = any(kind.reach for kind in self._attention)
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._takes_cache = cache_name(model)
        self.n_layers = int(config.num_hidden_layers)
        self.context = _context(config)
        state = (config._attn_implementation, model.dtype, model.device)
        known = _CHECKED.get(model)
        if known is not None and known[0] == state:
            self._learn(known[1])
            return
        limit = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.15  # half precision rounds logits
        try:
            self._learn(self._probe())
            if not self._works(limit):
                self._facts.together = False
            error = self._error()
        except ModelError:
            raise
        except Exception as problem:  # whatever foreign code does when it is handed a mask or a cache
            raise ModelError(
                f"model type {self.kind!r} cannot be driven through masks and slots "
                f"({type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else 'no message'}); "
                "use a model with rotary or learned positions and plain attention"
            ) from problem
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

    def padded_rows(self, count: int) -> int:
        return count

    def new_cache(self, slots: int = 0, budget: MemoryBudget | None = None) -> Cache:
        """Keys and values of each layer; where layers have windows, the position of each slot as the last plane."""
        planes: list[Plane] = [(*tail, self.dtype) for pair in self._facts.tails.values() for tail in pair]
        if self._windowed:
            planes.append((1, 1, torch.int64))
        return Cache(planes, self.device, slots, budget)

    @torch.no_grad()
    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        if batch.start > 0 or (batch.stop is not None and batch.stop < self.n_layers):
            raise ModelError(
                f"a model that runs through transformers ({self.kind}) computes all of its layers at once; methods "
                "that need layer ranges (early exit) need a family of draftwood's own decoder"
            )
        if self.model.training:
            raise ModelError("the transformers model is in training mode; call model.eval() before decoding")
        if batch.states or batch.reads:
            raise ModelError(
                f"a model that runs through transformers ({self.kind}) does not show its last hidden states; methods "
                "that read them (decision models of kind hidden, Medusa) need a family of draftwood's own decoder"
            )
        if self._windowed:
            cache.planes[-1].index_copy_(0, written_rows(batch, cache, 1), batch.positions[:, None])
        written = {heads: written_rows(batch, cache, heads) for heads in {heads for heads, _, _ in cache.layout}}
        groups = grouped(batch, cache, self._attention, self.dtype)
        wanted = torch.arange(len(batch.tokens), device=self.device)[batch.wanted]
        if self._facts.together or len(groups) == 1:
            return self._logits(batch, ForwardCache(cache, self._planes, self._types, groups), written, wanted)
        logits = torch.empty(len(wanted), self.vocab_size if batch.head else 0, device=self.device)
        for group in groups:
            mine = (wanted >= group.rows.start) & (wanted < group.rows.stop)
            part = ForwardCache(cache, self._planes, self._types, [group])
            logits[mine] = self._logits(batch, part, written, wanted[mine] - group.rows.start)
        return logits

    def _logits(self, batch: Batch, forward: ForwardCache, written: dict[int, Tensor], wanted: Tensor) -> Tensor:
        """Run the rows of some groups: logits [n, V] of those wanted, counted from the first; [n, 0] without head."""
        rows, groups, count = forward.rows, forward.groups, 1
        forward.index = {heads: index[rows.start * heads : rows.stop * heads] for heads, index in written.items()}
        if len(groups) == 1:
            count, masks = groups[0].count, groups[0].masks
        else:  # never read: attention is called with the masks of the groups
            nothing = torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.device)
            masks = dict.fromkeys(groups[0].masks, nothing.expand(1, 1, rows.stop - rows.start, rows.stop - rows.start))
        options: dict[str, Any] = {}
        kept = wanted if batch.head else wanted[:0]
        if self._selects and count == 1 and len(kept) < rows.stop - rows.start:
            options["logits_to_keep"], kept = kept, torch.arange(len(kept), device=self.device)
        inputs = {
            "input_ids": batch.tokens[rows].view(count, -1),
            "position_ids": batch.positions[rows].view(count, -1),  # left out, they would follow the order of slots
            "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
            self._takes_cache: forward,
            "use_cache": True,
            "return_dict": True,
            **options,
        }
        if len(groups) == 1:
            out = self.model(**inputs).logits
        else:
            with self._facts.lock, groupwise(self.model.config.get_text_config(), forward):
                out = self.model(**inputs).logits
        if not batch.head:
            return torch.empty(len(wanted), 0, device=self.device)
        logits: Tensor = out.flatten(0, 1)[kept]
        return logits if logits.dtype == torch.float64 else logits.float()

    def _learn(self, facts: _Facts) -> None:
        self._facts = facts
        self.vocab_size = facts.vocab_size
        self._planes = {layer: 2 * i for i, layer in enumerate(facts.tails)}

    def _probe(self) -> _Facts:
        """A first forward of two tokens, for the shapes."""
        recorder = CacheRecorder()
        tokens = torch.tensor([[0, 1]], device=self.device)
        with torch.no_grad():
            out = self.model(
                input_ids=tokens,
                position_ids=tokens,
                use_cache=True,
                return_dict=True,
                **{self._takes_cache: recorder},
            )
        if not recorder.tails:
            raise ModelError(
                f"model type {self.kind!r} keeps no keys and values of its layers, so drafts cannot be taken back; "
                "use an attention model"
            )
        return _Facts(recorder.tails, out.logits.shape[-1])

    def _works(self, limit: float) -> bool:
        """True if several groups of requests can share a forward, found by trying."""
        try:
            return self._error() <= limit
        except ModelError:
            raise
        except Exception:  # foreign code again: the next try tells
            return False

    def _error(self) -> float:
        """Largest difference from plain forwards, as a part of the logits' spread: prompts, tree, reuse, batch."""
        length = 6
        for kind in self._attention:
            if kind.reach <= LONGEST_CHECK:
                length = max(length, kind.reach + 3)
        n = length = min(length, self.context - 5)
        if length < 3:
            raise ModelError(f"model type {self.kind!r} has a context of {self.context} tokens, which is too short")
        cache = self.new_cache()
        one, two = (cache.lend(length + 8) for _ in range(2))
        generator = torch.Generator().manual_seed(0)
        draws = torch.randint(self.vocab_size, (2, length + 6), generator=generator).tolist()
        first, second = draws[0][:length], draws[1][: length - 2]
        a, b, c, d, e, f = draws[0][length:]
        errors = []

        def run(*requests: _Rows, wanted: Sequence[int] | slice = slice(None)) -> Tensor:
            segments = []
            for rows in requests:
                paths = [[*seen, slot] for seen, slot in zip(rows.seen, rows.slots, strict=True)]
                segments.append(Segment(rows.extent, rows.slots, array("i"), [0] * len(paths), paths))
            tokens = [token for rows in requests for token in rows.tokens]
            positions = [position for rows in requests for position in rows.positions]
            return self.forward(Batch.of(self, tokens, positions, segments, wanted), cache)

        def compare(got: Tensor, path: Sequence[int]) -> None:
            """The last len(got) logits of a path."""
            expected = self._plain(path)[-len(got) :]
            spread = float(expected.std(-1).mean()) + 1e-30
            errors.append(float((got.to(expected.dtype) - expected).abs().max()) / spread)

        all_slots = list(range(n))
        before = [all_slots[:i] for i in all_slots]
        out = run(
            _Rows(one, first, all_slots, all_slots, before),
            _Rows(two, second, all_slots[:-2], all_slots[:-2], before[:-2]),
        )
        compare(out[:n], first)
        compare(out[n:], second)
        # two branches of two tokens, siblings in the wrong order of slots, beside the next token of the other
        seen = [all_slots, all_slots, [*all_slots, n + 1], [*all_slots, n]]
        tree = _Rows(one, [a, b, c, d], [n, n, n + 1, n + 1], [n + 1, n, n + 3, n + 2], seen)
        out = run(tree, _Rows(two, [e], [n - 2], [n - 2], [all_slots[:-2]]))
        compare(out[[0, 2]], [*first, a, c])
        compare(out[[1, 3]], [*first, b, d])
        compare(out[4:], [*second, e])
        # b and d died: their slots hold what follows a and c now, asked for by number
        path = [*all_slots, n + 1, n + 3]
        out = run(_Rows(one, [e, f], [n + 2, n + 3], [n, n + 2], [path, [*path, n]]), wanted=[1])
        compare(out, [*first, a, c, e, f])
        last = _Rows(one, [b], [n + 4], [n + 4], [[*path, n, n + 2]])  # one row each, in one product
        out = run(last, _Rows(two, [f], [n - 1], [n - 1], [all_slots[:-1]]), wanted=[1, 0])
        compare(out[1:], [*first, a, c, e, f, b])
        compare(out[:1], [*second, e, f])
        return float(torch.tensor(errors).max())  # not a number if any is

    @torch.no_grad()
    def _plain(self, path: Sequence[int]) -> Tensor:
        """Logits [n, V] of a sequence without cache and mask, as transformers computes them."""
        tokens = torch.tensor([list(path)], device=self.device)
        logits: Tensor = self.model(input_ids=tokens, use_cache=False, return_dict=True).logits[0]
        return logits if logits.dtype == torch.float64 else logits.float()


def _check_fit(model: PreTrainedModel, kind: str) -> None:
    """Raise ModelError for models that cannot work, each with its reason."""
    if model.training:
        raise ModelError("the transformers model is in training mode; call model.eval() before loading it")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"model type {kind!r} is an encoder-decoder; give a causal language model")
    used = model.config.get_text_config()._attn_implementation
    if used not in ATTENTION_NAMES:
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


def can_run(raw: Mapping[str, Any]) -> bool:
    """True if transformers has a causal model for this config.json, as far as can be told without weights."""
    named = str(raw.get("architectures") or "CausalLM")
    try:
        config = AutoConfig.for_model(**raw)
        model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        _layer_types(config.get_text_config(), config.model_type)
    except Exception:  # an unknown type, or what its class refuses
        return False
    takes = inspect.signature(model.forward).parameters
    return "position_ids" in takes and any(word in named for word in ("CausalLM", "LMHead", "ConditionalGeneration"))


def cache_name(model: PreTrainedModel | type[PreTrainedModel]) -> str:
    """The name of the cache argument of a model's forward and generate, which transformers 5.24 renamed."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _layer_types(config: Any, kind: str) -> list[AttentionReach]:
    """The layer types that need masks of their own, by the rules of transformers' create_masks_for_generate."""
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    reaches = {"full_attention": 0, "sliding_attention": window, "chunked_attention": chunk}
    types = getattr(config, "layer_types", None)
    if types is None:
        types = ["sliding_attention" if window else "chunked_attention" if chunk else "full_attention"]
    reaches_of_types = []
    for name in sorted(set(types)):
        reach = reaches.get(name)
        if reach is None:
            raise ModelError(
                f"model type {kind!r} has layers of type {name!r}, whose memory cannot branch into a token tree; "
                "use a model with full, sliding or chunked attention"
            )
        reaches_of_types.append(AttentionReach(name, int(reach)))
    return reaches_of_types


def _context(config: Any) -> int:
    """Positions that a model can take."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    limit = int(next((value for name in names if (value := getattr(config, name, None))), UNBOUNDED_CONTEXT))
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == SHIFTING_ROPE_TYPE:  # keys from before the change would be wrong after it
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


def load(source: str | Path, dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu") -> HuggingFaceModel:
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
    if wanted == "auto":
        model.to(computed(model.dtype, torch.device(device), "pytorch"))
    return HuggingFaceModel(model.to(device).eval().requires_grad_(False))
