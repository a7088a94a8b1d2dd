"""Upgrades of the CRDs: stored objects stay valid and complete."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import operator_support
import pytest
import yaml
from chart_support.helm import NoHelmError, render
from operator_support.apiserver import ADMIN, ApiServer, Missing, find_programs, until
from operator_support.direct import MERGE, Direct, Refused
from operator_support.installed import PLACES
from operator_support.objects import EPOCH, FULL, Json

from plimsoll_operator.kube.api import APPLY, FIELD_MANAGER
from plimsoll_operator.placement.ledger import MODELS_PER_HOST
from plimsoll_operator.pools.hosts.host_registry import HostPod, Known
from plimsoll_operator.pools.hosts.model_host import build_host, host_status
from plimsoll_operator.scaling.history import read_scaling_status, write_scaling_status
from plimsoll_operator.spec.identity import ObjectKey

OLD = Path(operator_support.__path__[0]) / "definitions"
DEFINITIONS = PLACES["CustomResourceDefinition"]
HOSTS = "/apis/plimsoll.dev/v1alpha1/namespaces/default/modelhosts"
POOLS = "/apis/plimsoll.dev/v1alpha1/namespaces/default/runtimepools"
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
SPECS: dict[str, Json] = {
    "full": FULL,
    "claim": {
        "model": {"source": "pvc://weights"},
        "resources": {"memory": 8589934592},
        "template": {
            "volumes": [{"name": "extra", "emptyDir": {}}],
            "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        },
    },
    "pooled": {"model": {"source": "demo://gemma-3-270m"}, "placement": {"pool": "shared"}},
    "scaling": {"model": {"source": "demo://gemma-3-270m"}, "scaling": {"minReplicas": 0, "maxReplicas": 4}},
    "least": {"model": {"source": "demo://gemma-3-270m"}},
}
POOL: Json = {"resources": {"memory": "2Gi"}, "memory": {"sleepers": "1Gi", "line": "70%"}}


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Direct]:
    """Yield an API server with the CRDs of definitions/."""
    try:
        server = ApiServer(find_programs(), tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    with server, Direct(server.url, ADMIN, "default") as admin:
        for path in sorted(OLD.glob("*.yaml")):
            admin.ask("POST", DEFINITIONS, yaml.safe_load(path.read_text()))
        assert until(lambda: serves(admin))
        yield admin


@pytest.mark.long
def test_objects_of_older_charts_stay_valid_and_whole(admin: Direct) -> None:
    for name, spec in SPECS.items():
        admin.create_model(name, spec)
        admin.ask("PATCH", f"{path(name)}/status", {"status": STATUS}, MERGE)
    before = {name: admin.model(name) for name in SPECS}
    upgrade(admin)
    for name, old in before.items():
        new = admin.model(name)
        assert old["metadata"]["generation"] == new["metadata"]["generation"]
        assert lost(old["spec"], new["spec"]) == []
        assert lost(STATUS, new["status"]) == []
        written = admin.ask("PUT", path(name), new | {"metadata": new["metadata"] | {"labels": {"touched": "yes"}}})
        assert lost(old["spec"], written["spec"]) == []
        changed = admin.change_model(name, replicas=1)
        assert lost(old["spec"] | {"replicas": 1}, changed["spec"]) == []


@pytest.mark.long
def test_a_volume_that_has_a_name_of_the_operators_already_may_stay(admin: Direct) -> None:
    taken = [{"name": "plimsoll-data", "emptyDir": {}}]
    admin.create_model("m", SPECS["least"] | {"template": {"volumes": taken}})
    admin.ask("POST", POOLS, body_of("RuntimePool", "p", POOL | {"template": {"volumes": taken}}))
    upgrade(admin)
    for place in (path("m"), f"{POOLS}/p"):
        another = [*taken, {"name": "plimsoll-files", "emptyDir": {}}]
        with pytest.raises(Refused, match="are the operator's own; choose another name"):
            admin.ask("PATCH", place, {"spec": {"template": {"volumes": another}}}, MERGE)
        changed = [{"name": "mine", "emptyDir": {}}, {"name": "plimsoll-data", "emptyDir": {"sizeLimit": "1Gi"}}]
        admin.ask("PATCH", place, {"spec": {"replicas": 1, "template": {"volumes": changed}}}, MERGE)


@pytest.mark.long
def test_what_was_written_for_older_charts_can_be_applied_anew(admin: Direct) -> None:
    upgrade(admin)
    for name, spec in SPECS.items():
        assert lost(spec, admin.create_model(name, spec)["spec"]) == []
    pool = admin.ask("POST", POOLS, body_of("RuntimePool", "p", POOL), fieldValidation="Strict")
    assert lost(POOL, pool["spec"]) == []


@pytest.mark.long
def test_the_operator_goes_on_from_a_status_with_fields_that_are_no_more(admin: Direct) -> None:
    """`status.scaling.line` was a number. A field of that name with another type could not be applied over it."""
    admin.create_model("scaling", SPECS["scaling"])
    told = {"since": "2026-11-21T10:00:00Z", "why": "10 requests at a time", "startSeconds": 40}
    apply_status(admin, path("scaling"), STATUS | {"desiredReplicas": 3, "scaling": told | {"line": 7.4}})
    assert admin.model("scaling")["status"]["scaling"]["line"] == 7.4
    upgrade(admin)
    stored = admin.model("scaling")["status"]
    assert stored["scaling"] == told
    standing = read_scaling_status(stored)
    assert (standing.desired, standing.start, standing.load_line) == (3, 40, None)
    found = {"scaling": write_scaling_status(replace(standing, load_line=7.4))}
    written = apply_status(admin, path("scaling"), STATUS | found | {"desiredReplicas": 3})["status"]
    assert written["scaling"] == told | {"requestsPerReplica": "7.4"}
    assert read_scaling_status(written) == replace(standing, load_line=7.4)


@pytest.mark.long
def test_the_operator_writes_over_the_host_of_an_earlier_release(admin: Direct) -> None:
    """Its models were a map by name, with longer texts. Until it reports, a new leader repeats the stored models."""
    entry = {"namespace": "default", "state": "OnDisk", "servedNames": ["m"], "why": "w" * 512, "error": "e" * 1024}
    pod = HostPod(ObjectKey("default", "shared"), "h", "u", "node", "198.18.0.9", 0)
    admin.ask("POST", HOSTS, {**build_host(pod), "status": {}})
    models = [entry | {"name": f"m{number}"} for number in range(300)]
    assert len(apply_status(admin, f"{HOSTS}/h", {"pool": "shared", "models": models})["status"]["models"]) == 300
    upgrade(admin)
    before = admin.ask("GET", f"{HOSTS}/h")["status"]
    assert len(before["models"]) == 300
    status = host_status(Known(pod), False, before, EPOCH, lambda _: None)
    written = apply_status(admin, f"{HOSTS}/h", status)["status"]
    assert written == status
    assert len(written["models"]) == MODELS_PER_HOST


def apply_status(admin: Direct, path: str, status: Json) -> Json:
    """Apply a status like the operator."""
    item = admin.ask("GET", path)
    body = {name: item[name] for name in ("apiVersion", "kind")} | {"status": status}
    manager = {"fieldManager": FIELD_MANAGER, "force": "true"}
    return admin.ask("PATCH", f"{path}/status", body, APPLY, **manager)


def upgrade(admin: Direct) -> None:
    """Patch the CRDs, like `helm upgrade`."""
    try:
        made = [item for item in render({}) if item["kind"] == "CustomResourceDefinition"]
    except NoHelmError as missing:
        pytest.skip(str(missing))
    for item in made:
        admin.ask("PATCH", f"{DEFINITIONS}/{item['metadata']['name']}", item, MERGE)
    assert until(lambda: serves(admin))


def serves(admin: Direct) -> bool:
    """Return whether the API server accepts objects of our kinds."""
    body = body_of("ModelDeployment", "probe", SPECS["least"])
    pool = body_of("RuntimePool", "probe", POOL)
    try:
        admin.ask("POST", path(""), body, dryRun="All", fieldValidation="Strict")
        admin.ask("POST", POOLS, pool, dryRun="All", fieldValidation="Strict")
    except Refused:
        return False
    return True


def body_of(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "plimsoll.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def path(name: str) -> str:
    return f"/apis/plimsoll.dev/v1alpha1/namespaces/default/modeldeployments/{name}".rstrip("/")


def lost(before: Any, after: Any, where: str = "") -> list[str]:
    """Return the paths at which `after` lacks a value of `before` or has another one; additions do not count."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [found for key, value in before.items() for found in lost(value, after.get(key), f"{where}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            found for n, pair in enumerate(zip(before, after, strict=True)) for found in lost(*pair, f"{where}[{n}]")
        ]
    return [] if before == after else [f"{where}: {before!r} became {after!r}"]
