"""Installs the parts of the chart, rendered by Helm, that the operator needs: CRDs, account, roles, policies."""

from __future__ import annotations

from chart_support.helm import render
from operator_support.apiserver import ADMIN, EDITOR, FIRST, RELEASE, RELEASE_NAMESPACE, ApiServer, until
from operator_support.direct import Direct, Refused
from operator_support.objects import Json

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
ALLOWED_IMAGES = ("registry.example/ai", "mirror.example:5000/", "registry.example/tagged:2", "bare")
VALUES: Json = {
    "runtime": {
        "image": {"registry": "registry.example", "repository": "runtime", "tag": "1"},
        "allowedImages": list(ALLOWED_IMAGES),
    },
    "admissionPolicy": {"extraImages": ["mesh.example/proxy"]},
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
        "/apis/apps/v1/namespaces/default/controllerrevisions",
        {"metadata": {"name": "probe"}, "revision": 1, "data": {}},
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
"""Requests that each policy rejects, but no role."""


def install(server: ApiServer) -> None:
    """Install the chart, and wait until all of it is in force. Raise NoHelmError."""
    objects = render(VALUES, release=RELEASE, namespace=RELEASE_NAMESPACE)
    with Direct(server.url, ADMIN, "default") as admin:
        admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": RELEASE_NAMESPACE}})
        for item in objects:
            if item["kind"] in PLACES:
                admin.ask("POST", PLACES[item["kind"]], item)
        admin.ask("POST", PLACES["ClusterRoleBinding"], _binding("system:aggregate-to-edit", EDITOR))
        assert until(lambda: _is_served(admin))
        assert until(lambda: all(_is_refused(server, token, path, body) for token, path, body in PROBES))


def _binding(role: str, user: str) -> Json:
    return {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    }


def _is_refused(server: ApiServer, token: str, path: str, body: Json) -> bool:
    """Return whether a policy rejects the probe: roles and policies apply with a delay."""
    with Direct(server.url, token, "default") as hands:
        try:
            hands.ask("POST", path, body, dryRun="All")
        except Refused as refused:
            return "ValidatingAdmissionPolicy" in refused.message
    return False


def _is_served(admin: Direct) -> bool:
    """Return whether the API server serves the CRD, which applies with a delay."""
    try:
        admin.ask("GET", "/apis/plimsoll.dev/v1alpha1/namespaces/default/modeldeployments")
    except Refused as refused:
        if refused.code != 404:
            raise
        return False
    return True
