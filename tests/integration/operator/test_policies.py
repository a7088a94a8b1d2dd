"""What the admission policies reject of the operator's account although its role allows it, and of others' changes to
pods.

Each test changes an allowed request in one respect. The namespace itself accepts every pod.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from chart_support.helm import render
from operator_support.apiserver import FIRST, RELEASE, RELEASE_NAMESPACE, ApiServer, until
from operator_support.direct import MERGE, Direct, Refused
from operator_support.installed import ALLOWED_IMAGES, PLACES, VALUES
from operator_support.objects import Json, spec_of
from operator_support.pooled import HOST_KEY

from plimsoll_operator.build.controller_revision import build_revision, present_revision
from plimsoll_operator.build.disruption_budget import build_budget
from plimsoll_operator.build.host import build_host
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod, build_service
from plimsoll_operator.pools.hosts.host_registry import HostPod
from plimsoll_operator.pools.hosts.model_host import build_host as build_model_host
from plimsoll_operator.spec.identity import API_VERSION, MANAGED_LABEL, MANAGER, OWNER_LABEL, POOL_LABEL, ObjectKey
from plimsoll_operator.spec.model_deployment import read_spec
from plimsoll_operator.spec.runtime_pool import read_pool
from plimsoll_operator.spec.template import SpecError

pytestmark = pytest.mark.usefixtures("open_namespace")

Change = Callable[[Json], Any]
OWNERS, RESTRICT, VOLUMES, IMAGES = (
    "of ModelDeployments and RuntimePools only",
    "must be restricted; set",
    "may have volumes of these kinds only",
    "may have images of registry.example/runtime and those",
)
NO_OBJECT = "no params found for policy binding"
PLACE = "may not write to the namespaces kube-system, plimsoll-system"


@pytest.fixture
def owner(direct: Direct) -> Json:
    return direct.create_model("gemma", {"model": {"source": "demo://gemma-3-270m"}})


@pytest.fixture
def pod(direct: Direct, owner: Json) -> Json:
    return _in(direct, build_pod(spec_of(uid=owner["metadata"]["uid"]), Image("registry.example/runtime:1"), "x1y2z"))


@pytest.fixture
def service(direct: Direct, owner: Json) -> Json:
    return _in(direct, build_service(spec_of(uid=owner["metadata"]["uid"])))


def _in(direct: Direct, item: Json) -> Json:
    item["metadata"]["namespace"] = direct.namespace
    return item


def create(hands: Direct, item: Json, **query: str) -> Json:
    kind = f"{item['kind'].lower()}s"
    return hands.ask("POST", f"/api/v1/namespaces/{hands.namespace}/{kind}", item, **query)


def refusal(hands: Direct, item: Json) -> str:
    """Return the API server's message if it would reject the object, else ""."""
    try:
        create(hands, item, dryRun="All")
    except Refused as refused:
        return refused.message
    return ""


def lacks_object(hands: Direct, item: Json) -> bool:
    """Return whether a request is rejected for lack of an object of ours, which the API server sees with a delay."""
    return NO_OBJECT in refusal(hands, item)


def knows_object(hands: Direct, item: Json) -> bool:
    """Wait until the API server sees an object of ours in the namespace. Return False if it does not in time."""
    return until(lambda: not lacks_object(hands, item))


def patch(hands: Direct, kind: str, name: str, body: Json) -> Json:
    return hands.ask("PATCH", f"/api/v1/namespaces/{hands.namespace}/{kind}/{name}", body, MERGE)


def delete(hands: Direct, kind: str, name: str) -> Json:
    return hands.ask("DELETE", f"/api/v1/namespaces/{hands.namespace}/{kind}/{name}")


def plain(name: str, **labels: str) -> Json:
    """Return a pod of a user."""
    spec = {"containers": [{"name": "c", "image": "registry.example/other:1"}]}
    return {"kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def context(pod: Json) -> Json:
    """Return the security context of a pod's container."""
    found: Json = pod["spec"]["containers"][0]["securityContext"]
    return found


def owner_of(pod: Json) -> Json:
    found: Json = pod["metadata"]["ownerReferences"][0]
    return found


PORT_RANGE = {"name": "net.ipv4.ip_local_port_range", "value": "20000 29999"}
TOKEN = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
LINES: dict[str, tuple[Change, str]] = {
    "no labels": (lambda p: p["metadata"].pop("labels"), OWNERS),
    "no managed-by": (lambda p: p["metadata"]["labels"].pop(MANAGED_LABEL), OWNERS),
    "no owner": (lambda p: p["metadata"].pop("ownerReferences"), OWNERS),
    "an owner that does not control": (lambda p: owner_of(p).update(controller=False), OWNERS),
    "an owner of another kind": (lambda p: owner_of(p).update(kind="ReplicaSet", apiVersion="apps/v1"), OWNERS),
    "another's label": (lambda p: p["metadata"]["labels"].update({OWNER_LABEL: "llama"}), OWNERS),
    "hostNetwork": (lambda p: p["spec"].update(hostNetwork=True), "leave out hostNetwork"),
    "hostPID": (lambda p: p["spec"].update(hostPID=True), "leave out hostNetwork"),
    "hostIPC": (lambda p: p["spec"].update(hostIPC=True), "leave out hostNetwork"),
    "hostPath": (lambda p: p["spec"]["volumes"].append({"name": "v", "hostPath": {"path": "/"}}), VOLUMES),
    "a token": (
        lambda p: p["spec"].update(
            serviceAccountName="admin", volumes=[*p["spec"]["volumes"], {"name": "v", "projected": TOKEN}]
        ),
        VOLUMES,
    ),
    "its own token": (lambda p: p["spec"].update(automountServiceAccountToken=True), "must not hold a token"),
    "root": (lambda p: p["spec"]["securityContext"].update(runAsUser=0), RESTRICT),
    "perhaps root": (lambda p: p["spec"]["securityContext"].update(runAsNonRoot=False), RESTRICT),
    "no seccomp": (lambda p: p["spec"]["securityContext"]["seccompProfile"].update(type="Unconfined"), RESTRICT),
    "sysctls": (
        lambda p: p["spec"]["securityContext"].update(sysctls=[{"name": "kernel.shm_rmid_forced", "value": "1"}]),
        RESTRICT,
    ),
    "another range of ports": (
        lambda p: p["spec"]["securityContext"].update(sysctls=[PORT_RANGE | {"value": "1024 65535"}]),
        RESTRICT,
    ),
    "a sysctl after the range of ports": (
        lambda p: p["spec"]["securityContext"].update(
            sysctls=[PORT_RANGE, {"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]
        ),
        RESTRICT,
    ),
    "privileged": (lambda p: context(p).update(privileged=True, allowPrivilegeEscalation=True), "drop ALL"),
    "escalation": (lambda p: context(p).update(allowPrivilegeEscalation=True), "drop ALL"),
    "a capability": (lambda p: context(p)["capabilities"].update(add=["NET_ADMIN"]), "drop ALL"),
    "capabilities kept": (lambda p: context(p).pop("capabilities"), "drop ALL"),
    "a container as root": (lambda p: context(p).update(runAsUser=0), "drop ALL"),
    "a container perhaps as root": (lambda p: context(p).update(runAsNonRoot=False), "drop ALL"),
    "a container without seccomp": (lambda p: context(p).update(seccompProfile={"type": "Unconfined"}), "drop ALL"),
    "a port of the node": (lambda p: p["spec"]["containers"][0]["ports"][0].update(hostPort=8000), "drop ALL"),
    "an init container": (
        lambda p: p["spec"].update(initContainers=[{"name": "i", "image": "registry.example/runtime:1"}]),
        "drop ALL",
    ),
    "somebody's image": (lambda p: p["spec"]["containers"][0].update(image="evil.example/runtime:1"), IMAGES),
    "an init container with another image": (
        lambda p: p["spec"].update(
            initContainers=[{"name": "i", "image": "evil:1", "securityContext": context(p)}],
        ),
        IMAGES,
    ),
}


def test_the_operator_creates_pods_of_groups_with_their_range_of_ports(as_operator: Direct, pod: Json) -> None:
    pod["spec"]["securityContext"]["sysctls"] = [PORT_RANGE]
    create(as_operator, pod)


@pytest.mark.long
@pytest.mark.parametrize("line", LINES)
def test_the_operator_creates_restricted_pods_of_models_only(as_operator: Direct, pod: Json, line: str) -> None:
    change, words = LINES[line]
    changed = copy.deepcopy(pod)
    change(changed)
    with pytest.raises(Refused, match=words) as refused:
        create(as_operator, changed)
    assert refused.value.code == 403
    create(as_operator, pod)


def test_the_operator_creates_no_pod_of_a_pool_in_a_namespace_without_pools(
    as_operator: Direct, direct: Direct, host: Json
) -> None:
    """Any pool of the namespace suffices: the policy cannot look up the owner that the pod names."""
    direct.delete_pool("shared")
    assert until(lambda: lacks_object(as_operator, host))
    direct.create_pool("another", {"resources": {"memory": "1Gi"}})
    assert until(lambda: refusal(as_operator, host) == "")


LABELLED = "labelled-operator-pods"


@pytest.fixture
def labels_needed(direct: Direct) -> Iterator[None]:
    """Install the policy for pods as with admissionPolicy.namespaceLabels."""
    values = VALUES | {"admissionPolicy": {"namespaceLabels": {"plimsoll.dev/models": "true"}}}
    made = [
        item
        for item in render(values, release=RELEASE, namespace=RELEASE_NAMESPACE)
        if item["metadata"]["name"].endswith("-operator-pods")
    ]
    for item in made:
        item["metadata"]["name"] = LABELLED
        if item["kind"].endswith("Binding"):
            here = {"matchLabels": {"kubernetes.io/metadata.name": direct.namespace}}
            item["spec"] |= {"policyName": LABELLED, "matchResources": {"namespaceSelector": here}}
        direct.ask("POST", PLACES[item["kind"]], item)
    yield
    for item in made:
        direct.ask("DELETE", f"{PLACES[item['kind']]}/{LABELLED}")


@pytest.mark.usefixtures("labels_needed")
def test_the_operator_creates_pods_in_labelled_namespaces_only(as_operator: Direct, direct: Direct, pod: Json) -> None:
    words = "may write to namespaces with the label plimsoll.dev/models=true only"
    assert until(lambda: words in refusal(as_operator, pod))
    path = f"/api/v1/namespaces/{direct.namespace}"
    direct.ask("PATCH", path, {"metadata": {"labels": {"plimsoll.dev/models": "false"}}}, MERGE)
    assert words in refusal(as_operator, pod)
    with pytest.raises(Refused, match="cannot patch resource"):
        as_operator.ask("PATCH", path, {"metadata": {"labels": {"plimsoll.dev/models": "true"}}}, MERGE)
    direct.ask("PATCH", path, {"metadata": {"labels": {"plimsoll.dev/models": "true"}}}, MERGE)
    assert until(lambda: refusal(as_operator, pod) == "")


def test_pods_of_others_need_no_object_of_ours(as_editor: Direct) -> None:
    """The API server looks up the parameter of a policy before it evaluates the policy's conditions."""
    create(as_editor, plain("theirs"))
    patch(as_editor, "pods", "theirs", {"metadata": {"labels": {"note": "mine"}}})
    delete(as_editor, "pods", "theirs")


def test_the_operator_deletes_the_last_pod_after_its_pool(as_operator: Direct, direct: Direct, host: Json) -> None:
    create(as_operator, host)
    direct.delete_pool("shared")
    assert until(lambda: lacks_object(as_operator, {**host, "metadata": {**host["metadata"], "name": "another"}}))
    delete(as_operator, "pods", host["metadata"]["name"])


@pytest.mark.parametrize("namespace", ["kube-system", RELEASE_NAMESPACE])
def test_the_operator_writes_nothing_where_the_cluster_and_the_release_are(
    as_operator: Direct, direct: Direct, pod: Json, service: Json, host: Json, namespace: str
) -> None:
    """Even if they have objects of ours."""
    direct.namespace = as_operator.namespace = namespace
    direct.create_model("gemma", {"model": {"source": "demo://gemma-3-270m"}})
    direct.create_pool("shared", {"resources": {"memory": "1Gi"}})
    assert knows_object(as_operator, _in(direct, host))
    for item in (pod, host, service):
        _in(direct, item)
        assert PLACE in refusal(as_operator, item)
    with pytest.raises(Refused, match=PLACE):
        as_operator.ask("POST", hosts_path(direct), model_host(direct, "shared-x1y2z"))
    direct.delete_model("gemma")
    direct.delete_pool("shared")


PIECES = ("registry.example", "mirror.example:5000", "evil.example", "bare", "mesh.example")
PATHS = ("", "/ai", "/ai-evil", "/ai/a/b", "/runtime", "/runtime-evil", "/runtime/evil", "/tagged", "/proxy")
ENDS = ("", ":1", ":2", ":2-evil", ":5000/evil", "@sha256:" + "a" * 64, ":1@sha256:" + "b" * 64)


@pytest.mark.long
def test_the_policy_allows_the_images_that_the_operator_allows(as_operator: Direct, pod: Json) -> None:
    """In addition, it allows every version of the runtime and images that the cluster's webhooks may add."""
    mesh = Image("", allowed=("mesh.example/proxy",))
    operators = Image("", allowed=ALLOWED_IMAGES)
    verdicts = {}
    for own in ("".join(parts) for parts in itertools.product(PIECES, PATHS, ENDS)):
        changed = copy.deepcopy(pod)
        changed["spec"]["containers"][0]["image"] = own
        runtime = re.fullmatch("registry.example/runtime(:[^/]+)?(@sha256:.*)?", own) is not None
        allowed = runtime or any(allows(image, own) for image in (operators, mesh))
        words = refusal(as_operator, changed)
        assert (words == "") == allowed, f"{own}: {words}"
        assert allowed or IMAGES in words, f"{own}: {words}"
        verdicts[own] = allowed
    assert {True, False} == set(verdicts.values())
    assert not verdicts["registry.example/runtime:5000/evil"]
    assert not verdicts["registry.example/ai-evil:1"]


def allows(image: Image, own: str) -> bool:
    spec = spec_of(template={"image": own})
    try:
        return image.of(spec) == own
    except SpecError:
        return False


def test_the_operator_creates_pods_whose_user_the_cluster_assigns(as_operator: Direct, other: Direct) -> None:
    """With runtime.fixedUser=false, in a namespace that enforces the restricted Pod Security Standard."""
    owner = other.create_model("gemma", {"model": {"source": "demo://gemma-3-270m"}})
    image = Image("registry.example/runtime:1", fixed_user=False)
    as_operator.namespace = other.namespace
    pod = _in(other, build_pod(spec_of(uid=owner["metadata"]["uid"]), image, "x1y2z"))
    made = create(as_operator, pod)
    assert made["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_the_operator_deletes_pods_of_models_only(as_operator: Direct, direct: Direct, pod: Json) -> None:
    create(direct, plain("theirs"))
    with pytest.raises(Refused, match=OWNERS):
        delete(as_operator, "pods", "theirs")
    create(as_operator, pod)
    delete(as_operator, "pods", pod["metadata"]["name"])


SERVICE_LINES: dict[str, tuple[Change, str]] = {
    "no labels": (lambda s: s["metadata"].pop("labels"), OWNERS),
    "no owner": (lambda s: s["metadata"].pop("ownerReferences"), OWNERS),
    "another selector": (lambda s: s["spec"].update(selector={"app": "bank"}), "into its selector"),
    "published": (lambda s: s["spec"].update(type="LoadBalancer"), "use the gateway's Service"),
    "an address of somebody's": (lambda s: s["spec"].update(externalIPs=["198.18.0.1"]), "use the gateway's Service"),
}


@pytest.mark.parametrize("line", SERVICE_LINES)
def test_the_operator_creates_services_of_models_only(as_operator: Direct, service: Json, line: str) -> None:
    change, words = SERVICE_LINES[line]
    changed = copy.deepcopy(service)
    change(changed)
    with pytest.raises(Refused, match=words):
        create(as_operator, changed)
    create(as_operator, service)


def test_the_operator_changes_services_of_models_only(as_operator: Direct, direct: Direct, service: Json) -> None:
    """Neither unchanged nor by making itself the owner."""
    direct.create_service("dns")
    for body in ({"spec": {"selector": {"app": "evil"}}}, {"metadata": service["metadata"] | {"name": "dns"}}):
        with pytest.raises(Refused, match=OWNERS):
            patch(as_operator, "services", "dns", body)
    create(as_operator, service)
    for spec in ({"type": "NodePort"}, {"externalIPs": ["198.18.0.1"]}):
        with pytest.raises(Refused, match="leave them as they are"):
            patch(as_operator, "services", "gemma", {"spec": spec})
    patch(as_operator, "services", "gemma", {"spec": {"ports": service["spec"]["ports"]}})


def test_the_operator_writes_budgets_of_models_only(as_operator: Direct, direct: Direct, owner: Json) -> None:
    uid = owner["metadata"]["uid"]
    path = f"/apis/policy/v1/namespaces/{direct.namespace}/poddisruptionbudgets"
    ours = build_budget(spec_of(uid=uid, replicas=2))
    assert ours is not None
    _in(direct, ours)
    direct.create_budget("theirs")
    with pytest.raises(Refused, match=OWNERS):
        as_operator.ask("DELETE", f"{path}/theirs")
    with pytest.raises(Refused, match=OWNERS):
        as_operator.ask("PATCH", f"{path}/theirs", {"spec": {"maxUnavailable": 0}}, MERGE)
    for part in ("labels", "ownerReferences"):
        bare = copy.deepcopy(ours)
        del bare["metadata"][part]
        with pytest.raises(Refused, match=OWNERS):
            as_operator.ask("POST", path, bare)
    as_operator.ask("POST", path, ours)
    as_operator.ask("DELETE", f"{path}/gemma")


def test_the_operator_writes_revisions_of_models_only(as_operator: Direct, direct: Direct, owner: Json) -> None:
    """The operator must not change the revisions of a StatefulSet in the namespace."""
    path = f"/apis/apps/v1/namespaces/{direct.namespace}/controllerrevisions"
    item = {**owner, "metadata": {**owner["metadata"], "generation": 1}}
    spec = read_spec(item)
    ours = build_revision(spec, replace(present_revision(item, spec), number=1))
    theirs = {"metadata": {"name": "theirs"}, "revision": 1, "data": {"spec": {}}}
    direct.ask("POST", path, theirs)
    with pytest.raises(Refused, match=OWNERS):
        as_operator.ask("DELETE", f"{path}/theirs")
    with pytest.raises(Refused, match=OWNERS):
        as_operator.ask("PATCH", f"{path}/theirs", {"revision": 2}, MERGE)
    for part in ("labels", "ownerReferences"):
        bare = copy.deepcopy(ours)
        del bare["metadata"][part]
        with pytest.raises(Refused, match=OWNERS):
            as_operator.ask("POST", path, bare)
    as_operator.ask("POST", path, ours)
    as_operator.ask("DELETE", f"{path}/{ours['metadata']['name']}")


def test_nobody_else_stores_what_pods_are_made_of(as_editor: Direct) -> None:
    path = f"/apis/apps/v1/namespaces/{as_editor.namespace}/controllerrevisions"
    with pytest.raises(Refused, match="cannot create resource"):
        as_editor.ask("POST", path, {"metadata": {"name": "forged"}, "revision": 1, "data": {"spec": {}}})


def test_the_operator_writes_its_own_lease_only(server: ApiServer) -> None:
    with Direct(server.url, FIRST, RELEASE_NAMESPACE) as hands:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{hands.namespace}/leases"
        with pytest.raises(Refused, match="may write the Lease plimsoll-operator only"):
            hands.ask("POST", path, {"metadata": {"name": "kube-scheduler"}})
        hands.ask("POST", path, {"metadata": {"name": "plimsoll-operator"}}, dryRun="All")


def test_the_operator_puts_back_labels_that_somebody_took_away(
    as_operator: Direct, direct: Direct, service: Json
) -> None:
    create(as_operator, service)
    patch(direct, "services", "gemma", {"metadata": {"labels": dict.fromkeys(service["metadata"]["labels"])}})
    patch(as_operator, "services", "gemma", {"metadata": {"labels": service["metadata"]["labels"]}})


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ((OWNER_LABEL, "gemma"), "write a ModelDeployment; further labels"),
        (("plimsoll.dev/anything", ""), "write a ModelDeployment; further labels"),
        ((MANAGED_LABEL, MANAGER), "choose another value, or write a ModelDeployment"),
    ],
    ids=str,
)
def test_nobody_else_labels_a_pod_as_a_models(as_editor: Direct, label: tuple[str, str], words: str) -> None:
    labels = dict([label])
    with pytest.raises(Refused, match=words):
        create(as_editor, plain("thief", **labels))
    create(as_editor, plain("thief", app="mine"))
    with pytest.raises(Refused, match=words):
        patch(as_editor, "pods", "thief", {"metadata": {"labels": labels}})


def test_nobody_else_takes_a_models_labels_from_its_pod(as_operator: Direct, as_editor: Direct, pod: Json) -> None:
    name = create(as_operator, pod)["metadata"]["name"]
    for labels in ({OWNER_LABEL: None}, {OWNER_LABEL: "llama"}):
        with pytest.raises(Refused, match="do not change them"):
            patch(as_editor, "pods", name, {"metadata": {"labels": labels}})
    with pytest.raises(Refused, match="choose another value"):
        patch(as_editor, "pods", name, {"metadata": {"labels": {MANAGED_LABEL: "me"}}})
    patch(as_editor, "pods", name, {"metadata": {"labels": {"note": "mine"}}})
    delete(as_editor, "pods", name)


@pytest.mark.parametrize("label", [(OWNER_LABEL, "gemma"), (MANAGED_LABEL, MANAGER)], ids=str)
def test_nobody_labels_a_pod_as_a_models_through_its_status_or_its_binding(
    direct: Direct, label: tuple[str, str]
) -> None:
    """Not even an administrator: kubelets and schedulers have these rights."""
    create(direct, plain("thief"))
    metadata = {"name": "thief", "labels": dict([label])}
    with pytest.raises(Refused, match="write a ModelDeployment"):
        patch(direct, "pods", "thief/status", {"metadata": {"labels": dict([label])}})
    binding = {"metadata": metadata, "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"}}
    with pytest.raises(Refused, match="write a ModelDeployment"):
        direct.ask("POST", f"/api/v1/namespaces/{direct.namespace}/pods/thief/binding", binding)


def test_kubelets_and_schedulers_write_to_the_pods_of_models(as_operator: Direct, direct: Direct, pod: Json) -> None:
    create(as_operator, pod)
    assert direct.make_ready("gemma")


@pytest.fixture
def host(direct: Direct, as_operator: Direct) -> Json:
    """Return a pod of a pool that the API server's policies see."""
    stored = direct.create_pool("shared", {"resources": {"memory": "1Gi"}})
    stored["metadata"]["generation"] = 1
    made = build_host(read_pool(stored), Image("registry.example/runtime:1"), HOST_KEY, "x1y2z")
    assert knows_object(as_operator, _in(direct, made))
    return made


def labels_of(pod: Json) -> Json:
    found: Json = pod["metadata"]["labels"]
    return found


POOL_LINES: dict[str, Change] = {
    "no labels": lambda p: p["metadata"].pop("labels"),
    "no owner": lambda p: p["metadata"].pop("ownerReferences"),
    "another pool's label": lambda p: p["metadata"]["labels"].update({POOL_LABEL: "other"}),
    "a model's label in addition to its own": lambda p: p["metadata"]["labels"].update({OWNER_LABEL: "gemma"}),
    "a model's label alone": lambda p: p["metadata"]["labels"].update(
        {OWNER_LABEL: p["metadata"]["labels"].pop(POOL_LABEL)}
    ),
    "an owner of another kind": lambda p: owner_of(p).update(kind="ModelHost"),
    "an owner of another group": lambda p: owner_of(p).update(apiVersion="evil.example/v1"),
}


@pytest.mark.parametrize("line", POOL_LINES)
def test_pods_of_pools_get_requests_of_no_model_by_its_labels(as_operator: Direct, host: Json, line: str) -> None:
    changed = copy.deepcopy(host)
    POOL_LINES[line](changed)
    with pytest.raises(Refused, match=f"{OWNERS}|{NO_OBJECT}"):
        create(as_operator, changed)
    create(as_operator, host)


def test_a_pod_of_a_model_has_no_label_of_a_pool(as_operator: Direct, pod: Json) -> None:
    changed = copy.deepcopy(pod)
    changed["metadata"]["labels"][POOL_LABEL] = "shared"
    with pytest.raises(Refused, match=f"{OWNERS}|{NO_OBJECT}"):
        create(as_operator, changed)


def test_nobody_else_makes_a_pod_of_a_pool(as_editor: Direct, direct: Direct) -> None:
    direct.create_pool("shared", {"resources": {"memory": "1Gi"}})
    with pytest.raises(Refused, match="only the Plimsoll operator sets them"):
        create(as_editor, plain("mine", **{POOL_LABEL: "shared"}))


def hosts_path(hands: Direct, *path: str) -> str:
    return "/".join((f"/apis/{API_VERSION}/namespaces/{hands.namespace}/modelhosts", *path))


def model_host(hands: Direct, name: str) -> Json:
    """Return the ModelHost for a pod of this name, as the operator builds it."""
    return build_model_host(HostPod(ObjectKey(hands.namespace, "shared"), name, "uid-1", "node", "198.18.0.9", 0))


HOST_OWNERS, HOST_STATUS = "may write ModelHosts of pods only", "must name the pool of its label"
HOST_LINES: dict[str, Change] = {
    "no labels": lambda h: h["metadata"].pop("labels"),
    "no pool": lambda h: h["metadata"]["labels"].pop(POOL_LABEL),
    "no managed-by": lambda h: h["metadata"]["labels"].pop(MANAGED_LABEL),
    "no owner": lambda h: h["metadata"].pop("ownerReferences"),
    "another pod": lambda h: owner_of(h).update(name="another"),
    "an owner that does not control": lambda h: owner_of(h).update(controller=False),
    "an owner of another kind": lambda h: owner_of(h).update(kind="RuntimePool", apiVersion=API_VERSION),
}


@pytest.mark.parametrize("line", HOST_LINES)
def test_the_operator_writes_hosts_of_pods_only(as_operator: Direct, host: Json, line: str) -> None:
    ours = model_host(as_operator, host["metadata"]["name"])
    changed = copy.deepcopy(ours)
    HOST_LINES[line](changed)
    with pytest.raises(Refused, match=HOST_OWNERS):
        as_operator.ask("POST", hosts_path(as_operator), changed)
    as_operator.ask("POST", hosts_path(as_operator), ours)


def test_the_status_of_a_host_is_of_its_own_pool_and_pod(as_operator: Direct, direct: Direct, host: Json) -> None:
    name = host["metadata"]["name"]
    made = as_operator.ask("POST", hosts_path(direct), model_host(direct, name))
    for status in ({"pool": "another"}, {"pod": "another"}):
        with pytest.raises(Refused, match=HOST_STATUS):
            as_operator.ask("PATCH", hosts_path(direct, name, "status"), {"status": status}, MERGE)
    as_operator.ask("PATCH", hosts_path(direct, name, "status"), {"status": {"pool": "shared", "pod": "uid-1"}}, MERGE)
    forged = {"apiVersion": made["apiVersion"], "kind": made["kind"], "metadata": {"name": "forged"}}
    direct.ask("POST", hosts_path(direct), forged)
    with pytest.raises(Refused, match=HOST_OWNERS):
        as_operator.ask("PATCH", hosts_path(direct, "forged", "status"), {"status": {"pool": "shared"}}, MERGE)


def test_the_operator_creates_no_host_in_a_namespace_without_pools(as_operator: Direct) -> None:
    with pytest.raises(Refused, match=NO_OBJECT):
        as_operator.ask("POST", hosts_path(as_operator), model_host(as_operator, "shared-x1y2z"))
