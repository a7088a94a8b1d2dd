"""What a model's spec says to the server rather than to its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from plimsoll_runtime.api.image_parts import ImageParts
from plimsoll_runtime.api.load.room import MAX_WAITING, MAX_WAITING_TOKENS
from plimsoll_runtime.api.served import MAX_LOGIT_BIAS
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.reasoning import registry as reasoning
from plimsoll_runtime.text.generation_config import Source
from plimsoll_runtime.tools import registry as tools
from plimsoll_runtime.tools.base import UnknownFormat

Positive = Annotated[int, Meta(ge=1, le=2**31)]


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Those of `spec.runtime` that say how one model's requests are served: see `ServerConfig`."""

    max_waiting: Positive = MAX_WAITING
    max_waiting_tokens: Positive = MAX_WAITING_TOKENS
    max_logit_bias: Positive = MAX_LOGIT_BIAS
    tool_format: Annotated[str, Meta(max_length=64)] | None = None
    strict_parameters: bool = False
    reasoning_format: Annotated[str, Meta(max_length=64)] | None = None
    thinking_budget: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    image_parts: ImageParts = "refuse"
    generation_config: Source = "model"


def server_options(runtime: Mapping[str, Any]) -> ServerOptions:
    """What the fields of `spec.runtime` say. Raises UsageError that names the one at fault."""
    try:
        options = msgspec.convert(runtime, ServerOptions)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise UsageError(f"spec.runtime{where.strip('`').removeprefix('$')}: {what[0].lower()}{what[1:]}") from error
    _check_format("toolFormat", options.tool_format, tools.named)
    _check_format("reasoningFormat", options.reasoning_format, reasoning.named)
    return options


def _check_format(field: str, name: str | None, named: Callable[[str], object]) -> None:
    try:
        if name is not None:
            named(name)
    except UnknownFormat as error:
        raise UsageError(f"spec.runtime.{field}: {error}") from error
