"""A real API server for these tests alone: etcd and kube-apiserver, no node, no controller.

Nothing runs pods here, so a test plays the kubelet by writing their status. Without the binary that the test cluster's
tool builds (`make cluster`), or without etcd, everything here is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from operator_support.apiserver import ADMIN, FIRST, OPERATORS, ApiServer, Missing, find_programs, until
from operator_support.direct import Direct, Refused
from operator_support.recording import Operator, RecordingClient, connect

from plimsoll_operator.rights import RIGHTS

CRDS = Path(__file__).parents[3] / "crds"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
LEASE_RULE = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update"]}
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With our definitions, and with the operator's rights for its users: those of rights.py and no more."""
    try:
        programs = find_programs()
    except Missing as missing:
        pytest.skip(str(missing))
    running = ApiServer(programs, tmp_path_factory.mktemp("apiserver"))
    with running, Direct(running.url, ADMIN, "default") as admin:
        for path in CRDS.glob("*.yaml"):
            admin.ask(
                "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(path.read_text())
            )
        rules = [{"apiGroups": [group], "resources": [kind], "verbs": [verb]} for group, kind, verb in sorted(RIGHTS)]
        admin.ask("POST", f"{RBAC}/clusterroles", {"metadata": {"name": OPERATORS}, "rules": [*rules, LEASE_RULE]})
        binding = {
            "metadata": {"name": OPERATORS},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": OPERATORS},
            "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": OPERATORS}],
        }
        admin.ask("POST", f"{RBAC}/clusterrolebindings", binding)
        assert until(lambda: _is_served(admin))
        yield running


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
async def http(server: ApiServer) -> AsyncIterator[RecordingClient]:
    """The operator's connection."""
    async with await connect(server.kubeconfig(FIRST)) as client:
        yield client


@pytest.fixture
def operator(http: RecordingClient) -> Operator:
    return Operator(http)
