"""The parts of a pod that depend on `spec.parallel`: ranks, group options, /dev/shm, ports and scheduling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plimsoll_operator.spec.identity import GROUP_LABEL, INDEX_LABEL, LEADER_ANNOTATION, selector_labels
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.parallel import shm_bytes
from plimsoll_operator.spec.workload import Workload

GROUP_PORT = 8200
"""The port of a leader that members connect to; the next ones are for connections of ranks."""
LAST_GROUP_PORT = 8231
EPHEMERAL_PORTS = "20000 29999"
"""Ports that the system chooses from in a group's pods, for gloo and NCCL. The chart's NetworkPolicy allows them."""
OWN_ADDRESS, TOKEN = "PLIMSOLL_POD_ADDRESS", "PLIMSOLL_GROUP_TOKEN"
SHM_VOLUME = "shm"
SCHEDULING = "DuringSchedulingIgnoredDuringExecution"
OVER_NODES = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}


def group_arguments(spec: Spec, pod: str, index: int, leader: str) -> list[str]:
    """Return the options of `plimsoll serve` for the ranks and for the pod's place in its group; empty without
    `spec.parallel`. `pod`: the name of the pod. `leader`: the address of the pod with index 0; that pod itself uses its
    own name, which its kubelet lets it resolve.
    """
    parallel = spec.parallel
    if parallel is None:
        return []
    arguments = ["--tensor-parallel", str(parallel.tensor), "--pipeline-parallel", str(parallel.pipeline)]
    if parallel.recover_seconds is not None:
        arguments += ["--recover-seconds", str(parallel.recover_seconds)]
    if parallel.pods == 1:
        return arguments
    host = f"[{leader}]" if ":" in leader else leader or pod
    return [
        *arguments,
        *("--group-size", str(parallel.pods), "--group-index", str(index)),
        *("--group-address", f"{host}:{GROUP_PORT}", "--group-own-address", f"$({OWN_ADDRESS})"),
        *("--group-ports", f"{GROUP_PORT + 1}-{LAST_GROUP_PORT}", "--join-seconds", str(spec.startup_seconds)),
    ]


def group_environment(spec: Workload) -> dict[str, str | Mapping[str, Any]]:
    """Return the environment variables of a group's pods; empty for a single pod."""
    parallel = spec.parallel
    if parallel is None or parallel.pods == 1:
        return {}
    found: dict[str, str | Mapping[str, Any]] = {OWN_ADDRESS: {"fieldRef": {"fieldPath": "status.podIP"}}}
    if parallel.token is not None:
        found[TOKEN] = {"secretKeyRef": {"name": parallel.token.name, "key": parallel.token.key}}
    if spec.accelerator is not None:
        found["NCCL_DEBUG"] = "WARN"
    return found


def shm_size(spec: Workload) -> str | None:
    """Return the size of /dev/shm; None for that of the container runtime."""
    if spec.template.shm_size is not None or spec.parallel is None:
        return spec.template.shm_size
    if any(mount["mountPath"] == "/dev/shm" for mount in spec.template.volume_mounts):
        return None
    size = shm_bytes(spec.parallel, None)
    return None if size is None else f"{size // 2**20}Mi"


def group_annotations(given: Mapping[str, str], leader: str) -> dict[str, str]:
    """Return the annotations of a pod: the template's, and the address of the leader that it is created for, unless
    that is "". A template cannot set that annotation.
    """
    found = {key: value for key, value in given.items() if key != LEADER_ANNOTATION}
    return found | ({LEADER_ANNOTATION: leader} if leader else {})


def group_sysctls(spec: Workload) -> dict[str, Any]:
    """Return the part of a pod's security context that bounds the ports that the system chooses; empty for a single
    pod.
    """
    if spec.pods_per_replica == 1:
        return {}
    return {"sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": EPHEMERAL_PORTS}]}


def group_affinity(spec: Workload, group: str, index: int, avoid: Sequence[str] = ()) -> dict[str, Any]:
    """Return the affinity of a pod: the template's, with that of `topologyKey`: of a leader away from the values in
    `avoid`, if possible; of the other pods to their leader. Empty if there is none.
    """
    given: dict[str, Any] = dict(spec.template.scheduling.get("affinity") or {})
    key = None if spec.parallel is None else spec.parallel.topology_key
    if key is None or (index == 0 and not avoid):
        return given
    if index == 0:
        elsewhere = {"matchExpressions": [{"key": key, "operator": "NotIn", "values": list(avoid)}]}
        return _with_term(given, "nodeAffinity", f"preferred{SCHEDULING}", {"weight": 100, "preference": elsewhere})
    leader = {"matchLabels": _of_group(spec, group) | {INDEX_LABEL: "0"}}
    return _with_term(given, "podAffinity", f"required{SCHEDULING}", {"topologyKey": key, "labelSelector": leader})


def _with_term(given: Mapping[str, Any], kind: str, when: str, term: Mapping[str, Any]) -> dict[str, Any]:
    """Return an affinity with one more term."""
    known: Mapping[str, Any] = given.get(kind) or {}
    return {**given, kind: {**known, when: [*known.get(when, ()), term]}}


def default_spread(spec: Workload, group: str, index: int) -> list[dict[str, Any]]:
    """Return the spread of a pod whose template has none: a soft constraint that spreads replicas
    over nodes (of groups their leaders), and the other pods of a group away from each other and from their leader.
    """
    labels = _of_group(spec, group) if index else _of_replicas(spec)
    return [{"labelSelector": {"matchLabels": labels}, **OVER_NODES}]


def given_spread(spec: Workload, constraints: Iterable[Mapping[str, Any]], index: int) -> list[dict[str, Any]]:
    """Return the topology spread constraints of the template for a pod. One without a label selector is about replicas:
    it gets the labels of the object's own pods, of groups those of leaders, and only leaders get it.
    """
    own = {"labelSelector": {"matchLabels": _of_replicas(spec)}}
    return [{**own, **constraint} for constraint in constraints if index == 0 or "labelSelector" in constraint]


def _of_replicas(spec: Workload) -> dict[str, str]:
    return _labels(spec) | ({INDEX_LABEL: "0"} if spec.pods_per_replica > 1 else {})


def _of_group(spec: Workload, group: str) -> dict[str, str]:
    return _labels(spec, spec.owner.uid) | {GROUP_LABEL: group}


def _labels(spec: Workload, uid: str | None = None) -> dict[str, str]:
    return selector_labels(spec.key.name, uid, spec.owner.kind)
