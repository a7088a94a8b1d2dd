"""The ledgers of memory: the device memory granted to each model, and the host memory of sleeping models' images.

Memory is granted before it is taken, by a single writer, and released when its process has ended. All sizes are in
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Generic, TypeVar

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


Entry = TypeVar("Entry", Grant, int)


class Ledger(Generic[Entry]):
    """Memory by model. When an entry is made, all entries and the reserved memory never exceed the limit together."""

    def __init__(self, limit: int, what: str) -> None:
        if limit < 0:
            raise ValueError(f"the limit must not be negative: {limit} bytes")
        self._limit = limit
        self._what = what
        self._reserved = 0
        self._entries: dict[ModelName, Entry] = {}

    @property
    def entries(self) -> Mapping[ModelName, Entry]:
        """The entries by model; read-only."""
        return MappingProxyType(self._entries)

    @property
    def used(self) -> int:
        """Bytes of all entries and of the reserved memory."""
        return self._reserved + sum(map(_size, self._entries.values()))

    @property
    def free(self) -> int:
        """Bytes left for entries; negative if the reserved memory has grown over the limit."""
        return self._limit - self.used

    def put(self, name: ModelName, entry: Entry) -> None:
        """Add an entry for a model without one. Raises LedgerError, with the numbers, if it does not fit."""
        if name in self._entries:
            raise LedgerError(f"{name} has {self._what} already")
        self._check_room(name, _size(entry))
        self._entries[name] = entry

    def change(self, name: ModelName, entry: Entry) -> None:
        """Replace a model's entry. Raises LedgerError if a larger one does not fit."""
        size = _size(entry)
        more = size - _size(self._entry(name))
        if more > 0 or size < 0:
            self._check_room(name, more)
        self._entries[name] = entry

    def take(self, name: ModelName) -> Entry:
        """Remove and return a model's entry. Raises LedgerError if it has none."""
        entry = self._entry(name)
        del self._entries[name]
        return entry

    def check_integrity(self) -> None:
        """Raise LedgerError if the entries exceed the limit."""
        total = self.used - self._reserved
        if total > self._limit:
            raise LedgerError(f"entries of {size_text(total)} exceed the limit of {size_text(self._limit)}")

    def _entry(self, name: ModelName) -> Entry:
        if name not in self._entries:
            raise LedgerError(f"{name} does not have {self._what}")
        return self._entries[name]

    def _check_room(self, name: ModelName, size: int) -> None:
        if not 0 <= size <= self.free:
            raise LedgerError(
                f"cannot give {name} {size_text(size)} more: {size_text(self.free)} of {size_text(self._limit)} "
                "are free"
            )


def _size(entry: Grant | int) -> int:
    return entry if isinstance(entry, int) else entry.total


class DeviceLedger(Ledger[Grant]):
    """The grants on a device, within the line.

    `reserved` is the runtime's own memory. It is measured, so it may grow beyond what is left; then `free` is negative
    and nothing is granted until memory is released.
    """

    def __init__(self, capacity: int, line: int) -> None:
        if line > capacity:
            raise ValueError(f"the line ({line}) must not exceed the capacity ({capacity})")
        super().__init__(line, "a grant")
        self.capacity = capacity
        self.line = line

    @property
    def reserved(self) -> int:
        """The runtime's own memory."""
        return self._reserved

    def reserve(self, size: int) -> None:
        """Set the measured memory of the runtime itself."""
        if size < 0:
            raise LedgerError(f"reserved memory must not be negative: {size} bytes")
        self._reserved = size


class SleeperLedger(Ledger[int]):
    """The bytes of images in host memory that are not part of a device grant."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, "an image")
        self.capacity = capacity


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

        Return whether an image of `image` bytes has room too; then it is recorded. If device and host memory are the
        same, it always has: it is part of the grant.
        """
        self.device.put(name, grant)
        if self.shared:
            if name in self.sleepers.entries:
                self.sleepers.take(name)
            return True
        if name in self.sleepers.entries:
            return True
        if image > self.sleepers.free:
            return False
        self.sleepers.put(name, image)
        return True

    def release(self, name: ModelName) -> None:
        """Remove a model's grant after its process has ended. The caller keeps or frees its image next."""
        self.device.take(name)

    def keep(self, name: ModelName, image: int) -> bool:
        """Record the image of a sleeping model (bytes, 0: none), and return whether it can stay. If not, the caller
        frees it.
        """
        if self.shared:
            if not 0 < image <= self.sleepers.free:
                return False
            self.sleepers.put(name, image)
            return True
        if image == 0 and name in self.sleepers.entries:
            self.sleepers.take(name)
        return name in self.sleepers.entries

    def check_integrity(self) -> None:
        """Raise LedgerError if a ledger is exceeded, or an image is in both."""
        self.device.check_integrity()
        self.sleepers.check_integrity()
        if self.shared and (twice := self.device.entries.keys() & self.sleepers.entries.keys()):
            raise LedgerError(f"images in both ledgers: {', '.join(map(str, sorted(twice)))}")
