"""docs/reference/host-api.json describes the host API; operator and gateway are tested against the same file."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from host_support.fake_host import FakeHost

from plimsoll_runtime.api.host import requests
from plimsoll_runtime.api.host.access import Guard
from plimsoll_runtime.api.host.app import build_host_app
from plimsoll_runtime.api.host.document import document, text
from plimsoll_runtime.api.host.models import HostModels
from plimsoll_runtime.residency.report import Report
from plimsoll_runtime.residency.states import Level, State

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "reference" / "host-api.json"
WRITE = "python -m plimsoll_runtime.api.host.document > docs/reference/host-api.json"
DESIGN = ROOT / "docs" / "design" / "20261122-residency.md"


@pytest.fixture
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def test_the_file_is_up_to_date() -> None:
    assert FILE.read_text() == text(), f"outdated: run {WRITE}"


async def test_the_routes_are_those_of_the_application(schema: dict[str, Any]) -> None:
    host: Any = FakeHost(object)
    app = build_host_app(host, HostModels(host), Guard(None))
    served = {(method, route.path) for route in app.routes for method in route.methods}  # type: ignore[attr-defined]
    assert {(route["method"], route["path"]) for route in schema["routes"]} == served


def test_every_reference_leads_somewhere(schema: dict[str, Any]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [found for key, item in value.items() for found in ([item] if key == "$ref" else references(item))]
        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    named = [route[key] for route in schema["routes"] for key in ("request", "answer") if route[key]]
    for reference in [*references(schema["$defs"]), *named, schema["errors"]]:
        assert reference.removeprefix("#/$defs/") in schema["$defs"], reference


async def test_a_report_has_the_fields_of_the_design(schema: dict[str, Any]) -> None:
    """The fields are those of the example in the design document."""
    host = FakeHost(object)
    host.add("team/m")
    report = json.loads(msgspec.json.encode(host.report()))
    definitions = schema["$defs"]
    for value, kind in (
        (report, "Report"),
        (report["device"], "DeviceReport"),
        (report["sleepers"], "SleepersReport"),
        (report["models"][0], "ModelReport"),
    ):
        assert set(value) == set(definitions[kind]["properties"]) == set(definitions[kind]["required"]), kind
        for field in value:
            assert f'"{field}"' in DESIGN.read_text(), field
    assert msgspec.convert(report, Report) == host.report()


def test_states_and_levels_are_closed(schema: dict[str, Any]) -> None:
    definitions = schema["$defs"]
    assert definitions["ModelReport"]["properties"]["state"]["enum"] == [state.value for state in State]
    assert definitions["Level"]["enum"] == sorted(level.value for level in Level)


def test_specs_say_nothing_that_the_schema_does_not_know(schema: dict[str, Any]) -> None:
    for name in ("PlaceRequest", "RemoveRequest", "WakeRequest", "SleepRequest", "PinRequest", "ModelSpec"):
        assert schema["$defs"][name]["additionalProperties"] is False, name
    fields = schema["$defs"]["ModelSpec"]["properties"]
    for field in fields:
        assert field in DESIGN.read_text(), field
    assert schema["$defs"]["PlaceRequest"]["properties"]["spec"] == {"$ref": "#/$defs/ModelSpec"}
    assert requests.PlaceRequest.__struct_fields__ == ("operation", "spec", "level")
    assert document()["statuses"].keys() >= {"200", "202", "400", "401", "404", "409", "507"}
