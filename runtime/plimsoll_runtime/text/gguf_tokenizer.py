"""Writes tokenizer.json and tokenizer_config.json from the metadata of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text.detokenizer import SPACE, byte_of_character

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
    """A way to split text: the `pre_tokenizer` of a tokenizer.json, and related settings.

    `whole_words`: a word in the vocabulary is one token, whatever the merges say. `add_bos`: texts start with the BOS
    token if the file does not specify it.
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

SENTENCEPIECE = ("llama", "gemma4")
"""Values of tokenizer.ggml.model whose pieces are text with spaces written as "▁"; gemma4 has its own merges."""
TokenId = Annotated[int, msgspec.Meta(ge=0)]
_WHAT_TO_DO = "fetch the file again, or convert it again with a current llama.cpp"


class GgufVocabulary(msgspec.Struct, frozen=True):
    """Tokenizer metadata under llama.cpp's names. None: not in the file."""

    model: str = msgspec.field(name="tokenizer.ggml.model")
    tokens: Annotated[list[str], msgspec.Meta(min_length=1)] = msgspec.field(name="tokenizer.ggml.tokens")
    scores: list[float] | None = msgspec.field(name="tokenizer.ggml.scores", default=None)
    token_types: list[int] | None = msgspec.field(name="tokenizer.ggml.token_type", default=None)
    merges: list[str] | None = msgspec.field(name="tokenizer.ggml.merges", default=None)
    pre: str = msgspec.field(name="tokenizer.ggml.pre", default="default")
    bos: TokenId | None = msgspec.field(name="tokenizer.ggml.bos_token_id", default=None)
    eos: TokenId | None = msgspec.field(name="tokenizer.ggml.eos_token_id", default=None)
    unknown: TokenId | None = msgspec.field(name="tokenizer.ggml.unknown_token_id", default=None)
    padding: TokenId | None = msgspec.field(name="tokenizer.ggml.padding_token_id", default=None)
    add_bos: bool | None = msgspec.field(name="tokenizer.ggml.add_bos_token", default=None)
    add_eos: bool | None = msgspec.field(name="tokenizer.ggml.add_eos_token", default=None)
    space_prefix: bool = msgspec.field(name="tokenizer.ggml.add_space_prefix", default=True)
    template: str | None = msgspec.field(name="tokenizer.chat_template", default=None)
    architecture: str | None = msgspec.field(name="general.architecture", default=None)

    def named(self) -> dict[str, str]:
        """Return the special tokens by their names in tokenizer_config.json, without ids outside the vocabulary."""
        ids = {"bos_token": self.bos, "eos_token": self.eos, "unk_token": self.unknown, "pad_token": self.padding}
        return {name: self.tokens[i] for name, i in ids.items() if i is not None and i < len(self.tokens)}

    def merge_pairs(self) -> list[tuple[str, str]] | None:
        """Return the merges, each split at its first space after the first character; None if the file has none. Raises
        ValueError.
        """
        return None if self.merges is None else [_pair(merge) for merge in self.merges]


def read_vocabulary(values: Mapping[str, Any], path: Path) -> GgufVocabulary:
    """Return the vocabulary in a file's metadata. Raises ModelError with the file's name."""
    kind = values.get("tokenizer.ggml.model")
    if kind not in (*SENTENCEPIECE, "gpt2") or not values.get("tokenizer.ggml.tokens"):
        raise ModelError(
            f"{path}: the tokenizer kind {kind!r} is not supported, or it has no tokens; supported are llama and "
            "gemma4 (SentencePiece) and gpt2 (byte-level)"
        )
    try:
        read = msgspec.convert({name: values[name] for name in _NAMES if name in values}, GgufVocabulary)
        _check(read)
    except (msgspec.ValidationError, ValueError) as error:
        raise ModelError(f"{path}: the tokenizer cannot be read: {error}; {_WHAT_TO_DO}") from error
    if kind == "gpt2" and read.pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"{path} splits text by {read.pre!r} (tokenizer.ggml.pre), which is not supported; serve the model from "
            "its original folder, or convert the file again with a current llama.cpp"
        )
    return read


_NAMES = tuple(info.encode_name for info in msgspec.structs.fields(GgufVocabulary))


def _check(read: GgufVocabulary) -> None:
    for what, values in (("scores", read.scores), ("token types", read.token_types)):
        if values and len(values) != len(read.tokens):
            raise ValueError(f"it has {len(values)} {what} for {len(read.tokens)} tokens")
    if read.merge_pairs() is None and read.model != "llama":
        raise ValueError(f"a vocabulary of the kind {read.model} needs merges to encode text, but it has none")


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    if cut < 0 or cut == len(merge) - 1:
        raise ValueError(f"the merge {merge[:40]!r} does not have two parts")
    return merge[:cut], merge[cut + 1 :]


CONVERTER_VERSION = 2
"""Part of the cache key. Increase it when the same metadata gives another tokenizer."""

_CONTROL, _USER_DEFINED = 3, 4
_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3n", "gemma4")


def write_tokenizer(read: GgufVocabulary, target: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into `target`.

    The result encodes and decodes like Transformers' own conversion, in a tenth of the time: the metadata are read in
    one pass, and the JSON is written directly, without a tokenizer. Settings that Transformers ignores (no space before
    the first word, words that are one token whatever the merges say) are applied, as in llama.cpp.
    """
    content = _sentencepiece(read) if read.model in SENTENCEPIECE else _byte_level(read)
    content["post_processor"] = _ends(read)
    (target / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    settings = json.dumps(_settings(read), ensure_ascii=False, indent=2)
    (target / "tokenizer_config.json").write_text(settings, encoding="utf-8")


def _sentencepiece(read: GgufVocabulary) -> dict[str, Any]:
    tokens = read.tokens
    gemma = read.architecture in _GEMMA
    prefix = read.space_prefix and not gemma
    scores: Sequence[float] = read.scores or range(0, -len(tokens), -1)
    if gemma:  # runs of spaces are stored unchanged, and merges follow the order of the pieces, not their scores
        tokens = [SPACE * len(t) if " " in t and not t.strip() else t for t in tokens]
        scores = range(0, -len(tokens), -1)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = {
        "type": "BPE",
        "unk_token": read.named().get("unk_token"),
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": vocabulary,
        "merges": read.merge_pairs() or _derived_merges(tokens, vocabulary, scores),
    }
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    normalizer, pre_tokenizer = _spaces(gemma=gemma, phi3=read.architecture == "phi3", prefix=prefix)
    decoder = {"type": "Sequence", "decoders": decoders}
    return _tokenizer(model, normalizer, pre_tokenizer, decoder, _added(read, vocabulary, byte_level=False))


def _spaces(*, gemma: bool, phi3: bool, prefix: bool) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the normalizer and pre-tokenizer that write spaces as "▁" and add one before the first word."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if gemma:
        return replace, None
    if phi3:
        prepend = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
        return {"type": "Sequence", "normalizers": [*prepend, replace]}, None
    scheme = "first" if prefix else "never"
    return None, {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}


def _byte_level(read: GgufVocabulary) -> dict[str, Any]:
    alphabet = byte_of_character()
    character = {value: key for key, value in alphabet.items()}
    vocabulary = {
        token if alphabet.keys() >= set(token) else "".join(character[byte] for byte in token.encode()): index
        for index, token in enumerate(read.tokens)
    }
    merges = read.merge_pairs()
    pre = PRE_TOKENIZERS[read.pre]
    model = {"type": "BPE", "ignore_merges": pre.whole_words, "vocab": vocabulary, "merges": merges}
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return _tokenizer(model, None, pre.steps, decoder, _added(read, vocabulary, byte_level=True))


def _tokenizer(
    model: dict[str, Any],
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
    added: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def _added(read: GgufVocabulary, vocabulary: Mapping[str, int], *, byte_level: bool) -> list[dict[str, Any]]:
    """Return control tokens (special) and user-defined ones (matched as a whole, but text).

    In a byte-level vocabulary a control token with a character outside the alphabet is a mislabelled piece.
    """
    alphabet = byte_of_character().keys()
    added = []
    for index, (token, kind) in enumerate(zip(read.tokens, read.token_types or (), strict=False)):
        special = kind == _CONTROL and not (byte_level and set(token) - alphabet)
        if (special or kind == _USER_DEFINED) and vocabulary.get(token) == index:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            added.append({"id": index, "content": token, **flags, "special": special})
    return added


def _derived_merges(
    tokens: Sequence[str], vocabulary: Mapping[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Return every split of a piece into two others: best piece first, within a piece the longest left part first."""
    merges: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((score, cut, len(token) - cut, left, right))
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [merge[3:] for merge in merges]


def _ends(read: GgufVocabulary) -> dict[str, Any] | None:
    """Return the post-processor that adds BOS before and EOS after each text, if the file says so."""
    add_bos = read.add_bos
    if add_bos is None:
        add_bos = read.model in SENTENCEPIECE or PRE_TOKENIZERS[read.pre].add_bos
    special = read.named()
    before = [special["bos_token"]] if add_bos and "bos_token" in special else []
    after = [special["eos_token"]] if read.add_eos and "eos_token" in special else []
    if not before and not after:
        return None
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [*map(_piece, before), text, *map(_piece, after)],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {t: {"id": t, "ids": [read.tokens.index(t)], "tokens": [t]} for t in (*before, *after)},
    }


def _piece(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _settings(read: GgufVocabulary) -> dict[str, Any]:
    return read.named() | ({"chat_template": read.template} if read.template else {})
