"""Reads a tokenizer.json with the tokenizers library, which would end the whole process over one kind of damage."""

from __future__ import annotations

from pathlib import Path

import msgspec
import tokenizers

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text.settings import WHAT_TO_DO
from plimsoll_runtime.weights.files import LARGEST_TOKENIZER, check_size, opened


class _Model(msgspec.Struct):
    continuing_subword_prefix: str | None = None
    merges: msgspec.Raw = msgspec.Raw(b"[]")


class _File(msgspec.Struct):
    """Reading the rest as Python objects takes a second."""

    model: _Model


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """The library's tokenizer. Raises ModelError, SourceError."""
    check_size(path, LARGEST_TOKENIZER)
    with opened(path) as file:
        data = file.read()
    try:
        _check_merges(msgspec.json.decode(data, type=_File).model)
        return tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:
        raise ModelError(f"{path} cannot be read: {error}; {WHAT_TO_DO}") from error


def _check_merges(model: _Model) -> None:
    """Raises ValueError for a merge whose second piece lacks the prefix that the library cuts off.

    It cuts bytes, and a text that begins within a character aborts the process (tokenizers 0.23).
    """
    prefix = model.continuing_subword_prefix
    if not prefix:
        return
    for merge in msgspec.json.decode(model.merges, type=list[str | tuple[str, str]] | None) or ():
        second = merge.partition(" ")[2] if isinstance(merge, str) else merge[1]
        if not second.startswith(prefix):
            raise ValueError(f"the second piece of the merge {str(merge)[:80]!r} does not begin with {prefix[:40]!r}")
