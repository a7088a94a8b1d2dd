"""How far a load is, told while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from plimsoll_runtime.transfer import Transfer

Progress = Callable[[str, float], None]
"""Called with a stage's name and how far it is, from 0 to 1."""


class TransferProgress(Protocol):
    """A Progress that takes the bytes of a download as well."""

    def __call__(self, stage: str, fraction: float, transfer: Transfer | None = None) -> None:
        """A stage, how far it is from 0 to 1, and the bytes if it is a download."""


def silent(stage: str, fraction: float, transfer: Transfer | None = None) -> None:
    """For whoever shows no progress."""
