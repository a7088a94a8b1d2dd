"""How long names may be that come over the wire: as long as the CRDs take them, so that what is read can be written."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

NamespaceName = Annotated[str, Meta(min_length=1, max_length=63)]
ObjectName = Annotated[str, Meta(min_length=1, max_length=253)]
ServedName = Annotated[str, Meta(min_length=1, max_length=128)]
Instance = Annotated[str, Meta(min_length=1, max_length=128)]
"""The name of a process, which another one never has."""
DeviceKind = Annotated[str, Meta(min_length=1, max_length=32)]
