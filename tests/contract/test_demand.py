"""The operator reads `GET /demand` as the gateway writes it, and scales by it."""

from __future__ import annotations

import msgspec
from operator_support.stub_gateway import StubGateway

from plimsoll_gateway.demand.counters import DemandCounters as Ledger
from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_gateway.routing.loads import Standing
from plimsoll_operator.scaling.demand import Demand, RevisionDemand, contradiction, decode_demand
from plimsoll_operator.spec.identity import ObjectKey

KEY = ObjectKey("team", "m")
NOW = 1767225600.0


def test_the_stand_in_says_what_the_design_says() -> None:
    """The stub's fields are those of the example in docs/design/20261122-scaling.md."""
    stub = StubGateway()
    stub.hold(KEY, 2)
    stub.of(KEY).replicas = 1
    body = stub.body()
    (model,) = body["models"]
    (part,) = model["revisions"]
    assert set(body) == {"instance", "sequence", "time", "models"}
    assert set(model) == {"namespace", "name", "held", "inFlight", "asked", "lastAsked", "revisions"}
    assert set(part) == {field.encode_name for field in msgspec.structs.fields(RevisionDemand)}
    assert contradiction(None, msgspec.convert(body, Demand), NOW) is None


def test_a_gateways_own_answer_is_read() -> None:
    """The operator's record has the values that the gateway's counters report."""
    store = TableStore()
    ledger = Ledger(store, look=lambda replica: Standing(running=3, waiting=1, slots=8, kv=0.5), clock=lambda: NOW)
    with ledger.asking(ObjectKey("team", "m")):
        ledger.held(ObjectKey("team", "m"), 1)
        totals = ledger.totals(ObjectKey("team", "m"), "r1")
        totals.answered(200)
        totals.answered(502)
        for seconds in (0.3, 500.0):
            totals.first_byte.add(seconds)
        totals.event_gap.add(0.02, 7)
        answer = decode_demand(msgspec.json.encode(ledger.report()))
    (model,) = answer.models
    assert (model.key, model.held, model.in_flight, model.asked, model.last_asked) == (KEY, 1, 1, 1, NOW)
    (part,) = model.revisions
    assert (part.revision, part.requests, part.errors) == ("r1", 2, 1)
    assert (part.first_byte.count, part.first_byte.buckets[-1][1], part.event_gap.count) == (2, 1, 7)
    assert contradiction(None, answer, NOW) is None
    assert answer.sequence == 1, "it rises when requests begin to wait"
