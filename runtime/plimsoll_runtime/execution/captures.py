"""Capturing before anybody is served: every graph that the limits allow, within bounds of time and memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from plimsoll_runtime.execution.capture import Capture
from plimsoll_runtime.execution.device.fault import fault_of

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
Told = Callable[[float], None]
"""Hears how far it is, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class CaptureBounds:
    """No capture begins once so many seconds have gone by, or graphs have taken so many bytes of the device."""

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A graph that there is to be: of so many `rows` of a kind ("decodes"). `add` raises what capturing raises."""

    kind: str
    rows: int
    add: Callable[[], None]


def in_order(wanted: Sequence[Wanted]) -> list[Wanted]:
    """The most rows first, so that the memory that graphs share is sized once; then from the fewest on.

    Where time runs out, graphs of many rows are missing: beside their work launches cost least.
    """
    rising = sorted(wanted, key=lambda each: each.rows)
    return [*rising[-1:], *rising[:-1]]


def capture_all(
    wanted: Sequence[Wanted],
    capture: Capture,
    bounds: CaptureBounds,
    told: Told = lambda fraction: None,
    clock: Clock = time.monotonic,
) -> None:
    """Capture what is wanted, in order; one line of the log says what was, and what was not.

    A kind whose capture fails costs one warning and is not tried again; where memory is short, none is.
    """
    began, before = clock(), capture.used
    missing: list[Wanted] = []
    failed: set[str] = set()
    reached = ""
    for number, each in enumerate(in_order(wanted)):
        reached = reached or _reached(bounds, clock() - began, capture.used - before)
        if reached or each.kind in failed:
            missing.append(each)
            continue
        try:
            each.add()
        except RuntimeError as error:
            if not fault_of(error).process_can_go_on:
                raise
            short = isinstance(error, torch.OutOfMemoryError)
            failed |= {other.kind for other in wanted} if short else {each.kind}
            missing.append(each)
            logger.warning(
                "no CUDA graph for %d %s (%s): sizes without one are launched kernel by kernel",
                each.rows,
                each.kind,
                error,
            )
        told((number + 1) / len(wanted))
    logger.info(
        "captured %d of %d graphs in %.1f s and %.0f MiB%s",
        len(wanted) - len(missing),
        len(wanted),
        clock() - began,
        (capture.used - before) / 2**20,
        _without(missing, reached),
    )


def _reached(bounds: CaptureBounds, seconds: float, nbytes: int) -> str:
    """The bound that is reached; empty where none is."""
    if seconds >= bounds.seconds:
        return f"the bound of {bounds.seconds:g} s (--graph-seconds)"
    return f"the bound of {bounds.nbytes / 2**20:.0f} MiB (--graph-memory)" if nbytes >= bounds.nbytes else ""


def _without(missing: Sequence[Wanted], reached: str) -> str:
    """What has no graph, in words."""
    if not missing:
        return ""
    kinds = dict.fromkeys(each.kind for each in missing)
    rows = {kind: sorted({each.rows for each in missing if each.kind == kind}) for kind in kinds}
    listed = "; ".join(f"{', '.join(map(str, rows[kind]))} {kind}" for kind in kinds)
    return f"{f'; {reached} is reached' if reached else ''}; launched kernel by kernel: {listed}"
