"""Loads decoders from Hugging Face directories, hub ids and GGUF files.

No code of a checkpoint is run and nothing is unpickled. Sizes in the configuration are compared with the files before
anything is allocated.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from draftwood.errors import ConfigurationError, ModelError, did_you_mean
from draftwood.models.backend.matrix import Holder, computed, holder
from draftwood.models.backend.native import NativeMatrix
from draftwood.models.checkpoints import gguf_tokenizer, mxfp4_weights
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families import wrappers
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.checkpoints.files import read_json
from draftwood.models.checkpoints.gguf_file import GGUF_SUFFIX, PLAIN_TYPES
from draftwood.models.checkpoints.gguf_parts import first_part
from draftwood.models.checkpoints.gguf_weights import GgufWeights
from draftwood.models.checkpoints.parameters import ParameterReader, pack_embeddings, sources_of
from draftwood.models.checkpoints.quantised_weights import QuantisedSafetensors, Scheme
from draftwood.models.checkpoints.safetensors_weights import Safetensors
from draftwood.models.checkpoints.stored import Tensors, as_stored, check_unread, experts_as_stored
from draftwood.models.checkpoints.tensor_names import EMBED_WEIGHT
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.kv_rows import kv_dtype_of
from draftwood.models.layers.layer import Layer
from draftwood.models.partition import UNSPLIT, Parallel
from draftwood.models.quantise import Grouped
from draftwood.util.native_library import unavailable
from draftwood.util.resident import give_back
from draftwood.util.safe_parsing import short_repr

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def locate(source: str | Path) -> Path:
    """A local checkpoint directory or GGUF file, or a hub id fetched into the hub's cache (no code, no pickles)."""
    text, path = str(source), Path(source).expanduser()
    if text and (path.is_dir() or (path.suffix == GGUF_SUFFIX and path.is_file())):
        return path
    if path.exists() or path.suffix == GGUF_SUFFIX or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text, re.ASCII):
        raise ModelError(f"{text[:500]} is not a checkpoint directory; {_instead(text, path)}")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                text,
                allow_patterns=["*.json", "*.jinja", "*.safetensors", "tokenizer.model"],
                ignore_patterns=["*/*", "consolidated*"],  # other formats of the same weights
            )
        )
    except Exception as error:  # the hub client raises many kinds; the sentence is the same
        raise ModelError(
            f"{source} is neither a directory here nor a model that the hub gives ({type(error).__name__}); "
            "check the path, or the hub id and the network"
        ) from error


def draft_beside(target: str | Path) -> Path | None:
    """The draft in the directory draft/ next to a target's weights: that directory, or the only GGUF model in it."""
    place = Path(target).expanduser()
    directory = (place if place.is_dir() else place.parent) / "draft"
    if not place.exists() or not directory.is_dir():
        return None
    if any((directory / name).is_file() for name in ("draft.safetensors", "config.json")):
        return directory
    models = [path for path in sorted(directory.glob(f"*{GGUF_SUFFIX}")) if first_part(path)]
    if len(models) > 1:
        log.warning("%s is left alone: it holds %d GGUF models; leave one, or name it as draft", directory, len(models))
    return models[0] if len(models) == 1 else None


def _instead(text: str, path: Path) -> str:
    """A suggestion for a source that is neither a directory, nor a GGUF file, nor a hub id."""
    if not text:
        return "give a directory, or the hub id of a model (owner/name)"
    if path.exists():
        return f"it is a file: give the directory that holds config.json and the weights, such as {path.parent}"
    if path.suffix != GGUF_SUFFIX and re.fullmatch(r"\w[\w.-]*", text, re.ASCII):
        return f"models of the hub have an owner: give owner/{text}, or a path (openai-community/gpt2 is GPT-2's id)"
    try:
        there = [each.name for each in path.parent.iterdir() if each.is_dir() or each.suffix == GGUF_SUFFIX]
    except OSError:
        return f"there is no {path.parent} either: check the path"
    similar = get_close_matches(path.name, there, 1)
    return f"did you mean {path.parent / similar[0]}?" if similar else "nothing is there: check the path"


def read_config(directory: Path) -> dict[str, Any]:
    """config.json as a dictionary."""
    path = directory / "config.json"
    if not path.is_file():
        if (directory / "adapter_config.json").is_file():
            raise ModelError(
                f"{directory} holds an adapter without its model; merge it into the model (merge_and_unload of peft)"
            )
        inside = sorted(each.parent.name for each in directory.glob("*/config.json"))
        instead = f"one of the directories in it ({', '.join(inside[:3])})" if inside else "a checkpoint directory"
        raise ModelError(f"{directory} has no config.json; give {instead}")
    return read_json(path)


def grown_from(place: Path) -> str | None:
    """For a grown checkpoint: layers x width of the model that was trained, such as "12x192"; else None."""
    origin = read_config(place).get("grown_from") if place.is_dir() else None
    while isinstance(origin, dict) and isinstance(origin.get("grown_from"), dict):  # grown more than once
        origin = origin["grown_from"]
    if not isinstance(origin, dict) or not {"layers", "width"} <= origin.keys():
        return None
    return f"{origin['layers']}x{origin['width']}"


def dequantised_from(place: Path) -> str | None:
    """The types of the weights, separated by commas, where a GGUF file has quantised ones; else None."""
    types = GgufWeights(place).types() if place.is_file() else []
    return None if set(types) <= PLAIN_TYPES.keys() else ", ".join(types)


def end_tokens(place: Path) -> frozenset[int]:
    """The ids of tokens that end a text: eos_token_id in generation_config.json, else config.json; or in GGUF."""
    if place.is_file():
        return gguf_tokenizer.end_tokens(place)
    for name in ("generation_config.json", "config.json"):
        path = place / name
        raw = read_json(path) if path.is_file() else {}
        told = (each.get("eos_token_id") for each in (raw, wrappers.text_part(raw)))
        ids = next((each for each in told if each is not None), None)
        if ids is not None:
            tokens = ids if isinstance(ids, list) else [ids]
            if not all(isinstance(token, int) for token in tokens):
                raise ModelError(f"{path}: eos_token_id is {short_repr(ids)}, but must be a token id or a list of them")
            return frozenset(tokens)
    return frozenset()


def load(
    source: str | Path,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    quantize: str | None = None,
    packed: bool = True,
    backend: str = "auto",
    grouped: Mapping[str, Grouped] | None = None,
    parallel: Parallel = UNSPLIT,
    advance: Callable[[float], None] = lambda share: None,
    kv_dtype: str = "auto",
    max_model_len: int | None = None,
) -> Decoder:
    """Load a decoder for inference from a directory, GGUF file or hub id, in the given dtype on the given device.

    dtype "auto" is the one that config.json names, else the one that the weights are stored in, or float32 where a CPU
    has no fast kernels for it (`matrix.computed`). On a CPU matrices are packed for a backend ("native", "pytorch";
    "auto": native where it is installed), or quantised ("int8"); `packed=False` keeps plain parameters, which can be
    trained, grown and saved. With "auto" the native kernels compute the matrices of a GGUF file in the file's own bits;
    else they are dequantised.

    `grouped`: quantised matrices, by the names of their modules, that replace those of the checkpoint. `parallel`: the
    part of a split model that this process has; nothing else is read. `advance` is called with the share of the weights
    that was read since its last call. `kv_dtype`: what keys and values are stored in, see `kv_rows.kv_dtype_of`.
    `max_model_len`: how many tokens it takes, see `Decoder.limit_context`.
    """
    if quantize == "int4" and grouped is None:
        raise ConfigurationError("quantize int4 takes matrices that were made before: use draftwood.load")
    home, place = locate(source), torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("device cuda is asked for, but PyTorch finds no CUDA device here; use device cpu")
    with ExitStack() as stack:
        tensors, raw, family, config = opened(home, stack)
        full_model = _outline(tensors, family, config)
        own_bits = parallel.size == 1 and _in_own_bits(tensors, dtype, place, quantize, packed, backend)
        wanted, hold = _storage(raw, tensors, dtype, place, quantize, packed, backend)
        if own_bits:
            wanted, hold = torch.float32, NativeMatrix  # of vectors, and of matrices that do not fit the kernels
        narrow = own_bits and tensors.dtype() != "float32"
        kept = kv_dtype_of(kv_dtype, wanted, "file" if narrow else quantize)
        tied = full_model.head.weight is full_model.embed.weight
        shapes = {name: parameter.shape for name, parameter in full_model.named_parameters()}  # a tied head has none
        model, total = full_model, sum(shape.numel() for shape in shapes.values())
        if parallel.size > 1:
            with torch.device("meta"):
                model = Decoder(config, parallel)
        model.limit_context(max_model_len)
        reader = ParameterReader(tensors, family, config, parallel, wanted, place, hold, own_bits, grouped or {})
        for name, shape in shapes.items():
            if not (name.endswith(".bias") and name.removesuffix("bias") + "weight" in shapes):  # put with its matrix
                reader.put(model, name, shape)
                give_back()
            advance(shape.numel() / total)
        if tied:
            reader.put_tied(model, shapes[EMBED_WEIGHT])
        pack_embeddings(model, tied)
    if family.other_parts is not None:
        log.warning("%s: the text part is loaded; images and sound are not read", home)
    file = tensors if isinstance(tensors, GgufWeights) else None
    model.home, model.source = home.parent if file else home, home
    model.kv_dtype, model.own_bits = kept, own_bits
    if file:
        types = ", ".join(model.kinds_of_weights) if own_bits else quantize or str(wanted)[6:]
        log.info("%s: weights of type %s are held as %s", home, ", ".join(file.types()), types)
    return model.eval()


def _in_own_bits(
    tensors: Tensors, dtype: str | torch.dtype, place: torch.device, quantize: str | None, packed: bool, backend: str
) -> bool:
    """True if matrices are computed in the bits that they are stored in: in GGUF files and quantised checkpoints."""
    usual = isinstance(tensors, GgufWeights | QuantisedSafetensors) and dtype == "auto" and quantize is None and packed
    return usual and place.type == "cpu" and backend != "pytorch" and unavailable() is None


def _storage(
    raw: Raw,
    tensors: Tensors,
    dtype: str | torch.dtype,
    place: torch.device,
    quantize: str | None,
    packed: bool,
    backend: str,
) -> tuple[torch.dtype, Holder | None]:
    """The dtype to compute in, and the function that packs or quantises a matrix; None: matrices stay plain."""
    named = str(raw.get("dtype") or raw.get("torch_dtype") or tensors.dtype()) if dtype == "auto" else str(dtype)
    wanted = DTYPES.get(named.removeprefix("torch."))
    if wanted is None:
        raise ModelError(f"dtype {named!r} is not supported" + did_you_mean(named, [*DTYPES, "auto"]))
    if dtype == "auto":
        wanted = computed(wanted, place, backend)
    return wanted, holder(wanted, place, quantize, backend) if packed or quantize else None


def check(
    source: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    quantize: str | None = None,
    packed: bool = True,
    backend: str = "auto",
    kv_dtype: str = "auto",
    max_model_len: int | None = None,
) -> None:
    """Raise the error that `load` would raise, as far as it can be found without reading weights."""
    with ExitStack() as stack:
        tensors, raw, family, config = opened(locate(source), stack)
        _outline(tensors, family, config).limit_context(max_model_len)
        wanted, _ = _storage(raw, tensors, dtype, torch.device(device), quantize, packed, backend)
        kv_dtype_of(kv_dtype, wanted, quantize)


def opened(home: Path, stack: ExitStack) -> tuple[Tensors, Raw, Family, DecoderConfig]:
    """The tensors of a directory or GGUF file, config.json, the family with their names, the decoder's config.

    Files stay mapped until the stack is closed.
    """
    file = GgufWeights(home) if home.is_file() else None
    raw, family, config = described(home) if file is None else file.described()
    tensors: Tensors = file or _tensors(home, raw, stack)
    family, config = as_stored(tensors, family, raw, config)
    return tensors, raw, replace(family, names=experts_as_stored(tensors, family.names, family.transposed)), config


def _outline(tensors: Tensors, family: Family, config: DecoderConfig) -> Decoder:
    """The decoder on the meta device; checks that tensors fit."""
    decoder = _sketch(config, tensors, family)
    check_unread(tensors, family, config.num_hidden_layers, dict(decoder.named_parameters()))
    return decoder


def described(directory: Path) -> tuple[Raw, Family, DecoderConfig]:
    """config.json of a directory, its model family and the decoder's config; or the same of a GGUF file."""
    if directory.is_file():
        return GgufWeights(directory).described()
    whole = read_config(directory)
    raw = wrappers.text_part(whole)
    kind = str(raw.get("model_type") or "unnamed")
    if kind not in FAMILIES:
        raise ModelError(
            f"{directory}: architecture {short_repr(kind)} is not supported ({', '.join(sorted(FAMILIES))} are); "
            f"{_elsewhere(whole, directory)}"
        )
    family = FAMILIES[kind] if raw is whole else wrappers.wrapped(FAMILIES[kind])
    if (directory / "adapter_config.json").is_file():
        raise ModelError(
            f"{directory} holds an adapter beside the model, whose answers would lack it; merge it into the weights "
            "(merge_and_unload of peft), or give the model without it"
        )
    try:
        config = family.config(raw)
        return raw, family.named(raw, config), config
    except ModelError as error:
        raise ModelError(f"{directory / 'config.json'}: {error}") from None


def _tensors(directory: Path, raw: Raw, stack: ExitStack) -> Safetensors:
    settings = raw.get("quantization_config")
    if not _quantised(settings):
        return Safetensors(directory, stack)
    if isinstance(settings, dict) and settings.get("quant_method") == mxfp4_weights.METHOD:
        return mxfp4_weights.Mxfp4Safetensors(directory, stack)
    return QuantisedSafetensors(directory, stack, Scheme.of(settings, directory))


def _quantised(settings: object) -> bool:
    """True if a quantization_config says that weights are quantised; that of bitsandbytes may have all options off."""
    if not isinstance(settings, dict):
        return bool(settings)
    loads = [settings[key] for key in ("load_in_8bit", "load_in_4bit") if key in settings]
    off = settings.get("quant_method") in (None, "bitsandbytes") and loads and not any(loads)
    return bool(settings) and not off


def _elsewhere(raw: Raw, directory: Path) -> str:
    """Advice for a model of an unknown architecture: to use `hf:`, where transformers can probably run it."""
    try:
        runs = import_module("draftwood.models.hf").can_run(raw)
    except ImportError:
        runs = bool(re.search("CausalLM|LMHead", str(raw.get("architectures")))) and not raw.get("auto_map")
        return f"with transformers installed, hf:{directory} may run it" if runs else "give a model of one of these"
    return f"transformers may run it: give hf:{directory}" if runs else "give a model of one of these"


def _sketch(config: DecoderConfig, tensors: Tensors, family: Family) -> Decoder:
    """The decoder on the meta device; ModelError where the config has more, or larger, layers than the files."""

    def drawn(layers: int) -> Decoder:
        with torch.device("meta"):
            return Decoder(replace(config, num_hidden_layers=layers))

    path = tensors.source
    try:
        first = drawn(1)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes that no machine can count
        raise ModelError(f"{path} asks for a model larger than any memory; fetch or correct it") from error
    for name, parameter in first.named_parameters():
        tied = name == "head.weight" and config.tie_word_embeddings
        if not tied and not name.startswith("per_layer_embeddings."):  # which are as wide as all layers
            sources_of(tensors, family, name, parameter.shape)
    with torch.device("meta"):
        layer = Layer(config.layer(config.num_hidden_layers - 1))
    matrices = [name for name, parameter in layer.named_parameters() if parameter.dim() > 1]
    last = family.sources(f"layers.{config.num_hidden_layers - 1}.{matrices[-1]}")[0]
    if not tensors.has(last):
        raise ModelError(
            f"{path} asks for {config.num_hidden_layers} layers, but tensor {last} is missing; fetch the checkpoint "
            f"again, or correct {tensors.config_source}"
        )
    return drawn(config.num_hidden_layers)
