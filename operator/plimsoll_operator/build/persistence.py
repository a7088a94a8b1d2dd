"""Options, volumes and names of the stores in which pods keep responses and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.identity import FILES_VOLUME, GROUP_LABEL, KEEPER_LABEL, POOL_KIND, RESPONSES_VOLUME
from plimsoll_operator.spec.workload import Workload

STORES = "/var/lib/plimsoll"
FILES, RESPONSES = f"{STORES}/files", f"{STORES}/responses"
GROUP_VARIABLE = "PLIMSOLL_GROUP"
"""Environment variable with the pod's group, in pods that store responses on a claim. The name of the response file
contains it.
"""


@dataclass(frozen=True, slots=True)
class Store:
    """A PersistentVolumeClaim that pods write to, the name of its volume in the pod, and the mount path."""

    volume: str
    claim: str
    path: str


def store_arguments(spec: Workload) -> list[str]:
    """Return the options of `plimsoll serve` and `plimsoll host` for stored responses and files; empty if the spec has
    neither.
    """
    return [*_responses(spec), *_files(spec)]


def stores(spec: Workload) -> tuple[Store, ...]:
    """Return the stores that are on PersistentVolumeClaims: first that of responses, then that of files. If both use
    one claim, they have the same volume name, because a pod can mount a claim only once.
    """
    responses, files = _responses_claim(spec), spec.files
    volume = FILES_VOLUME if files is not None and responses == files.claim else RESPONSES_VOLUME
    return (
        *((Store(volume, responses, RESPONSES),) if responses else ()),
        *((Store(FILES_VOLUME, files.claim, FILES),) if files else ()),
    )


def group_variable(spec: Workload) -> dict[str, Any]:
    """Return the environment variable with the pod's group; empty unless responses are stored on a claim.

    It reads the pod's label, so that pods of one spec and image differ only in labels and names.
    """
    if _responses_claim(spec) is None:
        return {}
    return {GROUP_VARIABLE: {"fieldRef": {"fieldPath": f"metadata.labels['{GROUP_LABEL}']"}}}


def keeper_label(spec: Workload, group: str) -> dict[str, str]:
    """Return the label by which gateways find a pod's stored responses; empty unless they are stored on a claim. The
    pod that replaces it gets the same label.
    """
    return {} if _responses_claim(spec) is None else {KEEPER_LABEL: f"{_name(spec)}-{group}"}


def _name(spec: Workload) -> str:
    """Return the owner's name, for a pool after `pool.`: no model's name has a dot, so the result is unique in the
    namespace.
    """
    name = spec.owner.key.name
    return f"pool.{name}" if spec.owner.kind == POOL_KIND else name


def _responses(spec: Workload) -> list[str]:
    found = spec.responses
    if found is None:
        return []
    file = None if found.claim is None else f"{RESPONSES}/{_name(spec)}-$({GROUP_VARIABLE}).sqlite"
    options = {
        "--response-store": file,
        "--max-responses": found.count,
        "--max-response-bytes": found.size,
        "--response-days": found.days,
        "--response-tenant-share": found.tenant_share,
    }
    return _said(options)


def _files(spec: Workload) -> list[str]:
    found = spec.files
    if found is None:
        return []
    options = {"--files-size": found.size, "--batch-lines": found.batch_lines}
    return ["--files-dir", FILES, "--files-shared", *_said(options)]


def _said(options: Mapping[str, str | int | None]) -> list[str]:
    return [word for option, value in options.items() if value is not None for word in (option, str(value))]


def _responses_claim(spec: Workload) -> str | None:
    return None if spec.responses is None else spec.responses.claim
