"""Names that connect objects: keys, labels and owner references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plimsoll_cluster.keys import GROUP as GROUP
from plimsoll_cluster.keys import HOST_KIND as HOST_KIND
from plimsoll_cluster.keys import HOSTS_PLURAL as HOSTS_PLURAL
from plimsoll_cluster.keys import KIND as KIND
from plimsoll_cluster.keys import PLURAL as PLURAL
from plimsoll_cluster.keys import VERSION as VERSION
from plimsoll_cluster.keys import Object as Object
from plimsoll_cluster.keys import ObjectKey as ObjectKey
from plimsoll_cluster.keys import controller_of as controller_of
from plimsoll_cluster.keys import key_of as key_of

API_VERSION = f"{GROUP}/{VERSION}"
POOL_KIND, POOLS_PLURAL = "RuntimePool", "runtimepools"
OWNER_LABEL = "plimsoll.dev/model-deployment"
UID_LABEL = "plimsoll.dev/model-deployment-uid"
POOL_LABEL = "plimsoll.dev/runtime-pool"
POOL_UID_LABEL = "plimsoll.dev/runtime-pool-uid"
OWNER_LABELS = {KIND: (OWNER_LABEL, UID_LABEL), POOL_KIND: (POOL_LABEL, POOL_UID_LABEL)}
"""By kind: the pod labels with the name and the uid of the object that owns the pod."""
HASH_LABEL = "plimsoll.dev/pod-hash"
REVISION_LABEL = "plimsoll.dev/revision"
"""On pods and stored revisions: the part of the pod hash that comes from the user's spec."""
ROLE_LABEL, GROUP_LABEL, INDEX_LABEL = "plimsoll.dev/role", "plimsoll.dev/group", "plimsoll.dev/index"
"""A pod's role, its group, and its index in the group. A single pod is a group of one."""
SIZE_LABEL = "plimsoll.dev/group-size"
"""The number of pods of the group; a single pod lacks this label."""
LEADER_ANNOTATION = "plimsoll.dev/group-leader"
"""On a pod of a group, except for its leader: the address of the leader that it connects to."""
SERVING, HOSTING = "serve", "host"
KEEPER_LABEL = "plimsoll.dev/keeper"
"""On a pod that stores responses on a claim: the name of its stored responses, which its replacement takes over."""
RESPONSES_VOLUME, FILES_VOLUME = "plimsoll-responses", "plimsoll-files"
NAME_LABEL, RUNTIME_NAME = "app.kubernetes.io/name", "plimsoll-runtime"
MANAGED_LABEL, MANAGER = "app.kubernetes.io/managed-by", "plimsoll-operator"
CONTAINER = "runtime"
PORT = 8000
METRICS_PORT = 8001
"""Port of the runtime's metrics, in all runtime pods."""
HOST_PORT = 8100
"""Port of the host API (reports and target models), which is never exposed through the ingress."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The ModelDeployment or RuntimePool that owns children (pods, Services, ...); the cluster deletes them with it."""

    key: ObjectKey
    uid: str
    kind: str = KIND

    def reference(self, *, awaited: bool = False) -> dict[str, Any]:
        """Return the entry for a child's ownerReferences. Foreground deletion waits for children that are `awaited`."""
        known = {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.key.name,
            "uid": self.uid,
            "controller": True,
        }
        return {**known, "blockOwnerDeletion": True} if awaited else known


def deployment_reference(deployment: Object) -> dict[str, Any]:
    """Return the entry for the ownerReferences of a Deployment's child."""
    meta = deployment["metadata"]
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": meta["name"], "uid": meta["uid"]}


def selector_labels(name: str, uid: str | None = None, kind: str = KIND) -> dict[str, str]:
    """Return the labels that all pods of an object have; with `uid`, also the label with the object's uid."""
    name_label, uid_label = OWNER_LABELS[kind]
    labels = {NAME_LABEL: RUNTIME_NAME, MANAGED_LABEL: MANAGER, name_label: name}
    return labels if uid is None else {**labels, uid_label: uid}


def selector(name: str, uid: str | None = None, kind: str = KIND) -> str:
    """Return `selector_labels` as the text of a label selector."""
    return ",".join(f"{key}={value}" for key, value in selector_labels(name, uid, kind).items())
