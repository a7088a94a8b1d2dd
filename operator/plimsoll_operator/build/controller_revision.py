"""One revision as the API server has it: the part of a ModelDeployment's spec that pods are made of.

Its name comes from what is in it and from whose it is, so that a process that was killed writes the same object again,
and what a deleted model of the same name left over is never taken for it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.build.pod_revision import user_part
from plimsoll_operator.spec.identity import REVISION_LABEL, Object, selector_labels
from plimsoll_operator.spec.model_deployment import Spec, SpecError, read_spec
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles

API, KIND, PLURAL = "apps/v1", "ControllerRevision", "controllerrevisions"
TAKEN_BACK = "plimsoll.dev/taken-back"
"""Annotation of a revision that a canary took back: a `Mark` as JSON."""
PARTS = ("model", "resources", "runtime", "responses", "files", "template")
"""Of a spec: what pods are made of. The rest says how many there are, and how they are replaced."""
NAME_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Revision:
    """`label` names what pods are made of, `spec` is that as JSON, and `number` grows with each change of the spec.

    `mark`: what its canary wrote when it was taken back, "" for nothing.
    """

    name: str
    uid: str
    label: str
    number: int
    spec: bytes
    mark: str = ""


def read_revision(item: Object) -> Revision:
    """What is kept of a ControllerRevision, whoever made it."""
    meta, data = item["metadata"], item.get("data")
    return Revision(
        name=meta["name"],
        uid=meta["uid"],
        label=(meta.get("labels") or {}).get(REVISION_LABEL, ""),
        number=int(item["revision"]),
        spec=_canonical(data.get("spec") if isinstance(data, dict) else None),
        mark=(meta.get("annotations") or {}).get(TAKEN_BACK, ""),
    )


def present_revision(item: Object, spec: Spec) -> Revision:
    """What should be stored of a model's present spec; its number and mark are still to be given."""
    label = user_part(spec)
    parts = {part: item["spec"][part] for part in PARTS if part in item["spec"]}
    return Revision(revision_name(spec, label), "", label, 0, _canonical(parts))


def revision_name(spec: Spec, label: str) -> str:
    """The name of the object that holds a revision of this model."""
    digest = hashlib.sha256(f"{spec.owner.uid}/{label}".encode()).hexdigest()
    return f"{spec.key.name}-{digest[:NAME_DIGITS]}"


def build_revision(spec: Spec, revision: Revision) -> dict[str, Any]:
    """The ControllerRevision."""
    labels = {**selector_labels(spec.key.name), REVISION_LABEL: revision.label}
    metadata: dict[str, Any] = {
        "name": revision.name,
        "namespace": spec.key.namespace,
        "labels": labels,
        "ownerReferences": [spec.owner.reference()],
    }
    if revision.mark:
        metadata["annotations"] = {TAKEN_BACK: revision.mark}
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": metadata,
        "data": {"spec": json.loads(revision.spec)},
        "revision": revision.number,
    }


def spec_of_revision(item: Object, revision: Revision, profiles: Profiles = NO_PROFILES) -> Spec | None:
    """The spec that a model would have with what is stored; None where no pod of that revision could be made of it.

    That is so of one that somebody else made, or that an operator with another way to name revisions left.
    """
    found = json.loads(revision.spec)
    if not isinstance(found, dict):
        return None
    stored: dict[str, Any] = {part: {} for part in PARTS} | found
    try:
        spec = read_spec({**item, "spec": {**item["spec"], **stored}}, profiles)
    except (SpecError, KeyError, TypeError):
        return None
    right = user_part(spec) == revision.label and revision_name(spec, revision.label) == revision.name
    return spec if right else None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
