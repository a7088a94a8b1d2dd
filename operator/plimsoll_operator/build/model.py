"""Builds the pod (`plimsoll serve`) and the Service of a ModelDeployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plimsoll_operator.build.arguments import claim_name, device_arguments, serve_arguments
from plimsoll_operator.build.group import group_arguments
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.persistence import group_variable, keeper_label, stores
from plimsoll_operator.build.pod_revision import revision, user_part
from plimsoll_operator.build.runtime_pod import Parts, build_runtime_pod, pod_name
from plimsoll_operator.spec.identity import INDEX_LABEL, REVISION_LABEL, SERVING, selector_labels
from plimsoll_operator.spec.model_deployment import Spec


def build_pod(
    spec: Spec,
    image: Image,
    suffix: str,
    group: str = "0",
    index: int = 0,
    leader: str = "",
    avoid: Sequence[str] = (),
) -> dict[str, Any]:
    """Build a pod of one replica. `leader`: the address of its group's leader; "" for a leader, which does not go to a
    place in `avoid` (values of `topologyKey`) if possible.

    Two pods of one spec and image differ only in `suffix`, `group`, `index`, `leader` and `avoid`.
    """
    claim = claim_name(spec.source)
    parts = Parts(
        role=SERVING,
        group=group,
        revision=revision(spec, image),
        arguments=[
            *serve_arguments(spec),
            *group_arguments(spec, pod_name(spec, suffix), index, leader),
            *device_arguments(spec),
        ],
        environment=_token(spec) | group_variable(spec),
        claims={claim: "model"} if claim else {},
        stores=stores(spec),
        labels={REVISION_LABEL: user_part(spec), **keeper_label(spec, group)},
        index=index,
        leader=leader,
        avoid=avoid,
    )
    return build_runtime_pod(spec, image, suffix, parts)


def _token(spec: Spec) -> dict[str, Any]:
    """Return the environment variable HF_TOKEN as a reference to the Secret of `spec.model.tokenSecret`; empty if the
    spec has none. The kubelet reads the Secret, so the operator needs no access to it.
    """
    if spec.token is None:
        return {}
    return {"HF_TOKEN": {"secretKeyRef": {"name": spec.token.name, "key": spec.token.key}}}


def build_service(spec: Spec) -> dict[str, Any]:
    """Build the Service, from port 80 to the runtime's http port. Of a group it selects the leader."""
    leaders = {INDEX_LABEL: "0"} if spec.pods_per_replica > 1 else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": spec.key.name,
            "namespace": spec.key.namespace,
            "labels": selector_labels(spec.key.name),
            "ownerReferences": [spec.owner.reference()],
        },
        "spec": {
            "selector": selector_labels(spec.key.name, spec.owner.uid) | leaders,
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
        },
    }
