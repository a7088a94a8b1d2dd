"""The parts that specs of ModelDeployments and RuntimePools share: the template and resources of each pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STARTUP_SECONDS = 3600
"""Default startup deadline of a pod, enough for a model of hundreds of gigabytes from a slow hub."""
SCHEDULING = (
    "nodeSelector",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "imagePullSecrets",
)
"""Fields of the template that are copied into the pod unchanged."""


class SpecError(Exception):
    """The CRD schema accepts the spec, but it cannot be served; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An extended resource and its count."""

    resource: str
    count: int


@dataclass(frozen=True, slots=True)
class Template:
    """Additions to each pod, as written in the object."""

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

    @property
    def claims(self) -> dict[str, str]:
        """The PersistentVolumeClaims among its volumes: claim name -> name of its volume."""
        found = ((volume.get("persistentVolumeClaim"), volume["name"]) for volume in self.volumes)
        return {claim["claimName"]: name for claim, name in found if claim and claim.get("claimName")}


def claim_name(source: str) -> str | None:
    """Return the name of the PersistentVolumeClaim of a pvc:// source, None for other sources."""
    return source.removeprefix("pvc://").split("/")[0] if source.startswith("pvc://") else None


def read_accelerator(resources: Mapping[str, Any]) -> Accelerator | None:
    """Read the accelerator of `spec.resources`; None if there is none."""
    found = resources.get("accelerator")
    return Accelerator(found["resource"], found.get("count", 1)) if found else None


def read_resources(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Read `spec.resources` as keyword arguments of a `Workload` or `Profile`."""
    return {
        "cpu": text_of(resources.get("cpu")),
        "memory": text_of(resources.get("memory")),
        "accelerator": read_accelerator(resources),
        "cpu_limit": text_of(resources.get("cpuLimit")),
        "ephemeral_storage": text_of(resources.get("ephemeralStorage")),
    }


def read_template(values: Mapping[str, Any]) -> Template:
    """Read the template of an object that the API server accepted."""
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
        shm_size=text_of(values.get("shmSize")),
        startup_seconds=values.get("startupDeadlineSeconds"),
    )


def text_of(quantity: object) -> str | None:
    """Return an amount as text, whether it was written as a number or as text; None for None."""
    return None if quantity is None else str(quantity)
