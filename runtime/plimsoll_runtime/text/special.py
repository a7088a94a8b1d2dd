"""Special tokens and templates beside a tokenizer.json, and how they change it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from plimsoll_runtime.errors import ModelError

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What tokenizer_config.json and its companions say beyond tokenizer.json.

    `tokens`: special tokens by name. `added`: tokens by id. `add_bos`, `add_eos`: None where nothing is said, so
    that tokenizer.json's own post-processor stands. `templates`: chat templates by name.
    """

    tokens: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    add_bos: bool | None = None
    add_eos: bool | None = None
    templates: Mapping[str, str] = field(default_factory=dict)


def read_settings(folder: Path, template: str | None = None) -> TokenizerSettings:
    """The settings in a model's folder; `template` goes before the folder's own. Raises ModelError."""
    config = _read_json(folder / "tokenizer_config.json")
    fallback = _read_json(folder / "special_tokens_map.json")
    tokens = {}
    for name in NAMES:
        value = config.get(name) or fallback.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[name] = content
    says_ends = "add_bos_token" in config or "add_eos_token" in config
    return TokenizerSettings(
        tokens=tokens,
        added={int(key): value for key, value in (config.get("added_tokens_decoder") or {}).items()},
        add_bos=bool(config.get("add_bos_token")) if says_ends else None,
        add_eos=bool(config.get("add_eos_token")) if says_ends else None,
        templates={"default": template} if template else _read_templates(folder, config),
    )


def apply_settings(backend: Tokenizer, settings: TokenizerSettings) -> None:
    """Make a tokenizer.json do what its companions say. Padding and truncation, if it has any, are turned off."""
    backend.no_padding()
    backend.no_truncation()
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for _, token in sorted(settings.added.items()):
        if token["content"] not in known:
            flags = {flag: bool(token[flag]) for flag in _FLAGS if flag in token}
            add = backend.add_special_tokens if flags.get("special") else backend.add_tokens
            add([AddedToken(token["content"], **flags)])
            known.add(token["content"])
    in_vocabulary = [text for text in settings.tokens.values() if backend.token_to_id(text) is not None]
    special = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in in_vocabulary if text not in special]
    )
    if settings.add_bos is not None or settings.add_eos is not None:
        backend.post_processor = _ends(backend, settings)


def _ends(backend: Tokenizer, settings: TokenizerSettings) -> TemplateProcessing:
    bos = settings.tokens.get("bos_token") if settings.add_bos else None
    eos = settings.tokens.get("eos_token") if settings.add_eos else None
    for text in (bos, eos):
        if text is not None and backend.token_to_id(text) is None:
            raise ModelError(f"tokenizer_config.json asks for the token {text!r}, which is not in the vocabulary")
    return TemplateProcessing(
        single=[*([bos] if bos else []), "$A", *([eos] if eos else [])],
        special_tokens=[(text, backend.token_to_id(text)) for text in dict.fromkeys((bos, eos)) if text],
    )


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
