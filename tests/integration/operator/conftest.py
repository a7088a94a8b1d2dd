"""A real API server for these tests alone: etcd and kube-apiserver, no node, no controller.

The operator has there what the chart gives it, rendered by Helm: its account, its roles and its policies. Nothing runs
pods, so a test plays the kubelet by writing their status. Without the binaries that the test cluster's tool builds
(`make cluster`), or without etcd, everything here is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chart_support.helm import NoHelmError, render
from operator_support.apiserver import (
    ADMIN,
    EDITOR,
    FIRST,
    RELEASE,
    RELEASE_NAMESPACE,
    ApiServer,
    Missing,
    find_programs,
    until,
)
from operator_support.direct import MERGE, Direct, Refused
from operator_support.objects import Json
from operator_support.recording import Operator, RecordingClient, connect

RBAC, ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
PLACES = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{RELEASE_NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{RELEASE_NAMESPACE}/rolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
POD = {"containers": [{"name": "c", "image": "i"}]}
PROBES: list[tuple[str, str, Json]] = [
    (FIRST, "/api/v1/namespaces/default/pods", {"metadata": {"name": "probe"}, "spec": POD}),
    (FIRST, "/api/v1/namespaces/default/services", {"metadata": {"name": "probe"}, "spec": {"ports": [{"port": 1}]}}),
    (
        FIRST,
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        {"metadata": {"name": "probe"}, "spec": {"minAvailable": 1}},
    ),
    (
        FIRST,
        f"/apis/coordination.k8s.io/v1/namespaces/{RELEASE_NAMESPACE}/leases",
        {"metadata": {"name": "probe"}},
    ),
    (
        EDITOR,
        "/api/v1/namespaces/default/pods",
        {"metadata": {"name": "probe", "labels": {"plimsoll.dev/probe": ""}}, "spec": POD},
    ),
]
"""What each policy refuses, and no role."""
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
UNRESTRICTED = {"pod-security.kubernetes.io/enforce": "privileged"}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With the chart's definitions, roles and policies, in force."""
    with installed(tmp_path_factory.mktemp("apiserver")) as running:
        yield running


@pytest.fixture
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One that lets nobody hold up an owner's deletion who could not do so by its finalizers."""
    with installed(tmp_path_factory.mktemp("strict"), "OwnerReferencesPermissionEnforcement") as running:
        yield running


@contextmanager
def installed(folder: Path, *plugins: str) -> Iterator[ApiServer]:
    """A server with the chart; skips the test where one of the programs is missing."""
    try:
        programs = find_programs()
        objects = render({}, release=RELEASE, namespace=RELEASE_NAMESPACE)
    except (Missing, NoHelmError) as missing:
        pytest.skip(str(missing))
    running = ApiServer(programs, folder, plugins=plugins)
    with running, Direct(running.url, ADMIN, "default") as admin:
        admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": RELEASE_NAMESPACE}})
        for item in objects:
            if item["kind"] in PLACES:
                admin.ask("POST", PLACES[item["kind"]], item)
        admin.ask("POST", PLACES["ClusterRoleBinding"], _binding("system:aggregate-to-edit", EDITOR))
        assert until(lambda: _is_served(admin))
        assert until(lambda: all(_is_refused(running, token, path, body) for token, path, body in PROBES))
        yield running


def _binding(role: str, user: str) -> Json:
    return {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    }


def _is_refused(server: ApiServer, token: str, path: str, body: Json) -> bool:
    """The API server takes up roles and policies in the background: a probe passes the ones and not the others."""
    with Direct(server.url, token, "default") as hands:
        try:
            hands.ask("POST", path, body, dryRun="All")
        except Refused as refused:
            return "ValidatingAdmissionPolicy" in refused.message
    return False


def _is_served(admin: Direct) -> bool:
    """The API server takes up a definition in the background."""
    try:
        admin.ask("GET", "/apis/plimsoll.dev/v1alpha1/namespaces/default/modeldeployments")
    except Refused as refused:
        if refused.code != 404:
            raise
        return False
    return True


@pytest.fixture
def direct(server: ApiServer, request: pytest.FixtureRequest) -> Iterator[Direct]:
    """A namespace of the test's own, in which pods must be restricted."""
    with Direct(server.url, ADMIN, "default") as admin:
        body = {"metadata": {"generateName": "test-", "labels": RESTRICTED}}
        namespace = admin.ask("POST", "/api/v1/namespaces", body)["metadata"]["name"]
        admin.namespace = namespace
        yield admin


@pytest.fixture
def open_namespace(direct: Direct) -> Direct:
    """The namespace lets every pod in: what is refused is refused by our own policies."""
    direct.ask("PATCH", f"/api/v1/namespaces/{direct.namespace}", {"metadata": {"labels": UNRESTRICTED}}, MERGE)
    return direct


@pytest.fixture
def as_operator(server: ApiServer, direct: Direct) -> Iterator[Direct]:
    """The same namespace in the hands of whoever has the operator's token."""
    with Direct(server.url, FIRST, direct.namespace) as hands:
        yield hands


@pytest.fixture
def as_editor(server: ApiServer, direct: Direct) -> Iterator[Direct]:
    """The same namespace in the hands of a user with Kubernetes' `edit` role."""
    with Direct(server.url, EDITOR, direct.namespace) as hands:
        yield hands


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[RecordingClient]:
    """The operator's connection."""
    async with await connect(server.kubeconfig(FIRST)) as client:
        yield client


@pytest.fixture
def operator(http: RecordingClient) -> Operator:
    return Operator(http)
