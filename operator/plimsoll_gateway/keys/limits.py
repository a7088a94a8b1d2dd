"""What a key's file says."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from plimsoll_gateway.keys.secret import DIGEST

# As the runtime takes it for a tenant's name (tests/contract).
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLAIM = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""The namespace and the name of a PersistentVolumeClaim."""

Count = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Hash = Annotated[str, msgspec.Meta(pattern=DIGEST)]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a key's file says. `hashes` are of the keys that are valid, two while one replaces the other.

    `models`: patterns of served names (`*`, `?`). `requests_per_minute`, `tokens_per_minute` and `streams` (requests
    under way at once) are limits over all gateways; None is none. Of keys that wait, those of the highest `priority` go
    first, and those of one priority share by `weight`. `tenant`: keys of one tenant may use each other's cached
    prefixes; None is one of its own. `batches` may be open at once, and `batch_share` per cent of the limits are
    theirs. `files`: the claim on which its files and batches are, None for the one that the gateway chooses.
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
