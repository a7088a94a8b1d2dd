"""A model that a pool is asked to serve."""

from __future__ import annotations

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.level import Spread


class Need(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that one pod of a replica takes.

    `weights`, `workspace` and `kv` (the least KV pool that it serves with) lie on the device while it is awake, `host`
    in host memory while it sleeps as an image. Predicted from the files' headers until a host has measured them.
    """

    weights: int
    workspace: int = 0
    kv: int = 0
    host: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that cannot be."""
        if min(self.weights, self.workspace, self.kv, self.host) < 0:
            raise ValueError(f"a need is never negative: {self}")

    @property
    def device(self) -> int:
        """Bytes of device memory."""
        return self.weights + self.workspace + self.kv


class Replicas(Struct, frozen=True, forbid_unknown_fields=True):
    """How many replicas are wanted.

    `desired`: awake while requests want them; what a scaler has found out, or `spec.replicas`. `least`: kept awake even
    without requests, as far as memory is free or held by lower priorities. `most`: 0 stops the model.
    """

    desired: int = 1
    least: int = 0
    most: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for an empty range."""
        if not 0 <= self.least <= self.most or not 0 <= self.desired <= self.most:
            raise ValueError(
                f"replicas must satisfy 0 <= least <= most and 0 <= desired <= most, "
                f"not least {self.least}, desired {self.desired}, most {self.most}"
            )


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """A model of the pool.

    `needs` has an entry for each pod of a replica. `device` is the class of device that it can run on, "" for any.
    `near` and `apart` are models whose hosts it likes to share, or to shun. `load_seconds` and `wake_seconds` are what
    is expected until a host has measured them. `moved` is when a plan last moved it while awake, in seconds since the
    epoch.
    """

    key: ObjectKey
    revision: str
    needs: tuple[Need, ...]
    replicas: Replicas = Replicas()
    priority: int = 0
    weight: float = 1.0
    pinned: bool = False
    device: str = ""
    spread: Spread = Spread.NODE
    near: tuple[ObjectKey, ...] = ()
    apart: tuple[ObjectKey, ...] = ()
    load_seconds: float = 10.0
    wake_seconds: float = 1.0
    moved: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what no plan can be made of."""
        if not self.needs:
            raise ValueError(f"{self.key}: needs has an entry for each pod of a replica, at least one")
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"{self.key}: the weight must be above 0 and finite, not {self.weight}")
        if not (0 <= self.load_seconds < float("inf") and 0 <= self.wake_seconds < float("inf")):
            raise ValueError(f"{self.key}: seconds of loading and waking must be finite and not negative")

    @property
    def need(self) -> Need:
        """What one pod takes, of a model whose replicas are one pod."""
        return self.needs[0]

    @property
    def stopped(self) -> bool:
        """Whether it is to lie nowhere."""
        return self.replicas.most == 0

    @property
    def placed(self) -> int:
        """Hosts that it is to lie on: one even when nothing of it is to be awake, so that waking needs no plan."""
        return 0 if self.stopped else max(1, self.replicas.desired, self.replicas.least)
