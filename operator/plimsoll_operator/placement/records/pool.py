"""The input of a plan."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.host import Host
from plimsoll_operator.placement.records.model import Model


class Demand(Struct, frozen=True, forbid_unknown_fields=True):
    """Requests for a model beyond what hosts report: `waiting` ones at the gateways.

    `since` is the arrival of the oldest request that waits for it, at a gateway or a host; 0 if unknown. `rate` is
    requests a second over all hosts, if it is known better than as the sum of the hosts' rates.
    """

    model: ObjectKey
    waiting: int = 0
    since: float = 0.0
    rate: float = 0.0


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a plan.

    `minimum_residency`: seconds awake before a model may be evicted. `patience`: seconds after which a waiting request
    evicts models whatever their value. `moves`: the most moves of awake models in a plan. `move_interval`: seconds
    between two moves of a model.
    """

    minimum_residency: float = 10.0
    patience: float = 30.0
    moves: int = 4
    move_interval: float = 600.0


class PoolState(Struct, frozen=True, forbid_unknown_fields=True):
    """Models, hosts and demand at a time (`now`, in seconds since the epoch)."""

    now: float
    models: tuple[Model, ...] = ()
    hosts: tuple[Host, ...] = ()
    demand: tuple[Demand, ...] = ()
    rules: Rules = Rules()

    def __post_init__(self) -> None:
        """Raise ValueError if two entries have the same model or host."""
        named = {
            "models": [model.key for model in self.models],
            "hosts": [host.key for host in self.hosts],
            "demand": [demand.model for demand in self.demand],
        }
        for what, keys in named.items():
            if twice := sorted(str(key) for key, count in Counter(keys).items() if count > 1):
                raise ValueError(f"{what} name {', '.join(twice)} more than once: keep one entry of each")
