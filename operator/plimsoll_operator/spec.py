"""What a ModelDeployment asks for, as a frozen record; or why it cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from plimsoll_operator.identity import Object, ObjectKey, Owner, key_of
from plimsoll_operator.quantity import byte_count
from plimsoll_operator.rollout import Rollout, read_rollout

DRAIN_SECONDS = 30
"""What the runtime takes when it is not told (a contract test compares)."""


STARTUP_SECONDS = 3600
"""How long a pod may load when nothing else is said: a model of hundreds of gigabytes from a slow hub."""
SCHEDULING = (
    "nodeSelector",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "imagePullSecrets",
)
"""Fields of the template that a pod takes as they are."""


class SpecError(Exception):
    """The API server's schema let it pass, and still it cannot be served; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An extended resource and how many of it."""

    resource: str
    count: int


@dataclass(frozen=True, slots=True)
class Template:
    """Additions to each pod, as they stand in the object."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    env: tuple[Mapping[str, Any], ...] = ()
    env_from: tuple[Mapping[str, Any], ...] = ()
    volumes: tuple[Mapping[str, Any], ...] = ()
    volume_mounts: tuple[Mapping[str, Any], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    scheduling: Mapping[str, Any] = field(default_factory=dict)
    service_account: str | None = None
    spread: tuple[Mapping[str, Any], ...] | None = None
    image: str | None = None
    shm_size: str | None = None
    startup_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """One ModelDeployment, read."""

    owner: Owner
    created: datetime
    generation: int
    source: str
    revision: str | None
    served_names: tuple[str, ...]
    replicas: int
    cpu: str | None
    memory: str | None
    accelerator: Accelerator | None
    cpu_limit: str | None
    ephemeral_storage: str | None
    options: Mapping[str, Any]
    template: Template
    rollout: Rollout

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return self.owner.key

    @property
    def drain_seconds(self) -> int:
        """How long running requests may go on when a pod stops."""
        return int(self.options.get("drainSeconds", DRAIN_SECONDS))

    @property
    def startup_seconds(self) -> int:
        """How long a pod may load its model before its kubelet starts it again."""
        return self.template.startup_seconds or STARTUP_SECONDS


def served_names(item: Object) -> tuple[str, ...]:
    """Names that requests use for an object, whatever else may be wrong with it."""
    return tuple(item["spec"]["model"].get("servedNames") or [item["metadata"]["name"]])


def created(item: Object) -> datetime:
    """When an object was made."""
    return datetime.fromisoformat(item["metadata"]["creationTimestamp"])


def read_spec(item: Object) -> Spec:
    """Read an object that the API server accepted. Raises SpecError."""
    spec, key = item["spec"], key_of(item)
    resources, options = spec.get("resources", {}), spec.get("runtime", {})
    accelerator = resources.get("accelerator")
    _check_memory(resources.get("memory"), None if accelerator else options.get("kvMemory"))
    return Spec(
        owner=Owner(key, item["metadata"]["uid"]),
        created=created(item),
        generation=item["metadata"]["generation"],
        source=spec["model"]["source"],
        revision=spec["model"].get("revision"),
        served_names=served_names(item),
        replicas=spec.get("replicas", 1),
        cpu=_text(resources.get("cpu")),
        memory=_text(resources.get("memory")),
        accelerator=Accelerator(accelerator["resource"], accelerator.get("count", 1)) if accelerator else None,
        cpu_limit=_text(resources.get("cpuLimit")),
        ephemeral_storage=_text(resources.get("ephemeralStorage")),
        options=options,
        template=_template(spec.get("template", {})),
        rollout=read_rollout(spec.get("rollout", {})),
    )


def _check_memory(memory: str | int | None, kv_memory: str | None) -> None:
    """The KV cache of a model on CPUs is part of the pod's memory; a share (40%) always fits."""
    if memory is None or kv_memory is None or kv_memory.endswith("%"):
        return
    if byte_count(kv_memory) >= byte_count(str(memory)):
        raise SpecError(
            f"runtime.kvMemory {kv_memory} leaves nothing of resources.memory {memory} for the weights: "
            "lower the one or raise the other"
        )


def _template(values: Mapping[str, Any]) -> Template:
    spread = values.get("topologySpreadConstraints")
    return Template(
        labels=values.get("labels", {}),
        annotations=values.get("annotations", {}),
        env=tuple(values.get("env", ())),
        env_from=tuple(values.get("envFrom", ())),
        volumes=tuple(values.get("volumes", ())),
        volume_mounts=tuple(values.get("volumeMounts", ())),
        tolerations=tuple(values.get("tolerations", ())),
        scheduling={name: values[name] for name in SCHEDULING if values.get(name)},
        service_account=values.get("serviceAccountName"),
        spread=None if spread is None else tuple(spread),
        image=values.get("image"),
        shm_size=_text(values.get("shmSize")),
        startup_seconds=values.get("startupDeadlineSeconds"),
    )


def _text(quantity: object) -> str | None:
    return None if quantity is None else str(quantity)
