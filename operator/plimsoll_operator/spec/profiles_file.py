"""The file with which the chart passes defaults and profiles to the operator: JSON with the field names of the CRDs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from plimsoll_operator.spec.profiles import Profile, Profiles
from plimsoll_operator.spec.template import read_resources, read_template


class ProfilesError(Exception):
    """The file is not valid; the message names the file and the field."""


class _Accelerator(msgspec.Struct, forbid_unknown_fields=True):
    resource: str
    count: int = 1


class _Pods(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Fields of `spec.template` that an installation may set."""

    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    affinity: dict[str, Any] = {}
    env: list[dict[str, Any]] = []
    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    priority_class_name: str | None = None
    image_pull_secrets: list[dict[str, str]] = []


class _Profile(_Pods, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Fields of `spec.template` and of `spec.resources` that a profile may set."""

    cpu: str | int | float | None = None
    cpu_limit: str | int | float | None = None
    memory: str | int | None = None
    ephemeral_storage: str | int | None = None
    accelerator: _Accelerator | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    defaults: _Pods = msgspec.field(default_factory=_Pods)
    profiles: dict[str, _Profile] = {}


def read_profiles(file: Path) -> Profiles:
    """Read the file. Raise ProfilesError if it cannot be read or is not valid."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        raise ProfilesError(f"cannot read the profiles in {file}: {error}; correct the chart's values") from error
    return Profiles(
        defaults=read_template(msgspec.to_builtins(found.defaults)),
        named={name: _profile(msgspec.to_builtins(each)) for name, each in found.profiles.items()},
    )


def _profile(values: Mapping[str, Any]) -> Profile:
    return Profile(**read_resources(values), template=read_template(values))
