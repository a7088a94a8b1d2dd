"""The spans of a request in the gateway say why it was held."""

from __future__ import annotations

import pytest

from plimsoll_cluster.keys import ObjectKey
from plimsoll_gateway.discovery.routing_table import Model, Replica
from plimsoll_gateway.proxy.replica_proxy import why_unready
from plimsoll_gateway.telemetry.request_record import HOLD, TURN, RequestRecord
from plimsoll_gateway.telemetry.request_spans import RequestSpans
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.server_span import HttpRequest
from plimsoll_telemetry.trace_context import TraceContext


def model(*, pooled: bool, replicas: tuple[Replica, ...] = ()) -> Model:
    return Model(ObjectKey("team", "m"), ("m",), 1.0, "", replicas, pooled=pooled, scales_to=0 if pooled else 1)


@pytest.mark.parametrize(("pooled", "reason"), [(True, "not_placed"), (False, "scaled_to_zero")])
def test_a_model_without_replicas_is_nowhere_yet(pooled: bool, reason: str) -> None:
    assert why_unready(model(pooled=pooled)) == reason


def test_only_the_phase_in_which_it_waited_has_the_reason() -> None:
    record = RequestRecord(TraceContext(1, 2, sampled=True))
    record.phases.end("admit")
    record.phases.end(TURN)
    record.reasons[HOLD] = "moved"
    record.phases.end(HOLD)
    record.finish()
    spans = RequestSpans(record, HttpRequest("POST", "/v1/completions", 200, "r"), None, 0)()
    assert {span.name: span.attributes.get(names.REASON) for span in spans[1:]} == {
        "admit": None,
        TURN: None,
        HOLD: "moved",
        "respond": None,
    }
