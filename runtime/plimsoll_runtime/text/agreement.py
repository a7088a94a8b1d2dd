"""Statements of a tokenizer's files, and of config.json, that contradict each other: which one counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.text.settings import content_of, read_fields, read_settings, read_text

if TYPE_CHECKING:
    from plimsoll_runtime.text.tokenizer import Tokenizer
    from plimsoll_runtime.weights.files import ModelFiles

CONFIG, MAP, TEMPLATE = "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_LISTED = 3
"""How many tokens a warning lists."""


def tokenizer_warnings(files: ModelFiles, folder: Path, tokenizer: Tokenizer) -> Iterator[str]:
    """A warning for each contradiction, with both statements. `folder`: where the tokenizer's files are."""
    yield from _vocabulary(files.config, tokenizer)
    if files.format == "gguf":
        return
    config = read_fields(folder / CONFIG)
    yield from _added(folder, tokenizer)
    yield from _names(folder, config)
    yield from _templates(folder, config)


def _vocabulary(config: Mapping[str, Any], tokenizer: Tokenizer) -> Iterator[str]:
    """A tokenizer with fewer tokens is usual: models round their vocabulary up."""
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, Mapping) else None)
    if isinstance(size, int) and tokenizer.vocab_size > size:
        yield (
            f"config.json: vocab_size = {size}, and the tokenizer has {tokenizer.vocab_size} tokens: a prompt with one "
            "that the model lacks is refused"
        )


def _added(folder: Path, tokenizer: Tokenizer) -> Iterator[str]:
    said = read_settings(folder).added
    other = {i: found for i, token in sorted(said.items()) if (found := tokenizer.token_id(token.content)) != i}
    if other:
        listed = [f"{said[i].content!r} the id {i} and not {found}" for i, found in list(other.items())[:_LISTED]]
        more = f" and {len(other) - _LISTED} more" if len(other) > _LISTED else ""
        yield f"{CONFIG} gives {', '.join(listed)}{more}, as the tokenizer has them: the tokenizer counts"


def _names(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    other = read_fields(folder / MAP)
    counts = CONFIG if "added_tokens_decoder" in config else MAP
    for name in _NAMES:
        said = [content_of(each.get(name)) for each in (config, other)]
        if None not in said and said[0] != said[1]:
            yield f"{name} is {said[0]!r} in {CONFIG} and {said[1]!r} in {MAP}: {counts} counts"


def _templates(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    said, file = config.get("chat_template"), folder / TEMPLATE
    if isinstance(said, str) and file.is_file() and read_text(file).strip() != said.strip():
        yield f"the chat template of {CONFIG} differs from {TEMPLATE}, which counts"
