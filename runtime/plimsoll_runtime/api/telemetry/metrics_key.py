"""The labels of all series of a model, which are the gateway's too: the namespace and name of its ModelDeployment."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.residency.spec import ModelName

LABELS = ("namespace", "model")


def metrics_key(deployment: ModelName | None, names: Sequence[str]) -> ModelName:
    """Return the values of LABELS for a model. Without a ModelDeployment they are an empty namespace and the first of
    its `names`, or two empty texts without any."""
    return deployment or ModelName("", names[0] if names else "")
