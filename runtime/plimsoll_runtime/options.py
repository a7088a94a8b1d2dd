"""Options that several layers read: how one model is served, and where responses and files are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.text.generation_config import GenerationConfigSource
from plimsoll_runtime.utils.option import Option, camel, declared, option, options_of
from plimsoll_runtime.utils.option_values import LIMIT, OptionError, positive

MAX_WAITING = 4096
"""Equals the largest number of choices in one request."""
MAX_WAITING_TOKENS = 4 * 2**20
"""32 prompts of 131,072 tokens, or 1,024 tokens for each of 4096 choices. A token costs 4 bytes in each of two
processes, and up to 36 bytes more in the request body."""
MAX_LOGIT_BIAS = 300
"""OpenAI's limit. Every step adds the biases and delays all sequences: 262,144 biases cost 10 ms a step."""
LONGEST_NAME = 64
"""Characters of a format name that are looked up; no format has a longer name."""
ImageParts = Literal["refuse", "describe"]
"""`refuse` answers 400; `describe` tells the model that an image was left out."""


def tool_format(text: str) -> str:
    """Return `text` if it names a tool-call format. Raises OptionError."""
    from plimsoll_runtime.tools.registry import named

    return _known(text, named)


def reasoning_format(text: str) -> str:
    """Return `text` if it names a reasoning format or is `none`. Raises OptionError."""
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
    """Options of a server for its model, and of a host for each of its models."""

    max_waiting: int = option(
        MAX_WAITING,
        "maximum number of choices that wait for their first token; further requests get 503 and Retry-After",
        SERVED,
    )
    max_waiting_tokens: int = option(
        MAX_WAITING_TOKENS,
        "maximum number of prompt tokens of waiting choices, each prompt counted once; further requests get 503 "
        "and Retry-After, and a request that exceeds the limit alone gets 400",
        SERVED,
        unit="tokens",
    )
    max_logit_bias: int = option(
        MAX_LOGIT_BIAS,
        "maximum number of token ids in a request's logit_bias; large ones slow the steps of all requests",
        SERVED,
        deployment="",
    )
    tool_format: str | None = option(
        None,
        "format of the model's tool calls: hermes, llama3, mistral, ...",
        FORMAT,
        metavar="NAME",
        parse=tool_format,
        usual="from its chat template",
    )
    reasoning_format: str | None = option(
        None,
        "format of the model's reasoning: think, mistral, harmony, ..., or none to leave it in the output",
        FORMAT,
        metavar="NAME",
        parse=reasoning_format,
        usual="from its chat template",
    )
    generation_config: GenerationConfigSource = option(
        "model",
        "source of defaults for temperature, top_p, top_k, min_p and repetition_penalty: the model's "
        "generation_config.json (model), or temperature 1 without filters (none)",
        FORMAT,
        where=("serve", "batch", "LLM", "host API"),
    )
    thinking_budget: int | None = option(
        None,
        "maximum number of reasoning tokens of an output, if its request sets no limit",
        SERVED,
        unit="tokens",
        minimum=0,
        maximum=LIMIT - 1,
        usual="no limit",
    )
    image_parts: ImageParts = option(
        "refuse",
        "images in conversations: refuse the request, or describe: replace each image by a text that says it was "
        "left out",
        FORMAT,
    )
    strict_parameters: bool = option(
        False,
        "refuse requests with unknown fields, instead of listing the fields in the header X-Plimsoll-Ignored",
        SERVED,
    )


def serving_options(runtime: Mapping[str, Any]) -> ServingOptions:
    """Return the server options of a model's `spec.runtime`. Raises UsageError that names the invalid field."""
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


DAY_SECONDS = 86_400

RESPONSES = Option(("serve", "host"), "responses", deployment="responses.*", pool="responses.*")
FOLDER = Option(("serve", "host"), "files and batches")
FILES = replace(FOLDER, deployment="files.*", pool="files.*")


@dataclass(frozen=True, slots=True)
class ResponseBounds:
    """Limits of the response store: how many responses, how many bytes, the share of both for one tenant, and the
    days that a response is stored after its last use."""

    count: int = option(
        10_000,
        "maximum number of stored responses. If it is exceeded, the least recently used are deleted, first those "
        "of tenants with more than an even share",
        RESPONSES,
        flag="--max-responses",
    )
    bytes: int = option(
        64 * 2**20,
        "maximum total size of stored responses",
        RESPONSES,
        flag="--max-response-bytes",
        unit="bytes",
        deployment="responses.size",
        pool="responses.size",
    )
    share: float = option(
        1.0,
        "share of both limits that one tenant may use, such as 50%",
        RESPONSES,
        flag="--response-tenant-share",
        unit="share",
        usual="whatever other tenants leave free",
        deployment="responses.tenantShare",
        pool="responses.tenantShare",
    )
    days: float = option(
        30.0,
        "days after its last use that a response is stored",
        RESPONSES,
        flag="--response-days",
        unit="days",
        parse=positive,
    )

    @property
    def seconds(self) -> float:
        """`days` in seconds."""
        return self.days * DAY_SECONDS

    @property
    def count_of_one(self) -> int:
        """Most responses of one tenant."""
        return max(1, int(self.count * self.share))

    @property
    def bytes_of_one(self) -> int:
        """Most bytes of one tenant's responses."""
        return int(self.bytes * self.share)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of files and batches. A server without a folder has neither."""

    folder: Path = field(
        metadata=declared(
            "folder for /v1/files and /v1/batches, or set PLIMSOLL_FILES_DIR; without a folder both endpoints "
            "answer 501",
            FOLDER,
            flag="--files-dir",
            metavar="DIR",
            variable="PLIMSOLL_FILES_DIR",
        )
    )
    shared: bool = option(
        False,
        "share the folder with other servers (one PersistentVolumeClaim), or set PLIMSOLL_FILES_SHARED=1; each "
        "server processes the batches of its own models",
        FOLDER,
        flag="--files-shared",
        variable="PLIMSOLL_FILES_SHARED",
    )
    most_bytes: int = option(
        10 * 2**30,
        "maximum total size of all files",
        FILES,
        flag="--files-size",
        unit="bytes",
        deployment="files.size",
        pool="files.size",
    )
    at_once: int = option(
        32,
        "maximum number of batch lines in progress at once; a quarter of it while requests of clients are in flight",
        FILES,
        flag="--batch-lines",
        deployment="files.batchLines",
        pool="files.batchLines",
    )
