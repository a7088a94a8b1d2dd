"""The options of a server."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from plimsoll_runtime.api.server.limits import OPTION, VARIABLE, BodyLimits, limits_with, path_and_size
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.step_tracing import StepTracing
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.options import BatchOptions, ResponseBounds, ServingOptions
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.utils import option_values as values
from plimsoll_runtime.utils.option import Option, declared, option
from plimsoll_runtime.version import VERSION
from plimsoll_telemetry.exporters import start_tracer
from plimsoll_telemetry.settings import MOST_TRACES, TracingSettingsError, read_settings
from plimsoll_telemetry.tracer import Tracer

logger = logging.getLogger(__name__)


def unique_words(words: list[str]) -> tuple[str, ...]:
    """Return the words without duplicates."""
    return tuple(dict.fromkeys(words))


def gateway_credential(text: str) -> list[str]:
    """Return a list with one gateway credential. Raises OptionError unless it is 16 to 256 printable characters."""
    if not re.fullmatch("[!-~]{16,256}", text):
        raise values.OptionError("it must be 16 to 256 printable ASCII characters without spaces")
    return [text]


def deployment_key(text: str) -> ModelName:
    """Return the namespace and name of an object. Raises OptionError."""
    try:
        return ModelName.parse(text)
    except UsageError as error:
        raise values.OptionError(f"{text[:64]!r} is not NAMESPACE/NAME: {error}") from error


SERVER = Option(("serve", "host"), "server")
TLS = replace(SERVER, flag="--tls-*", metavar="FILE")
TRACES = replace(SERVER, group="traces")


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Options of a listening socket: TLS, CORS, the log format. Raises UsageError."""

    certificate: Path | None = option(
        None, "serve HTTPS with this certificate chain (PEM); the file is read again when it changes", TLS
    )
    key: Path | None = option(None, "private key of the certificate (PEM)", TLS)
    origins: tuple[str, ...] = option(
        (),
        "origin (https://chat.example.com) whose web pages may use the API, '*' for all; repeatable",
        SERVER,
        flag="--cors-origin",
        metavar="ORIGIN",
        parse=values.word,
    )
    log_format: Literal["text", "json"] = option("text", "log format; json: one object per line", SERVER)

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--tls-certificate and --tls-key need each other; give both or neither")


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """Options of traces. The standard OTEL_* environment variables say where they go, and which requests are traced."""

    traces_per_second: float = option(
        MOST_TRACES,
        "most requests traced in a second, whatever their callers ask for; the OTEL_* variables turn traces on",
        TRACES,
        parse=values.number,
        variable="PLIMSOLL_TRACES_PER_SECOND",
    )
    trace_every_steps: int = option(
        100, "one of this many steps of the engine is a trace, with its phases and ops; 0: none", TRACES, minimum=0
    )
    trace_slow_steps: float = option(
        3.0,
        "a step that takes this many times as long as steps of its size usually do is a trace; 0: none",
        TRACES,
        parse=values.number,
    )
    trace_content: bool = option(
        False, "put the beginning of prompts and outputs into traces, which may be confidential", TRACES
    )

    @property
    def steps(self) -> StepTracing:
        """The steps that engines record if traces are on."""
        return StepTracing(self.trace_every_steps, self.trace_slow_steps)

    def start(self) -> Tracer | None:
        """Return a tracer that sends; None if traces are off. Raises UsageError for an invalid variable."""
        try:
            settings = read_settings(os.environ, self.traces_per_second, content=self.trace_content)
        except TracingSettingsError as error:
            raise UsageError(str(error)) from error
        if settings is not None and settings.content:
            logger.warning(
                "traces contain the beginning of prompts and outputs (--trace-content): everyone who can read the "
                "traces can read them"
            )
        return start_tracer(settings, "plimsoll-runtime", {"service.version": VERSION})


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    """Options of the part that faces clients, for a server of one model and for a host.

    `host` and `port` are those of the OpenAI API. Without `api_keys` and `api_key_file` it needs no key.
    """

    host: str = option("127.0.0.1", "address to listen on", SERVER)
    port: int = option(8000, "port to listen on, 0 for a free one", SERVER, metavar="PORT", minimum=0, maximum=65535)
    metrics_port: int | None = option(
        None,
        "serve /metrics on this port only, without TLS or a key; 0 for a free one",
        SERVER,
        metavar="PORT",
        minimum=0,
        maximum=65535,
        usual="on the API's port",
    )
    metrics_names: Literal["plimsoll", "vllm", "plimsoll,vllm"] = option(
        "plimsoll",
        "whose names metrics have; those of vLLM are for dashboards and scalers that were made for it",
        SERVER,
        variable="PLIMSOLL_METRICS_NAMES",
    )
    api_keys: tuple[str, ...] = option(
        (),
        "API key that requests must send; repeatable. All users of the machine can read it in the process list: "
        "prefer --api-key-file, or the environment variable PLIMSOLL_API_KEY (comma separated)",
        SERVER,
        flag="--api-key",
        metavar="K",
        parse=values.word,
        variable="PLIMSOLL_API_KEY",
        parse_variable=values.words,
        collect=unique_words,
    )
    api_key_file: Path | None = option(
        None, "file of API keys, one per line; it is read again when it changes", SERVER, metavar="FILE"
    )
    listener_options: ListenerOptions = field(default_factory=ListenerOptions)
    body_limits: BodyLimits = option(
        BodyLimits(),
        "maximum size of request bodies: of all endpoints that run a model, or of one PATH; repeatable, or set "
        "PLIMSOLL_MAX_BODY_BYTES (comma separated)",
        SERVER,
        flag=OPTION,
        metavar="[PATH=]SIZE",
        unit="bytes",
        parse=path_and_size,
        variable=VARIABLE,
        collect=limits_with,
        usual="32MiB, 16MiB for endpoints that generate nothing, 8MiB for /tokenize and /detokenize, 512MiB for files",
    )
    gateway_tokens: tuple[str, ...] = option(
        (),
        "credential of a gateway, 16 to 256 printable characters",
        SERVER,
        flag="",
        variable="PLIMSOLL_GATEWAY_TOKEN",
        parse_variable=gateway_credential,
    )
    gateway_token_file: Path | None = option(
        None,
        "file of gateway credentials, one per line; it is read again when it changes. Requests that send one in "
        "x-plimsoll-gateway need no API key, and name their tenant in x-plimsoll-tenant. Or set "
        "PLIMSOLL_GATEWAY_TOKEN",
        SERVER,
        metavar="FILE",
    )
    share_prefix_cache: bool = option(
        False,
        "share cached prefixes between API keys. This saves computation for common prompts, but cached_tokens "
        "and response times then reveal to one key which prompts another has sent",
        SERVER,
        usual="off, each key has its own",
    )
    drain_seconds: float = option(
        30.0,
        "time that running requests have to finish after SIGTERM",
        SERVER,
        unit="seconds",
        deployment="runtime.*",
        pool="*",
    )
    tracing: TracingOptions = field(default_factory=TracingOptions)
    batches: BatchOptions | None = None
    response_store: Path | None = option(
        None,
        "SQLite file that stores responses (/v1/responses), created if missing; only one server may use it at a time",
        SERVER,
        group="responses",
        metavar="FILE",
        usual="in memory, lost when the server exits",
    )
    response_bounds: ResponseBounds = field(default_factory=ResponseBounds)
    termination_log: str | None = option(
        None, "file that gets one line about a fatal error", SERVER, flag="", variable="PLIMSOLL_TERMINATION_LOG"
    )


@dataclass(frozen=True, slots=True)
class ServerConfig(FrontConfig):
    """Options of a server of one model. Responses contain the first of `names`."""

    engine: EngineConfig
    names: tuple[str, ...] = field(
        metadata=declared(
            "name that requests may use for the model; repeatable",
            SERVER,
            where=("serve",),
            flag="--name",
            metavar="N",
            parse=values.word,
            usual="from MODEL",
            deployment="model.servedNames",
        )
    )
    serving: ServingOptions = field(default_factory=ServingOptions)
    findings_file: Path | None = option(
        None,
        "file that gets the warnings about the device, one per line",
        SERVER,
        where=("serve",),
        flag="",
        variable="PLIMSOLL_FINDINGS",
    )
    deployment: ModelName | None = option(
        None,
        "the ModelDeployment that this server belongs to, for metrics and traces",
        SERVER,
        where=("serve",),
        metavar="NAMESPACE/NAME",
        parse=deployment_key,
        usual="none: an empty namespace and the first --name",
    )


def default_name(model: str) -> str:
    """Return the default name of a model: the id of a hub or demo model, otherwise the file's or folder's name.

    >>> default_name("demo://gemma-3-270m"), default_name("org/model"), default_name("/models/claim/tiny.gguf")
    ('gemma-3-270m', 'org/model', 'tiny')
    """
    scheme, separator, rest = model.partition("://")
    if separator and scheme in ("hf", "demo"):
        return rest or model
    path = PurePosixPath(rest if separator else model)
    if path.suffix == ".gguf":
        return path.stem
    is_local = bool(separator) or path.is_absolute() or model.startswith((".", "~")) or len(path.parts) != 2
    return (path.name or model) if is_local else model
