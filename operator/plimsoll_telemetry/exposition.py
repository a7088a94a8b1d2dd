"""Formats metrics for a scrape, and makes exemplars.

Importing this module switches off `_created` series, which would add a sample to each counter and histogram.
"""

from __future__ import annotations

from typing import NamedTuple

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import exposition as openmetrics

from plimsoll_telemetry.trace_context import TraceContext

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PATH = "/metrics"


class Exposition(NamedTuple):
    """The body of a response to a scrape, and its content type."""

    body: bytes
    content_type: str


def expose(registry: CollectorRegistry, accept: str = "") -> Exposition:
    """Return all metrics as OpenMetrics, with exemplars, if the header Accept prefers it; otherwise in Prometheus' text
    format, which has no exemplars.
    """
    if _prefers_openmetrics(accept):
        return Exposition(openmetrics.generate_latest(registry), OPENMETRICS)  # type: ignore[no-untyped-call]
    return Exposition(prometheus_client.generate_latest(registry), TEXT)


def exemplar_of(span: TraceContext | None) -> dict[str, str] | None:
    """Return the exemplar of a request, which has the id of its trace; None if the request is not sampled."""
    return {"trace_id": span.trace} if span is not None and span.sampled else None


def _prefers_openmetrics(accept: str) -> bool:
    """Return whether Accept has OpenMetrics, version 1.0.0 if it has any, with at least the weight of plain text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for clause in accept.split(","):
        kind, *parameters = (word.strip().lower() for word in clause.split(";"))
        given = dict(word.partition("=")[::2] for word in parameters)
        if kind == "application/openmetrics-text" and given.get("version", "1.0.0") != "1.0.0":
            continue
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(given.get("q", "1")))
    return 0.0 < weights["application/openmetrics-text"] >= weights["text/plain"]


def _weight(text: str) -> float:
    """Return a weight from 0 to 1; 0 for anything else."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= 1.0 else 0.0
