"""What the API server was asked for, from its own metrics."""

from __future__ import annotations

import re
from collections import Counter

from harness.kubectl import kubectl

RESOURCES = frozenset({"modeldeployments", "pods", "services", "poddisruptionbudgets"})
"""What the operator and the gateway read and write but Leases and events: most events are the scheduler's."""
LASTING = frozenset({"WATCH", "CONNECT"})
SERIES = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


def counts() -> Counter[str]:
    """Requests so far as `VERB resource[/subresource]`, watches left out. Needs the right to GET /metrics."""
    return parse(kubectl("get", "--raw", "/metrics"))


def parse(metrics: str) -> Counter[str]:
    """Read the API server's metrics."""
    found: Counter[str] = Counter()
    for series in SERIES.finditer(metrics):
        labels = dict(LABEL.findall(series["labels"]))
        if labels["resource"] in RESOURCES and labels["verb"] not in LASTING:
            name = "/".join(filter(None, (labels["resource"], labels.get("subresource"))))
            found[f"{labels['verb']} {name}"] += int(float(series["count"]))
    return found
