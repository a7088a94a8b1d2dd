"""What the chart passes to our commands is what they take, and what it selects is what they make."""

from collections.abc import Callable
from typing import Any

import pytest

from plimsoll_gateway import objects as gateway_objects
from plimsoll_gateway.options import parse_options as gateway_options

Object = dict[str, Any]
Render = Callable[[Object], list[Object]]


def pod(objects: list[Object], component: str) -> Object:
    (found,) = [
        item["spec"]["template"]["spec"]
        for item in objects
        if item["kind"] == "Deployment" and item["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    return dict(found)


@pytest.mark.parametrize(("watched", "namespaces"), [([], None), (["team-a", "team-b"], ("team-a", "team-b"))])
def test_gateway_takes_its_arguments(
    render: Render, watched: list[str], namespaces: tuple[str, ...] | None
) -> None:
    found = pod(render({"watchNamespaces": watched, "gateway": {"drainSeconds": 60}}), "gateway")
    (container,) = found["containers"]
    options = gateway_options(container["args"])
    assert options.namespaces == namespaces
    assert options.port == container["ports"][0]["containerPort"]
    assert options.stop.grace == 60
    assert found["terminationGracePeriodSeconds"] > options.stop.lame_duck + options.stop.grace


def test_policies_select_the_pods_that_the_gateway_watches(render: Render) -> None:
    selector = dict(pair.split("=") for pair in gateway_objects.POD_SELECTOR.split(","))
    policies = {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]
        for item in render({})
        if item["kind"] == "NetworkPolicy"
    }
    assert policies["runtime"]["podSelector"]["matchLabels"] == selector
    assert policies["runtime"]["ingress"][0]["ports"] == [{"port": gateway_objects.PORT}]
    to_runtime = policies["gateway"]["egress"][-1]
    assert to_runtime["to"][0]["podSelector"]["matchLabels"] == selector
    assert to_runtime["ports"] == [{"port": gateway_objects.PORT}]


def test_gateway_may_read_what_it_watches(render: Render) -> None:
    (role,) = [
        item
        for item in render({"rbac": {"aggregate": False}})
        if item["kind"] == "ClusterRole" and item["metadata"]["name"].endswith("-gateway")
    ]
    assert role["rules"] == [
        {"apiGroups": [gateway_objects.GROUP], "resources": [gateway_objects.PLURAL], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    ]
