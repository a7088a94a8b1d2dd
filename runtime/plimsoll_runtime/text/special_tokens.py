"""Finds the EOS tokens of a model, and the tokens whose logits are a reranker's score."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from plimsoll_runtime.errors import UNREADABLE, ModelError
from plimsoll_runtime.text.tokenizer import load_tokenizer
from plimsoll_runtime.text.tokenizer_settings import WHAT_TO_DO, TokenizerSettings, read_settings
from plimsoll_runtime.weights.files import LARGEST_TOKENIZER, PARTS, YES_OR_NO, ModelFiles, check_size

logger = logging.getLogger(__name__)

TOKENIZER = "tokenizer_config.json"


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: msgspec.Raw = msgspec.Raw(b"{}")


class _TokenizerFile(msgspec.Struct):
    """The needed parts of a tokenizer.json; reading all of it as Python objects takes a second."""

    added_tokens: list[_AddedToken] = []
    model: _Model = msgspec.field(default_factory=_Model)


def end_ids(files: ModelFiles) -> tuple[int, ...]:
    """Return the EOS ids of generation_config.json, of config.json and of the tokenizer, in ascending order.

    A fine-tune often changes one of the three and leaves the others unchanged: if none of them lists all ids, the log
    names them. For a GGUF file, those of the tokenizer are left out. Raises ModelError.
    """
    stated = dict(files.stated_ends)
    if files.format != "gguf" and (token := read_settings(files.root).tokens.get("eos_token")) is not None:
        found = _ids_of(files.root, token)
        if found:
            stated[f"{TOKENIZER} ({token})"] = found
        else:
            logger.warning(
                "%s: eos_token in %s is %r, which is not a token of the vocabulary; it is ignored",
                files.name,
                TOKENIZER,
                token,
            )
    for warning in _warnings(stated, files.config.get("vocab_size")):
        logger.warning("%s: %s", files.name, warning)
    return tuple(sorted({end for ids in stated.values() for end in ids}))


def _warnings(stated: Mapping[str, tuple[int, ...]], vocab_size: object) -> Iterator[str]:
    every = {end for ids in stated.values() for end in ids}
    if not any(every == set(ids) for ids in stated.values()) and every:
        said = ", ".join(f"{sorted(set(ids))} by {file}" for file, ids in stated.items())
        yield f"the EOS tokens are {said}: each of them ends an output"
    if isinstance(vocab_size, int) and (beyond := sorted(end for end in every if end >= vocab_size)):
        yield f"the EOS tokens {beyond} are outside the vocabulary (vocab_size {vocab_size}) and are never sampled"


def _ids_of(folder: Path, token: str) -> tuple[int, ...]:
    """Return the ids of a token in tokenizer.json or, if it has none, in the settings next to it."""
    settings = read_settings(folder)
    return _in_tokenizer(folder / "tokenizer.json", token) or _in_settings(settings, token)


def _in_settings(settings: TokenizerSettings, token: str) -> tuple[int, ...]:
    return tuple(token_id for token_id, added in settings.added.items() if added.content == token)


def _in_tokenizer(path: Path, token: str) -> tuple[int, ...]:
    if not path.is_file():
        return ()
    check_size(path, LARGEST_TOKENIZER)
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
        added = tuple(each.id for each in file.added_tokens if each.content == token)
        return added or _in_vocabulary(file.model.vocab, token)
    except (OSError, *UNREADABLE) as error:
        raise ModelError(f"{path} cannot be read: {error}; {WHAT_TO_DO}") from error


def _in_vocabulary(raw: msgspec.Raw, token: str) -> tuple[int, ...]:
    """Return the ids of a token. The vocabulary has ids by piece, or (Unigram) pieces with their scores."""
    pieces = msgspec.json.decode(raw, type=dict[str, int] | list[tuple[str, float]])
    if isinstance(pieces, dict):
        return (pieces[token],) if token in pieces else ()
    return tuple(token_id for token_id, (piece, _) in enumerate(pieces) if piece == token)


WORDS = ("no", "yes")


def score_tokens(files: ModelFiles) -> list[int]:
    """Return the ids of the tokens for "no match" and "match" of a pair, or only the latter if the files name no other.

    They come from the files of sentence-transformers, else from vLLM's field in config.json, else they are "no" and
    "yes". Raises ModelError if the vocabulary lacks them.
    """
    said = _of_modules(files.config)
    if said is not None:
        return said
    words = files.config.get(YES_OR_NO) or WORDS
    if not isinstance(words, list | tuple) or len(words) not in (1, 2):
        raise ModelError(f"config.json: {YES_OR_NO} is {words!r}, but must be a list of one or two tokens")
    tokenizer = load_tokenizer(files)
    found = [tokenizer.token_id(str(word)) for word in words]
    if None in found:
        raise ModelError(
            f"{files.name}: the vocabulary lacks {' or '.join(map(repr, words))}, so the model cannot score"
        )
    return [token for token in found if token is not None]


def _of_modules(config: Mapping[str, Any]) -> list[int] | None:
    modules = config.get(PARTS, {}).get("modules", ())
    for module in modules:
        if module["kind"] == "LogitScore":
            said = [module["config"].get(name) for name in ("false_token_id", "true_token_id")]
            ids = [token for token in said if token is not None]
            size = config.get("vocab_size", 0)
            if said[1] is None or not all(type(token) is int and 0 <= token < size for token in ids):
                raise ModelError(
                    f"{module['path']}/config.json: true_token_id and false_token_id are not valid token ids"
                )
            return ids
    return None
