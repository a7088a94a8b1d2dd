"""Which tokens' logits make a reranker's score, of a model that answers yes or no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text.tokenizer import load_tokenizer
from plimsoll_runtime.weights.files import PARTS, YES_OR_NO, ModelFiles

WORDS = ("no", "yes")


def score_tokens(files: ModelFiles) -> list[int]:
    """The id of the token that speaks against a pair and of the one that speaks for it, or of the latter alone.

    As sentence-transformers' files say, or else vLLM's field in config.json; else they are "no" and "yes". Raises
    ModelError where the vocabulary does not have them.
    """
    said = _of_modules(files.config)
    if said is not None:
        return said
    words = files.config.get(YES_OR_NO) or WORDS
    if not isinstance(words, list | tuple) or len(words) not in (1, 2):
        raise ModelError(f"config.json: {YES_OR_NO} is {words!r}, and not one token or two")
    tokenizer = load_tokenizer(files)
    found = [tokenizer.token_id(str(word)) for word in words]
    if None in found:
        raise ModelError(f"{files.name}: the vocabulary lacks {' or '.join(map(repr, words))}, so nothing is scored")
    return [token for token in found if token is not None]


def _of_modules(config: Mapping[str, Any]) -> list[int] | None:
    modules = config.get(PARTS, {}).get("modules", ())
    for module in modules:
        if module["kind"] == "LogitScore":
            said = [module["config"].get(name) for name in ("false_token_id", "true_token_id")]
            ids = [token for token in said if token is not None]
            size = config.get("vocab_size", 0)
            if said[1] is None or not all(type(token) is int and 0 <= token < size for token in ids):
                raise ModelError(f"{module['path']}/config.json: true_token_id and false_token_id are no token ids")
            return ids
    return None
