"""What there is to know of a machine's GPUs before a model is loaded, as it was read: see `read` and `findings`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a GPU; `sibling`: an engine of the same host, whose memory is planned there."""

    pid: int
    name: str
    nbytes: int
    sibling: bool = False


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the machine as its driver tells, whether this process may use it or not. `mig`: it is cut in slices."""

    uuid: str
    name: str
    mig: bool = False
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class UsedDevice:
    """The device that models run on, in CUDA's eyes; sizes in bytes, before this process has allocated anything.

    `context`: what CUDA itself takes for a process at most.
    """

    name: str
    uuid: str
    capability: tuple[int, int]
    total: int
    free: int
    context: int = 2**30

    @property
    def held(self) -> int:
        """Bytes that somebody else must hold; 0 where CUDA's own may be all."""
        taken = self.total - self.free
        return taken if taken > self.context else 0


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """`visible`: CUDA_VISIBLE_DEVICES, None where it is not set. `built_for`: the version of CUDA that torch is built
    for, None where it is built without.

    `driver_cuda`: the newest version of CUDA that the driver has, None without a driver. `used`: None where CUDA finds
    no device. `gpus`: all of the machine, None where nobody was asked, or could answer.
    """

    visible: str | None = None
    built_for: tuple[int, int] | None = None
    driver_cuda: tuple[int, int] | None = None
    used: UsedDevice | None = None
    gpus: tuple[Gpu, ...] | None = None
