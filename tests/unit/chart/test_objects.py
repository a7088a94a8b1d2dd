"""Objects that the chart renders: complete snapshots, and single rules."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

Object = dict[str, Any]
Render = Callable[[Object], list[Object]]

CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
VALUES: dict[str, Object] = {
    "defaults": {},
    "everything": {
        "watchNamespaces": ["team-a", "team-b"],
        "commonLabels": {"cost-centre": "42"},
        "imagePullSecrets": [{"name": "pull"}],
        "image": {"registry": "registry.example.com/ai", "digest": "sha256:" + "a" * 64},
        "runtime": {
            "image": {"tag": "0.2.0", "pullPolicy": "Always"},
            "defaults": {"nodeSelector": {"pool": "models"}, "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}]},
            "resourceProfiles": {"a100": {"memory": "80Gi", "accelerator": {"resource": "nvidia.com/gpu"}}},
        },
        "operator": {
            "replicas": 2,
            "groupTurns": False,
            "logFormat": "json",
            "extraArgs": ["--log-level=DEBUG"],
            "extraEnv": [{"name": "TZ", "value": "UTC"}],
            "podLabels": {"tier": "control"},
            "podAnnotations": {"example.com/note": "yes"},
            "serviceAccount": {"annotations": {"example.com/role": "operator"}},
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "control", "operator": "Exists"}],
        },
        "gateway": {
            "autoscaling": {"enabled": True},
            "logFormat": "json",
            "accessLog": "all",
            "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
            "serviceAccount": {"create": False, "name": "mine"},
        },
        "ingress": {
            "enabled": True,
            "className": "contour",
            "host": "ai.example.com",
            "hosts": [{"host": "models.example.com"}, {"host": "*.example.org", "secretName": "org-tls"}],
            "paths": ["/v1/chat", "/v1/models"],
            "tls": {"enabled": True, "secretName": "ai-tls"},
            "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": None, "example.com/a": "b"},
        },
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
            "hostnames": ["ai.example.com", "*.example.org"],
            "timeouts": {"request": "", "backendRequest": "1h"},
            "labels": {"tier": "edge"},
            "annotations": {"example.com/a": "b"},
        },
        "networkPolicy": {
            "gatewayFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}],
            "runtimeFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
            "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
        },
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "podMonitor": {"enabled": True},
        },
    },
    "least": {
        "fullnameOverride": "plimsoll",
        "crds": {"install": False},
        "admissionPolicy": {"enabled": False},
        "rbac": {"create": False},
        "operator": {"serviceAccount": {"create": False}, "podDisruptionBudget": {"enabled": False}},
        "gateway": {"replicas": 1, "serviceAccount": {"create": False}},
        "ingress": {"enabled": True, "tls": {"enabled": True}},
        "networkPolicy": {"enabled": False},
    },
}


class YamlSnapshot(SingleFileSnapshotExtension):
    """One YAML file for each snapshot, as `helm template` prints it."""

    _write_mode = WriteMode.TEXT
    file_extension = "yaml"


@pytest.fixture(params=sorted(VALUES))
def objects(request: pytest.FixtureRequest, render: Render) -> list[Object]:
    return render(VALUES[request.param])


def test_snapshot(objects: list[Object], snapshot: SnapshotAssertion) -> None:
    ours = [item for item in objects if item["kind"] != "CustomResourceDefinition"]
    for item in ours:
        if item["kind"] == "Secret":  # different each time
            item["data"] = dict.fromkeys(item["data"], "random")
    assert yaml.safe_dump_all(ours, sort_keys=False) == snapshot(extension_class=YamlSnapshot)


def test_every_object_is_labelled_and_has_its_place(objects: list[Object]) -> None:
    seen = set()
    for item in objects:
        meta = item["metadata"]
        key = (item["kind"], meta.get("namespace"), meta["name"])
        assert key not in seen
        seen.add(key)
        assert meta["labels"]["app.kubernetes.io/instance"] == "pl"
        assert ("namespace" in meta) == (item["kind"] not in CLUSTER_WIDE), key


def pods(objects: list[Object]) -> Iterator[Object]:
    for item in objects:
        if item["kind"] == "Deployment":
            yield item["spec"]["template"]["spec"]


def faults(pod: Object) -> Iterator[str]:
    """Yield violations of the restricted Pod Security Standard."""
    context = pod.get("securityContext", {})
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    for volume in pod.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= {"configMap", "csi", "downwardAPI", "emptyDir", "projected", "secret"}:
            yield f"volume {kinds}"
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own = container.get("securityContext", {})
        both = {**context, **own}
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if own.get("capabilities") != {"drop": ["ALL"]}:
            yield "capabilities"
        if own.get("privileged"):
            yield "privileged"
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            yield "runAsNonRoot"
        if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield "hostPort"


def test_pods_are_restricted(objects: list[Object]) -> None:
    found = list(pods(objects))
    assert len(found) == 2
    for pod in found:
        assert list(faults(pod)) == []
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_check_of_restricted_pods_can_fail() -> None:
    volume = {"name": "a", "hostPath": {"path": "/"}}
    pod = {"hostNetwork": True, "volumes": [volume], "containers": [{"name": "a", "ports": [{"hostPort": 80}]}]}
    expected = {"hostNetwork", "volume {'hostPath'}", "hostPort", "runAsNonRoot", "seccompProfile", "capabilities"}
    assert set(faults(pod)) == expected | {"allowPrivilegeEscalation"}


def test_selectors_match_the_pods_they_are_meant_for(objects: list[Object]) -> None:
    labels = {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]["template"]["metadata"]["labels"]
        for item in objects
        if item["kind"] == "Deployment"
    }
    for item in objects:
        component = item["metadata"]["labels"].get("app.kubernetes.io/component")
        spec = item.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector")
        if component in labels and selector and item["kind"] != "ServiceMonitor":
            wanted = selector.get("matchLabels", selector)
            assert wanted.items() <= labels[component].items(), item["metadata"]["name"]
            assert "app.kubernetes.io/component" in wanted


def by_kind(objects: list[Object], kind: str) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]


def test_watching_namespaces_needs_no_right_over_the_cluster(render: Render) -> None:
    objects = render({"watchNamespaces": ["team-a", "team-b"], "rbac": {"aggregate": False}})
    assert by_kind(objects, "ClusterRole") == by_kind(objects, "ClusterRoleBinding") == []
    places = sorted((item["metadata"]["namespace"], item["metadata"]["name"]) for item in by_kind(objects, "Role"))
    assert places == [
        ("serving", "pl-plimsoll-gateway-names"),
        ("serving", "pl-plimsoll-operator-lease"),
        ("serving", "pl-plimsoll-operator-names"),
        ("team-a", "pl-plimsoll-gateway"),
        ("team-a", "pl-plimsoll-operator"),
        ("team-b", "pl-plimsoll-gateway"),
        ("team-b", "pl-plimsoll-operator"),
    ]


def test_definitions_survive_the_release_unless_told_otherwise(render: Render) -> None:
    for keep in (True, False):
        definitions = by_kind(render({"crds": {"keep": keep}}), "CustomResourceDefinition")
        assert {d["spec"]["names"]["kind"] for d in definitions} == {"ModelDeployment", "RuntimePool", "ModelHost"}
        for definition in definitions:
            annotations = definition["metadata"].get("annotations", {})
            assert (annotations.get("helm.sh/resource-policy") == "keep") is keep
    assert by_kind(render({"crds": {"install": False}}), "CustomResourceDefinition") == []


def test_a_digest_beats_a_tag_and_the_runtime_has_the_registry_too(render: Render) -> None:
    digest = "sha256:" + "b" * 64
    values = {"image": {"registry": "reg.example.com", "tag": "7"}, "runtime": {"image": {"digest": digest}}}
    containers = [pod["containers"][0] for pod in pods(render(values))]
    (container,) = [item for item in containers if item["name"] == "operator"]
    assert container["image"] == "reg.example.com/plimsoll-operator:7"
    assert f"--runtime-image=reg.example.com/plimsoll-runtime@{digest}" in container["args"]


def test_an_ingress_needs_no_host(render: Render) -> None:
    (ingress,) = by_kind(render({"ingress": {"enabled": True}}), "Ingress")
    (rule,) = ingress["spec"]["rules"]
    assert "host" not in rule
    assert "tls" not in ingress["spec"]


def test_several_hosts_have_rules_and_certificates_each(render: Render) -> None:
    hosts = [{"host": "a.example.com", "secretName": "a"}, {"host": "b.example.com"}, {"host": "c.example.com"}]
    values = {"enabled": True, "hosts": hosts, "tls": {"enabled": True, "secretName": "rest"}}
    (ingress,) = by_kind(render({"ingress": values}), "Ingress")
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == [entry["host"] for entry in hosts]
    assert len({str(rule["http"]) for rule in ingress["spec"]["rules"]}) == 1
    assert ingress["spec"]["tls"] == [
        {"hosts": ["a.example.com"], "secretName": "a"},
        {"hosts": ["b.example.com", "c.example.com"], "secretName": "rest"},
    ]


def test_a_route_streams_for_as_long_as_it_takes_and_leads_to_the_gateways_service(render: Render) -> None:
    values = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["a.example.com", "b.example.com"]}
    objects = render({"httpRoute": values, "gateway": {"service": {"port": 8000}}})
    (route,) = by_kind(objects, "HTTPRoute")
    (rule,) = route["spec"]["rules"]
    assert route["spec"]["hostnames"] == values["hostnames"]
    assert rule["timeouts"] == {"request": "0s"}
    (service,) = [s for s in by_kind(objects, "Service") if s["metadata"]["name"] == rule["backendRefs"][0]["name"]]
    assert rule["backendRefs"][0]["port"] == service["spec"]["ports"][0]["port"] == 8000
    assert by_kind(objects, "Ingress") == []


def test_a_changed_profile_rolls_the_operator(render: Render) -> None:
    def annotations(memory: str) -> Object:
        objects = render({"runtime": {"resourceProfiles": {"a": {"memory": memory}}}})
        (found,) = [d for d in by_kind(objects, "Deployment") if d["metadata"]["name"].endswith("-operator")]
        return dict(found["spec"]["template"]["metadata"]["annotations"])

    assert annotations("1Gi") == annotations("1Gi") != annotations("2Gi")


def test_long_release_names_stay_names(helm: Callable[..., str]) -> None:
    name = "a" * 53
    output = helm("template", name, "charts/plimsoll", "--namespace=serving", "--kube-version=1.34.3")
    for item in yaml.safe_load_all(output):
        if item and item["kind"] not in CLUSTER_WIDE:
            assert len(item["metadata"]["name"]) <= 69
            assert item["kind"] not in ("Service", "Deployment") or len(item["metadata"]["name"]) <= 63


def test_the_policy_that_needs_an_object_touches_no_pods_of_others(render: Render) -> None:
    """The API server reads the parameter before matchConditions, for any request."""
    policies = by_kind(render({}), "ValidatingAdmissionPolicy")
    (constraints,) = [p["spec"]["matchConstraints"] for p in policies if "paramKind" in p["spec"]]
    assert constraints["objectSelector"]["matchLabels"] == {"app.kubernetes.io/managed-by": "plimsoll-operator"}
    assert {tuple(rule["operations"]) for rule in constraints["resourceRules"]} == {("CREATE",)}


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("values", "closed"),
    [
        ({}, "['kube-system', 'serving']"),
        ({"admissionPolicy": {"allowReleaseNamespace": True}}, "['kube-system']"),
        ({"watchNamespaces": ["team-a"]}, "['kube-system', 'serving']"),
        ({"watchNamespaces": ["team-a", "serving"]}, "['kube-system']"),
    ],
    ids=str,
)
def test_where_the_operator_may_not_write(render: Render, values: Object, closed: str) -> None:
    places = {
        policy["metadata"]["name"].removeprefix("serving-pl-plimsoll-operator-"): rule["expression"]
        for policy in by_kind(render(values), "ValidatingAdmissionPolicy")
        for rule in policy["spec"]["validations"]
        if "request.namespace" in rule["expression"]
    }
    assert sorted(places) == ["budgets", "hosts", "pods", "revisions", "services"]
    assert set(places.values()) == {f"object == null || !(request.namespace in {closed})"}
