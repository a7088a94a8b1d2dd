"""Everything that a plan is made of."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.host import Host
from plimsoll_operator.placement.records.model import Model


class Demand(Struct, frozen=True, forbid_unknown_fields=True):
    """Requests for a model, besides what hosts report: `waiting` ones at the gateways.

    `since` is when the oldest request that waits for it, there or at a host, began to: 0 where nobody knows. `rate` is
    requests a second over all hosts, where somebody knows better than the hosts' sum.
    """

    model: ObjectKey
    waiting: int = 0
    since: float = 0.0
    rate: float = 0.0


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan must keep to.

    `minimum_residency`: seconds that a model stays awake before it may give way. `patience`: seconds after which a
    request that waits goes before what its victims are worth. `moves`: moves of awake models in a plan.
    `move_interval`: seconds between two of a model.
    """

    minimum_residency: float = 10.0
    patience: float = 30.0
    moves: int = 4
    move_interval: float = 600.0


class PoolState(Struct, frozen=True, forbid_unknown_fields=True):
    """What is wanted, what is there, and what time it is (seconds since the epoch)."""

    now: float
    models: tuple[Model, ...] = ()
    hosts: tuple[Host, ...] = ()
    demand: tuple[Demand, ...] = ()
    rules: Rules = Rules()

    def __post_init__(self) -> None:
        """Raises ValueError where two entries are of the same model or host: which of them holds nobody could say."""
        named = {
            "models": [model.key for model in self.models],
            "hosts": [host.key for host in self.hosts],
            "demand": [demand.model for demand in self.demand],
        }
        for what, keys in named.items():
            if twice := sorted(str(key) for key, count in Counter(keys).items() if count > 1):
                raise ValueError(f"{what} name {', '.join(twice)} more than once: keep one entry of each")
