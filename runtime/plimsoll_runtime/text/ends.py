"""Which tokens end an answer: all that any of a model's files names."""

from __future__ import annotations

from pathlib import Path

import msgspec

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text.settings import WHAT_TO_DO, TokenizerSettings, read_settings
from plimsoll_runtime.unreadable import UNREADABLE
from plimsoll_runtime.weights.files import LARGEST_TOKENIZER, ModelFiles, check_size


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    """What of a tokenizer.json matters here: reading the rest as Python objects takes a second."""

    added_tokens: list[_AddedToken] = []


def end_ids(files: ModelFiles) -> tuple[int, ...]:
    """Ids of generation_config.json, of config.json and of the tokenizer's end-of-text token, the smallest first.

    A fine-tune often changes one of the three and leaves the others as they were. A GGUF file's own are in its config.
    Raises ModelError.
    """
    ids = set(files.eos_token_ids)
    if files.format != "gguf":
        ids |= _of_tokenizer(files.root)
    return tuple(sorted(ids))


def _of_tokenizer(folder: Path) -> set[int]:
    settings = read_settings(folder)
    text = settings.tokens.get("eos_token")
    return set() if text is None else {i for i, content in _added(folder, settings).items() if content == text}


def _added(folder: Path, settings: TokenizerSettings) -> dict[int, str]:
    """Tokens that were added to a vocabulary: those that end a text are among them."""
    found = {token_id: token.content for token_id, token in settings.added.items()}
    path = folder / "tokenizer.json"
    if found or not path.is_file():
        return found
    check_size(path, LARGEST_TOKENIZER)
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except (OSError, *UNREADABLE) as error:
        raise ModelError(f"{path} cannot be read: {error}; {WHAT_TO_DO}") from error
    return {token.id: token.content for token in file.added_tokens}
