"""The ledgers of memory: the device memory granted to each model, and the host memory of sleeping models' images.

Memory is granted before it is taken, by a single writer, and released when its process has ended. All sizes are in
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.spec import ModelName


class LedgerError(RuntimeError):
    """A grant exceeds the ledger or contradicts it: a bug of the host."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The device memory of one model: weights, workspace (its process and its largest step), KV cache."""

    weights: int
    workspace: int
    kv: int

    def __post_init__(self) -> None:
        if min(self.weights, self.workspace, self.kv) < 0:
            raise ValueError(f"a grant must not be negative: {self}")

    @property
    def total(self) -> int:
        """Sum of all three."""
        return self.weights + self.workspace + self.kv

    def with_kv(self, kv: int) -> Grant:
        """Return this grant with another KV cache."""
        return replace(self, kv=kv)


class DeviceLedger:
    """The grants on a device. When memory is granted, grants and reserved memory never exceed the line together.

    `reserved` is the runtime's own memory. It is measured, so it may grow beyond what is left; then `free` is negative
    and nothing is granted until memory is released.
    """

    def __init__(self, capacity: int, line: int) -> None:
        if not 0 <= line <= capacity:
            raise ValueError(f"the line ({line}) must be between 0 and the capacity ({capacity})")
        self.capacity = capacity
        self.line = line
        self._reserved = 0
        self._grants: dict[ModelName, Grant] = {}

    @property
    def grants(self) -> Mapping[ModelName, Grant]:
        """The grants by model; read-only."""
        return MappingProxyType(self._grants)

    @property
    def reserved(self) -> int:
        """The runtime's own memory."""
        return self._reserved

    @property
    def used(self) -> int:
        """Granted and reserved memory."""
        return self._reserved + sum(grant.total for grant in self._grants.values())

    @property
    def free(self) -> int:
        """Memory that can still be granted; negative if the runtime itself has grown over the line."""
        return self.line - self.used

    def reserve(self, size: int) -> None:
        """Set the measured memory of the runtime itself."""
        if size < 0:
            raise LedgerError(f"reserved memory must not be negative: {size} bytes")
        self._reserved = size

    def grant(self, name: ModelName, grant: Grant) -> None:
        """Grant memory to a model without a grant. Raises LedgerError, with the numbers, if it does not fit."""
        if name in self._grants:
            raise LedgerError(f"{name} has a grant already")
        self._check_room(name, grant.total)
        self._grants[name] = grant

    def change(self, name: ModelName, grant: Grant) -> None:
        """Replace a model's grant. Raises LedgerError if a larger one does not fit."""
        before = self._grants.get(name)
        if before is None:
            raise LedgerError(f"{name} has no grant")
        if grant.total > before.total:
            self._check_room(name, grant.total - before.total)
        self._grants[name] = grant

    def release(self, name: ModelName) -> Grant:
        """Remove and return a model's grant. Raises LedgerError if it has none."""
        if name not in self._grants:
            raise LedgerError(f"{name} has no grant")
        return self._grants.pop(name)

    def check_integrity(self) -> None:
        """Raise LedgerError if the grants exceed the line."""
        granted = sum(grant.total for grant in self._grants.values())
        if granted > self.line:
            raise LedgerError(f"{size_text(granted)} granted, over the line of {size_text(self.line)}")

    def _check_room(self, name: ModelName, size: int) -> None:
        if size > self.free:
            raise LedgerError(
                f"cannot grant {size_text(size)} more to {name}: {size_text(self.free)} of {size_text(self.line)} "
                "are free"
            )


class SleeperLedger:
    """The images in host memory that are not part of a device grant. Their sum never exceeds the capacity."""

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"the capacity must not be negative: {capacity} bytes")
        self.capacity = capacity
        self._images: dict[ModelName, int] = {}

    @property
    def images(self) -> Mapping[ModelName, int]:
        """Bytes by model; read-only."""
        return MappingProxyType(self._images)

    @property
    def used(self) -> int:
        """Bytes of all images."""
        return sum(self._images.values())

    @property
    def free(self) -> int:
        """Bytes left for further images."""
        return self.capacity - self.used

    def put(self, name: ModelName, size: int) -> None:
        """Add an image. Raises LedgerError if it does not fit."""
        if name in self._images:
            raise LedgerError(f"{name} has an image here already")
        if not 0 <= size <= self.free:
            raise LedgerError(
                f"{name}'s image takes {size_text(size)}, but {size_text(self.free)} are free for sleepers"
            )
        self._images[name] = size

    def take(self, name: ModelName) -> int:
        """Remove an image, and return its bytes. Raises LedgerError if there is none."""
        if name not in self._images:
            raise LedgerError(f"{name} has no image here")
        return self._images.pop(name)

    def change(self, name: ModelName, size: int) -> None:
        """Change the size of an image. Raises LedgerError if it does not fit."""
        before = self.take(name)
        try:
            self.put(name, size)
        except LedgerError:
            self._images[name] = before
            raise

    def check_integrity(self) -> None:
        """Raise LedgerError if images exceed the capacity."""
        if self.used > self.capacity:
            raise LedgerError(f"images take {size_text(self.used)} of {size_text(self.capacity)}")


class Memory:
    """Both ledgers, and the moves between them.

    `shared`: device and host memory are the same (a CPU). Then an image is part of its model's grant while the model is
    awake, and of the sleepers while it sleeps: the entry moves, and no byte is copied. If the device has its own
    memory, the sleepers hold the entry for as long as the image exists.
    """

    def __init__(self, device: DeviceLedger, sleepers: SleeperLedger, *, shared: bool) -> None:
        self.device = device
        self.sleepers = sleepers
        self.shared = shared

    def wake(self, name: ModelName, grant: Grant, image: int) -> bool:
        """Grant memory to a model. If it does not fit, raises LedgerError and changes nothing.

        Return whether an image of `image` bytes has room too. If device and host memory are the same, it always has: it
        is part of the grant.
        """
        self.device.grant(name, grant)
        if self.shared:
            if name in self.sleepers.images:
                self.sleepers.take(name)
            return True
        if name in self.sleepers.images:
            return True
        if image > self.sleepers.free:
            return False
        self.sleepers.put(name, image)
        return True

    def release(self, name: ModelName) -> None:
        """Remove a model's grant after its process has ended. The caller keeps or frees its image next."""
        self.device.release(name)

    def keep(self, name: ModelName, image: int) -> bool:
        """Return whether a sleeping model's image (bytes, 0: none) can stay. If not, the caller frees it."""
        if self.shared:
            if not 0 < image <= self.sleepers.free:
                return False
            self.sleepers.put(name, image)
            return True
        if image == 0 and name in self.sleepers.images:
            self.sleepers.take(name)
        return name in self.sleepers.images

    def check_integrity(self) -> None:
        """Raise LedgerError if a ledger is exceeded, or an image is in both."""
        self.device.check_integrity()
        self.sleepers.check_integrity()
        if self.shared and (twice := self.device.grants.keys() & self.sleepers.images.keys()):
            raise LedgerError(f"images in both ledgers: {', '.join(map(str, sorted(twice)))}")
