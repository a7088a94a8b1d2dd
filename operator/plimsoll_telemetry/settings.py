"""What the standard OTEL_* environment variables say about traces.

Source: opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

EXPORTERS = ("otlp", "zipkin", "none")
PROTOCOLS = ("http/protobuf", "grpc")
SAMPLERS = ("parentbased_traceidratio", "parentbased_always_on", "parentbased_always_off")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
ZIPKIN_ENDPOINT = "http://localhost:9411/api/v2/spans"
MOST_TRACES = 100.0
"""Traces a second that a process samples at most, by default."""


class TracingSettingsError(ValueError):
    """A variable has a value that it cannot have; the message names both."""


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """How traces are sampled and sent. Times are in seconds.

    `ratio`: share of the requests without a caller's decision. `most`: traces a second. `queue`: traced requests that
    may wait to be sent. `batch`: spans sent together. `delay`: how long they wait, unless the queue is half full.
    `zipkin`: the endpoint, with `exporter` "zipkin" only; OpenTelemetry's exporters read theirs from the environment.
    `service`: the name of the program in traces; empty: its own. `content`: prompts and outputs may be in spans.
    """

    exporter: str = "otlp"
    protocol: str = "http/protobuf"
    ratio: float = 1.0
    most: float = MOST_TRACES
    queue: int = 2048
    batch: int = 512
    delay: float = 5.0
    zipkin: str = ZIPKIN_ENDPOINT
    zipkin_timeout: float = 10.0
    service: str = ""
    content: bool = False


def read_settings(
    environment: Mapping[str, str], most: float = MOST_TRACES, *, content: bool = False
) -> TracingSettings | None:
    """Return the settings; None if traces are off, as they are without any of these variables.

    OTLP is on if an endpoint is set (OTEL_EXPORTER_OTLP_ENDPOINT, or the one for traces), or by OTEL_TRACES_EXPORTER.
    Raise TracingSettingsError.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    default = "otlp" if any(environment.get(name) for name in ENDPOINTS) else "none"
    exporter = _choice(environment, "OTEL_TRACES_EXPORTER", EXPORTERS, default)
    if exporter == "none":
        return None
    sampler = _choice(environment, "OTEL_TRACES_SAMPLER", SAMPLERS, "parentbased_always_on")
    ratio = float(sampler != "parentbased_always_off")
    if sampler == "parentbased_traceidratio":
        ratio = _number(environment, "OTEL_TRACES_SAMPLER_ARG", 1.0, 0.0, 1.0)
    protocol = _choice(environment, "OTEL_EXPORTER_OTLP_PROTOCOL", PROTOCOLS, PROTOCOLS[0])
    queue = int(_number(environment, "OTEL_BSP_MAX_QUEUE_SIZE", 2048, 1, 1 << 20))
    return TracingSettings(
        exporter,
        _choice(environment, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", PROTOCOLS, protocol),
        ratio,
        most,
        queue,
        int(_number(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, 1, 1 << 16)),
        _number(environment, "OTEL_BSP_SCHEDULE_DELAY", 5000, 1, 3_600_000) / 1000,
        environment.get("OTEL_EXPORTER_ZIPKIN_ENDPOINT") or ZIPKIN_ENDPOINT,
        _number(environment, "OTEL_EXPORTER_ZIPKIN_TIMEOUT", 10_000, 1, 3_600_000) / 1000,
        environment.get("OTEL_SERVICE_NAME") or _resource(environment).get("service.name", ""),
        content,
    )


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def _choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = environment.get(name, "").strip() or default
    if value not in choices:
        raise TracingSettingsError(f"{name} is {value!r}, and must be one of {', '.join(choices)}")
    return value


def _number(environment: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = environment.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise TracingSettingsError(f"{name} is {text!r}, and must be a number from {least:g} to {most:g}")
    return value
