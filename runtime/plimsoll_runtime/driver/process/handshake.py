"""Messages on the control socket before an engine serves: orders, replies, the memory that a model needs and the grant
that it gets.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import MemoryLimitError, UsageError


class Needs(msgspec.Struct, frozen=True, kw_only=True, tag="needs"):
    """Bytes, from the model's headers and options alone.

    `image`: at least what the image of its weights takes, and some KiB more at most. `private`: weights that its engine
    has beside the image: none with our CPU kernels; what torch packs on a CPU; a GPU's copy, on the device.
    `workspace`: of the largest step, with sequences of `max_model_len` tokens, and what graphs of steps may take on a
    GPU. `block_bytes`: of one KV block, 0 where no layer attends.
    `kv_least`: a KV cache that holds one such sequence; `kv_most`: one that holds as many as may run.
    `overhead`: private memory of an engine process that has nothing loaded.
    """

    image: int
    private: int
    workspace: int
    block_bytes: int
    kv_least: int
    kv_most: int
    max_model_len: int
    overhead: int


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the device's memory. Raises UsageError when built with numbers that contradict each other.

    `weights`: on a CPU the image that the engine maps and what it holds beside it, on a GPU the device's copy.
    `workspace`: what the largest step takes, and on a GPU what graphs of steps may.
    `kv`: the KV cache when the engine starts.
    `kv_least`: what the cache may be shrunk to; the longest sequence is what so much holds. 0: it is not shrunk.
    `kv_most`: what the cache may be grown to; until then that is address space and no memory. 0: it is not grown.
    """

    weights: int
    workspace: int
    kv: int
    kv_least: int = 0
    kv_most: int = 0

    def __post_init__(self) -> None:
        if min(self.weights, self.workspace, self.kv, self.kv_least, self.kv_most) < 0:
            raise UsageError(f"a grant cannot be negative: {self}")
        if not self.least <= self.kv <= self.most:
            raise UsageError(f"a grant of {self.kv} bytes for the KV cache is not within {self.least} to {self.most}")

    @property
    def least(self) -> int:
        """Bytes that the KV cache always has."""
        return self.kv_least or self.kv

    @property
    def most(self) -> int:
        """Bytes that the KV cache may ever have."""
        return self.kv_most or self.kv

    def check_weights(self, needed: int) -> None:
        """Raises MemoryLimitError where weights need more than was granted."""
        _check("the weights need", needed, self.weights)

    def check_workspace(self, needed: int) -> None:
        """Raises MemoryLimitError where the largest step needs more than was granted."""
        _check("the largest step needs a workspace of", needed, self.workspace, "; or lower --max-batch-tokens")


def _check(what: str, needed: int, granted: int, advice: str = "") -> None:
    if needed > granted:
        raise MemoryLimitError(
            f"{what} {needed} bytes, and {granted} were granted; grant {needed - granted} more{advice}"
        )


BUILD = "plimsoll_runtime.driver.build.engine:build_engine"


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Where the sockets are, and what to build.

    Descriptors come along: of a page (see `heartbeat.Pulse`), and of an image where `has_image` says so.
    `factory` is "module:function"; the function makes an `EngineCore` of a config and a progress callback. It gets
    `image` and `grant` by these names where they are given.

    It is the last order on the control socket: a line of JSON, like all of them. A standby process may be asked before
    what models would take (`Measure`).
    """

    config: EngineConfig
    factory: str
    commands: str
    events: str
    parent: int
    log_level: int
    has_image: bool = False
    grant: Grant | None = None

    @property
    def descriptors(self) -> int:
        """How many come along."""
        return 1 + self.has_image


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Import what `Start.factory` will name, while the rest is not known yet; there is no reply."""

    descriptors: ClassVar[int] = 0
    factory: str


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Say what a model would take with so much KV cache for good (see `driver.estimate.measure`)."""

    descriptors: ClassVar[int] = 0
    config: EngineConfig
    kv: int | None


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """To a fork server alone: fork a process whose standard input is the socket that comes along."""

    descriptors: ClassVar[int] = 1


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """There is such a process, and its parent is the fork server's."""

    pid: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process has imported everything."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """What was asked for cannot be; `kind` is an errors.ErrorKind. `device_lost`: nor can it in another process."""

    kind: str
    message: str
    device_lost: bool = False


Order = Start | Prepare | Measure | Fork
Reply = Ready | Needs | Forked | Refused
