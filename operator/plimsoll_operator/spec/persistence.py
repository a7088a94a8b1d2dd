"""What the pods of a model or a pool keep beyond an answer: responses, and files with the batches made of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.rollout import Rollout, read_rollout
from plimsoll_operator.spec.template import SpecError, text_of


@dataclass(frozen=True, slots=True)
class Responses:
    """`spec.responses`. Without a `claim` they are kept in each replica's memory."""

    claim: str | None = None
    count: int | None = None
    size: str | None = None
    days: int | None = None
    tenant_share: str | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """`spec.files`: on a claim that all who keep files share."""

    claim: str
    size: str | None = None
    batch_lines: int | None = None


def read_responses(values: Mapping[str, Any] | None) -> Responses | None:
    """From an object that the API server accepted; None where nothing is said, which an empty object does not do."""
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
    """The same."""
    return Files(values["claim"], text_of(values.get("size")), values.get("batchLines")) if values else None


def check_stores(responses: Responses | None, files: Files | None, mounted: Collection[str]) -> None:
    """`mounted` are claims that a pod has anyway. A kubelet waits for ever for the second volume of a claim. Raises
    SpecError.
    """
    for field, claim in (("responses", responses and responses.claim), ("files", files and files.claim)):
        if claim in mounted:
            raise SpecError(
                f"{field}.claim {claim} is mounted in the pods already (template.volumes, or the model's source), and "
                "a pod mounts a claim once: give it one that they have not"
            )


def rollout_of(values: Mapping[str, Any], responses: Responses | None) -> Rollout:
    """`spec.rollout` of pods that keep such responses: those that have a claim are replaced one after the other."""
    rollout = read_rollout(values)
    return rollout if responses is None or responses.claim is None else rollout.one_after_the_other()
