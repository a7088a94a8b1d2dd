"""What the engine asks of whoever copies blocks to frames of host memory, and back."""

from __future__ import annotations

from typing import Protocol


class FrameCopies(Protocol):
    """Those of a device that may still copy when a step is over. It copies in the order of the steps."""

    @property
    def steps_over(self) -> int:
        """Of how many steps with spills or restores all copies are over, since the start. Never waits."""
