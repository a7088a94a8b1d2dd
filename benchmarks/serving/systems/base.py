"""The interface of a system: loaded once in a separate process, then asked for rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from serving.models import Shape
from serving.workloads import Workload

KV_TOKENS = 65536
"""Size of every system's cache: all requests of a workload fit at once."""


class System(Protocol):
    """A loaded system."""

    def run(self, workload: Workload) -> dict[str, Any]:
        """Run every request; return `seconds`, and latencies in milliseconds if there are users."""

    def close(self) -> None:
        """End it and all processes that it has started."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A system that can take part. `load(shape, model, threads)` creates it; `prepare(shape)` finds or converts its
    model in the project's own environment; `absent()` returns why it cannot take part, or None. `python()` is its
    interpreter.
    """

    title: str
    load: Callable[[Shape, str, int], System]
    prepare: Callable[[Shape], str]
    absent: Callable[[], str | None]
    python: Callable[[], Path]


def ready() -> str | None:
    """Return None: parts of the project are always available."""
    return None
