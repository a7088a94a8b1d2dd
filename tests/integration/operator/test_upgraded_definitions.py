"""The chart's definitions over those of charts before it: they change, and what is stored stays valid and whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import operator_support
import pytest
import yaml
from chart_support.helm import NoHelmError, render
from operator_support.apiserver import ADMIN, ApiServer, Missing, find_programs, until
from operator_support.direct import MERGE, Direct, Refused
from operator_support.installed import PLACES
from operator_support.objects import FULL, Json

OLD = Path(operator_support.__path__[0]) / "definitions"
DEFINITIONS = PLACES["CustomResourceDefinition"]
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
    """An API server that knows our kinds as definitions/ has them."""
    try:
        server = ApiServer(find_programs(), tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    with server, Direct(server.url, ADMIN, "default") as admin:
        for path in sorted(OLD.glob("*.yaml")):
            admin.ask("POST", DEFINITIONS, yaml.safe_load(path.read_text()))
        assert until(lambda: serves(admin))
        yield admin


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


def test_what_was_written_for_older_charts_can_be_applied_anew(admin: Direct) -> None:
    upgrade(admin)
    for name, spec in SPECS.items():
        assert lost(spec, admin.create_model(name, spec)["spec"]) == []
    pool = admin.ask("POST", POOLS, body_of("RuntimePool", "p", POOL), fieldValidation="Strict")
    assert lost(POOL, pool["spec"]) == []


def upgrade(admin: Direct) -> None:
    """As `helm upgrade` does it: definitions are patched."""
    try:
        made = [item for item in render({}) if item["kind"] == "CustomResourceDefinition"]
    except NoHelmError as missing:
        pytest.skip(str(missing))
    for item in made:
        admin.ask("PATCH", f"{DEFINITIONS}/{item['metadata']['name']}", item, MERGE)
    assert until(lambda: serves(admin))


def serves(admin: Direct) -> bool:
    """Whether the API server takes objects of our kinds."""
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
    """Where `after` lacks what `before` has, or has another value there. What was added is nobody's loss."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [found for key, value in before.items() for found in lost(value, after.get(key), f"{where}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            found for n, pair in enumerate(zip(before, after, strict=True)) for found in lost(*pair, f"{where}[{n}]")
        ]
    return [] if before == after else [f"{where}: {before!r} became {after!r}"]
