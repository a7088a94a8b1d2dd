"""The pod hash: a label with what a pod was made from, in three parts: the user's spec, the installation's settings
(image, and the fields that defaults and profiles add), and the version of the builder.

A pod whose first part differs is replaced as a rollout. If only the others differ, it is replaced as an upgrade of
Plimsoll, a few models at a time. The builder's part is a number and not a hash of the built pod: a change of the
builder replaces no pods unless its author raises the number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import Any, cast

import msgspec

from plimsoll_operator.build.image import Image
from plimsoll_operator.spec.parallel import Parallel
from plimsoll_operator.spec.template import Template
from plimsoll_operator.spec.workload import Workload

OWN = 2
"""Raise this number if pods of earlier operators must be replaced, for example because of a security defect. 2: metrics
have a port of their own, and the labels of the ModelDeployment."""
HASH_LENGTH = 10
UNSEEN = frozenset(
    {"owner", "created", "generation", "replicas", "rollout", "history", "scaling", "namespaces", "shared_claims"}
    | {"own"}
)
"""Fields of a spec that do not affect pods."""
DEFAULT_TEMPLATE = msgspec.to_builtins(Template())
DEFAULTS: dict[str, dict[str, Any]] = {"responses": {}, "files": {}, "parallel": msgspec.to_builtins(Parallel())}
"""By name of an optional field of a spec: the values of its fields that count as unset, in addition to None."""


class Fit(Enum):
    """How an existing pod compares with one that would be built from the present spec."""

    CURRENT = "of the present spec and image"
    OUTDATED = "of the present spec, but another image, other defaults or an operator whose pods must be replaced"
    OLDER = "of another spec"


Fits = Callable[[str], Fit]


def revision(spec: Workload, image: Image, more: str = "") -> str:
    """Return the pod hash of a pod that is built now. `more`: other settings of the installation that the pod depends
    on.
    """
    return _label(user_part(spec), spec, image, more)


def user_part(spec: Workload) -> str:
    """Return the hash of the fields of the user's spec that affect pods. Unset fields are left out, so that a new field
    in the CRD does not change the hash of existing specs.
    """
    return _hash(_said(spec.own or spec))


def _said(spec: Workload) -> dict[str, Any]:
    names = [field.name for field in fields(cast(Any, spec)) if field.name not in UNSEEN]
    said = msgspec.to_builtins({name: getattr(spec, name) for name in names})
    for name, empty in DEFAULTS.items():
        if said.get(name):
            said[name] = {field: value for field, value in said[name].items() if value != empty.get(field)}
    said["template"] = {name: value for name, value in said["template"].items() if value != DEFAULT_TEMPLATE[name]}
    return {name: value for name, value in said.items() if value not in (None, {})}


def _added(spec: Workload) -> dict[str, Any]:
    """Return the fields that defaults and profiles of the installation have set or changed, with their final values."""
    if spec.own is None:
        return {}
    own = _said(spec.own)
    return {name: value for name, value in _said(spec).items() if own.get(name) != value}


def fits(spec: Workload, image: Image, more: str = "") -> Fits:
    """Return a function from the hash of an existing pod to its `Fit`. `more`: as for `revision`."""
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


def _installed(spec: Workload, image: Image, more: str) -> str:
    """Return the hash of the installation's settings, without those that are not set."""
    parts = {
        "image": image.of(spec),
        "pull_policy": image.pull_policy,
        "assigned_user": not image.fixed_user,
        "more": more,
        "added": _added(spec),
    }
    return _hash({name: value for name, value in parts.items() if value})


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
