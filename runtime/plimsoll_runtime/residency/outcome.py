"""What came of an operation, for who asked for it."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.residency.report import ModelReport


@dataclass(frozen=True, slots=True)
class Outcome:
    """An operation as it stands. `model` is None once it has been forgotten; `error` is why it ended in vain."""

    operation: str
    done: bool
    model: ModelReport | None
    error: PlimsollError | None = None
