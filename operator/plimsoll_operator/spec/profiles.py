"""Defaults of an installation for the pods of models and pools, and named profiles that specs refer to.

Only `Profiles.merged` applies them, so that plans, statuses and builders work with one complete spec.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from plimsoll_operator.spec.template import Accelerator, SpecError, Template
from plimsoll_operator.spec.workload import Workload

RESOURCES = ("cpu", "cpu_limit", "memory", "ephemeral_storage", "accelerator")
NOTHING = Template()
W = TypeVar("W", bound=Workload)


@dataclass(frozen=True, slots=True)
class Profile:
    """A set of resources with pod settings. A field that is None or empty adds nothing."""

    cpu: str | None = None
    cpu_limit: str | None = None
    memory: str | None = None
    ephemeral_storage: str | None = None
    accelerator: Accelerator | None = None
    template: Template = field(default_factory=Template)


@dataclass(frozen=True, slots=True)
class Profiles:
    """`defaults` apply to every pod; a profile of `named` applies to pods of each spec that names it."""

    defaults: Template = field(default_factory=Template)
    named: Mapping[str, Profile] = field(default_factory=dict)

    def merged(self, spec: W, variables: Collection[str] = ()) -> W:
        """Add the profile and the defaults to a spec. Its own fields take precedence, then the profile's, then the
        defaults.

        `nodeSelector` is merged by key, `env` by name, `tolerations` by key and effect; any other field is taken as a
        whole. `variables` are environment variables that the spec sets outside its template. The result has the given
        spec as `own`, unless nothing was added. Raise SpecError for a profile that does not exist.
        """
        if spec.profile is None and self.defaults == NOTHING:
            return spec
        profile = self._of(spec)
        template = _over(_over(spec.template, profile.template, variables), self.defaults, variables)
        found = {name: getattr(spec, name) or getattr(profile, name) for name in RESOURCES}
        complete = replace(cast(Any, spec), template=template, **found)
        return spec if complete == spec else replace(complete, own=spec)

    def _of(self, spec: Workload) -> Profile:
        if spec.profile is None:
            return Profile()
        if spec.profile in self.named:
            return self.named[spec.profile]
        names = ", ".join(sorted(self.named)) or "it has none"
        raise SpecError(
            f"resources.profile {spec.profile} is not a profile of this installation ({names}): choose another, or "
            "add it to the chart's runtime.resourceProfiles"
        )


NO_PROFILES = Profiles()


def _over(upper: Template, lower: Template, variables: Collection[str]) -> Template:
    """Return both templates merged; `upper` takes precedence. `lower.env` entries named in `variables` are left out."""
    names = {*variables, *(entry["name"] for entry in upper.env)}
    taints = {_taint(toleration) for toleration in upper.tolerations}
    scheduling = {**lower.scheduling, **upper.scheduling}
    if "nodeSelector" in scheduling:
        scheduling["nodeSelector"] = {
            **lower.scheduling.get("nodeSelector", {}),
            **upper.scheduling.get("nodeSelector", {}),
        }
    return replace(
        upper,
        # The lower template's variables come first, because a variable may refer to earlier ones.
        env=(*(entry for entry in lower.env if entry["name"] not in names), *upper.env),
        tolerations=(*upper.tolerations, *(each for each in lower.tolerations if _taint(each) not in taints)),
        scheduling=scheduling,
    )


def _taint(toleration: Mapping[str, Any]) -> tuple[str, str]:
    return toleration.get("key") or "", toleration.get("effect") or ""
