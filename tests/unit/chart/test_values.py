"""Wrong values are refused by Helm itself, with a message that names them."""

from collections.abc import Callable
from typing import Any

import pytest

Render = Callable[[dict[str, Any]], list[dict[str, Any]]]


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
        ({"watchNamespaces": ["Team A"]}, "/watchNamespaces/0"),
        ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
        ({"imagePullSecrets": ["pull"]}, "/imagePullSecrets/0"),
        ({"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts"),
    ],
)
def test_refused(render: Render, refused: type[Exception], values: dict[str, Any], message: str) -> None:
    with pytest.raises(refused, match=message):
        render(values)


def test_helm_finds_no_fault(helm: Callable[..., str]) -> None:
    helm("lint", "--strict", "charts/plimsoll")
