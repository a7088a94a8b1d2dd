"""The chart's definitions over those of charts before it: they change, and what is stored stays valid and whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import operator_support
import pytest
import yaml
from chart_support.helm import NoHelmError, render
from operator_support.adopted import RECORDED
from operator_support.apiserver import ADMIN, ApiServer, Missing, find_programs, until
from operator_support.direct import MERGE, Direct, Refused
from operator_support.installed import PLACES
from operator_support.objects import Json

OLD = Path(operator_support.__path__[0]) / "definitions"
DEFINITIONS = PLACES["CustomResourceDefinition"]
NAME = "modeldeployments.plimsoll.dev"
STATUS: Json = {
    "observedGeneration": 1,
    "replicas": 3,
    "readyReplicas": 2,
    "selector": "plimsoll.dev/model-deployment=m",
    "phase": "Progressing",
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-21T10:00:00Z",
            "reason": "Progressing",
            "message": "two of three pods are ready",
        }
    ],
}
SINCE: dict[str, Json] = {
    "0.1.0": {},
    "before-pools": {
        "resources": {"cpuLimit": 2, "ephemeralStorage": "100Gi"},
        "rollout": {"maxSurge": 1, "maxUnavailable": "50%", "progressDeadlineSeconds": 300},
        "template": {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
            ],
            "runtimeClassName": "nvidia",
            "schedulerName": "volcano",
            "image": "registry.example/ai/runtime:2",
            "imagePullSecrets": [{"name": "pull"}],
            "shmSize": "2Gi",
            "envFrom": [{"prefix": "HUB_", "secretRef": {"name": "hub"}}],
        },
    },
}
"""What each of the charts knew beside what the first did."""


@pytest.fixture(params=SINCE)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def admin(tmp_path: Path, version: str) -> Iterator[Direct]:
    """An API server that knows ModelDeployments as that chart defined them."""
    try:
        server = ApiServer(find_programs(), tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    with server, Direct(server.url, ADMIN, "default") as admin:
        admin.ask("POST", DEFINITIONS, yaml.safe_load((OLD / f"{version}.yaml").read_text()))
        assert until(lambda: knows(admin, "spec"))
        yield admin


def test_objects_of_older_charts_stay_valid_and_whole(admin: Direct, version: str) -> None:
    for name, case in RECORDED.items():
        admin.create_model(name, combined(case.spec, SINCE[version]) if name == "full" else case.spec)
        admin.ask("PATCH", f"{path(name)}/status", {"status": STATUS}, MERGE)
    before = {name: admin.model(name) for name in RECORDED}
    upgrade(admin)
    for name, old in before.items():
        new = admin.model(name)
        assert old["metadata"]["generation"] == new["metadata"]["generation"]
        assert lost(old["spec"], new["spec"]) == []
        assert lost(STATUS, new["status"]) == []
        written = admin.ask("PUT", path(name), new | {"metadata": new["metadata"] | {"labels": {"touched": "yes"}}})
        assert lost(old["spec"], written["spec"]) == []
        changed = admin.change_model(name, replicas=2)
        assert lost(old["spec"] | {"replicas": 2}, changed["spec"]) == []


def test_what_is_new_is_known_afterwards_and_dropped_before(admin: Direct) -> None:
    spec = {"model": {"source": "demo://gemma-3-270m"}, "placement": {"pool": "shared"}}
    with pytest.raises(Refused, match="placement"):
        admin.create_model("pooled", spec)
    upgrade(admin)
    assert admin.create_model("pooled", spec)["spec"]["placement"]["pool"] == "shared"


def upgrade(admin: Direct) -> None:
    """As `helm upgrade` does it: definitions that are there are patched, new ones are made."""
    try:
        made = [item for item in render({}) if item["kind"] == "CustomResourceDefinition"]
    except NoHelmError as missing:
        pytest.skip(str(missing))
    for item in made:
        if item["metadata"]["name"] == NAME:
            admin.ask("PATCH", f"{DEFINITIONS}/{NAME}", item, MERGE)
        else:
            admin.ask("POST", DEFINITIONS, item)
    assert until(lambda: knows(admin, "placement"))


def knows(admin: Direct, field: str) -> bool:
    """Whether the API server serves ModelDeployments, and refuses what it does not know but not this field."""
    spec: Json = {"model": {"source": "demo://gemma-3-270m"}} | ({} if field == "spec" else {field: {"pool": "shared"}})
    body = {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "probe"},
        "spec": spec,
    }
    try:
        admin.ask("POST", path(""), body, dryRun="All", fieldValidation="Strict")
    except Refused:
        return False
    return True


def path(name: str) -> str:
    return f"/apis/plimsoll.dev/v1alpha1/namespaces/default/modeldeployments/{name}".rstrip("/")


def combined(first: Any, second: Any) -> Any:
    """Both, object by object."""
    if not isinstance(first, dict):
        return second
    both = {name: combined(first[name], second[name]) for name in first.keys() & second.keys()}
    return {**first, **second, **both}


def lost(before: Any, after: Any, where: str = "") -> list[str]:
    """Where `after` lacks what `before` has, or has another value there. What was added is nobody's loss."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [found for key, value in before.items() for found in lost(value, after.get(key), f"{where}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            found for n, pair in enumerate(zip(before, after, strict=True)) for found in lost(*pair, f"{where}[{n}]")
        ]
    return [] if before == after else [f"{where}: {before!r} became {after!r}"]
