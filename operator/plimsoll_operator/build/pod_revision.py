"""What a pod was made from, as a label's value in three parts: the user's spec, the installation's (the runtime image,
and the fields that defaults and profiles add), and our own part.

A pod whose user's part differs is replaced as the user asked. One of which only the others differ is replaced because
of an upgrade of Plimsoll, a few models at a time. Our own part is a number and no hash of what we build: an operator
that builds pods differently replaces none for it, unless whoever changes the builder raises the number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from enum import Enum
from typing import Any, cast

import msgspec

from plimsoll_operator.build.image import Image
from plimsoll_operator.spec.template import Template
from plimsoll_operator.spec.workload import Workload

OWN = 1
"""To be raised where pods that earlier operators made must not go on, as for a hole in their security."""
HASH_LENGTH = 10
UNSEEN = frozenset(
    {"owner", "created", "generation", "replicas", "rollout", "history", "scaling", "namespaces", "shared_claims"}
    | {"own"}
)
"""Parts of a spec that no pod can see."""
DEFAULT_TEMPLATE = msgspec.to_builtins(Template())


class Fit(Enum):
    """How a pod compares with what would be made now."""

    CURRENT = "of the present spec and image"
    OUTDATED = "of the present spec, and of another image, other defaults or an operator whose pods must go"
    OLDER = "of another spec"


Fits = Callable[[str], Fit]


def revision(spec: Workload, image: Image, more: str = "") -> str:
    """The label of a pod that is made now. `more` is what else of an installation its pods are made from."""
    return _label(user_part(spec), spec, image, more)


def user_part(spec: Workload) -> str:
    """A name for all that the user says about pods. What is left out is no part of it: a new field changes nothing."""
    return _hash(_said(spec.own or spec))


def _said(spec: Workload) -> dict[str, Any]:
    names = [field.name for field in fields(cast(Any, spec)) if field.name not in UNSEEN]
    said = msgspec.to_builtins({name: getattr(spec, name) for name in names})
    for name in {"responses", "files"} & said.keys():
        said[name] = said[name] and {field: value for field, value in said[name].items() if value is not None}
    said["template"] = {name: value for name, value in said["template"].items() if value != DEFAULT_TEMPLATE[name]}
    return {name: value for name, value in said.items() if value not in (None, {})}


def _added(spec: Workload) -> dict[str, Any]:
    """Fields to which defaults and profiles of the installation have added."""
    if spec.own is None:
        return {}
    own = _said(spec.own)
    return {name: value for name, value in _said(spec).items() if own.get(name) != value}


def fits(spec: Workload, image: Image, more: str = "") -> Fits:
    """Compares the label of a pod with the label that a pod made now would have."""
    user = user_part(spec)
    wanted = _label(user, spec, image, more)

    def fit(label: str) -> Fit:
        if label == wanted:
            return Fit.CURRENT
        if label.partition("-")[0] == user:
            return Fit.OUTDATED
        return Fit.OLDER

    return fit


def _label(user: str, spec: Workload, image: Image, more: str) -> str:
    return f"{user}-{_installed(spec, image, more)}-{OWN}"


def _used(spec: Workload, image: Image) -> Image:
    """The image that a pod of this spec runs."""
    return Image(image.of(spec), image.pull_policy, fixed_user=image.fixed_user)


def _installed(spec: Workload, image: Image, more: str) -> str:
    """What is not set is no part of it, so that pods of earlier operators stay."""
    parts = {"more": more, "added": _added(spec)}
    used = asdict(_used(spec, image))
    if image.fixed_user:
        del used["fixed_user"]
    return _hash({**used, **{name: value for name, value in parts.items() if value}})


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
