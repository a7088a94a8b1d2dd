"""Reading `spec.scaling`, with the defaults of the CRD schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_support.objects import model, spec_of

from plimsoll_operator.build.pod_revision import user_part
from plimsoll_operator.spec.model_deployment import read_spec
from plimsoll_operator.spec.scaling import Scaling, Target, read_scaling

CRD = Path(__file__).parents[4] / "crds/modeldeployments.yaml"


def schema() -> dict[str, Any]:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["scaling"]
    return found


def test_the_defaults_are_the_schemas() -> None:
    found = {name: field["default"] for name, field in schema()["properties"].items() if "default" in field}
    assert found == {"minReplicas": 1, "idleSeconds": 300, "scaleUpSeconds": 0, "scaleDownSeconds": 300, "target": {}}
    assert read_scaling({"maxReplicas": 4}) == read_scaling({"maxReplicas": 4, **found}) == Scaling(most=4)
    assert Scaling().target == Target(queue=4)


def test_every_field_is_read() -> None:
    target = {"queue": 2, "ttftMilliseconds": 800, "itlMilliseconds": 50, "kv": "80%"}
    values = {"minReplicas": 0, "maxReplicas": 9, "idleSeconds": 20, "scaleUpSeconds": 5, "scaleDownSeconds": 60}
    assert set(values) | {"target"} == set(schema()["properties"])
    assert set(target) == set(schema()["properties"]["target"]["properties"])
    assert read_scaling({**values, "target": target}) == Scaling(0, 9, 20, 5, 60, Target(2, 0.8, 0.05, 0.8))
    assert read_scaling({"maxReplicas": 1, "target": {"kv": "100%"}}) == Scaling(target=Target(None, kv=1.0))


def test_a_model_that_is_stopped_does_not_scale() -> None:
    scaling = {"maxReplicas": 3}
    assert spec_of(replicas=0, scaling=scaling).scaling is None
    assert not spec_of(replicas=0, scaling=scaling).idle
    idle = spec_of(scaling=scaling).scaled(0)
    assert (idle.replicas, idle.idle) == (0, True)
    assert not spec_of(replicas=0).idle


@pytest.mark.parametrize("scaling", [{"maxReplicas": 3}, {"maxReplicas": 9, "target": {"queue": 1}}])
def test_pods_see_nothing_of_it(scaling: dict[str, Any]) -> None:
    """Scaling causes no rollout."""
    assert user_part(read_spec(model(scaling=scaling))) == user_part(read_spec(model()))
