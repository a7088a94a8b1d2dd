"""A real API server for these tests: etcd and kube-apiserver, without nodes and controllers.

The operator has the account, roles and policies of the chart, rendered by Helm. Nothing runs pods, so a test plays the
kubelet by writing their status. Without etcd, or without the binaries that `make cluster` builds, all tests here are
skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chart_support.helm import NoHelmError
from operator_support.apiserver import ADMIN, EDITOR, FIRST, ApiServer, Missing, find_programs, until
from operator_support.direct import MERGE, Direct, Refused
from operator_support.installed import install
from operator_support.kubelets import Kubelets
from operator_support.process import lease as made_lease
from operator_support.recording import Operator, RecordingClient, connect

from plimsoll_operator.build.host import FILE

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
UNRESTRICTED = {"pod-security.kubernetes.io/enforce": "privileged"}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the chart's CRDs, roles and policies in force."""
    with installed(tmp_path_factory.mktemp("apiserver")) as running:
        yield running


@pytest.fixture
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with OwnerReferencesPermissionEnforcement."""
    with installed(tmp_path_factory.mktemp("strict"), "OwnerReferencesPermissionEnforcement") as running:
        yield running


@contextmanager
def installed(folder: Path, *plugins: str) -> Iterator[ApiServer]:
    """Run a server with the chart; skip the test if a program is missing."""
    try:
        running = ApiServer(find_programs(), folder, plugins=plugins)
        with running:
            install(running)
            yield running
    except (Missing, NoHelmError) as missing:
        pytest.skip(str(missing))


@pytest.fixture
def lease(server: ApiServer) -> Iterator[None]:
    """Create the chart's Lease, without a holder."""
    with Direct(server.url, ADMIN, "default") as admin, made_lease(admin):
        yield


@pytest.fixture
def direct(server: ApiServer) -> Iterator[Direct]:
    """Create a namespace for the test that enforces the restricted Pod Security Standard."""
    with _namespace(server, "test-") as admin:
        yield admin


@pytest.fixture
def other(server: ApiServer, direct: Direct) -> Iterator[Direct]:
    """Create another namespace for the same test."""
    with _namespace(server, f"{direct.namespace}-other-") as admin:
        yield admin


@contextmanager
def _namespace(server: ApiServer, prefix: str) -> Iterator[Direct]:
    """Create a namespace, and delete our objects in it afterwards.

    Nothing empties a deleted namespace here, and an operator of a later test may watch all namespaces.
    """
    with Direct(server.url, ADMIN, "default") as admin:
        body = {"metadata": {"generateName": prefix, "labels": RESTRICTED}}
        admin.namespace = admin.ask("POST", "/api/v1/namespaces", body)["metadata"]["name"]
        yield admin
        admin.delete_ours()


@pytest.fixture
def open_namespace(direct: Direct) -> Direct:
    """Let the namespace accept every pod, so that only our own policies reject pods."""
    direct.ask("PATCH", f"/api/v1/namespaces/{direct.namespace}", {"metadata": {"labels": UNRESTRICTED}}, MERGE)
    assert until(lambda: _lets_in_what_is_privileged(direct)), "the API server takes up labels in the background"
    return direct


def _lets_in_what_is_privileged(direct: Direct) -> bool:
    container = {"name": "c", "image": "i", "securityContext": {"privileged": True}}
    body = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}
    try:
        direct.ask("POST", f"/api/v1/namespaces/{direct.namespace}/pods", body, dryRun="All")
    except Refused as refused:
        if "PodSecurity" not in refused.message:
            raise
        return False
    return True


@pytest.fixture
def as_operator(server: ApiServer, direct: Direct) -> Iterator[Direct]:
    """Requests in the same namespace with the operator's token."""
    with Direct(server.url, FIRST, direct.namespace) as hands:
        yield hands


@pytest.fixture
def as_editor(server: ApiServer, direct: Direct) -> Iterator[Direct]:
    """Requests in the same namespace as a user with Kubernetes' `edit` role."""
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


@pytest.fixture
async def kubelets(direct: Direct) -> AsyncIterator[Kubelets]:
    async with Kubelets(direct) as kubelets:
        yield kubelets


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    (tmp_path / FILE).write_bytes(b"o" * 32)
    return tmp_path
