"""The response of `GET /demand` (docs/design/20261122-scaling.md). Names and bounds are a contract with the
operator.
"""

from __future__ import annotations

import msgspec

FIRST_BYTE_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0, 120.0)
EVENT_GAP_BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)


class Spread(msgspec.Struct, frozen=True):
    """A distribution of durations: their number, their sum in seconds, and cumulative buckets, each a bound in seconds
    and the number of durations up to it.

    Durations beyond the last bound are only in `count`.
    """

    count: int
    seconds: float
    buckets: tuple[tuple[float, int], ...]


class RevisionDemand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State and performance of one revision's pods.

    Fields up to `kv` are current values of the ready replicas: their number, the sums of their running and waiting
    requests and of their slots, and the highest part of a KV cache in use (0 to 1). Later fields are totals since the
    gateway's start.
    """

    revision: str
    replicas: int
    running: int
    waiting: int
    slots: int
    kv: float
    requests: int
    errors: int
    broken: int
    first_byte: Spread
    event_gap: Spread


class ModelDemand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The demand for one model.

    `held`, `in_flight`: requests that wait for a replica now, and all that are being answered now.
    `asked`: requests since the gateway's start; `last_asked`: seconds since the epoch, None before the first request.
    """

    namespace: str
    name: str
    held: int
    in_flight: int
    asked: int
    last_asked: float | None
    revisions: tuple[RevisionDemand, ...]


class DemandReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The demand for all models with requests or replicas. `instance` identifies the process that the totals belong
    to.
    """

    instance: str
    sequence: int
    time: float
    models: tuple[ModelDemand, ...]
