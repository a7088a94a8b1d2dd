"""Helm refuses wrong values with a message that names them."""

from collections.abc import Callable
from typing import Any

import pytest
from chart_support.helm import KUBERNETES

Render = Callable[[dict[str, Any]], list[dict[str, Any]]]


@pytest.mark.matrix(7)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"operator": {"replica": 2}}, "'replica' not allowed"),
        ({"gatway": {}}, "'gatway' not allowed"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"image": {"digest": "sha256:1"}}, "/image/digest"),
        ({"gateway": {"replicas": -1}}, "/gateway/replicas"),
        ({"gateway": {"replicas": "two"}}, "/gateway/replicas"),
        ({"ingress": {"host": "http://ai.example.com"}}, "/ingress/host"),
        ({"ingress": {"paths": ["v1"]}}, "/ingress/paths/0"),
        ({"ingress": {"hosts": ["a.example.com"]}}, "/ingress/hosts/0"),
        ({"ingress": {"hosts": [{"host": "a_b"}]}}, "/ingress/hosts/0/host"),
        ({"ingress": {"host": "a.b", "hosts": [{"host": "a.b"}]}}, "have the host a.b twice"),
        (
            {"ingress": {"hosts": [{"host": "a.b", "secretName": "s"}]}},
            "certificate s for a.b, but ingress.tls",
        ),
        ({"httpRoute": {"enabled": True}}, "requires httpRoute.parentRefs; name the route's Gateway"),
        ({"httpRoute": {"parentRefs": [{"nam": "public"}]}}, "/httpRoute/parentRefs/0"),
        ({"httpRoute": {"hostnames": ["https://a.b"]}}, "/httpRoute/hostnames/0"),
        ({"httpRoute": {"timeouts": {"request": "forever"}}}, "/httpRoute/timeouts/request"),
        ({"httpRoute": {"labels": {"helm.sh/chart": "x"}}}, "httpRoute.labels must not set helm.sh/chart"),
        ({"runtime": {"defaults": {"memory": "1Gi"}}}, "'memory' not allowed"),
        ({"runtime": {"defaults": {"env": [{"name": "PLIMSOLL_GROUP"}]}}}, "/runtime/defaults/env/0/name"),
        ({"runtime": {"resourceProfiles": {"A100": {}}}}, "'A100' does not match pattern"),
        ({"runtime": {"resourceProfiles": {"a": {"gpus": 1}}}}, "'gpus' not allowed"),
        ({"runtime": {"resourceProfiles": {"a": {"cpu": "lots"}}}}, "/runtime/resourceProfiles/a/cpu"),
        (
            {"runtime": {"resourceProfiles": {"a": {"ephemeralStorage": 5}}}},
            "/runtime/resourceProfiles/a/ephemeralStorage",
        ),
        ({"runtime": {"resourceProfiles": {"a": {"env": [{"value": "1"}]}}}}, "/runtime/resourceProfiles/a/env/0"),
        ({"watchNamespaces": ["Team A"]}, "/watchNamespaces/0"),
        ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
        ({"imagePullSecrets": ["pull"]}, "/imagePullSecrets/0"),
        ({"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts"),
        ({"image": {"registry": "reg/"}}, "/image/registry"),
        ({"image": {"registry": "https://reg"}}, "/image/registry"),
        ({"runtime": {"image": {"registry": "reg.example.com/team/"}}}, "/runtime/image/registry"),
        ({"runtime": {"allowedImages": ["https://reg"]}}, "/runtime/allowedImages/0"),
        ({"admissionPolicy": {"extraVolumeTypes": ["hostPath"]}}, "/admissionPolicy/extraVolumeTypes/0"),
        ({"servedNames": {"rules": [{"names": ["a*b"], "namespaces": []}]}}, "/servedNames/rules/0/names/0"),
        ({"servedNames": {"rules": [{"names": ["a"], "namespaces": ["Team"]}]}}, "/servedNames/rules/0/namespaces/0"),
        ({"servedNames": {"rules": [{"names": ["a"]}]}}, "missing property 'namespaces'"),
        ({"servedNames": {"rules": [{"names": [], "namespaces": []}]}}, "/servedNames/rules/0/names"),
        ({"servedNames": {"graceSeconds": 2592001}}, "/servedNames/graceSeconds"),
        (
            {
                "servedNames": {
                    "rules": [{"names": [f"{n}-{m:0120}" for m in range(64)], "namespaces": []} for n in range(20)]
                }
            },
            "servedNames.rules is [0-9]+ characters of JSON; the limit is 100000, .*use prefixes",
        ),
        ({"fullnameOverride": "My_Release"}, "/fullnameOverride"),
        ({"fullnameOverride": "1st"}, "/fullnameOverride"),
        ({"nameOverride": "Mine"}, "/nameOverride"),
        ({"operator": {"serviceAccount": {"name": "An_Account"}}}, "/operator/serviceAccount/name"),
        ({"gateway": {"priorityClassName": "High!"}}, "/gateway/priorityClassName"),
        (
            {"gateway": {"autoscaling": {"minReplicas": 5, "maxReplicas": 2}}},
            r"minReplicas \(5\) exceeds maxReplicas \(2\); lower the former or raise the latter",
        ),
        ({"gateway": {"keys": {"secrets": ["Team_A"]}}}, "/gateway/keys/secrets/0"),
        ({"gateway": {"keys": {"secrets": ["a", "a"]}}}, "/gateway/keys/secrets"),
        ({"gateway": {"credential": {"key": "a/b"}}}, "/gateway/credential/key"),
        ({"gateway": {"filesClaim": "shared"}}, "/gateway/filesClaim"),
        ({"gateway": {"corsOrigins": ["https://chat.example.com/"]}}, "/gateway/corsOrigins/0"),
        ({"gateway": {"keys": {"secrets": ["a"]}}}, r"requires gateway.credential.secretName.*docs/tasks/keys.md"),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "commonLabels must not set app.kubernetes.io/name"),
        ({"commonLabels": {"helm.sh/chart": "x"}}, "commonLabels must not set helm.sh/chart.*remove it"),
        ({"operator": {"podLabels": {"app.kubernetes.io/component": "x"}}}, "operator.podLabels must not set"),
        ({"gateway": {"podLabels": {"plimsoll.dev/pod-hash": "x"}}}, "gateway.podLabels must not set"),
        (
            {"metrics": {"podMonitor": {"labels": {"app.kubernetes.io/instance": "x"}}}},
            "podMonitor.labels must not set",
        ),
        (
            {"commonLabels": {"team": "a"}, "gateway": {"podLabels": {"team": "b"}}},
            "gateway.podLabels and commonLabels both set team; remove one of them",
        ),
    ],
)
def test_refused(render: Render, refused: type[Exception], values: dict[str, Any], message: str) -> None:
    with pytest.raises(refused, match=message):
        render(values)


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "registry", ["", "reg", "localhost:5000", "reg.example.com/team/ai", "198.18.0.1:5000/a_b/c-d"]
)
def test_registries_that_there_are(render: Render, registry: str) -> None:
    assert render({"image": {"registry": registry}, "runtime": {"image": {"registry": registry}}})


def test_a_release_whose_name_no_service_can_have(helm: Callable[..., str], refused: type[Exception]) -> None:
    command = ("template", "1st", "charts/plimsoll", "--namespace=serving", f"--kube-version={KUBERNETES}")
    with pytest.raises(refused, match=r"named .*1st-plimsoll.*start with a letter; set fullnameOverride"):
        helm(*command)
    helm(*command, "--set=fullnameOverride=first")


def test_a_kubernetes_without_policies_does_without_them_only_when_told(
    render: Callable[..., list[dict[str, Any]]], refused: type[Exception]
) -> None:
    with pytest.raises(
        refused, match=r"requires Kubernetes 1\.30, this is v1\.29\.4; .*admissionPolicy\.enabled=false"
    ):
        render({}, kubernetes="1.29.4")
    render({"admissionPolicy": {"enabled": False}}, kubernetes="1.29.4")


def test_helm_finds_no_fault(helm: Callable[..., str]) -> None:
    helm("lint", "--strict", "charts/plimsoll")
