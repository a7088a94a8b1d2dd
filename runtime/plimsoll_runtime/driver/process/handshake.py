"""Messages on the control socket before an engine serves: orders, replies, the memory that a model needs and its
grant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import ProcessFailed
from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_telemetry.logs import LogSettings


class Needs(msgspec.Struct, frozen=True, kw_only=True, tag="needs"):
    """The memory that a model needs, in bytes, from its headers and options.

    - `image`: its weight image; at least this, and at most some KiB more.
    - `private`: weights that the engine keeps in addition: none with Plimsoll's CPU kernels, torch's packed ones on a
      CPU, the device's copy on a GPU.
    - `workspace`: of the largest step, with sequences of `max_model_len` tokens, and on a GPU of CUDA graphs.
    - `block_bytes`: of one KV block; 0 without attention layers.
    - `kv_least`: the requested KV cache, or one for a single such sequence. `kv_most`: one for the maximum number of
      running ones.
    - `overhead`: private memory of an engine process without a model.
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
    """Device memory for one engine, in bytes. Raises UsageError if the numbers contradict each other.

    - `weights`: on a CPU the image and weights outside of it, on a GPU the device's copy.
    - `workspace`: of the largest step, and on a GPU of CUDA graphs.
    - `kv`: the KV cache when the engine starts.
    - `kv_least`: size to which the cache may shrink; it limits the longest sequence. 0: it does not shrink.
    - `kv_most`: size to which the cache may grow; address space is reserved for it. 0: it does not grow.
    """

    weights: int
    workspace: int
    kv: int
    kv_least: int = 0
    kv_most: int = 0

    def __post_init__(self) -> None:
        if min(self.weights, self.workspace, self.kv, self.kv_least, self.kv_most) < 0:
            raise UsageError(f"a grant must not be negative: {self}")
        if not self.least <= self.kv <= self.most:
            raise UsageError(f"the granted KV cache of {self.kv} bytes is not within {self.least} to {self.most}")

    @property
    def least(self) -> int:
        """Smallest size of the KV cache."""
        return self.kv_least or self.kv

    @property
    def most(self) -> int:
        """Largest size of the KV cache."""
        return self.kv_most or self.kv

    def check_weights(self, needed: int) -> None:
        """Raise MemoryLimitError if the weights need more than the grant."""
        _check("the weights need", needed, self.weights)

    def check_workspace(self, needed: int) -> None:
        """Raise MemoryLimitError if the largest step needs more than the grant."""
        _check("the largest step needs a workspace of", needed, self.workspace, "; or lower --max-batch-tokens")


def _check(what: str, needed: int, granted: int, advice: str = "") -> None:
    if needed > granted:
        raise MemoryLimitError(
            f"{what} {needed} bytes, but {granted} were granted; grant {needed - granted} more{advice}"
        )


BUILD = "plimsoll_runtime.driver.build.engine:build_engine"


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Starts an engine: addresses of its sockets, and what to build.

    It comes with a descriptor of a heartbeat page (see `heartbeat.Pulse`) and, with `has_image`, one of an image.
    `factory` is "module:function"; the function returns an `EngineCore` from a config and a progress callback, and gets
    `image` and `grant` as keywords if they are given.

    It is the last order on the control socket, and a line of JSON like all of them. Before it, a standby process may
    get `Measure` orders.
    """

    config: EngineConfig
    factory: str
    commands: str
    events: str
    parent: int
    log: LogSettings
    has_image: bool = False
    grant: Grant | None = None

    @property
    def descriptors(self) -> int:
        """Number of descriptors sent with the order."""
        return 1 + self.has_image


class StartRank(msgspec.Struct, frozen=True, tag="start-rank"):
    """Starts rank `rank` of the `size` ranks of a parallel group.

    The ranks join the group at `meeting` (see `parallel.collectives`). The order comes with descriptors of a heartbeat
    page, of two channels to the engine process: for steps (`parallel.channel`), and for constraints, which only rank 0
    uses (`parallel.remote_grammars`), of a segment of shared memory for the exchange of the CPU kernels, and of an
    image for its weights, which may be filled. Like `Start`, it is the last one.

    `place`: its number among the `neighbours`, which are the ranks on this machine. `address`: this machine's own
    address for the exchange. `member`: index of this machine in a group of several. `num_blocks`, `failed_backends`:
    see `parallel.rank`. `instructions`: see `group_messages.StartGeneration`.
    """

    descriptors: ClassVar[int] = 5
    config: EngineConfig
    rank: int
    size: int
    place: int
    neighbours: int
    meeting: str
    address: str
    parent: int
    log: LogSettings
    member: int | None = None
    num_blocks: int | None = None
    failed_backends: Sequence[str] = ()
    instructions: str | None = None


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Imports the module of `Start.factory` in advance; there is no reply."""

    descriptors: ClassVar[int] = 0
    factory: str


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Requests the memory needs of a model with a fixed KV cache of `kv` bytes (see `driver.estimate.measure`)."""

    descriptors: ClassVar[int] = 0
    config: EngineConfig
    kv: int | None


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Keeps the members of a parallel group until the process ends; there is no reply."""

    descriptors: ClassVar[int] = 0


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Tells a fork server to fork a process, with the socket in the descriptor as its standard input."""

    descriptors: ClassVar[int] = 1


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """A process was forked; its parent is that of the fork server."""

    pid: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process has imported everything."""


Order = Start | StartRank | Prepare | Measure | Drain | Fork
Reply = Ready | Needs | Forked | ProcessFailed
"""ProcessFailed: an order failed; with `device_lost` it would fail in any other process too."""
