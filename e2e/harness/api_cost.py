"""Counts the requests of our own processes to the API server, with the API server's own metrics.

Flow schemas select these requests: those of given accounts about one namespace, or about all namespaces at once.
Requests of others, or about other namespaces, are not counted, so that other scenarios may run.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kubernetes import client

from harness.kubectl import kubectl
from harness.waiting import until

KINDS = {"reads": ("get", "list"), "writes": ("create", "update", "patch", "delete", "deletecollection")}
"""Kinds of requests by their verbs; watches are left out because they stay open."""
BEFORE_OTHERS = 500
"""Precedence: schemas of a lower number match first, and Kubernetes' own for accounts of pods have 9000."""
LEVEL = "workload-low"
"""The priority level of requests of pods by default."""
IN_FORCE_SECONDS = 30
SERIES = re.compile(r"^apiserver_flowcontrol_dispatched_requests_total\{(?P<labels>.*)\} (?P<count>\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


@contextlib.contextmanager
def counted(namespace: str, home: str, accounts: Sequence[str]) -> Iterator[Callable[[], Counter[str]]]:
    """Count requests of `accounts` (ServiceAccounts in namespace `home`) about `namespace` within the context. The
    yielded function returns the counts so far, by kind (a key of KINDS). Requires rights to create flow schemas and to
    GET /metrics.
    """
    api: Any = client.FlowcontrolApiserverV1Api()
    names = {f"{namespace}-{kind}": kind for kind in KINDS}
    try:
        for name, kind in names.items():
            api.create_flow_schema(schema(name, KINDS[kind], namespace, home, accounts))
        until(
            "the flow schemas in force",
            lambda: all(_is_in_force(api.read_flow_schema(name)) for name in names),
            timeout=IN_FORCE_SECONDS,
        )
        yield lambda: parse(kubectl("get", "--raw", "/metrics"), names)
    finally:
        for name in names:
            with contextlib.suppress(client.ApiException):  # it was not created
                api.delete_flow_schema(name)


def schema(name: str, verbs: Sequence[str], namespace: str, home: str, accounts: Sequence[str]) -> dict[str, Any]:
    """Return a flow schema that matches requests with these verbs by `accounts` (ServiceAccounts in namespace `home`),
    about `namespace` or about all namespaces at once.
    """
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": list(verbs)}
    subjects = [{"kind": "ServiceAccount", "serviceAccount": {"name": who, "namespace": home}} for who in accounts]
    return {
        "metadata": {"name": name},
        "spec": {
            "matchingPrecedence": BEFORE_OTHERS,
            "priorityLevelConfiguration": {"name": LEVEL},
            "rules": [
                {"subjects": subjects, "resourceRules": [rule | {"clusterScope": True, "namespaces": [namespace]}]}
            ],
        },
    }


def parse(metrics: str, names: dict[str, str]) -> Counter[str]:
    """Return the number of requests of each kind in the API server's metrics. `names` maps flow schemas to kinds."""
    found = Counter(dict.fromkeys(names.values(), 0))
    for series in SERIES.finditer(metrics):
        labels = dict(LABEL.findall(series["labels"]))
        if kind := names.get(labels["flow_schema"]):
            found[kind] += int(float(series["count"]))
    return found


def _is_in_force(found: Any) -> bool:
    """Return whether the API server has applied the schema: it then reports whether its priority level exists."""
    conditions = found.status.conditions if found.status else None
    return any(c.type == "Dangling" and c.status == "False" for c in conditions or ())
