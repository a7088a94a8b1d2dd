"""Counts the requests that meet and miss the objectives of their model."""

from __future__ import annotations

from plimsoll_cluster.objectives import AVAILABILITY, FIRST_TOKEN, INTER_TOKEN
from plimsoll_gateway.discovery.routing_table import Model
from plimsoll_gateway.telemetry.metrics import CLIENT_GONE, Metrics
from plimsoll_gateway.telemetry.request_record import RequestRecord

MET, MISSED = "met", "missed"


class ObjectiveCounts:
    """Counts in the metrics.

    Availability: a request is missed if its status is 500 or above, refusals for overload included, or if its response
    ends early. Errors of clients, limits of their keys, and clients that disconnect are met: the service did its part.

    First token and inter-token latency: only streamed answers with a first event, or with two, count. A client that
    disconnects before the first event counts as missed if it has waited longer than the objective, and otherwise not
    at all.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def ended(self, model: Model, status: int, record: RequestRecord, ended_ns: int, *, broke: bool) -> None:
        """Count a request. `broke`: its response has begun well and ended with an error."""
        objectives = model.objectives
        if objectives.availability is not None:
            self._count(model, AVAILABILITY, met=status < 500 and not broke)
        if not record.streams:
            return
        times = record.times
        first = None if times is None else times.first
        if (limit := objectives.first_token) is not None:
            waited = (ended_ns - record.phases.began_ns) / 1e9
            if first is not None:
                self._count(model, FIRST_TOKEN, met=first <= limit.seconds)
            elif status == CLIENT_GONE and waited > limit.seconds:
                self._count(model, FIRST_TOKEN, met=False)
        gap = None if times is None else times.mean_gap
        if (limit := objectives.inter_token) is not None and gap is not None:
            self._count(model, INTER_TOKEN, met=gap <= limit.seconds)

    def _count(self, model: Model, objective: str, *, met: bool) -> None:
        """Count one outcome; the other one gets a series, too, so that a rate sees its first increase."""
        for outcome, counts in ((MET, met), (MISSED, not met)):
            self._metrics.of(model.key, self._metrics.objectives, objective, outcome).inc(counts)
