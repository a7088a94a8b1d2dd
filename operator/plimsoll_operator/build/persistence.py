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
"""In a pod that keeps responses on a claim: its group, which is part of the file's name."""


@dataclass(frozen=True, slots=True)
class Store:
    """A claim that pods write to, the name of its volume, and the mount path."""

    volume: str
    claim: str
    path: str


def store_arguments(spec: Workload) -> list[str]:
    """Return the options of `plimsoll serve` and `plimsoll host`."""
    return [*_responses(spec), *_files(spec)]


def stores(spec: Workload) -> tuple[Store, ...]:
    """Return the claims that each pod writes to. A claim with both stores is one volume: a pod can mount a claim only
    once.
    """
    responses, files = _responses_claim(spec), spec.files
    volume = FILES_VOLUME if files is not None and responses == files.claim else RESPONSES_VOLUME
    return (
        *((Store(volume, responses, RESPONSES),) if responses else ()),
        *((Store(FILES_VOLUME, files.claim, FILES),) if files else ()),
    )


def group_variable(spec: Workload) -> dict[str, Any]:
    """Return the variable that reads the pod's group label, so that pods of one spec and image differ only in labels
    and names.
    """
    if _responses_claim(spec) is None:
        return {}
    return {GROUP_VARIABLE: {"fieldRef": {"fieldPath": f"metadata.labels['{GROUP_LABEL}']"}}}


def keeper_label(spec: Workload, group: str) -> dict[str, str]:
    """Return the label by which gateways find a pod's stored responses; the pod that replaces it gets the same one."""
    return {} if _responses_claim(spec) is None else {KEEPER_LABEL: f"{_name(spec)}-{group}"}


def _name(spec: Workload) -> str:
    """Return a name that is unique in the namespace: a pool's gets a dot, which no model's name has."""
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
