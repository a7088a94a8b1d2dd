"""What the rule is told of a model: plain numbers, over the windows that each of them needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from plimsoll_operator.status.load_progress import Loading


@dataclass(frozen=True, slots=True)
class Facts:
    """Requests are counted over all gateways.

    `held` wait for a replica to be there, now. `in_flight` have no end yet and `backlog` of those are held or wait at
    replicas: means of the last seconds. `rate` and `expected` are requests a second, now and when a replica that is
    asked for now would be there. `seconds` is how long a replica has a request, without what it waited; None while
    that is not known. `carried`, `waiting` are requests a replica had in its batch and beside it, `slots` the places
    of a batch: means of the last minute, and `kv` the share of the fullest replica's cache; None where nobody said.
    `ttft` and `itl` are seconds that 95 of 100 kept in the last minute, None where too few were measured.

    `ready` replicas serve; `steady`: none came, went or was on its way in the last minute. `asked` is when a request
    last came or was there, by our clock. `since` is from when on nothing was missed. `unheard`: why not all gateways
    are heard, "" where they are. `loading`: whether the present revision of the model can be loaded at all.
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
