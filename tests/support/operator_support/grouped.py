"""Specs whose replicas have several pods, which no field of a ModelDeployment asks for yet."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from operator_support.objects import spec_of

from plimsoll_operator.spec.model_deployment import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped(Spec):
    """A ModelDeployment with this number of pods for each replica."""

    pods: int

    @property
    def pods_per_replica(self) -> int:
        return self.pods


def grouped(pods: int, **changes: Any) -> Grouped:
    """Return the spec of `model` with several pods for each replica."""
    spec = spec_of(**changes)
    return Grouped(pods=pods, **{field.name: getattr(spec, field.name) for field in fields(spec)})
