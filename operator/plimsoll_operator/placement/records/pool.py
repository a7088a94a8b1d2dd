"""The input of a plan."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.host import Host
from plimsoll_operator.placement.records.model import Model


class Demand(Struct, frozen=True, forbid_unknown_fields=True):
    """What hosts do not report of the requests for a model.

    `waiting`: requests that gateways hold; those that wait at hosts are in their reports. `since`: arrival of the
    oldest request that waits at a gateway or a host, in seconds since the epoch; 0 if unknown. `rate`: requests a
    second over all hosts, from the gateways; 0 if only the hosts' own rates are known.
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
