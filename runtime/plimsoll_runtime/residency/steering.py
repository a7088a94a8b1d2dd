"""What those who carry out a plan ask of whoever makes it."""

from __future__ import annotations

from typing import Protocol

from plimsoll_runtime.residency.model import Model


class Steering(Protocol):
    """All of it is level-triggered: to ask once more does no harm."""

    def advance(self, model: Model) -> None:
        """Bring a model on towards what operations want of it."""

    def kick(self) -> None:
        """Plan anew soon."""

    def replan(self) -> None:
        """Plan anew at once, and do as the plan says."""
