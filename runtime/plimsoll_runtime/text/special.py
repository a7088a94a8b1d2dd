"""Special tokens and templates beside a tokenizer.json, and how they change it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What tokenizer_config.json and its companions say beyond tokenizer.json.

    `tokens`: special tokens by name (bos_token, ...). `extra`: special tokens without a name. `added`: tokens by id.
    `templates`: chat templates by name. What is put before and after a text is tokenizer.json's own affair:
    add_bos_token and add_eos_token beside it mean nothing, as in Transformers.
    """

    tokens: Mapping[str, str] = field(default_factory=dict)
    extra: Sequence[str] = ()
    added: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)


def read_settings(folder: Path, template: str | None = None) -> TokenizerSettings:
    """The settings in a model's folder; `template` goes before the folder's own. Raises ModelError."""
    config = _read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= {k: v for k, v in _read_json(folder / "special_tokens_map.json").items() if v}
    named = {key: _content(value) for key, value in config.items() if key.endswith("_token")}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    return TokenizerSettings(
        tokens={key: content for key, content in named.items() if content is not None},
        extra=[content for content in map(_content, extra) if content is not None],
        added={int(key): value for key, value in (config.get("added_tokens_decoder") or {}).items()},
        templates={"default": template} if template else _read_templates(folder, config),
    )


def apply_settings(backend: Tokenizer, settings: TokenizerSettings) -> None:
    """Make a tokenizer.json do what its companions say. Padding and truncation, if it has any, are turned off."""
    from tokenizers import AddedToken

    backend.no_padding()
    backend.no_truncation()
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for _, token in sorted(settings.added.items()):
        if token["content"] not in known:
            flags = {flag: bool(token[flag]) for flag in _FLAGS if flag in token}
            add = backend.add_special_tokens if flags.get("special") else backend.add_tokens
            add([AddedToken(token["content"], **flags)])
            known.add(token["content"])
    special = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    wanted = [t for t in (*settings.tokens.values(), *settings.extra) if backend.token_to_id(t) is not None]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in wanted if t not in special])


def _content(token: Any) -> str | None:
    """A token's text, written as it is or as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name: chat_template.jinja, else tokenizer_config.json's, else chat_template.json's."""
    found = config.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        templates = {str(entry["name"]): str(entry["template"]) for entry in found}
    elif isinstance(found, dict):
        templates = {str(name): str(template) for name, template in found.items()}
    else:
        templates = {"default": str(found)} if found else {}
    file = folder / "chat_template.jinja"
    if file.is_file():
        templates = {"default": file.read_text(encoding="utf-8")}
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[extra.stem] = extra.read_text(encoding="utf-8")
    return templates


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return content
