"""How the requests of one model are served: the same record for a server, a batch and the models of a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.text.generation_config import GenerationConfigSource
from plimsoll_runtime.utils.option import Option, camel, option, options_of
from plimsoll_runtime.utils.option_values import LIMIT, OptionError

MAX_WAITING = 4096
"""As many answers as one request may ask for."""
MAX_WAITING_TOKENS = 4 * 2**20
"""32 prompts of 131,072 tokens, or a thousand for each of 4096 answers. They cost 4 bytes a token in each of two
processes, and up to 36 more in the request as it came."""
MAX_LOGIT_BIAS = 300
"""As many as OpenAI takes. They are added in every step, and everybody's step waits: 262,144 cost 10 ms each time."""
LONGEST_NAME = 64
"""Of a format: a longer name is none that there is."""
ImageParts = Literal["refuse", "describe"]
"""An image is a 400, or the model is told that one was left out."""


def tool_format(text: str) -> str:
    """The name of a format of tool calls. Raises OptionError."""
    from plimsoll_runtime.tools.registry import named

    return _known(text, named)


def reasoning_format(text: str) -> str:
    """The name of a format of reasoning, or `none`. Raises OptionError."""
    from plimsoll_runtime.reasoning.registry import named

    return _known(text, named)


def _known(text: str, named: Callable[[str], object]) -> str:
    from plimsoll_runtime.tools.base import UnknownFormat

    try:
        named(text[:LONGEST_NAME])
    except UnknownFormat as error:
        raise OptionError(str(error)) from error
    return text


SERVED = Option(("serve", "host API"), "server", deployment="runtime.*")
FORMAT = replace(SERVED, where=("serve", "batch", "host API"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Options that a server has for its model, and a host for each of its models."""

    max_waiting: int = option(
        MAX_WAITING,
        "most answers that may wait for their first token; more are refused with 503 and Retry-After",
        SERVED,
        maximum=LIMIT,
    )
    max_waiting_tokens: int = option(
        MAX_WAITING_TOKENS,
        "most tokens that the prompts of such answers may have, each prompt counted once; more are refused in the "
        "same way, and a request that never fits with 400",
        SERVED,
        unit="tokens",
        maximum=LIMIT,
    )
    max_logit_bias: int = option(
        MAX_LOGIT_BIAS,
        "most token ids that a request's logit_bias may have; everybody's steps wait for them",
        SERVED,
        maximum=LIMIT,
        deployment="",
    )
    tool_format: str | None = option(
        None,
        "how the model writes calls of tools: hermes, llama3, mistral, ...",
        FORMAT,
        metavar="NAME",
        parse=tool_format,
        usual="as its chat template does",
    )
    reasoning_format: str | None = option(
        None,
        "how the model writes thoughts: think, mistral, harmony, ..., or none to leave them in answers",
        FORMAT,
        metavar="NAME",
        parse=reasoning_format,
        usual="as its chat template does",
    )
    generation_config: GenerationConfigSource = option(
        "model",
        "defaults for requests that leave out temperature, top_p, top_k, min_p or repetition_penalty: those of the "
        "model's generation_config.json (model), or temperature 1 and no filter (none)",
        FORMAT,
        where=("serve", "batch", "LLM", "host API"),
    )
    thinking_budget: int | None = option(
        None,
        "most tokens that the thoughts of an answer may have where its request does not say",
        SERVED,
        unit="tokens",
        minimum=0,
        maximum=LIMIT - 1,
        usual="no bound",
    )
    image_parts: ImageParts = option(
        "refuse",
        "images in conversations: refuse the request, or replace each image by a text that says it was left out",
        FORMAT,
    )
    strict_parameters: bool = option(
        False,
        "refuse requests with fields that nothing here knows, instead of naming them in X-Plimsoll-Ignored",
        SERVED,
    )


def serving_options(runtime: Mapping[str, Any]) -> ServingOptions:
    """What a model's `spec.runtime` says of its server. Raises UsageError that names the field at fault."""
    known = [*options_of(ServingOptions)]
    values = {each.name: runtime[each.camel] for each in known if each.camel in runtime}
    try:
        found = msgspec.convert(values, ServingOptions)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise UsageError(f"spec.runtime{camel(where.strip('`$'))}: {what[0].lower()}{what[1:]}") from error
    for each in known:
        value = getattr(found, each.name)
        try:
            each.check(value, f"spec.runtime.{each.camel}")
            if each.parse is not None and value is not None:
                each.parse(value)
        except OptionError as error:
            raise UsageError(f"spec.runtime.{each.camel}: {error}") from error
    return found
