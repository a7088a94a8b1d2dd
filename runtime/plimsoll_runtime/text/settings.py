"""What stands beside a tokenizer.json: special tokens, templates, in files that may be damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from plimsoll_runtime.errors import ModelError, SourceError
from plimsoll_runtime.weights.files import check_size

WHAT_TO_DO = "fetch the file again, or mend it"

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Flag = bool | int | None


class AddedToken(msgspec.Struct, frozen=True):
    """A token beside the vocabulary; a flag that is None is not given, and has the tokenizers library's default."""

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
"""The fields whose kind matters here; others may be anything."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What tokenizer_config.json and its companions say beyond tokenizer.json.

    `tokens`: special tokens by name (bos_token, ...). `extra`: special tokens without a name. `added`: tokens by id.
    `templates`: chat templates by name. What is put before and after a text is tokenizer.json's own affair:
    add_bos_token and add_eos_token beside it mean nothing, as in Transformers.
    """

    tokens: Mapping[str, str] = field(default_factory=dict)
    extra: Sequence[str] = ()
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)


def read_settings(folder: Path, template: str | None = None) -> TokenizerSettings:
    """The settings in a model's folder; `template` goes before the folder's own. Raises ModelError, SourceError."""
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
    """A token's text, written as it is or as an object."""
    if isinstance(token, _Token):
        return token.content
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name: chat_template.jinja, else tokenizer_config.json's, else chat_template.json's."""
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
    """The fields of a file, those that matter here as what they are to be."""
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
    """A small text. Raises ModelError for one that is none, SourceError for one that cannot be read."""
    check_size(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8: {error}; {WHAT_TO_DO}") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
