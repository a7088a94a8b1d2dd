"""A revision as a ControllerRevision: the part of a ModelDeployment's spec from which pods are made.

Its name is a hash of its content and of its owner's uid. A restarted operator therefore writes the same object again,
and never takes over one that a deleted model of the same name left.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.build.pod_revision import user_part
from plimsoll_operator.spec.identity import REVISION_LABEL, Object, selector_labels
from plimsoll_operator.spec.model_deployment import Spec, read_spec
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles
from plimsoll_operator.spec.template import SpecError

API, KIND, PLURAL = "apps/v1", "ControllerRevision", "controllerrevisions"
TAKEN_BACK = "plimsoll.dev/taken-back"
"""Annotation of a revision whose canary was rolled back: a `Mark` as JSON."""
PARTS = ("model", "parallel", "resources", "runtime", "responses", "files", "template")
"""The fields of a spec from which pods are made. The others set the number and the replacement of pods."""
NAME_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of a ModelDeployment's spec.

    `label` is the hash of the fields from which pods are made (`user_part`), `spec` those fields as JSON. `number`
    grows with each change of the spec. `mark` is the annotation `TAKEN_BACK`, "" unless its canary was rolled back.
    """

    name: str
    uid: str
    label: str
    number: int
    spec: bytes
    mark: str = ""


def read_revision(item: Object) -> Revision:
    """Read a ControllerRevision."""
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
    """Return the revision of a model's present spec. Its uid, number and mark are not set yet."""
    label = user_part(spec)
    parts = {part: item["spec"][part] for part in PARTS if part in item["spec"]}
    return Revision(revision_name(spec, label), "", label, 0, _canonical(parts))


def revision_name(spec: Spec, label: str) -> str:
    """Return the name of the ControllerRevision of this model and label."""
    digest = hashlib.sha256(f"{spec.owner.uid}/{label}".encode()).hexdigest()
    return f"{spec.key.name}-{digest[:NAME_DIGITS]}"


def build_revision(spec: Spec, revision: Revision) -> dict[str, Any]:
    """Build the ControllerRevision."""
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
    """Return the model's spec with the fields of a stored revision instead of the present ones; None if they cannot be
    used.

    They cannot if they have errors, or if the revision's label or name is not the one that this operator computes.
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
