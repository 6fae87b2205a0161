"""Tokenizers, chat templates and end tokens from the metadata of GGUF files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from draftwood.errors import ModelError
from draftwood.models.checkpoints import gguf_file, gguf_parts
from draftwood.models.checkpoints.gguf_splits import SPLITS
from draftwood.util.safe_parsing import short_repr

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens
SPACE_MARK = "▁"  # sentencepiece's
NAMED_TOKENS = {  # tokenizer_config.json's names and the format's roles
    **{"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown"},
    **{"sep_token": "seperator", "pad_token": "padding"},  # so spelled
}
UNSTRIPPED_TOKENS = ("<unk>", "<s>", "<|endoftext|>")  # other special tokens of Phi-3 take white space behind them
END_ROLES = ("eos", "eot", "eom")  # roles of tokens that end a text or a turn
MAX_PIECE_CHARACTERS = 256  # characters of a piece of text; published ones have at most 64
END_TEXTS = (  # as in llama.cpp
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"),
    *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_utterance>", "<turn|>", "<|tool_response>"),
    *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>", "[e~["),
)

log = logging.getLogger(__name__)


def read(path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer of a file, and what its tokenizer_config.json would say: named tokens and chat templates."""
    file = gguf_parts.opened(path)
    words = _Words(file)
    kind = file.metadata.get("tokenizer.ggml.model")
    makers = {"gpt2": words.byte_level, "llama": words.pieces, "gemma4": words.merged_pieces}
    if kind not in makers:
        raise ModelError(
            f"{path}: a tokenizer of the kind {short_repr(kind)} is not supported ({', '.join(makers)} are); "
            "give the directory of the model's own tokenizer as tokenizer"
        )
    try:
        backend, begins = makers[kind]()
        backend.add_tokens(words.added())
        backend.post_processor = words.ends(begins)
    except ModelError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ModelError(
            f"{path} holds a broken tokenizer ({' '.join(str(error).split())[:200]}); fetch it again"
        ) from error
    return backend, words.config()


def vocabulary(path: Path) -> dict[str, int]:
    """The ids of a file's tokens, without what it takes to read text."""
    return _Words(gguf_parts.opened(path)).vocabulary()


def end_tokens(path: Path) -> frozenset[int]:
    """Ids that end a text: those that the file names, and its control tokens that end a turn in known templates."""
    words = _Words(gguf_parts.opened(path))
    named = {words.role(name) for name in END_ROLES} - {None}
    turns = (i for i, text in enumerate(words.texts) if text in END_TEXTS and words.types[i] == CONTROL)
    return frozenset(i for i in (*named, *turns) if i is not None)


class _Words:
    """A file's vocabulary."""

    def __init__(self, file: gguf_file.File) -> None:
        self.file = file
        self.texts: list[str] = file.array("tokenizer.ggml.tokens")
        self.types: list[int] = file.array("tokenizer.ggml.token_type") or [NORMAL] * len(self.texts)
        complete = len(self.types) == len(self.texts) and all(isinstance(text, str) for text in self.texts)
        if not self.texts or not complete:
            raise ModelError(
                f"{file.path} holds no tokenizer, or a broken one; give the directory of the model's own as tokenizer"
            )

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"tokenizer.ggml.{key}", default)

    def role(self, name: str) -> int | None:
        """The id of the token in a role, or None."""
        id = self.get(f"{name}_token_id")
        return id if type(id) is int and 0 <= id < len(self.texts) else None

    def config(self) -> dict[str, Any]:
        named = {name: self.role(role) for name, role in NAMED_TOKENS.items()}
        config: dict[str, Any] = {name: self.texts[i] for name, i in named.items() if i is not None}
        prefix = "tokenizer.chat_template"
        templates = {
            key.removeprefix(prefix).lstrip(".") or "default": value
            for key, value in self.file.metadata.items()
            if key == prefix or key.startswith(f"{prefix}.")
        }
        return config | ({"chat_template": templates} if templates else {})

    @cached_property
    def known(self) -> list[tuple[int, str, int]]:
        """Id, text and type of each token; ids that only pad the vocabulary have none."""
        pieces = self.get("model") == "llama"
        return [
            (i, text if not pieces or text.strip(" ") else SPACE_MARK * len(text), kind)
            for i, (text, kind) in enumerate(zip(self.texts, self.types, strict=True))
            if kind != UNUSED or text != f"[PAD{i}]"
        ]

    def vocabulary(self) -> dict[str, int]:
        return {text: i for i, text, _ in self.known}

    def added(self) -> list[AddedToken]:
        """Tokens that are found in a text before it is split."""
        apart = (CONTROL, UNKNOWN, USER_DEFINED)
        phi = self.file.metadata.get("general.architecture") == "phi3" and self.get("model") == "llama"
        return [
            AddedToken(
                text, normalized=False, special=kind != USER_DEFINED, rstrip=phi and text not in UNSTRIPPED_TOKENS
            )
            for _, text, kind in self.known
            if kind in apart and text.strip(SPACE_MARK)
        ]

    def ends(self, begins: bool) -> processors.PostProcessor:
        """Puts the beginning and the end token at the ends of a text; `begins` where the file does not say."""
        pieces, special = ["$A"], []
        for role, flag, default in (("bos", "add_bos_token", begins), ("eos", "add_eos_token", False)):
            token = self.role(role)
            if token is not None and self.get(flag, default) is True:
                pieces.insert(0 if role == "bos" else len(pieces), role)
                special.append({"id": role, "ids": [token], "tokens": [self.texts[token]]})
        return processors.TemplateProcessing(single=pieces, pair=[*pieces, "$B"], special_tokens=special)

    def byte_level(self) -> tuple[Tokenizer, bool]:
        """Byte-level BPE with the file's merges, and whether such texts begin with the beginning token."""
        name = self.get("pre")
        if name is None:
            log.warning("%s does not say how text is split; it is split as older files were", self.file.path)
            name = "default"
        if name not in SPLITS:
            raise ModelError(
                f"{self.file.path} splits text by {short_repr(name)}, which is not known ({', '.join(SPLITS)} are); "
                "give the directory of the model's own tokenizer as tokenizer"
            )
        split = SPLITS[name]
        tokenizer = Tokenizer(models.BPE(self.vocabulary(), self.merges(), ignore_merges=split.ignore_merges))
        steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if split.composed:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer, split.begins

    def merges(self) -> list[tuple[str, str]]:
        cut = ((merge, merge.index(" ", 1)) for merge in self.file.array("tokenizer.ggml.merges"))
        return [(merge[:place], merge[place + 1 :]) for merge, place in cut]

    def merged_pieces(self) -> tuple[Tokenizer, bool]:
        """sentencepiece's pieces with the file's merges (Gemma 4)."""
        tokenizer = self._of_pieces(self.merges())
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
        return tokenizer, True

    def pieces(self) -> tuple[Tokenizer, bool]:
        """sentencepiece's BPE, whose merges follow from the pieces' scores."""
        scores = self.file.array("tokenizer.ggml.scores")
        if len(scores) != len(self.texts):
            raise ModelError(f"{self.file.path} has {len(scores)} scores for {len(self.texts)} tokens; fetch it again")
        ranks = {}
        for i, text, kind in self.known:
            blank = kind == USER_DEFINED and not text.strip(SPACE_MARK)  # runs of spaces, which merge before all else
            if kind == NORMAL or blank:
                ranks[text] = (not blank, -scores[i])
        tokenizer = self._of_pieces(_merges(ranks))
        if self.get("add_space_prefix", True) is True:
            prefix = normalizers.Prepend(SPACE_MARK)
            tokenizer.normalizer = normalizers.Sequence([prefix, tokenizer.normalizer])
            tokenizer.decoder = decoders.Sequence([tokenizer.decoder, decoders.Strip(" ", 1, 0)])
        return tokenizer, True

    def _of_pieces(self, merges: list[tuple[str, str]]) -> Tokenizer:
        """BPE over characters, in which spaces are marks and what is not in the vocabulary is bytes."""
        tokenizer = Tokenizer(
            models.BPE(
                self.vocabulary(),
                merges,
                unk_token=next((text for _, text, kind in self.known if kind == UNKNOWN), None),
                fuse_unk=True,
                byte_fallback=BYTE in self.types,
            )
        )
        tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        return tokenizer


def _merges(ranks: Mapping[str, tuple[bool, float]]) -> list[tuple[str, str]]:
    """Every two pieces that make a third, those of the third with the lowest rank first, of equals the longest."""
    pairs = []
    for piece in sorted(ranks, key=lambda text: (ranks[text], -len(text))):
        for cut in range(len(piece) - 1 if len(piece) <= MAX_PIECE_CHARACTERS else 0, 0, -1):
            if piece[:cut] in ranks and piece[cut:] in ranks:
                pairs.append((piece[:cut], piece[cut:]))
    return pairs
