"""The chart passes valid arguments to the commands, and its selectors match their pods."""

import base64
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_support.chart_rights import NAME, lease_rules
from operator_support.objects import model, spec_of

from plimsoll_cluster.keys import GROUP, PLURAL
from plimsoll_cluster.served_names.rules import Reserved
from plimsoll_gateway.admission.limits import BODY_BYTES, Limits
from plimsoll_gateway.discovery import kubernetes_objects as gateway_objects
from plimsoll_gateway.keys.credential import FORM
from plimsoll_gateway.keys.limits import CLAIM
from plimsoll_gateway.server.cors import ORIGIN
from plimsoll_gateway.server.options import parse_options as gateway_options
from plimsoll_operator.build.group import EPHEMERAL_PORTS, GROUP_PORT, LAST_GROUP_PORT, group_sysctls
from plimsoll_operator.build.host import read_key
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod
from plimsoll_operator.controller.options import parse_options as operator_options
from plimsoll_operator.kube.rbac import (
    LEASE_RIGHTS,
    NAMESPACE_RIGHTS,
    NODE_RIGHTS,
    OWNER_RIGHTS,
    RECORD_RIGHTS,
    RIGHTS,
    TOKEN_RIGHTS,
)
from plimsoll_operator.spec.identity import HOST_PORT, HOSTING, METRICS_PORT, OWNER_LABEL, ROLE_LABEL
from plimsoll_operator.spec.model_deployment import read_spec
from plimsoll_operator.spec.profiles import NO_PROFILES, Profile
from plimsoll_operator.spec.profiles_file import read_profiles
from plimsoll_operator.spec.template import Accelerator, read_template

CHART = Path(__file__).parents[3] / "charts" / "plimsoll"
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
def test_gateway_takes_its_arguments(render: Render, watched: list[str], namespaces: tuple[str, ...] | None) -> None:
    limits = {"maxWaiting": 99, "maxBodyBytes": {"/tokenize": 33554432}, "maxHeldBytes": 268435456}
    origins = ["https://chat.example.com", "*"]
    values = {"drainSeconds": 60, "corsOrigins": origins, "filesClaim": "models/shared", **limits}
    found = pod(render({"watchNamespaces": watched, "gateway": values}), "gateway")
    (container,) = found["containers"]
    options = gateway_options(container["args"])
    assert options.namespaces == namespaces
    assert options.port == container["ports"][0]["containerPort"]
    assert options.stop.grace == 60
    assert list(options.origins) == origins
    assert options.files_claim == "models/shared"
    assert options.limits.waiting == 99
    assert options.limits.body_bytes == {**BODY_BYTES, "/tokenize": 33554432}
    assert options.limits.held_bytes == 268435456
    assert found["terminationGracePeriodSeconds"] > options.stop.lame_duck + options.stop.grace


def test_keys_and_the_credential_are_mounted_where_the_gateway_looks(render: Render) -> None:
    """A Secret of keys may be missing, the credential's may not; only the gateway's user can read either."""
    values: Object = {"keys": {"secrets": ["team-a", "team-b"]}, "credential": {"secretName": "shared", "key": "word"}}
    found = pod(render({"gateway": values}), "gateway")
    (container,) = found["containers"]
    options = gateway_options(container["args"])
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    secrets = {volume["name"]: volume["secret"] for volume in found["volumes"] if "secret" in volume}
    keys = {secret["secretName"]: mounts[name]["mountPath"] for name, secret in secrets.items() if "optional" in secret}
    assert keys == {name: f"{options.keys}/{name}" for name in ("team-a", "team-b")}
    assert str(options.gateway_token_file) == f"{mounts['credential']['mountPath']}/word"
    assert secrets["credential"]["secretName"] == "shared"
    assert "optional" not in secrets["credential"]
    assert {secret["defaultMode"] for secret in secrets.values()} == {0o440}
    assert found["securityContext"]["fsGroup"]
    assert all(mounts[name]["readOnly"] for name in secrets)
    operator = pod(render({"gateway": values}), "operator")
    assert not set(secrets) & {volume["name"] for volume in operator["volumes"]}


def test_gateways_with_keys_find_each_other_and_nobody_else_reaches_them_there(render: Render) -> None:
    values: Object = {"keys": {"secrets": ["team"]}, "credential": {"secretName": "shared"}}
    objects = render({"gateway": values})
    found = pod(objects, "gateway")
    (container,) = found["containers"]
    (address,) = [item["valueFrom"]["fieldRef"]["fieldPath"] for item in container["env"] if item["name"] == "POD_IP"]
    assert address == "status.podIP"
    found_peers = [
        gateway_options([text.replace("$(POD_IP)", ip) for text in container["args"]]).peers
        for ip in ("10.1.2.3", "fd00::7")
    ]
    assert [peers and peers.own.host for peers in found_peers] == ["10.1.2.3", "fd00::7"]
    peers = found_peers[0]
    assert peers is not None
    (place,) = peers.addresses
    services = {f"{item['metadata']['name']}.serving.svc": item for item in objects if item["kind"] == "Service"}
    service = services[place.host]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"], "a draining gateway still uses its shares"
    assert {port["name"]: port["containerPort"] for port in container["ports"]}["peers"] == peers.own.port == place.port
    assert peers.own.port not in {port["containerPort"] for port in container["ports"] if port["name"] != "peers"}
    (secret,) = [volume["secret"]["secretName"] for volume in found["volumes"] if volume["name"] == "peers"]
    (made,) = [item for item in objects if item["kind"] == "Secret" and item["metadata"]["name"] == secret]
    assert FORM.fullmatch(base64.b64decode(made["data"][peers.secret_file.name]))
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "peers"]
    assert mount["mountPath"] == str(peers.secret_file.parent)
    gateways = [{"podSelector": {"matchLabels": service["spec"]["selector"]}}]
    (policy,) = [
        item["spec"]
        for item in objects
        if item["kind"] == "NetworkPolicy" and item["spec"]["podSelector"] == gateways[0]["podSelector"]
    ]
    assert [rule["from"] for rule in policy["ingress"] if rule["ports"] == [{"port": "peers"}]] == [gateways]
    assert [rule["to"] for rule in policy["egress"] if rule["ports"] == [{"port": 8082}]] == [gateways]


def test_a_secret_of_ones_own_for_gateways(render: Render) -> None:
    values: Object = {"keys": {"secrets": ["team"]}, "credential": {"secretName": "shared"}}
    objects = render({"gateway": values | {"peers": {"existingSecret": "mine"}}})
    assert not [item for item in objects if item["kind"] == "Secret" and "peers" in item["metadata"]["name"]]
    assert "mine" in [volume.get("secret", {}).get("secretName") for volume in pod(objects, "gateway")["volumes"]]


def test_without_keys_the_gateway_is_open_and_mounts_no_secret(render: Render) -> None:
    found = pod(render({}), "gateway")
    options = gateway_options(found["containers"][0]["args"])
    assert (options.keys, options.gateway_token_file, options.peers) == (None, None, None)
    assert not [volume for volume in found["volumes"] if "secret" in volume]


def test_the_gateways_limits_are_its_own_defaults(render: Render) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    paths = schema["properties"]["gateway"]["properties"]["maxBodyBytes"]["propertyNames"]["enum"]
    assert sorted(paths) == sorted(BODY_BYTES)
    (container,) = pod(render({}), "gateway")["containers"]
    options = gateway_options(container["args"])
    assert (options.limits, options.origins, options.files_claim) == (Limits(), (), None)
    values = schema["properties"]["gateway"]["properties"]
    assert values["corsOrigins"]["items"]["pattern"] == f"^({ORIGIN.pattern})$"
    assert values["filesClaim"]["pattern"] == f"^({CLAIM.pattern})?$"


@pytest.mark.parametrize(("watched", "namespaces"), [([], None), (["team-a", "team-b"], ("team-a", "team-b"))])
def test_operator_takes_its_arguments(render: Render, watched: list[str], namespaces: tuple[str, ...] | None) -> None:
    image = {"registry": "reg.example.com", "repository": "rt", "tag": "7", "pullPolicy": "Always"}
    runtime = {"image": image, "allowedImages": ["reg.example.com/ai"], "disruptionBudgets": not watched}
    runtime |= {"trustRemoteCode": bool(watched), "fixedUser": not watched}
    values: Object = {
        "watchNamespaces": watched,
        "runtime": runtime,
        "operator": {"maxRollingModels": 3, "groupTurns": not watched},
    }
    (container,) = pod(render(values), "operator")["containers"]
    options = operator_options(container["args"])
    assert options.image == Image("reg.example.com/rt:7", "Always", ("reg.example.com/ai",), fixed_user=not watched)
    assert options.budgets is not bool(watched)
    assert options.remote_code is bool(watched)
    assert options.namespaces == namespaces
    assert options.health_port == container["ports"][0]["containerPort"]
    assert str(options.lease) == "serving/pl-plimsoll-operator"
    assert options.max_rolling == 3
    assert options.group_turns is not bool(watched)


def test_profiles_are_mounted_where_the_operator_reads_them_and_have_its_fields(render: Render, tmp_path: Path) -> None:
    pods: Object = {
        "nodeSelector": {"gpu": "l4"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "env": [{"name": "A", "value": 'a $(POD_NAME) "b"'}],
        "runtimeClassName": "nvidia",
        "schedulerName": "volcano",
        "priorityClassName": "serving",
        "imagePullSecrets": [{"name": "pull"}],
    }
    resources: Object = {"cpu": 4, "cpuLimit": "8", "memory": "16Gi", "ephemeralStorage": "50Gi"}
    profile = pods | resources | {"accelerator": {"resource": "nvidia.com/gpu", "count": 16}}
    objects = render({"runtime": {"defaults": pods, "resourceProfiles": {"l4": profile}}})
    found = pod(objects, "operator")
    (container,) = found["containers"]
    (volume,) = [volume["configMap"]["name"] for volume in found["volumes"] if volume["name"] == "profiles"]
    (mount,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "profiles"]
    (data,) = [item["data"] for item in objects if item["kind"] == "ConfigMap" and item["metadata"]["name"] == volume]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    options = operator_options([each.replace(mount, str(tmp_path)) for each in container["args"]])
    template = read_template(pods)
    assert options.profiles.defaults == template
    assert options.profiles.named == {
        "l4": Profile("4", "8", "16Gi", "50Gi", Accelerator("nvidia.com/gpu", 16), template)
    }
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["runtime"]["properties"]
    assert set(schema["defaults"]["properties"]) == set(pods), "the test above has every field"
    assert set(schema["resourceProfiles"]["additionalProperties"]["properties"]) == set(profile)


def test_the_docs_example_of_profiles_is_what_the_docs_say(render: Render, tmp_path: Path) -> None:
    page = (CHART.parents[1] / "docs" / "start" / "install.md").read_text()
    text = page.partition("### Defaults and resource profiles")[2]
    values, asked = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[:2])
    (data,) = [item["data"] for item in render(values) if item["metadata"]["name"].endswith("-profiles")]
    file = tmp_path / "profiles.json"
    file.write_text(data["profiles.json"])
    spec = read_spec(model(**asked["spec"]), read_profiles(file))
    assert (spec.cpu, spec.memory, spec.accelerator) == ("8", "96Gi", Accelerator("nvidia.com/gpu", 1))
    assert list(spec.template.tolerations) == values["runtime"]["defaults"]["tolerations"]
    assert list(spec.template.env) == values["runtime"]["defaults"]["env"]
    assert spec.template.scheduling["runtimeClassName"] == "nvidia"


def test_without_profiles_the_operator_mounts_none(render: Render) -> None:
    objects = render({})
    assert not [item for item in objects if item["metadata"]["name"].endswith("-profiles")]
    assert operator_options(pod(objects, "operator")["containers"][0]["args"]).profiles == NO_PROFILES


@pytest.mark.parametrize("component", ["operator", "gateway"])
def test_the_users_of_the_charts_own_pods_can_be_left_out(render: Render, component: str) -> None:
    """As in docs/start/install.md for OpenShift."""
    unset = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))
    found = pod(render({component: {"podSecurityContext": unset}}), component)
    assert found["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_policies_select_the_pods_that_the_gateway_watches(render: Render) -> None:
    selector = dict(pair.split("=") for pair in gateway_objects.POD_SELECTOR.split(","))
    policies = {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]
        for item in render({})
        if item["kind"] == "NetworkPolicy"
    }
    assert policies["runtime"]["podSelector"]["matchLabels"] == selector
    assert policies["runtime"]["ingress"][0]["ports"] == [{"port": gateway_objects.PORT}]
    (rule,) = [r for r in policies["operator"]["egress"] if r["ports"] == [{"port": HOST_PORT}]]
    assert rule["to"][0]["podSelector"]["matchLabels"] == selector | {ROLE_LABEL: HOSTING}
    assert not [r for r in policies["gateway"]["egress"] if {"port": HOST_PORT} in r["ports"]]
    to_runtime = policies["gateway"]["egress"][-1]
    assert to_runtime["to"][0]["podSelector"]["matchLabels"] == selector
    assert to_runtime["ports"] == [{"port": gateway_objects.PORT}]


def test_policies_allow_the_ports_of_groups_that_the_operator_sets(render: Render) -> None:
    objects = render({})
    (policy,) = [
        item["spec"]
        for item in objects
        if item["kind"] == "NetworkPolicy" and item["metadata"]["labels"]["app.kubernetes.io/component"] == "runtime"
    ]
    first, last = map(int, EPHEMERAL_PORTS.split())
    ports = [{"port": GROUP_PORT, "endPort": LAST_GROUP_PORT}, {"port": first, "endPort": last}]
    peers = [{"podSelector": policy["podSelector"]}]
    assert [rule["from"] for rule in policy["ingress"] if rule["ports"] == ports] == [peers]
    (sysctls,) = [
        rule["expression"]
        for item in objects
        if item["metadata"]["name"].endswith("-operator-pods") and item["kind"] == "ValidatingAdmissionPolicy"
        for rule in item["spec"]["validations"]
        if "sysctls" in rule["expression"]
    ]
    (sysctl,) = group_sysctls(spec_of(parallel={"tensor": 2, "pods": 2}))["sysctls"]
    assert f"s.name == '{sysctl['name']}' && s.value == '{sysctl['value']}'" in sysctls


def test_gateway_may_read_what_it_watches(render: Render) -> None:
    (role,) = [
        item
        for item in render({"rbac": {"aggregate": False}})
        if item["kind"] == "ClusterRole" and item["metadata"]["name"].endswith("-gateway")
    ]
    assert role["rules"] == [
        {
            "apiGroups": [GROUP],
            "resources": [PLURAL, "modelhosts"],
            "verbs": ["list", "watch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    ]


def granted(role: Object) -> set[tuple[str, str, str]]:
    """Return group, resource and verb of all rules of a role."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_operator_may_do_what_it_does_and_no_more(render: Render) -> None:
    (role,) = [
        item
        for item in render({"rbac": {"aggregate": False}})
        if item["kind"] == "ClusterRole" and item["metadata"]["name"].endswith("-operator")
    ]
    assert granted(role) == RIGHTS | NODE_RIGHTS | NAMESPACE_RIGHTS


def test_an_operator_of_some_namespaces_does_without_nodes_and_their_labels(render: Render) -> None:
    roles = [item for item in render({"watchNamespaces": ["team-a"]}) if item["metadata"].get("namespace") == "team-a"]
    (role,) = [r for r in roles if r["kind"] == "Role" and r["metadata"]["name"].endswith("-operator")]
    assert granted(role) == RIGHTS


@pytest.mark.parametrize("watched", [[], ["team-a", "team-b", "team-c"]])
def test_secrets_may_be_read_in_the_namespaces_that_are_listed_for_it_alone(
    render: Render, refused: type[Exception], watched: list[str]
) -> None:
    objects = render({"watchNamespaces": watched, "operator": {"tokenNamespaces": ["team-a", "team-b"]}})
    roles = [item for item in objects if item["kind"] in ("Role", "ClusterRole")]
    reading = [role for role in roles if any("secrets" in rule["resources"] for rule in role["rules"])]
    assert [(role["kind"], role["metadata"]["namespace"]) for role in reading] == [
        ("Role", "team-a"),
        ("Role", "team-b"),
    ]
    bindings = {
        (item["metadata"]["namespace"], item["roleRef"]["name"]): item["subjects"]
        for item in objects
        if item["kind"] == "RoleBinding"
    }
    account = [{"kind": "ServiceAccount", "name": "pl-plimsoll-operator", "namespace": "serving"}]
    for role in reading:
        assert granted(role) == TOKEN_RIGHTS
        assert bindings[role["metadata"]["namespace"], role["metadata"]["name"]] == account
    if watched:
        with pytest.raises(refused, match="tokenNamespaces has team-x, which is not watched"):
            render({"watchNamespaces": watched, "operator": {"tokenNamespaces": ["team-x"]}})


def test_operator_may_do_with_its_lease_what_it_does_and_no_more(render: Render) -> None:
    objects = render({"fullnameOverride": NAME.removesuffix("-operator")})
    (role,) = [item for item in objects if item["kind"] == "Role" and item["metadata"]["name"].endswith("-lease")]
    (lease,) = [item for item in objects if item["kind"] == "Lease"]
    assert "spec" not in lease
    assert role["rules"] == lease_rules()
    assert granted(role) == LEASE_RIGHTS | OWNER_RIGHTS
    for rule in role["rules"]:
        assert rule["verbs"] == ["create"] or rule["resourceNames"] == [lease["metadata"]["name"]]
    (container,) = pod(objects, "operator")["containers"]
    options = operator_options(container["args"])
    assert str(options.lease) == f"{lease['metadata']['namespace']}/{lease['metadata']['name']}"
    (deployment,) = [item for item in objects if item["kind"] == "Deployment" and item["metadata"]["name"] == NAME]
    assert options.deployment == deployment["metadata"]["name"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


RULES = [{"names": ["llama-*", "org/x:8b"], "namespaces": ["team-a", "prod-*"]}, {"names": ["*"], "namespaces": []}]


@pytest.mark.parametrize("watched", [[], ["team-a"]])
def test_operator_and_gateway_decide_about_served_names_by_the_same_rules_and_record(
    render: Render, watched: list[str]
) -> None:
    objects = render({"watchNamespaces": watched, "servedNames": {"rules": RULES, "graceSeconds": 3600}})
    arguments = {part: pod(objects, part)["containers"][0]["args"] for part in ("operator", "gateway")}
    operator, gateway = operator_options(arguments["operator"]), gateway_options(arguments["gateway"])
    given = [[text for text in found if text.startswith("--name-r")] for found in arguments.values()]
    assert given[0] == given[1]
    assert operator.name_grace == timedelta(hours=1)
    assert operator.name_record == gateway.name_record
    for rules in (operator.name_rules, gateway.name_rules):
        assert rules.refusal("org/x:8b", "prod-eu") is None
        assert rules.refusal("llama-3", "team-b") == Reserved("llama-*", ("team-a", "prod-*"))
        assert rules.refusal("chat", "team-a") == Reserved("*", ())
    (record,) = [item for item in objects if item["kind"] == "ConfigMap"]
    assert str(operator.name_record) == f"{record['metadata']['namespace']}/{record['metadata']['name']}"
    assert "data" not in record, "the operator writes it; an upgrade must not"
    roles = {
        role["metadata"]["labels"]["app.kubernetes.io/component"]: role
        for role in objects
        if role["kind"] == "Role" and any("configmaps" in rule["resources"] for rule in role["rules"])
    }
    assert granted(roles["operator"]) == RECORD_RIGHTS
    assert granted(roles["gateway"]) == {("", "configmaps", "list"), ("", "configmaps", "watch")}
    for part, role in roles.items():
        assert role["metadata"]["namespace"] == record["metadata"]["namespace"]
        assert [rule["resourceNames"] for rule in role["rules"]] == [[record["metadata"]["name"]]]
        (binding,) = [
            item
            for item in objects
            if item["kind"] == "RoleBinding" and item["roleRef"]["name"] == role["metadata"]["name"]
        ]
        account = {"kind": "ServiceAccount", "name": f"pl-plimsoll-{part}", "namespace": "serving"}
        assert binding["subjects"] == [account]


def test_without_a_grace_there_is_no_record(render: Render) -> None:
    objects = render({"servedNames": {"graceSeconds": 0}})
    assert not [item for item in objects if item["kind"] == "ConfigMap"]
    assert operator_options(pod(objects, "operator")["containers"][0]["args"]).name_record is None
    assert gateway_options(pod(objects, "gateway")["containers"][0]["args"]).name_record is None
    assert "configmaps" not in str([item for item in objects if "rules" in item])


def test_the_default_grace_is_the_operators(render: Render) -> None:
    least = ["--runtime-image", "reg/rt:1", "--lease-namespace", "system"]
    (container,) = pod(render({}), "operator")["containers"]
    assert operator_options(container["args"]).name_grace == operator_options(least).name_grace


def test_what_the_chart_lets_pass_is_what_the_commands_take(render: Render, refused: type[Exception]) -> None:
    """The longest patterns, and some that both refuse."""
    name, namespace = "x" * 128, "n" * 63
    for end in ("", "*"):
        rules = [{"names": [name + end], "namespaces": [namespace + end]}]
        (container,) = pod(render({"servedNames": {"rules": rules}}), "gateway")["containers"]
        assert gateway_options(container["args"]).name_rules.refusal(name, namespace) is None
    for names, namespaces in (([name + "x"], ["a"]), (["a,b"], ["a"]), (["a=b"], ["a"]), (["a"], [namespace + "n"])):
        with pytest.raises(refused, match="/servedNames/rules/0/"):
            render({"servedNames": {"rules": [{"names": names, "namespaces": namespaces}]}})


def test_the_gateways_metrics_are_on_no_public_service(render: Render) -> None:
    """The pods' other port serves them, which the monitors scrape."""
    objects = render(
        {"gateway": {"service": {"type": "LoadBalancer"}}, "metrics": {"serviceMonitor": {"enabled": True}}}
    )
    (container,) = pod(objects, "gateway")["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    options = gateway_options(container["args"])
    assert ports == {"http": options.port, "metrics": options.metrics_port}
    services = {item["metadata"]["name"]: item for item in objects if item["kind"] == "Service"}
    public, own = services["pl-plimsoll-gateway"]["spec"], services["pl-plimsoll-metrics"]
    assert (public["type"], [port["targetPort"] for port in public["ports"]]) == ("LoadBalancer", ["http"])
    assert own["spec"]["selector"] == public["selector"]
    (monitor,) = [
        item for item in objects if item["kind"] == "ServiceMonitor" and item["metadata"]["name"].endswith("-gateway")
    ]
    assert [end["port"] for end in monitor["spec"]["endpoints"]] == [port["name"] for port in own["spec"]["ports"]]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= own["metadata"]["labels"].items()
    (policy,) = [
        item for item in objects if item["kind"] == "NetworkPolicy" and item["metadata"]["name"].endswith("-gateway")
    ]
    assert [rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]] == ["http", "metrics"]


def test_the_host_api_is_reached_by_the_operator_alone(render: Render) -> None:
    """Other allowed peers, such as scrapers, do not reach that port."""
    others = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    (policy,) = [
        item["spec"]
        for item in render({"networkPolicy": {"runtimeFrom": others}})
        if item["kind"] == "NetworkPolicy" and item["metadata"]["name"].endswith("-runtime")
    ]
    (rule,) = [rule for rule in policy["ingress"] if {"port": HOST_PORT} in rule["ports"]]
    assert rule["ports"] == [{"port": HOST_PORT}]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"
    assert "namespaceSelector" in peer


def test_metrics_of_runtime_pods_have_a_port_that_scrapers_reach(render: Render) -> None:
    """The pods' port has the monitor's name, and the policy opens its number to `metricsFrom` and nothing else."""
    scrapers = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    objects = render({"networkPolicy": {"metricsFrom": scrapers}, "metrics": {"podMonitor": {"enabled": True}}})
    (policy,) = [
        item["spec"]
        for item in objects
        if item["kind"] == "NetworkPolicy" and item["metadata"]["name"].endswith("-runtime")
    ]
    assert [rule["ports"] for rule in policy["ingress"] if rule["from"] == scrapers] == [[{"port": METRICS_PORT}]]
    (monitor,) = [item for item in objects if item["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"], "otherwise Prometheus renames the label `namespace`"
    (relabeling,) = endpoint["relabelings"]
    assert relabeling["sourceLabels"] == ["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", OWNER_LABEL)]
    assert relabeling["targetLabel"] == "model"
    (container,) = build_pod(spec_of(), Image("runtime:1"), "x")["spec"]["containers"]
    assert {"name": endpoint["port"], "containerPort": METRICS_PORT, "protocol": "TCP"} in container["ports"]


def test_the_operator_alone_holds_the_keys_of_hosts(render: Render, tmp_path: Path) -> None:
    objects = render({})
    (secret,) = [item for item in objects if item["kind"] == "Secret"]
    for name, value in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
    read_key(tmp_path)
    operator, gateway = pod(objects, "operator"), pod(objects, "gateway")
    (volume,) = [volume for volume in operator["volumes"] if "secret" in volume]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    (container,) = operator["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == volume["name"]]
    assert operator_options(container["args"]).host_keys == Path(mount["mountPath"])
    assert not [volume for volume in gateway["volumes"] if "secret" in volume]
    for role in (item for item in objects if item["kind"] in ("Role", "ClusterRole")):
        assert not any("secrets" in rule["resources"] for rule in role["rules"]), "no role may read it"


def test_keys_of_ones_own(render: Render) -> None:
    objects = render({"hostKeys": {"existingSecret": "mine"}})
    assert [item for item in objects if item["kind"] == "Secret"] == []
    assert {"secretName": "mine", "defaultMode": 0o440} in [
        v.get("secret") for v in pod(objects, "operator")["volumes"]
    ]


def test_keda_finds_the_external_scaler_where_the_operator_listens(render: Render) -> None:
    objects = render({"operator": {"externalScaler": {"enabled": True}}})
    (container,) = pod(objects, "operator")["containers"]
    options = operator_options(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    (service,) = [item for item in objects if item["metadata"]["name"] == "pl-plimsoll-scaler"]
    (port,) = service["spec"]["ports"]
    assert ports[port["targetPort"]] == options.external_scaler_port == port["port"]
    labels = next(
        item["spec"]["template"]["metadata"]["labels"]
        for item in objects
        if item["kind"] == "Deployment" and item["metadata"]["name"] == "pl-plimsoll-operator"
    )
    assert service["spec"]["selector"].items() <= labels.items()
    (plain,) = pod(render({}), "operator")["containers"]
    assert operator_options(plain["args"]).external_scaler_port is None


def test_the_external_scaler_is_never_open_to_all(render: Render, refused: type[Exception]) -> None:
    with pytest.raises(refused, match="from"):
        render({"operator": {"externalScaler": {"enabled": True, "from": []}}})
