"""The fields of a key file."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from plimsoll_gateway.keys.secret import DIGEST

# The runtime's format of a tenant's name (tests/contract).
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLAIM = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Namespace and name of a PersistentVolumeClaim."""

Count = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Hash = Annotated[str, msgspec.Meta(pattern=DIGEST)]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The fields of a key file.

    `hashes`: hashes of the valid keys; two while one replaces the other.
    `models`: patterns of served names (`*`, `?`).
    `requests_per_minute`, `tokens_per_minute`, `streams` (concurrent requests): limits over all gateways; None for no
    limit.
    `priority`, `weight`: waiting requests of the highest priority start first; keys of equal priority share by weight.
    `tenant`: keys of one tenant may use each other's cached prefixes; None for a tenant of its own.
    `batches`, `batch_share`: the most open batches, and the per cent of the limits reserved for them.
    `files`: the PersistentVolumeClaim (NAMESPACE/CLAIM) for its files and batches; None: the gateway chooses one.
    """

    hashes: Annotated[tuple[Hash, ...], msgspec.Meta(min_length=1, max_length=8)]
    models: Annotated[tuple[Pattern, ...], msgspec.Meta(min_length=1, max_length=256)] = ("*",)
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    streams: Count | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    batches: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    batch_share: Annotated[int, msgspec.Meta(ge=0, le=90)] = 0
    tenant: Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}\Z")] | None = None
    files: Annotated[str, msgspec.Meta(pattern=rf"^{CLAIM.pattern}\Z")] | None = None
