"""A model of a pool, as its spec asks for it."""

from __future__ import annotations

from msgspec import Struct

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.level import Spread


class Need(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that one pod of a replica takes.

    `weights`, `workspace` and `kv` (the minimum KV cache) are device memory while it is awake; `host` is host memory
    while it sleeps as an image. They are predicted from the files' headers until a host has measured them.
    """

    weights: int
    workspace: int = 0
    kv: int = 0
    host: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a negative size."""
        if min(self.weights, self.workspace, self.kv, self.host) < 0:
            raise ValueError(f"sizes must not be negative: {self}")

    @property
    def device(self) -> int:
        """Bytes of device memory while it is awake."""
        return self.weights + self.workspace + self.kv


class Replicas(Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers of replicas that are wanted.

    `desired`: awake while requests come; from the scaler or `spec.replicas`. `least`: awake even without requests, if
    memory is free or can be taken from models of lower priority. `most`: 0 stops the model.
    """

    desired: int = 1
    least: int = 0
    most: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for an empty range."""
        if not 0 <= self.least <= self.most or not 0 <= self.desired <= self.most:
            raise ValueError(
                f"replicas must satisfy 0 <= least <= most and 0 <= desired <= most, "
                f"not least {self.least}, desired {self.desired}, most {self.most}"
            )


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """A model of the pool.

    `needs` has an entry for each pod of a replica. `device` is the device class that it requires, "" for any. `near`
    and `apart` are models that it prefers to share a host with, or to avoid. `load_seconds` and `wake_seconds` are
    estimates until a host has measured them. `moved` is when a plan last moved it while awake, in seconds since the
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
        """Raise ValueError for a model that cannot be planned."""
        if not self.needs:
            raise ValueError(f"{self.key}: needs is empty; give it an entry for each pod of a replica")
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"{self.key}: the weight must be above 0 and finite, not {self.weight}")
        if not (0 <= self.load_seconds < float("inf") and 0 <= self.wake_seconds < float("inf")):
            raise ValueError(f"{self.key}: load_seconds and wake_seconds must be finite and not negative")

    @property
    def need(self) -> Need:
        """The need of the first pod, which is the whole replica if the model can be placed in a pool."""
        return self.needs[0]

    @property
    def stopped(self) -> bool:
        """Whether it should be on no host."""
        return self.replicas.most == 0

    @property
    def placed(self) -> int:
        """Number of hosts that it should be on: at least one unless it is stopped, so that waking needs no plan."""
        return 0 if self.stopped else max(1, self.replicas.desired, self.replicas.least)
