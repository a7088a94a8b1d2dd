"""Makes a tokenizer.json do what the settings beside it say of special tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll_runtime.text.settings import TokenizerSettings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def apply_settings(backend: Tokenizer, settings: TokenizerSettings) -> None:
    """Add the settings' tokens. Padding and truncation, if the tokenizer has any, are turned off."""
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
