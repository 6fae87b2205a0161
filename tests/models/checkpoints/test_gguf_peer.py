"""llama.cpp reads the same files to the same tokens, logits and texts (extra bench; run with -m slow)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pieces
import pytest
import sentencepiece
import tokenizers
import torch
from checkpoint_files import ours
from checkpoint_files import write as write_llama
from family_models import PROMPT, chain
from family_models import write as write_family
from test_gguf import FAMILIES, LLAMAS, WIDE
from test_gguf_hybrids import CHANGES
from test_gguf_tokenizer import PARTS, PATTERNS, byte_level

import draftwood
from draftwood.models.checkpoints import checkpoint, gguf_file
from draftwood.models.checkpoints.gguf_splits import SPLITS
from draftwood.models.text.tokenizer import Tokenizer

llama_cpp = pytest.importorskip("llama_cpp", exc_type=ImportError)
pytestmark = pytest.mark.slow
VOCAB = 320
NAMED = "<|end|>"  # which llama.cpp takes for a special token
BORDERS = (*(part for part in PARTS if part != NAMED), "don't", "the 1234", "カナ漢字", "한글", ".x", "Ünï")
BORDERS += ("\r\n", "،", "।", "Armաթ")
OTHER_LETTERS = ("tekken", "gpt-4o", "llama4", "kanana2", "minimax-m2")  # small and capital only within ASCII there
IGNORED_CASE = ("tiny_aya", "cohere2moe")  # llama.cpp's expressions know no case
GELU = 5e-2  # llama.cpp looks it up in float16
FILES = {**{name: ({}, {}) for name in ("plain", "biases", "tied", "llama3", "linear")}, **FAMILIES}
FILES["phi3"] = ({"sliding_window": None}, {})  # which llama.cpp ignores
FILES["ernie4_5"] = ({"use_bias": False}, {})  # the other kind is not loaded there
FILES["olmo3"] = (  # whose YaRN llama.cpp computes otherwise than transformers
    {
        "num_hidden_layers": 4,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
        "rope_parameters": None,
    },
    {},
)
# llama.cpp rounds the borders of YaRN, which the authors of gpt-oss do not
FILES["gpt_oss"] = ({"swiglu_limit": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}, {})
FILES["cohere_norms"] = ({"num_hidden_layers": 64}, {})  # those norms are read there from so many layers on
FILES["deepseek_v2"] = ({"n_group": 1, "topk_group": 1}, {})  # groups are judged by two scores there, as in V3
FILES["deepseek_v2_lite"] = ({**FILES["deepseek_v2_lite"][0], "num_hidden_layers": 26}, {})  # told by its layers there
FILES["deepseek_v3"] = ({"attention_bias": False}, {})
FILES["llama4"] = (
    {**FILES["llama4"][0], "num_local_experts": 16, "num_experts": 16},
    {},
)  # their number tells the model there
FILES["dots1"] = ({"sliding_window": None, "num_key_value_heads": 4}, {})
for phi in ("phimoe", "phimoe_long"):  # whose experts' weights are those of Mixtral's there, not the authors'
    del FILES[phi]
for gemma in ("gemma4", "gemma4_per_layer", "gemma4_experts"):  # llama.cpp caps at 30 where a file names no cap
    FILES[gemma] = ({"final_logit_softcapping": 30.0, "vocab_size_per_layer_input": VOCAB}, {})
del FILES["gemma3n"]  # whose sizes, sparse layers and kinds of layers are constants there
del FILES["exaone4"]  # which has windows there in models of 64 layers only
SECTIONS: dict[str, Any] = {"rope.dimension_sections": [2, 1, 1, 0]}  # of images, which the loader wants
# biases that are not loaded there, and one that must be there
NO_BIAS = {"mamba_proj_bias": False, "projectors_bias": False, "conv_bias": False, "mamba_conv_bias": True}
FILES |= {name: ({**changes, **NO_BIAS}, SECTIONS if "qwen3_5" in name else {}) for name, changes in CHANGES.items()}


def words() -> dict[str, Any]:
    theirs = Tokenizer(byte_level("gpt-2"), "")
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), theirs.id_of("<|end|>"))
    return gguf_files.byte_level(theirs, "gpt-2", VOCAB, **ends)


def theirs(file: Path, **options: Any) -> Any:
    return llama_cpp.Llama(str(file), n_ctx=64, n_threads=1, type_k=0, type_v=0, verbose=False, **options)


def their_logits(file: Path, tokens: Sequence[int]) -> torch.Tensor:
    model = theirs(file, logits_all=True)
    model.eval(list(tokens))
    return torch.from_numpy(np.array(model.scores[: len(tokens)]))


@pytest.mark.parametrize("name", FILES)
def test_greedy_texts(name: str, tmp_path: Path) -> None:
    changes, metadata = FILES[name]
    if name not in LLAMAS:
        write_family(tmp_path, name, vocab_size=VOCAB, **changes)
    else:
        write_llama(tmp_path, vocab_size=VOCAB, **LLAMAS[name])
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", words=words(), **metadata)
    engine = draftwood.load(file, device="cpu")
    result = engine.generate(PROMPT, sampling={"temperature": 0}, max_new_tokens=24, ignore_eos=True)
    tokens = [*PROMPT, *result.tokens]
    logits, expected = ours(checkpoint.load(file), chain(tokens)), their_logits(file, tokens)
    by_table = name.startswith(("gemma", "gpt", "phi", "starcoder", "falcon", "bloom", "mpt")) and name[:4] != "phi3"
    near = 3e-4 if name in CHANGES or "lite" in name else GELU if by_table else 5e-5
    torch.testing.assert_close(logits, expected, atol=near, rtol=0)
    best, written = expected[len(PROMPT) - 1 : -1].max(-1).values, torch.tensor(result.tokens)[:, None]
    assert (best - expected[len(PROMPT) - 1 : -1].gather(1, written)[:, 0] <= 2 * near).all()


def test_internlm2(tmp_path: Path) -> None:
    write_llama(tmp_path, vocab_size=VOCAB)
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", words=words(), arch="internlm2")
    logits, expected = ours(checkpoint.load(file), chain(PROMPT)), their_logits(file, PROMPT)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits, expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("kind", gguf_file.QUANTISED_TYPES)
def test_quantised_types(kind: str, tmp_path: Path) -> None:
    """llama.cpp rounds activations to 8 bits, too."""
    write_llama(tmp_path, vocab_size=VOCAB, **WIDE)

    def random_blocks(name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
        return (array, "F32") if array.ndim == 1 else (gguf_files.blocks(kind, *array.shape, seed=len(name)), kind)

    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", random_blocks, words())
    logits, expected = ours(checkpoint.load(file), chain(PROMPT)), their_logits(file, PROMPT)
    assert (logits - expected).abs().mean() < 0.08 * expected.std()


@pytest.mark.parametrize("name", PATTERNS)
def test_byte_level_tokens(name: str, tmp_path: Path) -> None:
    source = Tokenizer(byte_level(name), "")
    told = gguf_files.byte_level(source, name, bos_token_id=source.id_of("<|begin|>"))
    compare(gguf_files.write_words(tmp_path / "x.gguf", told), (*PARTS, "<think>"))


@pytest.mark.parametrize("name", sorted(SPLITS.keys() - set(IGNORED_CASE)))
def test_splits_of_texts(name: str, tmp_path: Path) -> None:
    """Merges that were learned across all borders, so that tokens show where a text is split."""
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(False, use_regex=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    learner.train_from_iterator(pieces.texts(2000, BORDERS, seed=1), trainer)
    learner.decoder = tokenizers.decoders.ByteLevel()
    told = gguf_files.byte_level(Tokenizer(learner, ""), name, bos_token_id=0, add_bos_token=False)
    file = gguf_files.write_words(tmp_path / "x.gguf", told)
    compare(file, BORDERS, 0.05 if name in OTHER_LETTERS else 0.005)  # letters of the latest Unicode are none there


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces(prefix: bool, tmp_path: Path) -> None:
    model = sentencepiece.SentencePieceProcessor(model_proto=pieces.model("llama"))
    told = gguf_files.pieces(model, add_space_prefix=prefix)
    compare(gguf_files.write_words(tmp_path / "x.gguf", told), ("</s>", "[INST]", "<|user|>"))


def compare(file: Path, extra: tuple[str, ...], unlike: float = 0) -> None:
    mine, model = Tokenizer.load(file), theirs(file, vocab_only=True)
    texts = [text.replace("▁", " ").replace("\x00", "") for text in pieces.texts(500, extra)]
    texts = [unicodedata.normalize("NFC", text) for text in texts if text]
    unequal = [text for text in texts if mine.encode(text) != model.tokenize(text.encode(), add_bos=True, special=True)]
    assert len(unequal) <= unlike * len(texts), unequal[:3]
