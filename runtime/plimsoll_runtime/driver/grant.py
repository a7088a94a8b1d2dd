"""What an engine may take of a device's memory where somebody divides it: that much, whatever happens to be free."""

from __future__ import annotations

import msgspec

from plimsoll_runtime.errors import MemoryLimitError, UsageError


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
