"""What a host may report, its ModelHost can say: every limit of the one is within those of the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from operator_support.objects import EPOCH
from operator_support.stub_host import StubHost, StubModel

from plimsoll_operator.identity import ObjectKey
from plimsoll_operator.pools.book import HostPod, Known
from plimsoll_operator.pools.modelhost import host_status
from plimsoll_operator.pools.report import BadReportError, Report, decode_report

CRD = yaml.safe_load((Path(__file__).parents[4] / "crds/modelhosts.yaml").read_text())
STATUS = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
ENTRY = STATUS["properties"]["models"]["items"]["properties"]
SPEC = {"revision": "r", "servedNames": [], "pinned": False, "weight": 1, "priority": 0}
Json = dict[str, Any]
Change = Callable[[Json, str], None]


def body(**changes: Any) -> Json:
    """A report of a host with one model, and a decision about it."""
    host = StubHost(now=EPOCH.timestamp(), models={ObjectKey("team", "m"): StubModel(SPEC, "Resident", 1.0)})
    host.decide(ObjectKey("team", "m"), "Evicted", "value 0.8 against 3.1")
    found: Json = json.loads(json.dumps(host.body() | changes))
    return found


def in_model(field: str) -> Change:
    return lambda report, name: report["models"][0].update({field: name})


LIMITS: dict[str, tuple[Change, int]] = {
    "namespace": (in_model("namespace"), ENTRY["namespace"]["maxLength"]),
    "name": (in_model("name"), ENTRY["name"]["maxLength"]),
    "servedNames": (
        lambda report, name: report["models"][0].update(servedNames=[name]),
        ENTRY["servedNames"]["items"]["maxLength"],
    ),
    "instance": (lambda report, name: report.update(instance=name), STATUS["properties"]["instance"]["maxLength"]),
    "kind": (
        lambda report, name: report["device"].update(kind=name),
        STATUS["properties"]["device"]["properties"]["kind"]["maxLength"],
    ),
    "decision": (lambda report, name: report["decisions"][0].update(namespace=name), ENTRY["namespace"]["maxLength"]),
}


def read(change: Change, length: int) -> Report:
    report = body()
    change(report, "n" * length)
    return decode_report(json.dumps(report).encode())


@pytest.mark.parametrize("what", LIMITS)
def test_a_name_that_no_object_could_have_makes_it_no_report(what: str) -> None:
    change, longest = LIMITS[what]
    assert read(change, longest)
    for length in (0, longest + 1):
        with pytest.raises(BadReportError, match="it is no report: Expected `str` of length"):
            read(change, length)


def test_the_longest_texts_that_a_report_may_have_make_a_status_that_is_taken() -> None:
    report = body()
    for change, longest in LIMITS.values():
        change(report, "n" * longest)
    long = "w" * 4096
    report["device"]["name"] = long
    report["models"][0] |= {"revision": long, "why": long, "error": long, "servedNames": ["s" * 128] * 16}
    report["models"][0] |= {"rate": 1e300, "loadSeconds": 1e9, "loads": 2**53, "active": 2**53, "waiting": 2**53}
    known = Known(HostPod(ObjectKey("team", "shared"), "h", "u", "node", "198.18.0.9", 0))
    known.report = decode_report(json.dumps(report).encode())
    status = host_status(known, True, {}, EPOCH, lambda _: None)
    jsonschema.Draft202012Validator(STATUS).validate(msgspec.to_builtins(status))
