"""How byte-level tokenizers of GGUF files split a text before its bytes are merged.

The patterns are those of the models' own tokenizer.json where they are known, else llama.cpp's (llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class TextSplit:
    """The rules by which byte-level BPE splits a text into pieces; tokens are merged within pieces only."""

    patterns: tuple[str, ...] = (GPT_2,)  # matches and what is between them are pieces, split by the next pattern
    ignore_merges: bool = False  # a piece that is a token is one, whatever the merges say
    begins: bool = False  # a text has a beginning token, unless the file says otherwise
    composed: bool = False  # characters are composed first (NFC)


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def _words(numbers: str, letters: str = r"\p{L}+", symbols: str = _SYMBOLS, breaks: str = _BREAKS) -> str:
    """Contractions, words with what precedes them, numbers, symbols and white space, as tiktoken's cl100k has it."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{numbers}|{symbols}|{breaks}"


def _cased(numbers: str, ends: str = "") -> str:
    """Words are split where a capital follows a small letter, as tiktoken's o200k has it."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{before}{upper}*{lower}+{ends}|{before}{upper}+{lower}*{ends}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BREAKS}"


_DIGIT, _DIGITS, _THREE = r"\p{N}", r"\p{N}+", r"\p{N}{1,3}"
_LLAMA_3, _QWEN_2 = _words(_THREE), _words(_DIGIT)
_GPT_4O = _cased(_THREE, f"{_CONTRACTIONS}?")
_ASCII_SYMBOLS = r"[!-/:-@\[-`{-~]"
_DEEPSEEK_3 = (
    *(_THREE, r"[\x{3040}-\x{30FF}\x{4E00}-\x{9FA5}]+"),
    rf"{_ASCII_SYMBOLS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BREAKS}",
)
_EAST_ASIAN = r"[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+"
_UNCASED = (  # letters of two cases that DeepSeek's first tokenizer does not take for such
    r"\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}\x{2D00}-\x{2D2D}\x{A790}-\x{A7FF}\x{AB30}-\x{AB68}"
    r"\x{10570}-\x{105BC}\x{16E40}-\x{16E7F}\x{1D400}-\x{1DF2A}"
)
_DEEPSEEK = (
    *(r"[\r\n]", rf"\s?(?:(?![{_UNCASED}])[\p{{Lu}}\p{{Ll}}\p{{Lt}}])+"),
    *(r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-\x{3002}]+", r"\s+$", _EAST_ASIAN, _DIGITS),
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_PUNCTUATION = r"[\p{P}$+<=>^~|`]+"
_THREE_DIGITS = r"[0-9][0-9][0-9]"
_CODE = TextSplit((_DIGIT, GPT_2))

SPLITS = {  # by the format's names of pre-tokenizers
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4", "jais", "trillion", "granite-docling", "gigachat"), TextSplit()),
    **dict.fromkeys(("mpt", "olmo"), TextSplit(composed=True)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _CODE),
    "command-r": TextSplit(_CODE.patterns, composed=True),
    "default": TextSplit((r"[\p{P}$+<=>^~|]+", GPT_2, _DIGITS, _THREE_DIGITS)),  # of files that name none
    "falcon": TextSplit((_PUNCTUATION, GPT_2, _THREE_DIGITS)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        TextSplit((_LLAMA_3,), ignore_merges=True, begins=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), TextSplit((_LLAMA_3,))),
    "minicpm5": TextSplit((_THREE, _words(_DIGITS)), ignore_merges=True),
    "qwen2": TextSplit((_QWEN_2,), composed=True),
    **dict.fromkeys(
        ("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "solar-open", "kormo", "grok-2"), TextSplit((_QWEN_2,))
    ),
    "qwen35": TextSplit((_words(_DIGIT, r"[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),), composed=True),
    "seed-coder": TextSplit((_words(_DIGIT, symbols=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"), TextSplit((_words(_DIGIT, breaks=r"\s*[\r\n]|\s+(?!\S)|\s+"),))
    ),
    "exaone-moe": TextSplit(
        (
            _words(
                _DIGIT,
                r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                r"\s*[\r\n]|\s+(?!\S)|\s+",
            ),
        )
    ),
    "tekken": TextSplit((_cased(_DIGIT),), ignore_merges=True, begins=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), TextSplit((_GPT_4O,))),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), TextSplit((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O))),
    "deepseek-llm": TextSplit(_DEEPSEEK),
    "deepseek-coder": TextSplit((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), TextSplit(_DEEPSEEK_3)),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), TextSplit((_BLOOM,))),
    "viking": TextSplit((_BLOOM, _DIGIT)),
}
