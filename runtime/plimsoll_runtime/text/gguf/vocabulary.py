"""What a GGUF file's metadata say of its tokenizer, checked: a file may be damaged, or badly converted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text.gguf.pre import PRE_TOKENIZERS

SENTENCEPIECE = ("llama", "gemma4")
"""Kinds whose pieces are text with its spaces written as "▁"; the second has merges of its own."""
TokenId = Annotated[int, msgspec.Meta(ge=0)]
_WHAT_TO_DO = "fetch the file again, or convert it again with a current llama.cpp"


class GgufVocabulary(msgspec.Struct, frozen=True):
    """The metadata by llama.cpp's names. What is None or missing is not in the file."""

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
        """The special tokens by their names in a tokenizer_config.json; ids beyond the vocabulary name none."""
        ids = {"bos_token": self.bos, "eos_token": self.eos, "unk_token": self.unknown, "pad_token": self.padding}
        return {name: self.tokens[i] for name, i in ids.items() if i is not None and i < len(self.tokens)}

    def merge_pairs(self) -> list[tuple[str, str]] | None:
        """The merges, each cut at its first space behind a character. Raises ValueError."""
        return None if self.merges is None else [_pair(merge) for merge in self.merges]


def read_vocabulary(values: Mapping[str, Any], path: Path) -> GgufVocabulary:
    """The vocabulary of a file's metadata. Raises ModelError, which names the file."""
    kind = values.get("tokenizer.ggml.model")
    if kind not in (*SENTENCEPIECE, "gpt2") or not values.get("tokenizer.ggml.tokens"):
        raise ModelError(
            f"{path}: the tokenizer is of the kind {kind!r}; known are llama and gemma4 (SentencePiece) and gpt2 "
            "(byte-level), with a list of tokens"
        )
    try:
        read = msgspec.convert({name: values[name] for name in _NAMES if name in values}, GgufVocabulary)
        _check(read)
    except (msgspec.ValidationError, ValueError) as error:
        raise ModelError(f"{path}: the tokenizer cannot be read: {error}; {_WHAT_TO_DO}") from error
    if kind == "gpt2" and read.pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"{path} cuts text by {read.pre!r} (tokenizer.ggml.pre), which is not known; "
            "serve the model from its original folder, or convert the file again with a current llama.cpp"
        )
    return read


_NAMES = tuple(info.encode_name for info in msgspec.structs.fields(GgufVocabulary))


def _check(read: GgufVocabulary) -> None:
    for what, values in (("scores", read.scores), ("token types", read.token_types)):
        if values and len(values) != len(read.tokens):
            raise ValueError(f"it has {len(values)} {what} for {len(read.tokens)} tokens")
    if read.merge_pairs() is None and read.model != "llama":
        raise ValueError(f"it is a vocabulary of the kind {read.model} without merges, which cannot encode text")


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    if cut < 0 or cut == len(merge) - 1:
        raise ValueError(f"the merge {merge[:40]!r} has no two parts")
    return merge[:cut], merge[cut + 1 :]
