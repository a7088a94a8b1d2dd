"""Every report that is accepted fits into the ModelHost's schema."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from operator_support.largest import largest, stored_bytes
from operator_support.objects import EPOCH
from operator_support.stub_host import StubHost, StubModel

from plimsoll_operator.placement.ledger import MODELS_PER_HOST
from plimsoll_operator.pools.hosts.host_registry import HostPod, Known
from plimsoll_operator.pools.hosts.model_host import TEXT_LIMITS, host_status
from plimsoll_operator.pools.hosts.report import BadReportError, Report, decode_report
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.status.conditions import MESSAGE_LIMIT

CRD = yaml.safe_load((Path(__file__).parents[5] / "crds/modelhosts.yaml").read_text())
STATUS = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
ENTRY = STATUS["properties"]["models"]["items"]["properties"]
SPEC = {"revision": "r", "servedNames": [], "pinned": False, "weight": 1, "priority": 0}
Json = dict[str, Any]
Change = Callable[[Json, str], None]


def body(**changes: Any) -> Json:
    """Return the report of a host with one model and one decision about it."""
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
        with pytest.raises(BadReportError, match="its report is not valid: Expected `str` of length"):
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
    (model,) = status["models"]
    assert model["why"] == "w" * 127 + "…"
    assert {name: len(model[name]) for name in TEXT_LIMITS} == TEXT_LIMITS


def test_the_limits_are_those_of_the_schema() -> None:
    assert {name: ENTRY[name]["maxLength"] for name in TEXT_LIMITS} == TEXT_LIMITS
    assert STATUS["properties"]["models"]["maxItems"] == MODELS_PER_HOST
    assert STATUS["properties"]["conditions"]["items"]["properties"]["message"]["maxLength"] >= MESSAGE_LIMIT


def test_the_largest_status_leaves_room_for_metadata_in_etcd() -> None:
    """etcd rejects a request of more than 1.5 MiB; an integration test writes this one."""
    assert stored_bytes(largest(STATUS)) <= 3 * 2**19 - 64 * 2**10


@pytest.mark.parametrize("name", ["New", "new\n", "new-", "no_name", "ñew"])
@pytest.mark.parametrize("what", ["namespace", "name", "decision"])
def test_a_name_that_the_schema_refuses_makes_it_no_report(what: str, name: str) -> None:
    report = body()
    LIMITS[what][0](report, name)
    with pytest.raises(BadReportError, match="matching regex"):
        decode_report(json.dumps(report).encode())


def crowd(count: int) -> Known:
    """Return a host with `count` models: a third is in device memory, a third asleep, and a third is being fetched."""
    report = body()
    entry = report["models"][0] | {"weights": 0, "workspace": 0, "kv": 0}
    states = ("Resident", "OnDisk", "Fetching")
    names = [f"m{number:04}" for number in range(count)]
    report["models"] = [entry | {"name": name, "state": states[n % 3]} for n, name in enumerate(names)]
    known = Known(HostPod(ObjectKey("team", "shared"), "h", "u", "node", "198.18.0.9", 0))
    known.report = decode_report(json.dumps(report).encode())
    return known


def test_models_beyond_the_limit_are_left_out_those_first_that_answer_nothing() -> None:
    status = host_status(crowd(300), False, {}, EPOCH, lambda _: None)
    jsonschema.Draft202012Validator(STATUS).validate(msgspec.to_builtins(status))
    listed = status["models"]
    assert len(listed) == MODELS_PER_HOST
    assert [entry["name"] for entry in listed] == sorted(entry["name"] for entry in listed)
    assert Counter(entry["state"] for entry in listed) == {"Resident": 100, "OnDisk": 100, "Fetching": 56}
    (reporting,) = status["conditions"]
    assert "; 44 of its models are not listed here and get no requests" in reporting["message"]
    status = host_status(crowd(MODELS_PER_HOST), False, {}, EPOCH, lambda _: None)
    assert "not listed" not in status["conditions"][0]["message"]


def test_stored_texts_are_cut_as_well() -> None:
    """Until the first report to a new leader, the status repeats the stored models."""
    entry = {"namespace": "team", "name": "m", "state": "OnDisk", "servedNames": ["m"]}
    before = {"models": [entry | {"why": "w" * 512, "error": "e" * 1024}]}
    known = Known(HostPod(ObjectKey("team", "shared"), "h", "u", "node", "198.18.0.9", 0))
    status = host_status(known, False, before, EPOCH, lambda _: None)
    jsonschema.Draft202012Validator(STATUS).validate(msgspec.to_builtins(status))
    (model,) = status["models"]
    assert (model["name"], len(model["why"]), len(model["error"])) == ("m", 128, 220)
