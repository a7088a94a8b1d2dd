"""What a gateway answers to `GET /demand` is what the operator reads, and scales by."""

from __future__ import annotations

import msgspec
from operator_support.stub_gateway import StubGateway

from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.scaling.demand import Demand, RevisionDemand, complaint

KEY = ObjectKey("team", "m")
NOW = 1767225600.0


def test_the_stand_in_says_what_the_design_says() -> None:
    """docs/design/20261122-scaling.md has an example; the stand-in has its names, and no others."""
    stub = StubGateway()
    stub.hold(KEY, 2)
    stub.of(KEY).replicas = 1
    body = stub.body()
    (model,) = body["models"]
    (part,) = model["revisions"]
    assert set(body) == {"instance", "sequence", "time", "models"}
    assert set(model) == {"namespace", "name", "held", "inFlight", "asked", "lastAsked", "revisions"}
    assert set(part) == {field.encode_name for field in msgspec.structs.fields(RevisionDemand)}
    assert complaint(None, msgspec.convert(body, Demand), NOW) is None
