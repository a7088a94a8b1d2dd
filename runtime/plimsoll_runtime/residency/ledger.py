"""The one table of truth about memory: what each model was granted of the device, and what the sleepers' images take.

Memory is granted before it is taken, by one writer, and given back when the process that had it is gone. All is in
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.spec import ModelName


class LedgerError(RuntimeError):
    """More was to be granted than there is, or something that is not so: a fault of the host's own."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one model may take of the device: weights, workspace (its process and its largest step), KV cache."""

    weights: int
    workspace: int
    kv: int

    def __post_init__(self) -> None:
        if min(self.weights, self.workspace, self.kv) < 0:
            raise ValueError(f"no grant is negative: {self}")

    @property
    def total(self) -> int:
        """All three."""
        return self.weights + self.workspace + self.kv

    def with_kv(self, kv: int) -> Grant:
        """The same with another KV cache."""
        return replace(self, kv=kv)


class DeviceLedger:
    """The grants on a device. They and what is reserved never sum to more than the line, at the time of a grant.

    `reserved` is the runtime's own share. It is measured, so it may grow over what is left; then `free` is below zero
    and nothing is granted until something was given back.
    """

    def __init__(self, capacity: int, line: int) -> None:
        if not 0 <= line <= capacity:
            raise ValueError(f"the line ({line}) lies between 0 and the capacity ({capacity})")
        self.capacity = capacity
        self.line = line
        self._reserved = 0
        self._grants: dict[ModelName, Grant] = {}

    @property
    def grants(self) -> Mapping[ModelName, Grant]:
        """By model; read-only."""
        return MappingProxyType(self._grants)

    @property
    def reserved(self) -> int:
        """The runtime's own share."""
        return self._reserved

    @property
    def used(self) -> int:
        """Granted and reserved."""
        return self._reserved + sum(grant.total for grant in self._grants.values())

    @property
    def free(self) -> int:
        """What can still be granted; below zero where the runtime itself has grown over the line."""
        return self.line - self.used

    def reserve(self, size: int) -> None:
        """Note what the runtime itself was measured to take."""
        if size < 0:
            raise LedgerError(f"nothing takes {size} bytes")
        self._reserved = size

    def grant(self, name: ModelName, grant: Grant) -> None:
        """Give a model memory that has none. Raises LedgerError with the numbers where it does not fit."""
        if name in self._grants:
            raise LedgerError(f"{name} has a grant already")
        self._check_room(name, grant.total)
        self._grants[name] = grant

    def change(self, name: ModelName, grant: Grant) -> None:
        """Another grant in a model's place: always where it is smaller, else only where it fits (LedgerError)."""
        before = self._grants.get(name)
        if before is None:
            raise LedgerError(f"{name} has no grant")
        if grant.total > before.total:
            self._check_room(name, grant.total - before.total)
        self._grants[name] = grant

    def release(self, name: ModelName) -> Grant:
        """Take back what a model had. Raises LedgerError where it had nothing."""
        if name not in self._grants:
            raise LedgerError(f"{name} has no grant")
        return self._grants.pop(name)

    def check_integrity(self) -> None:
        """Raises LedgerError where more was granted than the line holds."""
        granted = sum(grant.total for grant in self._grants.values())
        if granted > self.line:
            raise LedgerError(f"{size_text(granted)} granted, over the line of {size_text(self.line)}")

    def _check_room(self, name: ModelName, size: int) -> None:
        if size > self.free:
            raise LedgerError(
                f"{name} was to have {size_text(size)} more, but {size_text(self.free)} of {size_text(self.line)} "
                "are free"
            )


class SleeperLedger:
    """The images in host memory that no grant on the device pays for; their sum never exceeds the capacity."""

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"no memory is {capacity} bytes")
        self.capacity = capacity
        self._images: dict[ModelName, int] = {}

    @property
    def images(self) -> Mapping[ModelName, int]:
        """Bytes by model; read-only."""
        return MappingProxyType(self._images)

    @property
    def used(self) -> int:
        """Of all images."""
        return sum(self._images.values())

    @property
    def free(self) -> int:
        """What further images may take."""
        return self.capacity - self.used

    def put(self, name: ModelName, size: int) -> None:
        """An image comes in. Raises LedgerError where it does not fit."""
        if name in self._images:
            raise LedgerError(f"{name} has an image here already")
        if not 0 <= size <= self.free:
            raise LedgerError(
                f"{name}'s image takes {size_text(size)}, but {size_text(self.free)} are free for sleepers"
            )
        self._images[name] = size

    def take(self, name: ModelName) -> int:
        """An image leaves; its bytes. Raises LedgerError where there is none."""
        if name not in self._images:
            raise LedgerError(f"{name} has no image here")
        return self._images.pop(name)

    def change(self, name: ModelName, size: int) -> None:
        """An image turned out to be of another size. Raises LedgerError where it does not fit."""
        before = self.take(name)
        try:
            self.put(name, size)
        except LedgerError:
            self._images[name] = before
            raise

    def check_integrity(self) -> None:
        """Raises LedgerError where images take more than there is."""
        if self.used > self.capacity:
            raise LedgerError(f"images take {size_text(self.used)} of {size_text(self.capacity)}")


class Memory:
    """Both ledgers, and the moves between them.

    `shared`: device and host memory are one (a CPU). Then an image belongs to its model's grant while that model is
    awake, and to the sleepers while it sleeps: it moves from one to the other, and no byte of it is copied. Where the
    device has memory of its own, an image is paid for by the sleepers for as long as there is one.
    """

    def __init__(self, device: DeviceLedger, sleepers: SleeperLedger, *, shared: bool) -> None:
        self.device = device
        self.sleepers = sleepers
        self.shared = shared

    def wake(self, name: ModelName, grant: Grant, image: int) -> bool:
        """Grant it memory (LedgerError, and nothing has changed, where it does not fit).

        Whether there is room for its image (bytes) too, which comes along if there is one. Where device and host
        memory are one there always is: the grant has it.
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
        """Take the grant back: its process is gone. Its image, if any, is to be kept or given up next."""
        self.device.release(name)

    def keep(self, name: ModelName, image: int) -> bool:
        """Whether the image of a model that sleeps now (bytes, 0: none) can stay. The caller gives it up where not."""
        if self.shared:
            if not 0 < image <= self.sleepers.free:
                return False
            self.sleepers.put(name, image)
            return True
        if image == 0 and name in self.sleepers.images:
            self.sleepers.take(name)
        return name in self.sleepers.images

    def check_integrity(self) -> None:
        """Raises LedgerError where a ledger is exceeded, or an image is paid for twice."""
        self.device.check_integrity()
        self.sleepers.check_integrity()
        if self.shared and (twice := self.device.grants.keys() & self.sleepers.images.keys()):
            raise LedgerError(f"paid for twice: {', '.join(map(str, sorted(twice)))}")
