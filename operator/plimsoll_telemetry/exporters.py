"""The exporter that the settings name."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from plimsoll_telemetry.settings import TracingSettings
from plimsoll_telemetry.tracer import SpanExporter, Tracer

NO_FACTS: Mapping[str, str] = MappingProxyType({})


def start_tracer(settings: TracingSettings | None, service: str, facts: Mapping[str, str] = NO_FACTS) -> Tracer | None:
    """Return a tracer that sends; None without settings. `service` is the name of this program, and `facts` are
    attributes of this process besides the host's name, unless OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES give
    others.
    """
    known = {"service.instance.id": socket.gethostname(), **facts}
    return None if settings is None else Tracer(settings, partial(_exporter, settings, service, known))


def _exporter(settings: TracingSettings, service: str, facts: Mapping[str, str]) -> SpanExporter:
    # Imported here: they and their libraries take a quarter of a second, and most processes send no traces.
    if settings.exporter == "zipkin":
        from plimsoll_telemetry.zipkin import ZipkinExporter

        return ZipkinExporter(settings.zipkin, settings.zipkin_timeout, settings.service or service)
    from plimsoll_telemetry.otlp import OtlpExporter

    return OtlpExporter(settings.protocol, service, facts)
