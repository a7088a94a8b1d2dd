"""Patterns of names in reports of gateways and hosts: those of the CRDs, so that accepted names can be stored."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

NamespaceName = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")]
ObjectName = Annotated[str, Meta(min_length=1, max_length=52, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?\Z")]
"""The name of a ModelDeployment."""
ServedName = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?\Z")
]
Instance = Annotated[str, Meta(min_length=1, max_length=128)]
"""The unique name of a process."""
DeviceKind = Annotated[str, Meta(min_length=1, max_length=32)]
