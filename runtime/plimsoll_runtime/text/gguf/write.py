"""Writes the tokenizer.json and tokenizer_config.json that a GGUF file's metadata describe.

The result encodes and decodes as Transformers' own conversion does, in a tenth of the time: the metadata are read
in one pass and the JSON is written directly, with no tokenizer built on the way. Where a file says something that
Transformers does not look at (no space before the first word, words that are one token whatever the merges say),
the file is followed, as llama.cpp does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll_runtime.text.gguf.pre import PRE_TOKENIZERS
from plimsoll_runtime.text.gguf.vocabulary import SENTENCEPIECE, GgufVocabulary
from plimsoll_runtime.text.spelling import SPACE, byte_of_character

CONVERTER_VERSION = 2
"""Part of the cache's key: raise it when the same metadata gives another tokenizer."""

_CONTROL, _USER_DEFINED = 3, 4
_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3n", "gemma4")


def write_tokenizer(read: GgufVocabulary, target: Path) -> None:
    """Write both files into `target`."""
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
    if gemma:  # runs of spaces are stored as they are, and merges follow the order of the pieces, not their scores
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
    """Normalizer and pre-tokenizer that write spaces as "▁" and put one before the first word."""
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
    """Control tokens (special) and user-defined ones (matched whole, but text).

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
    """Every way to make a piece out of two others: best piece first, longest left part first within a piece."""
    merges: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((score, cut, len(token) - cut, left, right))
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [merge[3:] for merge in merges]


def _ends(read: GgufVocabulary) -> dict[str, Any] | None:
    """What puts the begin token before each text, and the end token after it, where the file says so."""
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
