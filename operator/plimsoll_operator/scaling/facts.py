"""The input of the scaling rule: numbers of one model, each over a suitable window."""

from __future__ import annotations

from dataclasses import dataclass, field

from plimsoll_operator.status.load_progress import Loading


@dataclass(frozen=True, slots=True)
class Facts:
    """The demand and state of a model. Requests are counted over all gateways.

    `held` requests wait for a ready replica now. `in_flight` requests have not ended, and `backlog` of those are held
    or wait at replicas: means over the last seconds. `rate` and `expected` are requests a second, now and when a
    replica that is created now would be ready. `seconds` is how long a replica takes for a request, without waiting;
    None if unknown. `carried` and `waiting` are requests in a replica's batch and in its queue, `slots` the slots of a
    batch: means over the last minute. `kv` is the used share of the fullest replica's cache; None if no replica
    reported it. `ttft` and `itl` are 95th percentiles in seconds over the last minute, None if too few were measured.

    `ready` replicas serve; `steady`: none was added, removed or starting in the last minute. `asked` is when the last
    request came or was in flight, by the operator's clock. `since`: since when no gateway's report has been missing;
    `now` if one is missing. `unheard`: why reports of some gateways are missing, "" if none is. `loading`: whether the
    model's present revision has loaded.
    """

    now: float
    ready: int = 0
    steady: bool = True
    held: int = 0
    in_flight: float = 0.0
    backlog: float = 0.0
    rate: float = 0.0
    expected: float = 0.0
    seconds: float | None = None
    carried: float | None = None
    waiting: float = 0.0
    slots: float | None = None
    kv: float | None = None
    ttft: float | None = None
    itl: float | None = None
    asked: float = 0.0
    since: float = 0.0
    unheard: str = ""
    loading: Loading = field(default_factory=Loading)
