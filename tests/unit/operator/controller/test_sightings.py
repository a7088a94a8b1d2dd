"""The request counts of canaries in gateways' reports."""

from __future__ import annotations

from typing import Any

import msgspec

from plimsoll_operator.canary.counts import RequestCounts
from plimsoll_operator.controller.controller import request_totals_of
from plimsoll_operator.scaling.demand import decode_demand
from plimsoll_operator.scaling.gateways import KEPT_SECONDS, GatewayRegistry
from plimsoll_operator.spec.identity import ObjectKey

KEY = ObjectKey("team", "m")


def answer(instance: str, **revisions: dict[str, Any]) -> bytes:
    entries = [{"revision": name, **values} for name, values in revisions.items()]
    models = [
        {"namespace": "team", "name": "other", "revisions": [{"revision": "a", "requests": 9}]},
        {"namespace": "team", "name": "m", "revisions": entries},
    ]
    return msgspec.json.encode({"instance": instance, "sequence": 1, "time": 100.0, "models": models})


def test_totals_are_by_process_and_revision_and_what_broke_off_has_failed() -> None:
    now, registry = 100.0, GatewayRegistry()
    totals_of = request_totals_of(registry, lambda: now)
    assert totals_of(KEY) is None, "nobody tells"
    registry.keep(["198.18.0.1", "198.18.0.2"], now)
    first_byte = {"count": 7, "seconds": 1.0, "buckets": [[0.5, 5], [1.0, 7]]}
    counted = {"requests": 10, "errors": 2, "broken": 1, "firstByte": first_byte}
    registry.take("198.18.0.1", decode_demand(answer("g1", b=counted, a={"requests": 90})), now)
    registry.take("198.18.0.2", decode_demand(answer("g2")), now)
    assert totals_of(KEY) == {
        "g1": {"b": RequestCounts(10, 3, 7, ((0.5, 5), (1.0, 7))), "a": RequestCounts(90)},
        "g2": {},
    }
    assert totals_of(ObjectKey("team", "none")) == {"g1": {}, "g2": {}}
    now += KEPT_SECONDS + 1
    assert totals_of(KEY) is None, "an old report does not count"
