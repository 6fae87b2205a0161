"""Loads models and tokenizers, from checkpoints, the hub or objects, and makes an engine of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import torch

from draftwood.engine.calibration import NO_CALIBRATION, Int4Calibration, timed
from draftwood.engine.draft_sources import (
    THROUGH_TRANSFORMERS,
    check_own_options,
    draft_sources,
    head_kind,
    left_alone,
    vocabulary_map,
)
from draftwood.engine.engine import Engine
from draftwood.engine.request_parser import check_int
from draftwood.errors import ConfigurationError, ModelError, did_you_mean
from draftwood.models import int4
from draftwood.models.backend.matrix import NOT_QUANTISED, QUANTISATIONS, holder
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints.generation_config import sampling_defaults
from draftwood.models.compiled import Compiled
from draftwood.models.decoder import Decoder
from draftwood.models.delegate import undelegated
from draftwood.models.heads import assistant, dflash, eagle, foreign_heads, medusa, pruned
from draftwood.models.other_device import OnOtherDevice, checked_device
from draftwood.models.other_vocabulary import OtherVocabulary
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.models.text.vocabulary_map import VocabularyMap
from draftwood.util.safe_parsing import short_repr
from draftwood.util.type_names import DTYPE_ALIASES, QUANTIZE_ALIASES

ModelSource: TypeAlias = str | Path | CausalModel | Any  # Any: a transformers model object

log = logging.getLogger(__name__)

HEADS: dict[str, Any] = {
    **{"eagle": eagle, "medusa": medusa, "draft": pruned, "dflash": dflash},
    "assistant": assistant,
}
EMBEDDED = Path(str(files("draftwood") / "models" / "embedded"))


def load(
    target: ModelSource | None = None,
    draft: ModelSource | Sequence[ModelSource] | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    quantize: str | None = None,
    compile: bool = False,
    backend: str = "auto",
    tensor_parallel: int = 1,
    draft_device: str | torch.device | None = None,
    draft_dtype: str | torch.dtype | None = None,
    tokenizer: Tokenizer | str | Path | Any = None,
    kv_cache_bytes: int | None = None,
    max_running: int = 64,
    max_queued: int | None = None,
    reuse_prefixes: bool = True,
    load_aware: bool = False,
    progress: Callable[[str, float], None] = lambda what, share: None,
    kv_dtype: str = "auto",
    draft_quantize: str | None = None,
    calibration: str | Path | None = None,
    max_model_len: int | None = None,
) -> Engine:
    """An engine from checkpoint directories, hub ids, GGUF files or model objects.

    Without a target the embedded pair is loaded (its draft too, unless `draft` names another). Where no draft is named,
    the target's own layer of multi-token prediction drafts; else what is in the directory draft/ next to its weights is
    loaded, a lone GGUF file too; [] is none. A draft may be an EAGLE-3 or DFlash head in the format of `speculators` or
    of its authors, or Medusa heads, trained for the target. `device` defaults to CUDA where there is one. A draft with
    another tokenizer drafts what both vocabularies have, and is as exact; vocabularies may be padded differently. A
    source that begins with "hf:", and a transformers model object, run through transformers (extra hf), whose fast
    tokenizers are taken too.

    `engine.generation_config` is how the target's makers draw tokens, where its checkpoint says so; give it as
    `sampling` to follow it.

    `dtype` "auto" is the type that a checkpoint names, else the one that it is stored in. A GGUF file (extra gguf) is
    computed in its own bits, on a CPU with the native backend; else its quantised weights become bfloat16. What a CPU
    has no kernels for, such as float16, it computes in float32, exactly. On a CPU `quantize` holds weights in fewer
    bytes, which changes what the model says a little; methods stay exact to the model so changed: "int8", a quarter of
    float32's, or "int4", about a sixth (backend native; made once, in minutes for large models, and kept next to the
    checkpoint). There `backend` is "native" (one call of the package draftwood-native a forward, much faster),
    "pytorch", or "auto", the first where it is installed. `compile` runs forwards of few cells through torch.compile
    (backend pytorch), which takes a C++ compiler, and tens of seconds the first time on a machine.

    `tensor_parallel` processes share the target's layers and head, on GPUs one each, by the backend pytorch; drafts,
    exits and heads are in this process alone. `draft_device` is where draft models are, if not where the target is,
    and `draft_dtype` the type that they are computed in, if not `dtype`; what was trained for a target is where that
    is, in its type. `draft_quantize` is how draft models and trained heads (exit, EAGLE, Medusa) are held: "int8",
    "int4" (heads are rounded without calibration), "none", or None: draft models as the target, heads in int8 beside a
    target whose weights are quantised, or in int4 if they were trained for it.

    int4 is calibrated on `calibration`, a text file or a .jsonl file of texts, messages or tokens, of which the first
    4096 tokens count; by default on text that the model writes itself. Other text makes the weights again.

    Models take as many tokens as they were made for, or `max_model_len`, if that is fewer. Those with two sets of
    rotary factors (LongRoPE: Phi-3.5, Phi-4-mini) take the one for short texts where that is at most their original
    context.

    `kv_dtype` is what keys and values are stored in: float32, bfloat16, "int8" with a scale per position and head,
    which takes about half of bfloat16's memory, or "auto", the type that is computed in, but bfloat16 where weights are
    quantised.

    Requests share `kv_cache_bytes` of memory for keys and values (default: half of what is free) and the forwards, at
    most `max_running` at once; of those that come then at most `max_queued` wait (None: any number). Where a prompt
    begins as another one did, what was computed is taken again unless `reuse_prefixes` is False.
    `progress` is told what is done, such as "loading NAME", and which share of it was done since it was told last.
    With `load_aware` depth=auto follows the load where that changes a sampled text under its seed, too.
    """
    place = checked_device(device)
    dtype, draft_dtype = DTYPE_ALIASES.get(str(dtype), dtype), DTYPE_ALIASES.get(str(draft_dtype), draft_dtype)
    quantize, draft_quantize = (QUANTIZE_ALIASES.get(str(one), one) for one in (quantize, draft_quantize))
    if target is None:
        target = EMBEDDED / "target"
        draft = EMBEDDED / "draft" if draft is None else draft
    words = Tokenizer.load(Path(tokenizer)) if isinstance(tokenizer, str | Path) else tokenizer
    if words is not None and not isinstance(words, Tokenizer):
        words = _adapter().wrap_tokenizer(words)
    limit = None if max_model_len is None else check_int("max_model_len", max_model_len, 1)
    how = _How(dtype, place, quantize, compile, backend, progress, kv_dtype, limit)
    split = replace(how, processes=check_int("tensor_parallel", tensor_parallel, 1))
    how = _of_drafts(how, draft_device, draft_dtype, draft_quantize)
    if calibration is not None and "int4" not in (split.quantize, how.quantize):
        raise ConfigurationError("calibration is text for quantize int4; give that too, or leave it out")
    home, known = _checked(target, split), tokenizer is None  # all that can be refused without weights is, first
    made = _model(target, None, split) if home is None else None
    words = words or (getattr(made, "tokenizer", None) if home is None else Tokenizer.load(home, _name(target)))
    text = Int4Calibration.read(calibration, words)
    how, split = replace(how, calibration=text), replace(split, calibration=text)
    sources, beside = draft_sources(target, draft, split.processes)
    drafts: list[_Draft] = []
    with left_alone(sources, beside):
        drafts = [_Draft.of(source, how, words, home if known else None) for source in sources]
    of_drafts = {"draft_device": None if draft_device is None else how.device, "draft_dtype": draft_dtype}
    check_own_options(of_drafts, [(draft.source, draft.kind) for draft in drafts])
    model = _model(target, home, split) if made is None else made
    end = getattr(model, "end_tokens", frozenset()) if home is None else checkpoint.end_tokens(home)
    end |= frozenset() if words is None else words.end_tokens
    if isinstance(model, Decoder):
        model.draft_quantize = draft_quantize
    models: list[CausalModel] = []
    with left_alone(sources, beside):
        models += [draft.load(how, model) for draft in drafts]
    drafts, of_drafts = drafts[: len(models)], {**of_drafts, "draft_quantize": draft_quantize}
    names = _names(target, home, model, drafts, models, split, of_drafts)
    log.info("loaded %s with %s on %s", names["target"], names["draft"] or "no draft", place)
    runtime = kv_cache_bytes, max_running, max_queued, reuse_prefixes, load_aware
    recommended = {} if home is None else sampling_defaults(home)
    return Engine(model, models, words, end, names, *runtime, recommended)


def _names(
    target: ModelSource,
    home: Path | None,
    model: CausalModel,
    drafts: Sequence[_Draft],
    models: Sequence[CausalModel],
    how: _How,
    of_drafts: Mapping[str, object],
) -> dict[str, Any]:
    """The facts about loaded models that results name: what they are, and how they are computed.

    `home` and `how` are the target's, `of_drafts` the options that drafts alone were given; None: they follow it.
    """
    computed = str(getattr(model, "dtype", how.dtype)).removeprefix("torch.")
    used = ", ".join(model.kinds_of_weights) if isinstance(model, Decoder) and model.own_bits else computed
    names: dict[str, Any] = {"target": _name(target), "draft": [_name(draft.source) for draft in drafts], "dtype": used}
    names |= {"quantize": how.quantize} if how.quantize else {}
    names |= {"kv_dtype": str(getattr(model, "kv_dtype", None) or computed).removeprefix("torch.")}
    names |= {"compiled": True} if how.compile else {}
    names |= {"backend": "native" if getattr(model, "native", False) else "pytorch"}
    names |= {"tensor_parallel": how.processes} if how.processes > 1 else {}
    names |= {name: str(value).removeprefix("torch.") for name, value in of_drafts.items() if value is not None}
    overlaps = [None if draft.tokens is None else draft.tokens.overlap for draft in drafts]
    names |= {"shared_vocabulary": overlaps} if any(overlaps) else {}
    places = [home, *(draft.place for draft in drafts)]
    own_bits = [isinstance(each, Decoder) and each.own_bits for each in map(undelegated, (model, *models))]
    grown = [None if place is None else checkpoint.grown_from(place) for place in places]
    widened = [
        None if place is None or own else checkpoint.dequantised_from(place)
        for place, own in zip(places, own_bits, strict=True)
    ]
    for key, origins in (("grown", grown), ("dequantised", widened)):
        names |= {key: {"target": origins[0], "draft": origins[1:]}} if any(origins) else {}
    return names


def _of_drafts(
    how: _How, device: str | torch.device | None, dtype: str | torch.dtype | None, quantize: str | None
) -> _How:
    """How draft models are to be loaded where they are not to follow the target."""
    if device is not None:
        how = replace(how, device=checked_device(device, "draft_device"))
    if dtype is not None:
        how = replace(how, dtype=dtype)
    if quantize is None:
        return how
    if quantize not in (choices := (*QUANTISATIONS, NOT_QUANTISED)):
        raise ConfigurationError(
            f"draft_quantize {short_repr(quantize)} is not known{did_you_mean(str(quantize), choices)}; "
            "use int8, int4 or none"
        )
    if quantize == NOT_QUANTISED:
        return replace(how, quantize=None)
    if how.compile:
        raise ConfigurationError("compiled draft models are not quantised; leave out draft_quantize or compile")
    dtype = checkpoint.DTYPES.get(str(how.dtype).removeprefix("torch."), torch.float32)
    holder(dtype, how.device, quantize, how.backend, "draft_quantize")  # or it is refused
    return replace(how, quantize=quantize)


@dataclass(frozen=True, slots=True)
class _How:
    """How checkpoints are to be loaded."""

    dtype: str | torch.dtype
    device: torch.device
    quantize: str | None
    compile: bool
    backend: str
    progress: Callable[[str, float], None]
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    processes: int = 1
    calibration: Int4Calibration = NO_CALIBRATION


@dataclass(frozen=True, slots=True)
class _Draft:
    """A draft model or head that is to be loaded, checked as far as that takes no weights."""

    source: ModelSource
    kind: str | None  # of head, a key of HEADS; None: a model
    place: Path | None  # its checkpoint; None: an object, or a head
    tokens: VocabularyMap | None  # from the target's tokens to its own, where they differ

    @classmethod
    def of(cls, source: ModelSource, how: _How, words: Tokenizer | None, home: Path | None) -> _Draft:
        """Check a source; `words` is the target's tokenizer, and `home` the checkpoint that it was read from."""
        kind = head_kind(source)
        place = _checked(source, how) if kind is None else None
        return cls(source, kind, place, None if words is None else vocabulary_map(words, home, place))

    def load(self, how: _How, target: CausalModel) -> CausalModel:
        """The model, where it is and in the tokens that the target needs."""
        if self.tokens is not None:
            how = replace(how, calibration=how.calibration.of_draft(self.tokens))
        if self.kind is None:
            model = _model(self.source, self.place, how)
        else:
            model = HEADS[self.kind].load(checkpoint.locate(str(self.source)), target)
        if model.device != target.device:
            model = OnOtherDevice(model, target.device)
        if self.tokens is not None:
            model = OtherVocabulary(model, self.tokens.within(target.vocab_size, model.vocab_size))
            log.info("draft %s has another tokenizer; both have %s", _name(self.source), self.tokens.overlap)
        return model


def _checked(source: ModelSource, how: _How) -> Path | None:
    """The directory or file that a model is to be loaded from, checked as far as that takes no weights; None: objects.

    Raises ConfigurationError for options that do not go together, ModelError for what cannot be loaded.
    """
    own = isinstance(source, str | Path) and not str(source).startswith(THROUGH_TRANSFORMERS)
    requested: dict[str, Any] = {"quantize": how.quantize, "compile": how.compile, "tensor_parallel": how.processes > 1}
    requested |= {"kv_dtype": how.kv_dtype != "auto", "backend native": how.backend == "native"}
    requested["max_model_len"] = how.max_model_len is not None
    if not own and any(requested.values()):
        option = next(name for name, wanted in requested.items() if wanted)
        raise ConfigurationError(
            f"{option} is for checkpoints that draftwood's own decoder loads, not for {_name(source)}; leave it out"
        )
    if how.compile and how.device.type != "cpu":
        raise ConfigurationError(f"compile is for the CPU, not for device {how.device}; leave it out")
    if how.compile and how.backend == "native":
        raise ConfigurationError("compile is for the backend pytorch, and native needs none; leave out one of both")
    if how.kv_dtype != "auto" and how.compile:
        raise ConfigurationError("compiled forwards keep keys and values in their dtype; leave out kv_dtype or compile")
    if how.quantize and how.compile:
        raise ConfigurationError("a model is either quantised or compiled; leave out quantize or compile")
    if how.processes > 1 and (how.compile or how.backend == "native"):
        option = "compile" if how.compile else "backend native"
        raise ConfigurationError(f"{option} is for one process; leave it, or tensor_parallel, out")
    if not isinstance(source, str | Path):
        return None
    if own:
        directory = checkpoint.locate(source)
        if foreign_heads.kind_of(directory) is not None:
            raise ConfigurationError(
                f"{_name(source)} drafts for another model; give it as the draft, and that model as the target"
            )
        stored = how.backend, how.kv_dtype, how.max_model_len
        checkpoint.check(directory, how.dtype, how.device, how.quantize, not how.compile, *stored)
        return directory
    _adapter()
    return checkpoint.locate(str(source).removeprefix(THROUGH_TRANSFORMERS))


def _model(source: ModelSource, directory: Path | None, how: _How) -> CausalModel:
    """A model from where `_checked` has found it, or of an object."""
    name = Path(_name(source)).name
    loading = partial(how.progress, f"loading {name}")
    loading(0)
    if directory is not None and str(source).startswith(THROUGH_TRANSFORMERS):
        loaded: CausalModel = _adapter().load(directory, how.dtype, how.device)
        return loaded
    if directory is not None:
        if how.processes > 1:
            from draftwood.models.parallel import launch  # slow to import

            stored = how.quantize, how.kv_dtype, how.max_model_len
            return launch.load(str(source), how.processes, how.dtype, how.device, *stored)
        grouped = None
        if how.quantize == "int4":
            holder(checkpoint.DTYPES["float32"], how.device, how.quantize, how.backend)  # or it is refused
            text = how.calibration.text(directory, name, directory.parent == EMBEDDED, how.progress)
            grouped = int4.cached(directory, text, timed(name, how.progress))
        options: dict[str, Any] = {"packed": not how.compile, "backend": how.backend, "kv_dtype": how.kv_dtype}
        options |= {"grouped": grouped, "advance": loading, "max_model_len": how.max_model_len}
        decoder = checkpoint.load(directory, how.dtype, how.device, how.quantize, **options)
        return Compiled(decoder) if how.compile else decoder
    if any(base.__name__ == "PreTrainedModel" for base in type(source).__mro__):  # without importing transformers
        wrapped: CausalModel = _adapter().HuggingFaceModel(source)
        return wrapped
    if not isinstance(source, CausalModel):
        raise ModelError(f"{type(source).__name__} is not a model: see draftwood.models.base.CausalModel")
    return source


def _adapter() -> Any:
    """models/hf.py, imported when a transformers object or source is given."""
    try:
        return import_module("draftwood.models.hf")
    except ImportError as error:
        raise ConfigurationError(f"{error}; a model of transformers needs the extra draftwood[hf]") from error


def _name(source: ModelSource) -> str:
    if isinstance(source, str | Path):
        return "embedded" if Path(source).parent == EMBEDDED else str(source)
    return type(source).__name__
