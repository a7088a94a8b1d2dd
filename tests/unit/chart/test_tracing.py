"""Values of traces become variables of gateway, operator and runtime pods, and a rule of their NetworkPolicies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Object = dict[str, Any]
Render = Callable[[Object], list[Object]]
ENDPOINT = "http://collector.observability:4317"
TRACING = {"endpoint": ENDPOINT, "protocol": "grpc", "ratio": 0.25, "perSecond": 7}
SENT = {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
SAMPLED = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}


def container(objects: list[Object], component: str) -> Object:
    found = next(
        each
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    (only,) = found["spec"]["template"]["spec"]["containers"]
    return dict(only)


def variables(env: list[Object]) -> dict[str, str]:
    assert len({each["name"] for each in env}) == len(env), "a variable is set twice"
    return {each["name"]: each["value"] for each in env if each["name"].startswith(("OTEL_", "PLIMSOLL_"))}


def runtime_env(objects: list[Object]) -> list[Object]:
    found = [each["data"]["profiles.json"] for each in objects if each["kind"] == "ConfigMap" and "data" in each]
    profiles = [json.loads(each) for each in found if each.startswith('{"defaults"')]
    return list(profiles[0]["defaults"].get("env", [])) if profiles else []


def test_without_an_endpoint_nothing_is_traced(render: Render) -> None:
    objects = render({})
    assert "OTEL_" not in json.dumps(objects)
    assert "--traces-per-second" not in json.dumps(objects)


def test_every_process_gets_the_endpoint(render: Render) -> None:
    objects = render({"tracing": TRACING})
    for component, expected in (("gateway", {**SENT, **SAMPLED}), ("operator", SENT)):
        found = container(objects, component)
        assert variables(found["env"]) == expected
        assert "--traces-per-second=7" in found["args"]
    assert variables(runtime_env(objects)) == {**SENT, **SAMPLED, "PLIMSOLL_TRACES_PER_SECOND": "7"}


def test_variables_that_a_user_sets_take_precedence(render: Render) -> None:
    own = [{"name": "OTEL_TRACES_SAMPLER_ARG", "value": "1"}, {"name": "TZ", "value": "UTC"}]
    values = {"gateway": {"extraEnv": own}, "operator": {"extraEnv": own}, "runtime": {"defaults": {"env": own}}}
    objects = render({"tracing": TRACING, **values})
    assert variables(container(objects, "gateway")["env"])["OTEL_TRACES_SAMPLER_ARG"] == "1"
    assert variables(container(objects, "operator")["env"]) == {**SENT, "OTEL_TRACES_SAMPLER_ARG": "1"}
    env = runtime_env(objects)
    assert variables(env)["OTEL_TRACES_SAMPLER_ARG"] == "1"
    assert {"name": "TZ", "value": "UTC"} in env


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [(ENDPOINT, 4317), ("https://traces.example.com/otlp", 443), ("http://traces.example.com", 80)],
)
def test_operator_and_gateway_may_reach_the_collector(render: Render, endpoint: str, port: int) -> None:
    def egress(values: Object) -> dict[str, list[Object]]:
        policies = [each for each in render(values) if each["kind"] == "NetworkPolicy" and "egress" in each["spec"]]
        return {each["metadata"]["name"]: each["spec"]["egress"] for each in policies}

    before, after = egress({}), egress({"tracing": {"endpoint": endpoint}})
    assert len(before) == 2
    for name, rules in after.items():
        assert [rule for rule in rules if rule not in before[name]] == [{"ports": [{"port": port}]}]


@pytest.mark.parametrize(
    "tracing",
    [
        {"endpoint": "collector:4317"},
        {"endpoint": "http://a b"},
        {"ratio": 1.5},
        {"protocol": "zipkin"},
        {"perSecond": -1},
    ],
)
def test_values_that_no_process_would_accept_are_refused(
    render: Render, refused: type[Exception], tracing: Object
) -> None:
    with pytest.raises(refused):
        render({"tracing": tracing})
