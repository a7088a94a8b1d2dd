"""What a system under measurement is: loaded once in a process of its own, then asked for rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from serving.models import Shape
from serving.workloads import Workload

KV_TOKENS = 65536
"""Room in every system's cache: all requests of a workload fit at once."""


class System(Protocol):
    """A loaded system."""

    def run(self, workload: Workload) -> dict[str, Any]:
        """Answer every request; `seconds`, and latencies in milliseconds where there are users."""

    def close(self) -> None:
        """End it and what it started."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A system that can take part.

    `load(shape, model, threads)` makes it; `prepare(shape)` finds or converts what it loads, in the project's own
    environment; `absent()` says why it cannot take part here, or None. `python()` is the interpreter it needs.
    """

    title: str
    load: Callable[[Shape, str, int], System]
    prepare: Callable[[Shape], str]
    absent: Callable[[], str | None]
    python: Callable[[], Path]


def ready() -> str | None:
    """What is part of the project is always there."""
    return None
