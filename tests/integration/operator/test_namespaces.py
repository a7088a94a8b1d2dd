"""Namespace selectors on the API server, and tokens of private sources with the chart's rights."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from operator_support.apiserver import ADMIN, FIRST, OPERATOR, ApiServer
from operator_support.direct import Direct
from operator_support.objects import Json
from operator_support.recording import RecordingClient, connect

from plimsoll_operator.build.host import HostKey
from plimsoll_operator.kube.api import Api, ApiError
from plimsoll_operator.kube.prerequisites import may_see_namespaces
from plimsoll_operator.pools.model_placement import Problem
from plimsoll_operator.pools.source_tokens import SourceTokens, Token
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.namespace_selector import Labels, read_selector
from plimsoll_operator.spec.secret_item import SecretItem

LABELS: dict[str, Json] = {
    "sel-none": {},
    "sel-gold": {"tier": "gold"},
    "sel-tin": {"tier": "tin", "legacy": ""},
    "sel-both": {"tier": "gold", "legacy": "yes"},
}
SELECTORS: list[tuple[Json, str]] = [
    ({"matchLabels": {"tier": "gold"}}, "tier=gold"),
    ({"matchLabels": {"tier": "gold", "legacy": "yes"}}, "tier=gold,legacy=yes"),
    ({"matchLabels": {"legacy": ""}}, "legacy="),
    ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold", "tin"]}]}, "tier in (gold,tin)"),
    ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]}, "tier notin (gold)"),
    ({"matchExpressions": [{"key": "legacy", "operator": "Exists"}]}, "legacy"),
    ({"matchExpressions": [{"key": "legacy", "operator": "DoesNotExist"}]}, "!legacy"),
    ({"matchLabels": {"kubernetes.io/metadata.name": "sel-tin"}}, "kubernetes.io/metadata.name=sel-tin"),
    (
        {"matchLabels": {"tier": "gold"}, "matchExpressions": [{"key": "legacy", "operator": "DoesNotExist"}]},
        "tier=gold,!legacy",
    ),
]


@pytest.fixture(scope="module")
def namespaces(server: ApiServer) -> list[Json]:
    with Direct(server.url, ADMIN, "default") as admin:
        made = [{"metadata": {"name": name, "labels": labels}} for name, labels in LABELS.items()]
        return [admin.ask("POST", "/api/v1/namespaces", body) for body in made]


@pytest.mark.parametrize(("selector", "text"), SELECTORS, ids=[text for _, text in SELECTORS])
def test_a_selector_takes_what_the_api_server_selects(
    server: ApiServer, namespaces: list[Json], selector: Json, text: str
) -> None:
    with Direct(server.url, ADMIN, "default") as admin:
        listed = admin.ask("GET", "/api/v1/namespaces", labelSelector=text)["items"]
    theirs = {item["metadata"]["name"] for item in listed} & LABELS.keys()
    read = read_selector(selector)
    ours = {item["metadata"]["name"] for item in namespaces if read.takes(Labels(item["metadata"]["labels"]))}
    assert ours == theirs


async def test_the_operator_of_all_namespaces_sees_their_labels(http: RecordingClient) -> None:
    assert await may_see_namespaces(Api(http))


def let(admin: Direct, account: str) -> None:
    """Grant the rights that the chart grants for a namespace of operator.tokenNamespaces."""
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{admin.namespace}"
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    admin.ask("POST", f"{base}/roles", {"metadata": {"name": "tokens"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tokens"}
    namespace, _, name = account.removeprefix("system:serviceaccount:").partition(":")
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    body = {"metadata": {"name": "tokens"}, "roleRef": role, "subjects": subjects}
    admin.ask("POST", f"{base}/rolebindings", body)


async def test_a_secret_is_read_where_the_chart_lets_the_operator(server: ApiServer, direct: Direct) -> None:
    body = {"metadata": {"name": "hub"}, "data": {"token": base64.b64encode(b"hf_x\n").decode()}}
    direct.ask("POST", f"/api/v1/namespaces/{direct.namespace}/secrets", body)
    now = [0.0]
    async with await connect(server.kubeconfig(FIRST)) as connection:
        api = Api(connection)
        tokens = SourceTokens(api.secret, HostKey(b"o" * 32).mark, lambda: now[0])

        async def ask(key: str = "token") -> Any:
            now[0] += 1000.0
            item = SecretItem(direct.namespace, "hub", key)
            return (await tokens.of([item]))[item]

        refused = await ask()
        assert isinstance(refused, Problem)
        assert refused.reason.value == "TokenNotAllowed"
        let(direct, OPERATOR)
        found = await ask()
        while isinstance(found, Problem):  # the API server takes up a binding in the background
            found = await ask()
        assert isinstance(found, Token)
        assert found.value == "hf_x"
        assert (await ask("other")).reason.value == "TokenNotFound"
        with pytest.raises(ApiError, match="cannot list resource"):
            await api._find(f"/api/v1/namespaces/{direct.namespace}/secrets")
        with pytest.raises(ApiError, match="cannot get resource"):
            await api.secret(ObjectKey("default", "hub"))
