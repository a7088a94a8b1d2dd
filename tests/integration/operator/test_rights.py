"""The chart's rights on a real API server: each rule grants what it says, and nothing next to it.

Rules are read from the rendered chart, so none is left out; the expected ones are in the operator's kube/rbac.py and in
the kinds that the gateway watches. Requests use the chart's accounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from chart_support.helm import Object, render
from operator_support.apiserver import ADMIN, RELEASE, RELEASE_NAMESPACE, ApiServer, until
from operator_support.direct import Direct, Refused

from plimsoll_cluster.keys import GROUP, HOSTS_PLURAL, PLURAL
from plimsoll_operator.kube.rbac import (
    LEASE_RIGHTS,
    NAMESPACE_RIGHTS,
    NODE_RIGHTS,
    OWNER_RIGHTS,
    RECORD_RIGHTS,
    RIGHTS,
    TOKEN_RIGHTS,
    Right,
)

RBAC = "/apis/rbac.authorization.k8s.io/v1"
VERSIONS = {"": "api/v1", "plimsoll.dev": "apis/plimsoll.dev/v1alpha1"}
METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
OF_COLLECTIONS = frozenset({"list", "watch", "deletecollection"})
"""Verbs that apply only to collections."""
GATEWAY_RIGHTS: frozenset[Right] = frozenset(
    (group, resource, verb)
    for group, resource in ((GROUP, PLURAL), (GROUP, HOSTS_PLURAL), ("", "pods"))
    for verb in ("list", "watch")
)
GATEWAY_RECORD_RIGHTS = frozenset(right for right in RECORD_RIGHTS if right[2] != "patch")
CLUSTER_WIDE = NODE_RIGHTS | NAMESPACE_RIGHTS
NEIGHBOURS = (
    ("", "secrets"),
    ("", "configmaps"),
    ("", "serviceaccounts"),
    ("", "serviceaccounts/token"),
    ("", "persistentvolumeclaims"),
    ("", "endpoints"),
    ("", "events"),
    ("", "namespaces"),
    ("", "nodes"),
    ("", "pods"),
    ("", "pods/exec"),
    ("", "pods/attach"),
    ("", "pods/portforward"),
    ("", "pods/log"),
    ("", "pods/status"),
    ("", "pods/eviction"),
    ("", "pods/ephemeralcontainers"),
    ("", "services"),
    ("", "services/status"),
    ("", "services/proxy"),
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("batch", "jobs"),
    ("coordination.k8s.io", "leases"),
    ("events.k8s.io", "events"),
    ("networking.k8s.io", "networkpolicies"),
    ("policy", "poddisruptionbudgets"),
    ("policy", "poddisruptionbudgets/status"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("plimsoll.dev", "modeldeployments"),
    ("plimsoll.dev", "modeldeployments/status"),
    ("plimsoll.dev", "modeldeployments/scale"),
    ("plimsoll.dev", "runtimepools"),
    ("plimsoll.dev", "runtimepools/status"),
    ("plimsoll.dev", "modelhosts"),
    ("plimsoll.dev", "modelhosts/status"),
)
WITHOUT_NAMESPACE = frozenset({"nodes", "namespaces", "clusterroles"})
NARROW, NARROW_NAMESPACE = "narrow", "narrow-system"
WATCHED, TOLD, OTHER = "watched", "told", "other"
"""Namespaces: watched by the narrow release; watched, with readable Secrets; and neither."""


@dataclass(frozen=True)
class Account:
    """A component's account in a release, and the chart's grants: (namespace, None for all; right; names)."""

    component: str
    release: str
    home: str
    given: frozenset[tuple[str | None, Right, tuple[str, ...]]]

    @property
    def user(self) -> str:
        suffix = f"{self.release}-" if "plimsoll" in self.release else f"{self.release}-plimsoll-"
        return f"system:serviceaccount:{self.home}:{suffix}{self.component}"

    def may(self, namespace: str, right: Right, name: str) -> bool:
        """Return whether the chart's rules grant a right."""
        return any(
            given == right and place in (None, namespace) and (not names or name in names)
            for place, given, names in self.given
        )


class Hands:
    """Requests as an account, as dry runs."""

    def __init__(self, server: ApiServer, account: Account) -> None:
        headers = {"Authorization": f"Bearer {ADMIN}", "Impersonate-User": account.user}
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account.home}", "system:authenticated")
        given = [*headers.items(), *(("Impersonate-Group", group) for group in groups)]
        self._client = httpx.Client(base_url=server.url, headers=given, verify=False, timeout=30)

    def close(self) -> None:
        self._client.close()

    def let(self, namespace: str | None, right: Right, name: str = "probe") -> bool:
        """Return whether the account has a right, whatever other errors the request has."""
        group, resource, verb = right
        kind, _, sub = resource.partition("/")
        scope = "" if kind in WITHOUT_NAMESPACE or namespace is None else f"namespaces/{namespace}/"
        path = f"/{VERSIONS.get(group, f'apis/{group}/v1')}/{scope}{kind}"
        one = f"{path}/{name}" + (f"/{sub}" if sub else "")
        whole = verb in OF_COLLECTIONS or (verb == "create" and not sub)
        method = METHODS.get(verb, "GET")
        query = {"watch": "true", "timeoutSeconds": "1", "resourceVersion": "0"} if verb == "watch" else {}
        query |= {"fieldSelector": f"metadata.name={name}"} if verb in ("list", "watch") else {}
        query |= {} if method == "GET" else {"dryRun": "All"}
        kind_of_body = "application/merge-patch+json" if verb == "patch" else "application/json"
        body: Any = None if method == "GET" else {"metadata": {"name": name}} if "delete" not in verb else {}
        with self._client.stream(
            method, path if whole else one, params=query, json=body, headers={"Content-Type": kind_of_body}
        ) as answer:
            if answer.status_code != 403:
                return True
            words = answer.read().decode()
        assert "forbidden" in words
        return "cannot" not in words  # an admission policy is no matter of rights


def rules_of(objects: Iterable[Object], component: str, account: str) -> Iterator[tuple[str | None, Object]]:
    """Yield (namespace, rule) of every rule that a binding grants to the account."""
    known = list(objects)
    roles = {(i["kind"], i["metadata"].get("namespace"), i["metadata"]["name"]): i for i in known if "rules" in i}
    for item in known:
        if item["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            (subject,) = item["subjects"]
            place = item["metadata"].get("namespace")
            if subject["name"] == account:
                for rule in roles[item["roleRef"]["kind"], place, item["roleRef"]["name"]]["rules"]:
                    yield place, rule


def account_of(objects: Iterable[Object], component: str, release: str, home: str) -> Account:
    bare = Account(component, release, home, frozenset())
    given = frozenset(
        (place, (group, resource, verb), tuple(rule.get("resourceNames", ())))
        for place, rule in rules_of(objects, component, bare.user.rpartition(":")[2])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )
    return Account(component, release, home, given)


@pytest.fixture(scope="module")
def accounts(server: ApiServer) -> dict[str, Account]:
    """Return the accounts of a release for all namespaces, and of one for two."""
    values = {"watchNamespaces": [WATCHED, TOLD], "operator": {"tokenNamespaces": [TOLD]}, "crds": {"install": False}}
    narrow = render(values, release=NARROW, namespace=NARROW_NAMESPACE)
    whole = render({}, release=RELEASE, namespace=RELEASE_NAMESPACE)
    with Direct(server.url, ADMIN, "default") as admin:
        for name in (NARROW_NAMESPACE, WATCHED, TOLD, OTHER):
            admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for item in narrow:
            if item["kind"] in ("Role", "RoleBinding"):
                kind = f"{item['kind'].lower()}s"
                admin.ask("POST", f"{RBAC}/namespaces/{item['metadata']['namespace']}/{kind}", item)
            assert item["kind"] not in ("ClusterRole", "ClusterRoleBinding") or "aggregate" in str(item["metadata"])
    found = {
        f"{component} of {release}": account_of(objects, component, release, home)
        for objects, release, home in ((whole, RELEASE, RELEASE_NAMESPACE), (narrow, NARROW, NARROW_NAMESPACE))
        for component in ("operator", "gateway")
    }
    for account in found.values():
        _await_rights(server, account)
    return found


def _await_rights(server: ApiServer, account: Account) -> None:
    """Wait until all grants of the chart are in force: the API server applies bindings with a delay."""
    hands = Hands(server, account)
    left = {(place or WATCHED, right, name) for place, right, names in account.given for name in (names or ("probe",))}

    def all_in_force() -> bool:
        left.difference_update({one for one in left if hands.let(*one)})
        return not left

    assert until(all_in_force), left
    hands.close()


ALL = [f"{component} of {release}" for release in (RELEASE, NARROW) for component in ("operator", "gateway")]
PLACES = (WATCHED, TOLD, OTHER, RELEASE_NAMESPACE)


def needed(who: str) -> dict[str | None, frozenset[Right]]:
    """Return the rights that the code uses, by namespace, None for all."""
    component, _, release = who.partition(" of ")
    if component == "gateway":
        if release == RELEASE:
            return {None: GATEWAY_RIGHTS, RELEASE_NAMESPACE: GATEWAY_RECORD_RIGHTS}
        return {WATCHED: GATEWAY_RIGHTS, TOLD: GATEWAY_RIGHTS, NARROW_NAMESPACE: GATEWAY_RECORD_RIGHTS}
    own = LEASE_RIGHTS | OWNER_RIGHTS | RECORD_RIGHTS
    if release == RELEASE:
        return {None: RIGHTS | CLUSTER_WIDE, RELEASE_NAMESPACE: own}
    return {WATCHED: RIGHTS, TOLD: RIGHTS | TOKEN_RIGHTS, NARROW_NAMESPACE: own}


@pytest.mark.matrix(2)
@pytest.mark.parametrize("who", ALL)
def test_the_chart_gives_what_the_code_needs_and_no_more(accounts: dict[str, Account], who: str) -> None:
    found: dict[str | None, set[Right]] = {}
    for place, right, _ in accounts[who].given:
        found.setdefault(place, set()).add(right)
    assert found == needed(who)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("who", ALL)
def test_each_rule_is_in_force_and_its_neighbours_are_refused(
    server: ApiServer, accounts: dict[str, Account], who: str
) -> None:
    """Each right, with every other verb, in every other namespace, under another name, and on every other resource."""
    account = accounts[who]
    hands = Hands(server, account)
    asked: set[tuple[str, Right, str]] = set()
    for place, (group, resource, verb), names in account.given:
        for other in VERBS:
            for namespace in PLACES if other == verb else (place or WATCHED,):
                asked |= {(namespace, (group, resource, other), name) for name in (*names, "probe")}
        asked |= {(place or WATCHED, (*neighbour, verb), "probe") for neighbour in NEIGHBOURS}
    asked = {one for one in asked if "/" not in one[1][1] or one[1][2] not in OF_COLLECTIONS}
    wrong = [
        (place, right, name, allowed)
        for place, right, name in sorted(asked)
        if (allowed := hands.let(place, right, name)) is not account.may(place, right, name)
    ]
    hands.close()
    assert wrong == []
    assert len(asked) >= len(account.given) + 2 * len(NEIGHBOURS)


@pytest.mark.parametrize("component", ["operator", "gateway"])
def test_an_account_of_some_namespaces_sees_nothing_of_the_whole_cluster(
    server: ApiServer, accounts: dict[str, Account], component: str
) -> None:
    account = accounts[f"{component} of {NARROW}"]
    hands = Hands(server, account)
    kinds = {(group, resource) for _, (group, resource, _), _ in account.given if "/" not in resource}
    let = [(*kind, verb) for kind in sorted(kinds) for verb in ("list", "watch") if hands.let(None, (*kind, verb))]
    hands.close()
    assert let == []


def test_users_with_edit_may_write_what_is_theirs_and_not_what_the_operator_says(
    direct: Direct, as_editor: Direct
) -> None:
    """Gateways trust ModelHosts and statuses. Nothing aggregates roles here, so the test binds the role."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
    role["name"] = f"{RELEASE_NAMESPACE}-{RELEASE}-edit"
    subjects = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "editor"}]
    binding = {"metadata": {"name": "edit"}, "roleRef": role, "subjects": subjects}
    direct.ask("POST", f"{RBAC}/namespaces/{direct.namespace}/rolebindings", binding)
    assert until(lambda: _may_create(as_editor))
    base = f"/apis/plimsoll.dev/v1alpha1/namespaces/{as_editor.namespace}"
    for path in ("modeldeployments/m/status", "modelhosts/h/status", "modelhosts/h", "runtimepools/p/status"):
        with pytest.raises(Refused, match="cannot patch resource"):
            as_editor.ask("PATCH", f"{base}/{path}", {"status": {}}, "application/merge-patch+json")
    with pytest.raises(Refused, match="cannot create resource"):
        as_editor.ask("POST", f"{base}/modelhosts", {"metadata": {"name": "h"}})


def _may_create(hands: Direct) -> bool:
    """Return whether the user may create a model; bindings apply with a delay."""
    try:
        hands.create_model("m", {"model": {"source": "demo://x"}})
    except Refused as refused:
        if "cannot create resource" not in refused.message:
            raise
        return False
    return True
