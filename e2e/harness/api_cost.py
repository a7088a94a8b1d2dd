"""What our own processes ask the API server for, by the API server's own count.

Flow schemas pick these requests out: those of given accounts about one namespace, or about all of them at once.
What others ask for, and for what else, counts for nothing, so that others may be busy meanwhile.
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
"""By their verbs; watches last, and are left out."""
BEFORE_OTHERS = 500
"""Schemas of a lower number match first. Those that Kubernetes has for accounts of pods come at 9000."""
LEVEL = "workload-low"
"""The priority level that requests of pods have anyway."""
IN_FORCE_SECONDS = 30
SERIES = re.compile(r"^apiserver_flowcontrol_dispatched_requests_total\{(?P<labels>.*)\} (?P<count>\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


@contextlib.contextmanager
def counted(namespace: str, home: str, accounts: Sequence[str]) -> Iterator[Callable[[], Counter[str]]]:
    """Count from now on; the body may ask for the counts by kind so far. `accounts` are of namespace `home`.

    Needs the right to make flow schemas, and to GET /metrics.
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
            with contextlib.suppress(client.ApiException):  # it was never made
                api.delete_flow_schema(name)


def schema(name: str, verbs: Sequence[str], namespace: str, home: str, accounts: Sequence[str]) -> dict[str, Any]:
    """A flow schema of requests with these verbs."""
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
    """Read the API server's metrics: how many requests of each kind, whose flow schemas these are, there were."""
    found = Counter(dict.fromkeys(names.values(), 0))
    for series in SERIES.finditer(metrics):
        labels = dict(LABEL.findall(series["labels"]))
        if kind := names.get(labels["flow_schema"]):
            found[kind] += int(float(series["count"]))
    return found


def _is_in_force(found: Any) -> bool:
    """Whether the API server has taken it in: it says then whether its priority level is there."""
    conditions = found.status.conditions if found.status else None
    return any(c.type == "Dangling" and c.status == "False" for c in conditions or ())
