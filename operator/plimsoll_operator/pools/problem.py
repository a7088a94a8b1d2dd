"""Why a model cannot be placed, whatever room there is."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_operator.reasons import Reason


@dataclass(frozen=True, slots=True)
class Problem:
    """A condition's reason, and what to do. `keeps`: what hosts have of the model already may stay there."""

    reason: Reason
    message: str
    keeps: bool = True
