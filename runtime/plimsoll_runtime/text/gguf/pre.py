"""How byte-level vocabularies cut text before merging: GGUF has a name for it, tokenizer.json an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HAN_AND_KANA, _HAN_AND_HANGUL = (
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _HAN_AND_KANA,
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _HAN_AND_HANGUL,
    r"\p{N}+",
)
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A way to cut: the `pre_tokenizer` of a tokenizer.json, and what goes with it.

    `whole_words`: a word that is in the vocabulary is one token, whatever the merges say. `add_bos`: texts begin
    with the begin token where the file does not say.
    """

    steps: dict[str, Any]
    whole_words: bool = False
    add_bos: bool = False


def _split(*expressions: str) -> dict[str, Any]:
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        for expression in expressions
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, _BYTES]}


_LLAMA3_PRE = PreTokenizer(_split(_LLAMA3), whole_words=True, add_bos=True)
_QWEN2_PRE = PreTokenizer(_split(_QWEN2))
_GPT4O_PRE = PreTokenizer(_split(_GPT4O))
_GPT2_PRE = PreTokenizer(_GPT2)
_DIGITS_PRE = PreTokenizer(
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _GPT2]}
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"), _GPT2_PRE),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3_PRE
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer(_split(_LLAMA3))),
    "tekken": PreTokenizer(_split(_TEKKEN), whole_words=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2"), _QWEN2_PRE),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), PreTokenizer(_split(*_DEEPSEEK3))),
    "deepseek-llm": PreTokenizer(_split(*_DEEPSEEK)),
    "qwen35": PreTokenizer(_split(_QWEN35)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O_PRE),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_PRE),
}
