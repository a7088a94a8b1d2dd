"""Reads, applies and checks the settings next to a tokenizer.json (special tokens, templates)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from plimsoll_runtime.errors import ModelError, SourceError
from plimsoll_runtime.weights.files import check_size

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from plimsoll_runtime.text.tokenizer import Tokenizer
    from plimsoll_runtime.weights.files import ModelFiles

WHAT_TO_DO = "fetch the file again, or correct it"

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Flag = bool | int | None


class AddedToken(msgspec.Struct, frozen=True):
    """A token in addition to the vocabulary. A flag of None has the tokenizers library's default."""

    content: str
    single_word: Flag = None
    lstrip: Flag = None
    rstrip: Flag = None
    normalized: Flag = None
    special: Flag = None


class _Token(msgspec.Struct):
    content: str


class _Template(msgspec.Struct):
    name: str
    template: str


_NAMED = str | _Token | None
_SEVERAL = list[str | _Token] | None
_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys([f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")], _NAMED),
    "additional_special_tokens": _SEVERAL,
    "extra_special_tokens": _SEVERAL | dict[str, str | _Token],
    "added_tokens_decoder": dict[TokenId, AddedToken] | None,
    "chat_template": str | list[_Template] | dict[str, str] | None,
}
"""Types of the fields that are used; others may have any type."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Settings of tokenizer_config.json and its companions in addition to tokenizer.json.

    `tokens`: special tokens by name (bos_token, ...). `extra`: special tokens without a name. `added`: tokens by id.
    `templates`: chat templates by name. Only tokenizer.json defines the tokens added before and after a text:
    add_bos_token and add_eos_token have no effect, as in Transformers.
    """

    tokens: Mapping[str, str] = field(default_factory=dict)
    extra: Sequence[str] = ()
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)


def read_settings(folder: Path, template: str | None = None) -> TokenizerSettings:
    """Return the settings in a model's folder; `template` replaces the folder's own. Raises ModelError, SourceError."""
    config = read_fields(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= {k: v for k, v in read_fields(folder / "special_tokens_map.json").items() if v}
    named = {key: content_of(value) for key, value in config.items() if key.endswith("_token")}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    return TokenizerSettings(
        tokens={key: content for key, content in named.items() if content is not None},
        extra=[content for content in map(content_of, extra) if content is not None],
        added=config.get("added_tokens_decoder") or {},
        templates={"default": template} if template else _read_templates(folder, config),
    )


def content_of(token: Any) -> str | None:
    """Return the text of a token, which is written as a string or an object; None if it has none."""
    if isinstance(token, _Token):
        return token.content
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return chat templates by name: from chat_template.jinja, else tokenizer_config.json, else chat_template.json; and
    those of the folder additional_chat_templates.
    """
    found = config.get("chat_template") or read_fields(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        templates = {entry.name: entry.template for entry in found}
    elif isinstance(found, dict):
        templates = found
    else:
        templates = {"default": found} if found else {}
    file = folder / "chat_template.jinja"
    if file.is_file():
        templates = {"default": read_text(file)}
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[extra.stem] = read_text(extra)
    return templates


def read_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a JSON file, or {} if it does not exist. Raises ModelError for a used field of the wrong
    type.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}; {WHAT_TO_DO}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object; {WHAT_TO_DO}")
    return {name: _typed(path, name, value) if name in _FIELDS else value for name, value in content.items()}


def _typed(path: Path, name: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, _FIELDS[name], str_keys=True)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise ModelError(f"{path}: {name}: {error}; {WHAT_TO_DO}") from error


def read_text(path: Path) -> str:
    """Return a small text file. Raises ModelError if it is not UTF-8, SourceError if it cannot be read."""
    check_size(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8: {error}; {WHAT_TO_DO}") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def apply_settings(backend: Backend, settings: TokenizerSettings) -> None:
    """Add the settings' tokens to the tokenizer, and turn off padding and truncation."""
    from tokenizers import AddedToken

    backend.no_padding()
    backend.no_truncation()
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for _, token in sorted(settings.added.items()):
        if token.content not in known:
            flags = {flag: bool(given) for flag in _FLAGS if (given := getattr(token, flag)) is not None}
            add = backend.add_special_tokens if flags.get("special") else backend.add_tokens
            add([AddedToken(token.content, **flags)])
            known.add(token.content)
    special = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    wanted = [t for t in (*settings.tokens.values(), *settings.extra) if backend.token_to_id(t) is not None]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in wanted if t not in special])


CONFIG, MAP, TEMPLATE = "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_LISTED = 3
"""Maximum number of tokens listed in a warning."""


def tokenizer_warnings(files: ModelFiles, folder: Path, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield a warning for each contradiction between the model's files, with both values. `folder` has the tokenizer's
    files.
    """
    yield from _vocabulary(files.config, tokenizer)
    if files.format == "gguf":
        return
    config = read_fields(folder / CONFIG)
    yield from _added(folder, tokenizer)
    yield from _names(folder, config)
    yield from _templates(folder, config)


def _vocabulary(config: Mapping[str, Any], tokenizer: Tokenizer) -> Iterator[str]:
    """Warn if the tokenizer has more tokens than the model. Fewer are normal, because models round their
    vocabulary up.
    """
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, Mapping) else None)
    if isinstance(size, int) and tokenizer.vocab_size > size:
        yield (
            f"config.json: vocab_size = {size}, but the tokenizer has {tokenizer.vocab_size} tokens: prompts with "
            "tokens that the model lacks are refused"
        )


def _added(folder: Path, tokenizer: Tokenizer) -> Iterator[str]:
    said = read_settings(folder).added
    other = {i: found for i, token in sorted(said.items()) if (found := tokenizer.token_id(token.content)) != i}
    if other:
        listed = [f"{said[i].content!r} the id {i} instead of {found}" for i, found in list(other.items())[:_LISTED]]
        more = f" and {len(other) - _LISTED} more" if len(other) > _LISTED else ""
        yield f"{CONFIG} gives {', '.join(listed)}{more} in tokenizer.json; tokenizer.json is used"


def _names(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    other = read_fields(folder / MAP)
    counts = CONFIG if "added_tokens_decoder" in config else MAP
    for name in _NAMES:
        said = [content_of(each.get(name)) for each in (config, other)]
        if None not in said and said[0] != said[1]:
            yield f"{name} is {said[0]!r} in {CONFIG} but {said[1]!r} in {MAP}; {counts} is used"


def _templates(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    said, file = config.get("chat_template"), folder / TEMPLATE
    if isinstance(said, str) and file.is_file() and read_text(file).strip() != said.strip():
        yield f"the chat template of {CONFIG} differs from {TEMPLATE}; {TEMPLATE} is used"
