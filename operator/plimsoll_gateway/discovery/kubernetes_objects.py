"""Converts Kubernetes objects to models and replicas: pure functions over the API server's JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from plimsoll_cluster.keys import GROUP, HOST_KIND, HOSTS_PLURAL, KIND, PLURAL, VERSION, Object, ObjectKey
from plimsoll_cluster.objectives import NO_OBJECTIVES, Objectives, read_objectives
from plimsoll_cluster.pod_status import conditions_of, is_unheard, url_of
from plimsoll_cluster.resource import Entry, Resource
from plimsoll_gateway.discovery.routing_table import Model, Replica

POD_SELECTOR = "app.kubernetes.io/name=plimsoll-runtime,app.kubernetes.io/managed-by=plimsoll-operator"
HOLD_ANNOTATION = "plimsoll.dev/hold-requests"
REVISION_LABEL = "plimsoll.dev/revision"
KEEPER_LABEL = "plimsoll.dev/keeper"
INDEX_LABEL = "plimsoll.dev/index"
FILES_VOLUME = "plimsoll-files"
CONTAINER = "runtime"
PORT = 8000
PASSING = frozenset(
    {
        "Asleep",
        "GroupForming",
        "GroupLost",
        "Idle",
        "Loading",
        "Moving",
        "NoReadyReplica",
        "Placing",
        "Rolling",
        "RolloutQueued",
        "Scaling",
        "WaitingForPods",
        "WaitingForReport",
        "WaitsForRoom",
        "WaitsForTurn",
    }
)
"""Reasons for which a model is not ready that end without intervention; they are the operator's (a contract test
compares).
"""


@dataclass(frozen=True, slots=True)
class Canary:
    """A revision of a model that gets `weight` per cent of its requests, from `status.canary`."""

    revision: str
    weight: int

    def split(self, replica: Replica) -> Replica:
        """Return the replica with `share` set to the weight if it is of this revision, else unchanged."""
        return replace(replica, share=self.weight) if replica.revision == self.revision else replica


@dataclass(frozen=True, slots=True)
class Served:
    """The data kept of a ModelDeployment; the fields are those of Model."""

    served_names: tuple[str, ...]
    created: float
    message: str
    pooled: bool = False
    canary: Canary | None = None
    scales_to: int = 0
    stalled: bool = False
    files: str = ""
    objectives: Objectives = NO_OBJECTIVES


def read_served(item: Object) -> Served:
    """Read a ModelDeployment."""
    meta, spec = item["metadata"], item.get("spec", {})
    names = spec.get("model", {}).get("servedNames") or [meta["name"]]
    created = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
    stopped = spec.get("replicas") == 0
    return Served(
        tuple(names),
        created,
        _why_not_ready(item),
        pooled="placement" in spec and not stopped,
        canary=_canary(item),
        scales_to=_scales_to(meta, spec),
        stalled=conditions_of(item).get("Stalled", {}).get("status") == "True",
        files=_files(item),
        objectives=read_objectives(spec),
    )


def _files(item: Object) -> str:
    """Return the PersistentVolumeClaim of a model's files as NAMESPACE/CLAIM; empty without one. In a pool it is the
    one that the operator wrote to the status.
    """
    if "placement" in item.get("spec", {}):
        return str((item.get("status") or {}).get("filesClaim", ""))
    claim = (item.get("spec", {}).get("files") or {}).get("claim")
    return f"{item['metadata']['namespace']}/{claim}" if claim else ""


def _mounted_files(pod: Object) -> str:
    """Return the PersistentVolumeClaim that a pod mounts for files as NAMESPACE/CLAIM; empty without one. Pods of a
    model differ while a changed claim rolls out.
    """
    volumes = pod.get("spec", {}).get("volumes") or ()
    found: Object = next((volume for volume in volumes if volume.get("name") == FILES_VOLUME), {})
    claim = (found.get("persistentVolumeClaim") or {}).get("claimName")
    return f"{pod['metadata']['namespace']}/{claim}" if claim else ""


def _scales_to(meta: Object, spec: Object) -> int:
    """Return the most replicas that requests can scale the model to; 0 if they cannot.

    Without spec.scaling, HOLD_ANNOTATION says that another scaler does: its maximum is unknown, so this is the present
    number, at least 1.
    """
    replicas = spec.get("replicas")
    if (scaling := spec.get("scaling")) is not None:
        return 0 if replicas == 0 else int(scaling.get("maxReplicas", 1))
    held = "placement" not in spec and (meta.get("annotations") or {}).get(HOLD_ANNOTATION) == "true"
    return max(1, int(replicas or 0)) if held else 0


def read_replica(pod: Object) -> Replica | None:
    """Read a pod; None before it has an address, after its deletion has begun (it drains), and for a pod of a group
    that is not the leader.
    """
    address = pod.get("status", {}).get("podIP")
    if not address or pod["metadata"].get("deletionTimestamp"):
        return None
    conditions, labels = conditions_of(pod), pod["metadata"].get("labels") or {}
    if labels.get(INDEX_LABEL, "0") != "0":
        return None
    keeper = labels.get(KEEPER_LABEL)
    return Replica(
        id=pod["metadata"]["uid"],
        url=url_of(address, PORT),
        ready=conditions.get("Ready", {}).get("status") == "True",
        names=_started_names(pod),
        unheard=is_unheard(conditions),
        revision=labels.get(REVISION_LABEL, ""),
        keeper=f"{pod['metadata']['namespace']}/{keeper}" if keeper else "",
        files=_mounted_files(pod),
    )


@dataclass(frozen=True, slots=True)
class Hosted:
    """A model that a pool's pod serves, awake or asleep, and its served names. `draining`: as in Replica."""

    model: ObjectKey
    names: frozenset[str]
    draining: bool = False


def read_hosted(item: Object) -> tuple[Hosted, ...]:
    """Return the admitted models that a ModelHost reports as awake, asleep or draining. A request wakes a sleeping one.

    A pod may claim to have any model. The operator, which alone writes ModelHosts, confirms it in `admitted`: the model
    references the pool of this pod, and the pool accepts it. Without `admitted`, models of the pool's own namespace are
    accepted.
    """
    namespace = item["metadata"]["namespace"]
    models = item.get("status", {}).get("models") or ()
    return tuple(
        Hosted(
            ObjectKey(model["namespace"], model["name"]),
            frozenset(model.get("servedNames") or (model["name"],)),
            draining=model["state"] == DRAINING,
        )
        for model in models
        if model.get("admitted", model["namespace"] == namespace) and model["state"] in ANSWERING
    )


DRAINING = "Draining"
ANSWERING = frozenset({"OnDisk", "InHost", "Waking", "Resident", DRAINING})
HOSTS: Resource[tuple[Hosted, ...]] = Resource(
    HOST_KIND, f"/apis/{GROUP}/{VERSION}", HOSTS_PLURAL, read_hosted, hint="apply the crds/ of this release"
)
MODELS: Resource[Served] = Resource(KIND, f"/apis/{GROUP}/{VERSION}", PLURAL, read_served)
PODS: Resource[Replica | None] = Resource("Pod", "/api/v1", "pods", read_replica, POD_SELECTOR)


def hosted_replica(
    host: Entry[tuple[Hosted, ...]], pod: Entry[Replica | None] | None, model: ObjectKey
) -> Replica | None:
    """Return the replica that a ModelHost and its pod form for a model; it is ready if the pod is.

    The pod's revision is the pool's, not the model's, and is left out. Returns None if there is no pod of that uid, if
    it has no address, or if it is being deleted.
    """
    if pod is None or pod.value is None or host.owner is None or host.owner.uid != pod.uid:
        return None
    found = next((hosted for hosted in host.value if hosted.model == model), None)
    return None if found is None else replace(pod.value, names=found.names, draining=found.draining, revision="")


def model_of(
    item: Entry[Served], pods: Iterable[Entry[Replica | None]], hosted: Iterable[Replica | None] = ()
) -> Model:
    """Return a model with its replicas: the pods that it owns and the pool pods that have it, given in any order."""
    canary = item.value.canary
    ordered = [pod.value for pod in sorted(pods, key=lambda pod: pod.key.name) if pod.value is not None]
    own = ordered if canary is None else [canary.split(replica) for replica in ordered]
    shared = sorted((replica for replica in hosted if replica is not None), key=lambda replica: replica.id)
    return Model(
        key=item.key,
        served_names=item.value.served_names,
        created=item.value.created,
        message=item.value.message,
        replicas=(*own, *shared),
        pooled=item.value.pooled,
        scales_to=item.value.scales_to,
        stalled=item.value.stalled,
        files=item.value.files,
        objectives=item.value.objectives,
    )


def _canary(item: Object) -> Canary | None:
    found = (item.get("status") or {}).get("canary")
    return None if found is None else Canary(found["revision"], found["weight"])


def _why_not_ready(item: Object) -> str:
    """Return the reason of the Ready condition with advice for a client; empty if the model is ready.

    The condition's message is for users who may read the object: it names pods, nodes, volumes and files.
    """
    ready = conditions_of(item).get("Ready")
    if ready is None or ready.get("status") == "True":
        return ""
    reason, meta = str(ready.get("reason") or "NotReady"), item["metadata"]
    if reason in PASSING:
        return f"{reason}. Try again in some seconds."
    return f"{reason}. Its owner sees why with: kubectl describe modeldeployment {meta['name']} -n {meta['namespace']}"


def _started_names(pod: Object) -> frozenset[str] | None:
    """Return the `--name` options of the runtime container; None if it has none and serves all names."""
    for container in pod.get("spec", {}).get("containers", []):
        if container.get("name") == CONTAINER:
            args: list[str] = container.get("args") or []
            names = [value for option, value in pairwise(args) if option == "--name"]
            names += [arg.removeprefix("--name=") for arg in args if arg.startswith("--name=")]
            return frozenset(names) if names else None
    return None
