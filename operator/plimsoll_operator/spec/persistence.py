"""What the pods of a model or a pool store: responses, and files with their batch jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.rollout import Rollout, read_rollout
from plimsoll_operator.spec.template import SpecError, text_of


@dataclass(frozen=True, slots=True)
class Responses:
    """`spec.responses`. Without a `claim`, they are stored in each replica's memory."""

    claim: str | None = None
    count: int | None = None
    size: str | None = None
    days: int | None = None
    tenant_share: str | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """`spec.files`: stored on a claim that all pods with files share."""

    claim: str
    size: str | None = None
    batch_lines: int | None = None


def read_responses(values: Mapping[str, Any] | None) -> Responses | None:
    """Read `spec.responses` of an object that the API server accepted; None if it is absent or empty."""
    if not values:
        return None
    return Responses(
        claim=values.get("claim"),
        count=values.get("count"),
        size=text_of(values.get("size")),
        days=values.get("days"),
        tenant_share=values.get("tenantShare"),
    )


def read_files(values: Mapping[str, Any] | None) -> Files | None:
    """Read `spec.files` of an object that the API server accepted; None if it is absent or empty."""
    return Files(values["claim"], text_of(values.get("size")), values.get("batchLines")) if values else None


def check_stores(responses: Responses | None, files: Files | None, mounted: Collection[str]) -> None:
    """Raise SpecError if the claim of `responses` or `files` is in `mounted`, the claims of the pod's other volumes.

    A kubelet would wait forever for a second volume of the same claim.
    """
    for field, claim in (("responses", responses and responses.claim), ("files", files and files.claim)):
        if claim in mounted:
            raise SpecError(
                f"{field}.claim {claim} is already a volume of the pods (template.volumes or the model's source), and "
                "a pod can mount a claim only once: use another claim"
            )


def rollout_of(values: Mapping[str, Any], responses: Responses | None) -> Rollout:
    """Read `spec.rollout` for pods with these responses. If they are on a claim, a new pod is created only after the
    old one is gone, without surge.
    """
    rollout = read_rollout(values)
    return rollout if responses is None or responses.claim is None else rollout.one_after_the_other()
