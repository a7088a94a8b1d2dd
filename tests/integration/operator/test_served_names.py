"""A served name stays with its namespace while its object is recreated and the operator restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_support.apiserver import FIRST, RELEASE, RELEASE_NAMESPACE, ApiServer, until
from operator_support.direct import Direct
from operator_support.objects import Json
from operator_support.process import running_operator

MAPS = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/configmaps"
RECORD = f"{RELEASE}-served-names"
MODEL = {"model": {"source": "demo://gemma-3-270m", "servedNames": ["chat"]}}
MORE = ("--name-record", f"{RELEASE_NAMESPACE}/{RECORD}")
WAIT_SECONDS = 60.0


@pytest.fixture
def record(direct: Direct) -> Iterator[None]:
    """Create the chart's record, empty."""
    direct.ask("POST", MAPS, {"metadata": {"name": RECORD}})
    yield
    direct.ask("DELETE", f"{MAPS}/{RECORD}")


@pytest.mark.long
@pytest.mark.usefixtures("lease", "record")
def test_a_name_stays_while_its_object_is_made_again(
    server: ApiServer, direct: Direct, other: Direct, tmp_path: Path
) -> None:
    with running_operator(server, FIRST, tmp_path, namespace=None, more=MORE) as running:
        direct.create_model("m", MODEL)
        assert until(lambda: _routable(direct) == "True", WAIT_SECONDS)
        assert until(lambda: _record(direct) == {direct.namespace: "chat\n"}, WAIT_SECONDS)
        running.process.terminate()
        assert running.process.wait(WAIT_SECONDS) == 0
    direct.delete_model("m")
    other.create_model("m", MODEL)
    with running_operator(server, FIRST, tmp_path, namespace=None, more=MORE):
        assert until(lambda: _routable(other) == "ServedNameKept", WAIT_SECONDS)
        direct.create_model("m", MODEL)
        assert until(lambda: _routable(direct) == "True", WAIT_SECONDS)
        assert until(lambda: _routable(other) == "ServedNameTaken", WAIT_SECONDS), "the younger has it"


@pytest.mark.long
@pytest.mark.usefixtures("lease", "record")
def test_a_name_goes_to_another_namespace_when_its_grace_period_ends(
    server: ApiServer, direct: Direct, other: Direct, tmp_path: Path
) -> None:
    """Without an event, and the record is written only when names are added or removed."""
    before = len(_record_writes(server))
    with running_operator(server, FIRST, tmp_path, namespace=None, more=(*MORE, "--name-grace-seconds", "3")):
        direct.create_model("m", MODEL)
        assert until(lambda: _routable(direct) == "True", WAIT_SECONDS)
        assert until(lambda: _record(direct) == {direct.namespace: "chat\n"}, WAIT_SECONDS)
        other.create_model("m", MODEL)
        assert until(lambda: _routable(other) == "ServedNameTaken", WAIT_SECONDS)
        direct.delete_model("m")
        assert until(lambda: _routable(other) == "True", WAIT_SECONDS)
        assert until(lambda: _record(direct) == {other.namespace: "chat\n"}, WAIT_SECONDS)
        verbs = [event["verb"] for event in _record_writes(server)[before:]]
    assert verbs[0] == "patch"
    assert 3 <= len(verbs) <= 4, "it comes, is to end, goes, and comes for the other, the last two at once perhaps"


def _record(direct: Direct) -> Json:
    found: Json = direct.ask("GET", f"{MAPS}/{RECORD}").get("data", {})
    return found


def _record_writes(server: ApiServer) -> list[Json]:
    return [event for event in server.writes(FIRST) if event["objectRef"]["resource"] == "configmaps"]


def _routable(direct: Direct) -> str:
    """Play the kubelet, and return "True" if the object is routable, else the reason."""
    direct.make_ready("m")
    for condition in direct.model("m").get("status", {}).get("conditions", []):
        if condition["type"] == "Routable":
            return "True" if condition["status"] == "True" else str(condition["reason"])
    return ""
