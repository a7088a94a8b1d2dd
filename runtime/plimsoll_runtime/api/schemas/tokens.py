"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from plimsoll_runtime.api.schemas.chat import MAX_MESSAGES, ChatMessage
from plimsoll_runtime.api.schemas.sampling import Lenient, TokenId


class TokenizeRequest(Lenient):
    """Either `prompt` (a text) or `messages` (a chat, by the model's template)."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Lenient):
    """Token ids to be read as text, special tokens included."""

    model: str | None = None
    tokens: list[TokenId]


class TokenizeAnswer(msgspec.Struct, omit_defaults=True):
    """Token ids; `token_strs` where asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(msgspec.Struct):
    """The text of the ids."""

    prompt: str
